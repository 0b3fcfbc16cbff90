//! Objects that skiff itself puts into the cluster, written by server-side apply.

use client::{
    Client,
    rest::{self, DeleteOptions, Resource, Verb},
};
use clock::Duration;
use json::Value;

/// The field manager of everything that skiff applies.
const MANAGER: &str = "skiff";

fn resource_of(object: &Value) -> Resource {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let definition = api::kinds::built_in().by_kind(group, version, kind).expect("a built-in kind is written");
    let plural = definition.plural.clone();
    Resource { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned(), plural }
}

async fn write(client: &Client, object: &Value, verb: &Verb) -> Result<(), client::Error> {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    rest::write(client, &resource_of(object), text("namespace"), text("name"), "", verb).await.map(drop)
}

/// Applies one object. An object that is as it should be already costs no write.
pub async fn apply(client: &Client, object: &Value) -> Result<(), client::Error> {
    write(client, object, &Verb::Apply(object.clone(), MANAGER)).await
}

/// Deletes one object, if it is there.
pub async fn remove(client: &Client, object: &Value) -> Result<(), client::Error> {
    rest::found(write(client, object, &Verb::Delete(DeleteOptions::default())).await).map(drop)
}

/// Attempts to write what a start needs, with longer and longer pauses. Their troubles are told once: while the store is away
/// there is one for each attempt.
pub struct Attempts {
    wait: Duration,
    is_told: bool,
}

impl Attempts {
    pub fn new() -> Self {
        Attempts { wait: Duration::from_millis(200), is_told: false }
    }

    /// Tells of the first failure, and returns when the next attempt is due.
    pub async fn failed(&mut self, error: &client::Error, tell: impl FnOnce(String)) {
        if !std::mem::replace(&mut self.is_told, true) {
            tell(rest::message(error));
        }
        clock::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(Duration::from_secs(30));
    }
}

/// A ClusterRoleBinding of a role to subjects.
pub fn bind_cluster_role(name: &str, role: &str, subject: Value) -> Value {
    json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

/// A Role with one rule, and its binding.
pub fn role_and_binding(namespace: &str, name: &str, rule: Value, subject: Value) -> [Value; 2] {
    let metadata = json::json!({"name": name, "namespace": namespace});
    let version = "rbac.authorization.k8s.io/v1";
    [
        json::json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]}),
        json::json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [subject],
        }),
    ]
}

/// A user or a group, as a subject of bindings.
pub fn subject(kind: &str, name: &str) -> Value {
    json::json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}
