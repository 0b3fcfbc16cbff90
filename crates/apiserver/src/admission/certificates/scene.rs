//! The beginning of these plugins' tests: somebody with one right, and writes of requests.

use std::sync::Arc;

use api::Value;
use json::json;

use super::request::GROUP;
use crate::{
    admission::{attributes::Operation, plugin::Context},
    auth::{User, rbac::Rbac},
    tests::admission::{Write, context_of},
};

/// `jane` may do this for one signer, or for none if it has no name.
pub(super) async fn granting(verb: &str, signer: &str) -> Context {
    let rbac = Arc::new(Rbac::default());
    if !signer.is_empty() {
        let rule = json!({"verbs": [verb], "apiGroups": [GROUP], "resources": ["signers"], "resourceNames": [signer]});
        rbac.changed("clusterroles", "", "a", Some(&json!({"rules": [rule]})));
        let subject = json!({"kind": "User", "name": "jane"});
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "a"}, "subjects": [subject]});
        rbac.changed("clusterrolebindings", "", "a", Some(&binding));
    }
    context_of(rbac).await
}

pub(super) fn csr(signer: &str, status: Value) -> Value {
    json!({"metadata": {"name": "c"}, "spec": {"signerName": signer}, "status": status})
}

/// An update by `jane`.
pub(super) fn update(subresource: &'static str, old: Value, new: Value) -> Write {
    Write {
        operation: Operation::Update,
        kind: (GROUP, "certificatesigningrequests", subresource),
        user: User::new("jane", ["dev"]),
        old: Some(old),
        object: Some(new),
    }
}
