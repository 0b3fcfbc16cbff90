//! The volumes that Pods have now, as their drivers were asked for them. The records that outlive the kubelet are on
//! disk instead.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::csi::{record::Record, volume::Volume};

pub struct Held {
    pub pod: ObjectReference,
    pub volume: Volume,
    pub record: Record,
    pub target: PathBuf,
    /// Where it is staged, if its driver stages.
    pub staged: Option<PathBuf>,
}
