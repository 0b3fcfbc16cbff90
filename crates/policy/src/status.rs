//! The status of administrators' policies: whether nodes enforce each as it is written, and why not. Upstream leaves the names of
//! conditions to implementations.
//!
//! It follows from a policy alone, so the control plane tells it, once for all nodes.
//! Reads: AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy, their CustomResourceDefinitions. Writes: their status.

use std::{sync::Arc, time::Duration};

use client::{
    Cache, Client, Error,
    rest::{self, Verb},
};
use json::{Value, json};
use k8s_openapi::Metadata;
use tokio::task::JoinSet;

use crate::{
    admin::{self, custom::Custom, served},
    kind::PolicyKind,
};

/// The owner of this part of a status.
const MANAGER: &str = "kube-network-policies";

const CONDITION: &str = "Accepted";

/// The longest message of a condition here; the API takes longer ones.
const MESSAGE_MAX: usize = 1024;

/// How often all policies are looked at, for those whose status could not be written.
const LOOK: Duration = Duration::from_secs(60);

/// Tells the status of all policies until cancelled. Nodes learn addresses of domains where their cluster DNS is skiff's.
pub async fn run(client: Client, learns_names: bool) {
    let mut tasks = JoinSet::new();
    for kind in PolicyKind::OF_ADMINISTRATORS {
        let cache = Arc::<Cache<Custom>>::default();
        tasks.spawn(served::follow(client.clone(), kind.resource(), cache.clone()));
        tasks.spawn(tell(client.clone(), kind, cache, learns_names));
    }
    while tasks.join_next().await.is_some() {}
}

async fn tell(client: Client, kind: PolicyKind, cache: Arc<Cache<Custom>>, learns_names: bool) {
    let mut changes = cache.subscribe();
    cache.synced().await;
    let mut said = String::new();
    loop {
        for policy in cache.list() {
            let Some(status) = status(kind, &policy, learns_names) else { continue };
            let name = policy.metadata().name.clone().unwrap_or_default();
            let verb = Verb::Apply(status, MANAGER);
            let error = rest::write(&client, &kind.resource(), "", &name, "status", &verb).await.err();
            let error = error.filter(|error| !is_without(error)).map(|error| rest::message(&error)).unwrap_or_default();
            if error != said && !error.is_empty() {
                tracing::warn!(policy = name, error, "cannot write the status of a policy, trying again");
            }
            said = error;
        }
        // A burst is one look; lost changes are a look as well.
        let _ = clock::timeout(LOOK, changes.recv()).await;
        while changes.try_recv().is_ok() {}
    }
}

/// Its definition has no status, or it is gone.
fn is_without(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// The object that brings a policy's status to what it is to be; `None` when it is so.
fn status(kind: PolicyKind, policy: &Custom, learns_names: bool) -> Option<Value> {
    let problems = admin::read_as(kind, &policy.spec, learns_names).problems;
    let (status, reason, message) = match problems.as_slice() {
        [] => ("True", "Accepted", "It is enforced as it is written.".to_owned()),
        _ => ("False", "NotEnforced", format!("Not enforced as it is written: {}", problems.join("; "))),
    };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let metadata = policy.metadata();
    let mut condition = json!({
        "type": CONDITION, "status": status, "reason": reason, "message": message,
        "observedGeneration": metadata.generation,
    });
    let held = policy.conditions.iter().find(|held| held["type"].as_str() == Some(CONDITION));
    let is_as = |fields: &[&str]| held.is_some_and(|held| fields.iter().all(|field| held[*field] == condition[*field]));
    if is_as(&["status", "reason", "message", "observedGeneration"]) {
        return None;
    }
    let since = held.map(|held| held["lastTransitionTime"].clone()).filter(|_| is_as(&["status"]));
    condition["lastTransitionTime"] = since.unwrap_or_else(|| clock::now_seconds().to_string().into());
    let resource = kind.resource();
    Some(json!({
        "apiVersion": resource.api_version(), "kind": resource.kind,
        "metadata": {"name": metadata.name, "uid": metadata.uid},
        "status": {"conditions": [condition]},
    }))
}

#[cfg(test)]
mod tests {
    use api::object::Object;

    use super::*;

    fn policy(generation: i64, to: Value, conditions: &[Value]) -> Custom {
        let spec = json!({"priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Allow", "to": [to]}]});
        let metadata = json!({"name": "p", "uid": "u", "generation": generation});
        let object = json!({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}});
        Custom::from_value(&object).unwrap()
    }

    #[test]
    fn a_policy_says_whether_it_is_enforced_as_it_is_written() {
        let told =
            |policy: &Custom| status(PolicyKind::Admin, policy, false).map(|s| s["status"]["conditions"][0].clone());
        let good = json!({"networks": ["192.0.2.0/24"]});
        let first = told(&policy(1, good.clone(), &[])).unwrap();
        assert_eq!((first["status"].as_str(), first["reason"].as_str()), (Some("True"), Some("Accepted")));
        let of_others = json!({"type": "Ready", "status": "True"});
        assert_eq!(told(&policy(1, good.clone(), &[of_others.clone(), first.clone()])), None, "it says so already");
        let old = "2020-01-01T00:00:00Z";
        let mut held = first.clone();
        held["lastTransitionTime"] = json!(old);
        let next = told(&policy(2, good, &[held.clone()])).unwrap();
        assert_eq!((next["observedGeneration"].as_i64(), next["lastTransitionTime"].as_str()), (Some(2), Some(old)));
        let closed = told(&policy(2, json!({"domainNames": ["kubernetes.io"]}), &[held])).unwrap();
        assert_eq!((closed["status"].as_str(), closed["reason"].as_str()), (Some("False"), Some("NotEnforced")));
        assert_ne!(closed["lastTransitionTime"].as_str(), Some(old));
        let message = closed["message"].as_str().unwrap();
        assert!(
            message.starts_with("Not enforced as it is written: egress[0]: to[0]: `domainNames` cannot"),
            "{message}"
        );
        let policy = policy(2, json!({"domainNames": ["kubernetes.io"]}), &[]);
        let known = status(PolicyKind::Admin, &policy, true).unwrap();
        assert_eq!(known["status"]["conditions"][0]["status"].as_str(), Some("True"), "where addresses are learned");
    }
}
