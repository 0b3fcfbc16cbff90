//! Lease: who is alive, or who leads.

use k8s_openapi::api::coordination::v1::Lease;

use crate::kind::cell;
use crate::kind::{Kind, age, col, name};
use crate::validation::field::{Errors, FieldError, Path};

pub const LEASE: Kind<Lease> = Kind {
    unconditional_update: false,
    create_on_update: true,
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
    errors
}
