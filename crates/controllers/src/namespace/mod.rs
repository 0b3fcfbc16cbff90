//! Namespace: empties a namespace that is being deleted, then lets it go: Pods first, since they use the rest.
//! Reads: Namespace, discovery, the content of terminating namespaces. Writes: deletions of content, Namespace/status,
//! Namespace/finalize.
//! Upstream counterpart: pkg/controller/namespace.

mod conditions;
mod content;

use std::{collections::HashSet, time::Duration};

use client::{Api, Change, Client, Key};
use clock::Timestamp;
use conditions::set_conditions;
use content::{Observed, is_pods};
use controller::{Controller, Failure, Listers, Plan, Step, Watches, Write};
use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;

use crate::discovery::{Offered, discover};

/// The finalizer in `spec.finalizers` that this controller takes off.
const FINALIZER: &str = "kubernetes";

/// Whether objects may be made in the namespace.
pub fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

fn is_to_be_emptied(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.as_deref()).unwrap_or_default();
    namespace.metadata.deletion_timestamp.is_some() && finalizers.iter().any(|f| f == FINALIZER)
}

#[derive(Default)]
pub struct Namespaces {
    /// The namespaces whose Pods were told to go.
    begun: Mutex<HashSet<Key>>,
}

impl Namespaces {
    /// Pods that end still use the rest. Pods that somebody goes on creating do not hold it up.
    fn waits_for_pods(&self, namespace: &Namespace, observed: &Observed) -> bool {
        let mut pods = observed.content.iter().flat_map(|content| &content.objects).peekable();
        pods.peek().is_some()
            && (self.begun.lock().insert(Key::of(namespace))
                || !observed.errors.is_empty()
                || pods.any(|pod| pod.deletion_timestamp.is_some()))
    }
}

impl Controller for Namespaces {
    const NAME: &'static str = "namespace-controller";
    const CONCURRENCY: usize = 10;
    const LONGEST_DELAY: Duration = Duration::from_secs(60);
    type Object = Namespace;
    type Observed = Observed;

    fn concerns(change: &Change<Namespace>) -> bool {
        change.new.as_ref().is_none_or(|namespace| is_to_be_emptied(namespace))
    }

    fn watches(&self, _: &mut Watches<Namespace>) {}

    fn observe(&self, _: &Namespace, listers: &Listers) -> Observed {
        let is_deletion = |failure: &&Failure| matches!(failure.verb, "delete" | "deletecollection");
        let failure = listers.failure.filter(is_deletion).map(|f| format!("{}: {}", f.plural, f.message));
        Observed { errors: failure.into_iter().collect(), ..Observed::default() }
    }

    async fn ask(&self, namespace: &Namespace, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        if !is_to_be_emptied(namespace) {
            return Ok(());
        }
        let name = namespace.metadata.name.as_deref().unwrap_or("");
        let api: Api<Namespace> = Api::all(client.clone());
        observed.namespace = api.find(name).await?.filter(is_to_be_emptied);
        if observed.namespace.is_none() {
            return Ok(());
        }
        let (offered, undiscovered) = discover(client).await?;
        observed.undiscovered = undiscovered;
        let deletable =
            |kind: &Offered| kind.can(&["list"]) && (kind.can(&["deletecollection"]) || kind.can(&["delete"]));
        let (pods, others): (Vec<Offered>, Vec<Offered>) =
            offered.into_iter().filter(|kind| kind.namespaced && deletable(kind)).partition(is_pods);
        let mut listed = true;
        for kind in pods {
            listed &= observed.list(client, name, kind).await;
        }
        if listed && !self.waits_for_pods(namespace, observed) {
            for kind in others {
                observed.list(client, name, kind).await;
            }
        }
        Ok(())
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.begun.lock().remove(key);
        Plan::default()
    }

    fn plan(&self, _: &Namespace, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(namespace) = &observed.namespace else { return plan };
        let deletions: Vec<Write> = observed.content.iter().flat_map(|content| content.deletions(namespace)).collect();
        if !deletions.is_empty() && observed.errors.is_empty() {
            // Most objects are gone at once: what remains is told after another look.
            plan.steps.push(Step::All(deletions));
            plan.retry();
            return plan;
        }
        let mut new = namespace.clone();
        if set_conditions(new.status.get_or_insert_default(), observed, now) {
            plan.step(Write::update_part(&new, "status"));
        }
        if observed.is_nothing() {
            plan.step(finalize(namespace));
            return plan;
        }
        if !deletions.is_empty() {
            plan.steps.push(Step::All(deletions));
        }
        // Pods end by themselves soon; anything else waits for somebody's finalizer.
        let only_pods = observed.errors.is_empty() && observed.content.iter().all(|content| is_pods(&content.kind));
        plan.again_after(Duration::from_secs(if only_pods { 1 } else { 5 }));
        plan
    }
}

/// Takes the finalizer off, in whatever revision the namespace is: its conditions were written a moment ago.
fn finalize(namespace: &Namespace) -> Write {
    let mut namespace = namespace.clone();
    namespace.metadata.resource_version = None;
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
        finalizers.retain(|f| f != FINALIZER);
    }
    Write::update_part(&namespace, "finalize").tolerate(&["NotFound"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{Content, tests::content};
    use json::json;

    /// A namespace whose conditions say already that it is empty.
    fn emptied() -> Namespace {
        let mut namespace: Namespace = json::from_value(json!({
            "metadata": {"name": "a", "resourceVersion": "5", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"finalizers": ["kubernetes"]},
        }))
        .unwrap();
        set_conditions(namespace.status.get_or_insert_default(), &Observed::default(), Timestamp::UNIX_EPOCH);
        namespace
    }

    #[test]
    fn content_is_deleted_then_watched_and_then_the_namespace_goes() {
        let check = |content: Vec<Content>, errors: &[&str], expected: &str, again: Option<u64>, retry: bool| {
            let errors = errors.iter().map(|e| (*e).to_owned()).collect();
            let observed = Observed { namespace: Some(emptied()), undiscovered: Default::default(), errors, content };
            let plan = Namespaces::default().plan(&emptied(), &observed, Timestamp::UNIX_EPOCH);
            let again = again.map(Duration::from_secs);
            assert_eq!((plan.to_string().as_str(), plan.requeue_after, plan.retry), (expected, again, retry));
        };
        let (pods, maps) = (|text| content("pods", text), |text| content("configmaps", text));
        check(vec![pods("p q:deleting")], &[], "deletecollection pods ", None, true);
        check(vec![pods("p:deleting")], &[], "update namespaces/status a", Some(1), false);
        check(vec![maps("m:deleting:held")], &[], "update namespaces/status a", Some(5), false);
        let both = "update namespaces/status a, deletecollection configmaps ";
        check(vec![maps("m")], &["configmaps: no"], both, Some(5), false);
        check(Vec::new(), &["secrets.: no"], "update namespaces/status a", Some(5), false);
        check(Vec::new(), &[], "update namespaces/finalize a", None, false);
    }

    #[test]
    fn only_the_own_finalizer_is_taken_off_at_any_revision() {
        let mut namespace = emptied();
        namespace.spec.get_or_insert_default().finalizers = Some(vec!["kubernetes".into(), "example.com/x".into()]);
        let body = finalize(&namespace).body().clone();
        assert_eq!(body["spec"]["finalizers"], json!(["example.com/x"]));
        assert!(body["metadata"].get("resourceVersion").is_none());
    }
}
