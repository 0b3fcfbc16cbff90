//! ReplicationController: the older form of ReplicaSet, kept by the controller of `replicaset.rs`.
//! Reads and writes what that one does, of ReplicationControllers.
//! Upstream counterpart: pkg/controller/replication.

use api::rules::selector::{Labels, Selector};
use k8s_openapi::api::{
    apps::v1::{ReplicaSetCondition, ReplicaSetStatus},
    core::v1::{PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus},
};

use crate::workloads::replicaset::{ReplicaOwner, Replicas};

pub type ReplicationControllers = Replicas<ReplicationController>;

impl ReplicaOwner for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller-controller";

    /// A plain map of labels.
    fn selector(&self) -> Option<Selector> {
        self.spec.as_ref()?.selector.as_ref().map(Selector::of_labels)
    }

    fn takes(&self, labels: &impl Labels) -> bool {
        let wanted = self.spec.iter().flat_map(|spec| spec.selector.iter().flatten());
        let (same, other): (Vec<_>, Vec<_>) = wanted.partition(|(key, value)| labels.get(key) == Some(value.as_str()));
        other.is_empty() && !same.is_empty()
    }

    fn replicas(&self) -> Option<i32> {
        self.spec.as_ref()?.replicas
    }

    fn min_ready_seconds(&self) -> Option<i32> {
        self.spec.as_ref()?.min_ready_seconds
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn conditions(&self) -> Vec<ReplicaSetCondition> {
        let conditions = self.status.iter().flat_map(|s| s.conditions.iter().flatten()).cloned();
        let as_set = |c: ReplicationControllerCondition| ReplicaSetCondition {
            type_: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        conditions.map(as_set).collect()
    }

    /// Terminating Pods are not counted in this kind.
    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        let as_controller = |c: ReplicaSetCondition| ReplicationControllerCondition {
            type_: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|list| list.into_iter().map(as_controller).collect()),
        };
        ReplicationController { status: Some(status), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clock::Timestamp;
    use controller::{Controller, Failure, Plan};
    use json::{Value, json};

    use crate::workloads::replicaset::tests::{observed, pods};

    fn owner(replicas: i32, status: Value) -> ReplicationController {
        json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d", "uid": "rs", "generation": 2},
            "spec": {"replicas": replicas, "selector": {"app": "web"},
                     "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
            "status": status,
        }))
        .unwrap()
    }

    fn plan(owner: &ReplicationController, text: &str, failure: Option<Failure>) -> Plan {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        ReplicationControllers::default().plan(owner, &observed(pods(text), failure), now)
    }

    #[test]
    fn keeps_the_number_and_names_itself_as_owner() {
        let plan = plan(&owner(2, Value::Null), "a:ready b:done c:orphan:relabelled d:relabelled", None);
        let steps: Vec<String> = plan.writes().map(ToString::to_string).collect();
        assert_eq!(steps, ["patch pods d", "create pods ", "update replicationcontrollers/status web"]);
        let created = plan.writes().nth(1).unwrap().body();
        assert_eq!(created["metadata"]["generateName"], "web-");
        let reference = json!([{"apiVersion": "v1", "kind": "ReplicationController", "name": "web", "uid": "rs",
            "controller": true, "blockOwnerDeletion": true}]);
        assert_eq!(created["metadata"]["ownerReferences"], reference);
    }

    #[test]
    fn a_selector_that_is_empty_takes_nothing() {
        let mut owner = owner(0, Value::Null);
        owner.spec.as_mut().unwrap().selector = Some([].into());
        let plan = plan(&owner, "a:orphan:ready", None);
        assert!(plan.steps.is_empty(), "{plan}");
    }

    #[test]
    fn tells_failures_and_forgets_them() {
        let failure = || Failure {
            verb: "create",
            plural: "pods".into(),
            code: 403,
            reason: "Forbidden".into(),
            message: "exceeded quota".into(),
        };
        let refused = plan(&owner(1, Value::Null), "", Some(failure()));
        let status = refused.status.unwrap().body()["status"].clone();
        let expected = json!({"replicas": 0, "observedGeneration": 2, "conditions": [{"type": "ReplicaFailure",
            "status": "True", "reason": "FailedCreate", "message": "exceeded quota",
            "lastTransitionTime": "2026-01-01T01:00:00Z"}]});
        assert_eq!(status, expected);
        assert!(plan(&owner(1, status.clone()), "", Some(failure())).status.is_none(), "told once");
        let mended = plan(&owner(1, status), "a:ready", None).status.unwrap().body()["status"].clone();
        assert_eq!(
            mended,
            json!({"replicas": 1, "fullyLabeledReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
            "observedGeneration": 2})
        );
    }
}
