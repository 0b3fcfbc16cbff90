//! How often the scheduler tried to make a claim for extended resources. The code that makes them stands below the code
//! that counts all else.
//! Upstream counterpart: pkg/scheduler/metrics (resourceclaim_creates_total).

use std::fmt;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Made {
    status: &'static str,
}

/// The counts; its copies count together.
#[derive(Clone, Default)]
pub struct ClaimsMade(Family<Made, Counter>);

impl fmt::Debug for ClaimsMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimsMade")
    }
}

impl ClaimsMade {
    pub(crate) fn count(&self, worked: bool) {
        self.0.get_or_create(&Made { status: if worked { "success" } else { "failure" } }).inc();
    }

    pub(crate) fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        registry.register("resourceclaim_creates", "Claims that were made for extended resources", self.0.clone());
    }
}
