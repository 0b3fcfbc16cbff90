//! ServiceAccount: every namespace that lives has the account `default`.
//! Reads: Namespace, ServiceAccount. Writes: ServiceAccount (create).
//! Upstream counterpart: pkg/controller/serviceaccount/serviceaccounts_controller.go.

use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::{
    api::core::v1::{Namespace, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::namespace::is_active;

pub struct ServiceAccounts;

const NAME: &str = "default";
/// Only these accounts are watched and kept.
const FIELDS: &str = "metadata.name=default";

impl Controller for ServiceAccounts {
    const NAME: &'static str = "serviceaccount-controller";
    type Object = Namespace;
    /// Whether the account is there.
    type Observed = bool;

    fn watches(&self, watches: &mut Watches<Namespace>) {
        let ours = watches.caches().selected::<ServiceAccount>(FIELDS);
        watches.changed_in(ours, |change, _| {
            let gone = change.new.is_none();
            gone.then(|| Key::new("", &change.key.namespace)).into_iter().collect()
        });
    }

    fn observe(&self, namespace: &Namespace, listers: &Listers) -> bool {
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        listers.caches.selected::<ServiceAccount>(FIELDS).get(&Key::new(name, NAME)).is_some()
    }

    fn plan(&self, namespace: &Namespace, exists: &bool, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if is_active(namespace) && !exists {
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: namespace.metadata.name.clone(),
                ..Default::default()
            };
            let account = ServiceAccount { metadata, ..Default::default() };
            plan.step(Write::create(&account).tolerate(&["AlreadyExists"]));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_living_namespaces_without_one_get_an_account() {
        let plan = |phase: &str, exists: bool| {
            let namespace = json::from_value(json::json!({
                "metadata": {"name": "a"}, "status": {"phase": phase}
            }));
            ServiceAccounts.plan(&namespace.unwrap(), &exists, Timestamp::UNIX_EPOCH).to_string()
        };
        assert_eq!(plan("Active", false), "create serviceaccounts default");
        assert_eq!(plan("Active", true), "");
        assert_eq!(plan("Terminating", false), "");
    }
}
