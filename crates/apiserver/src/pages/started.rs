//! The steps of a server's start, under the names that upstream has for its hooks. Each has a check, which fails until it is done.
//! Hooks of upstream's that have no counterpart here have no check: whoever excludes them is told that there is nothing to exclude.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::RwLock;

use super::health::{Checks, Counts};

/// The steps, in the order in which they are shown.
const HOOKS: &[&str] = &[
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "priority-and-fairness-config-consumer",
    "priority-and-fairness-filter",
    LIMITS,
    "storage-object-count-tracker-hook",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
    "start-system-namespaces-controller",
    "start-cluster-authentication-info-controller",
    "start-kube-apiserver-identity-lease-controller",
    "start-kube-apiserver-identity-lease-garbage-collector",
    "start-legacy-token-tracking-controller",
    "start-service-ip-repair-controllers",
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-discovery-controller",
    "kube-apiserver-autoregistration",
    COMPLETION,
    "apiservice-openapi-controller",
    "apiservice-openapiv3-controller",
];

/// The steps of other components of the process, which have checks of their own where they are at work.
const ELSEWHERE: &[&str] =
    &["start-kube-apiserver-identity-lease-controller", "start-kube-apiserver-identity-lease-garbage-collector"];

/// The one step that is no hook upstream: all APIServices of the server's own are there.
const COMPLETION: &str = "autoregister-completion";

/// The step of a server whose requests are bounded without priority and fairness.
const LIMITS: &str = "max-in-flight-filter";

/// The objects that every cluster has are there.
pub const BOOTSTRAPPED: &[&str] = &[
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "bootstrap-controller",
    "start-system-namespaces-controller",
    "start-cluster-authentication-info-controller",
    "start-legacy-token-tracking-controller",
    "priority-and-fairness-config-producer",
    "start-kubernetes-service-cidr-controller",
];
/// The objects of the store are known, and their numbers with them.
pub const INFORMED: &[&str] = &["generic-apiserver-start-informers", "storage-object-count-tracker-hook"];
pub const ADMITS: &[&str] = &["start-apiserver-admission-initializer"];
pub const ALLOCATES: &[&str] = &["start-service-ip-repair-controllers"];
pub const SHARES: &[&str] = &["priority-and-fairness-config-consumer", "priority-and-fairness-filter"];
/// Requests are bounded by their sort alone.
pub const BOUNDS: &[&str] = &[LIMITS];
pub const CUSTOM: &[&str] =
    &["start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced"];
/// The aggregator follows the APIServices.
pub const AGGREGATES: &[&str] = &[
    "aggregator-reload-proxy-client-cert",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-discovery-controller",
    "kube-apiserver-autoregistration",
    COMPLETION,
    "apiservice-openapi-controller",
    "apiservice-openapiv3-controller",
];

/// The steps that are done.
#[derive(Clone, Default)]
pub struct Started(Arc<RwLock<BTreeSet<&'static str>>>);

impl Started {
    pub fn done(&self, steps: &[&'static str]) {
        self.0.write().extend(steps);
    }

    /// A check for each step. Those of priority and fairness, and that of the bounds in its place, are there only where these are.
    /// The checks of others stand behind them, or in their place among them.
    pub fn checks(&self, shares: bool, mut others: Checks) -> Checks {
        let hooks = HOOKS.iter().filter(|name| match shares {
            true => !BOUNDS.contains(name),
            false => !SHARES.contains(name),
        });
        let mut checks = hooks.fold(Checks::default(), |mut checks, name| {
            if ELSEWHERE.contains(name) {
                checks.extend(others.split_off(&format!("poststarthook/{name}")));
                return checks;
            }
            let started = self.clone();
            let done = move || if started.0.read().contains(name) { Ok(()) } else { Err("not finished".to_owned()) };
            let hook = if *name == COMPLETION { "" } else { "poststarthook/" };
            checks.with(&format!("{hook}{name}"), Counts::Everywhere, done)
        });
        checks.extend(others);
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_step_is_told_once_it_is_done() {
        let started = Started::default();
        let checks = started.checks(true, Checks::default());
        let failing = async || checks.results().await.into_iter().filter(|(_, found)| found.is_err()).count();
        assert_eq!(failing().await, HOOKS.len() - BOUNDS.len() - ELSEWHERE.len());
        let all = [BOOTSTRAPPED, INFORMED, ADMITS, ALLOCATES, SHARES, BOUNDS, CUSTOM, AGGREGATES];
        all.iter().for_each(|steps| started.done(steps));
        assert_eq!(failing().await, 0);
        assert_eq!(all.concat().len(), HOOKS.len() - ELSEWHERE.len(), "no step is named twice");
        assert_eq!(
            started.checks(false, Checks::default()).results().await.len(),
            HOOKS.len() - SHARES.len() - ELSEWHERE.len()
        );
    }
}
