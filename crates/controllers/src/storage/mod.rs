//! Volumes and claims. The work of a node with a volume is the kubelet's.

pub mod attach_detach;
pub mod attributes_class_protection;
pub mod binder;
pub mod claim_protection;
pub mod ephemeral;
pub mod expansion;
mod figures;
pub mod local;
pub mod selinux_warning;
pub mod volume_protection;

/// The metrics of volumes and claims, as lines of a page.
pub fn metrics() -> String {
    figures::render() + &binder::metrics() + &attach_detach::figures::render() + &selinux_warning::figures::render()
}

use client::Kind;
use controller::{Plan, Write};

fn is_protected<K: Kind>(object: &K, finalizer: &str) -> bool {
    object.metadata().finalizers.iter().flatten().any(|f| f == finalizer)
}

/// Being deleted, and held up by the finalizer.
fn is_leaving<K: Kind>(object: &K, finalizer: &str) -> bool {
    is_protected(object, finalizer) && object.metadata().deletion_timestamp.is_some()
}

/// Keeps the finalizer on an object that lives, and takes it off one that is deleted and no longer used.
pub(crate) fn protect<K: Kind>(object: &K, finalizer: &str, used: bool) -> Plan {
    let mut plan = Plan::default();
    let mut changed = object.clone();
    let finalizers = changed.metadata_mut().finalizers.get_or_insert_default();
    match (object.metadata().deletion_timestamp.is_some(), is_protected(object, finalizer)) {
        (false, false) => finalizers.push(finalizer.to_owned()),
        (true, true) if !used => finalizers.retain(|f| f != finalizer),
        _ => return plan,
    }
    plan.step(Write::update(&changed));
    plan
}
