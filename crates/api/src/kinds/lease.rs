//! Lease: who is alive, or who leads.

use k8s_openapi::api::coordination::v1::Lease;

use crate::features::Feature;
use crate::kind::cell;
use crate::kind::{Gated, Kind, age, col, name};
use crate::kinds::lease_candidate;
use crate::validation::field::{Errors, FieldError, Path};

pub const LEASE: Kind<Lease> = Kind {
    unconditional_update: false,
    create_on_update: true,
    gated: &[Gated { feature: Feature::CoordinatedLeaderElection, fields: &["spec.strategy", "spec.preferredHolder"] }],
    validate: Some(validate),
    columns: &[
        name(),
        col("Holder", "Who holds it.", |l, _| cell::text(l.spec.as_ref().and_then(|s| s.holder_identity.as_ref()))),
        age(),
    ],
    ..Kind::BASE
};

fn validate(lease: &Lease) -> Errors {
    let path = Path::new("spec");
    let mut errors = Errors::new();
    let Some(spec) = &lease.spec else { return errors };
    if let Some(seconds) = spec.lease_duration_seconds.filter(|s| *s <= 0) {
        errors.push(FieldError::invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
    }
    if let Some(times) = spec.lease_transitions.filter(|t| *t < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("leaseTransitions"), times, detail));
    }
    let strategy = spec.strategy.as_deref();
    if let Some(strategy) = strategy {
        errors.extend(lease_candidate::strategy(strategy, &path.child("strategy")));
    }
    let preferred = spec.preferred_holder.as_deref().unwrap_or_default();
    if !preferred.is_empty() && strategy.unwrap_or_default().is_empty() {
        let detail = "may only be specified if `strategy` is defined";
        errors.push(FieldError::forbidden(&path.child("preferredHolder"), detail));
    }
    errors
}
