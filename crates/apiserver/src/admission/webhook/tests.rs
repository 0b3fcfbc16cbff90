//! Which writes webhooks are about. A webhook that nobody can reach refuses what it is about, and nothing else.

use std::sync::Arc;

use api::Value;
use json::json;

use super::source::{MUTATING, Webhooks};
use crate::admission::attributes::Operation::{self, Connect, Create, Delete, Update};
use crate::admission::plugin::Context;
use crate::auth::User;
use crate::tests::admission::{self, Write};

async fn context(fields: Value) -> Context {
    let mut webhook = json!({"name": "a.example.com", "clientConfig": {"url": "https://a"}, "sideEffects": "None", "matchPolicy": "Exact",
        "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
    for (field, value) in fields.as_object().expect("fields") {
        webhook[field] = value.clone();
    }
    let webhooks = Webhooks::default();
    webhooks.object_changed(MUTATING, "c", Some(&json!({ "webhooks": [webhook] })));
    let namespace = json!({"metadata": {"name": "ns", "labels": {"team": "a"}}});
    Context { webhooks: Arc::new(webhooks), ..admission::context(vec![("namespaces", namespace)]).await }
}

fn write(operation: Operation, kind: (&'static str, &'static str, &'static str), namespace: &str) -> Write {
    let object = json!({"metadata": {"name": "x", "namespace": namespace, "labels": {"app": "new"}}});
    let old = json!({"metadata": {"name": "x", "namespace": namespace, "labels": {"app": "old"}}});
    Write {
        operation,
        kind,
        user: User::new("jane", ["system:authenticated"]),
        old: matches!(operation, Update | Delete).then_some(old),
        object: (operation != Delete).then_some(object),
    }
}

async fn concerns(fields: Value, write: Write) -> bool {
    let context = context(fields).await;
    match write.through(&context, &super::MUTATING).await {
        Ok(_) => false,
        Err(why) => {
            let expected =
                "Internal error occurred: failed calling webhook \"a.example.com\": this server asks no webhooks";
            assert_eq!(why, expected);
            true
        }
    }
}

#[tokio::test]
async fn rules_name_operations_groups_resources_and_scopes() {
    let pods = ("", "pods", "");
    let check = async |rule: Value, operation, kind, namespace: &str, expected: bool| {
        let mut whole = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
        for (field, value) in rule.as_object().expect("fields") {
            whole[field] = value.clone();
        }
        let found = concerns(json!({ "rules": [whole] }), write(operation, kind, namespace)).await;
        assert_eq!(found, expected, "{rule} {operation:?} {kind:?} {namespace:?}");
    };
    let operations = |names: &[&str]| json!({ "operations": names });
    for (names, expected) in [
        (&["*"][..], [true, true, true, true]),
        (&["CREATE"], [true, false, false, false]),
        (&["CREATE", "DELETE"], [true, false, true, false]),
        (&["CONNECT"], [false, false, false, true]),
    ] {
        for (operation, expected) in [Create, Update, Delete, Connect].into_iter().zip(expected) {
            check(operations(names), operation, pods, "ns", expected).await;
        }
    }
    let groups = |names: &[&str]| json!({ "apiGroups": names });
    check(groups(&[""]), Create, pods, "ns", true).await;
    check(groups(&[""]), Create, ("apps", "pods", ""), "ns", false).await;
    check(groups(&["a", "apps"]), Create, ("apps", "pods", ""), "ns", true).await;
    check(json!({"apiVersions": ["v1"]}), Create, pods, "ns", true).await;
    check(json!({"apiVersions": ["v2"]}), Create, pods, "ns", false).await;
    let (status, exec) = (("", "pods", "status"), ("", "pods", "exec"));
    for (resource, expected) in [
        ("*/*", [true, true, true]),
        ("*", [true, false, false]),
        ("pods", [true, false, false]),
        ("pods/*", [true, true, true]),
        ("*/status", [false, true, false]),
        ("pods/exec", [false, false, true]),
        ("nodes", [false, false, false]),
        ("nodes/*", [false, false, false]),
    ] {
        for (kind, expected) in [pods, status, exec].into_iter().zip(expected) {
            check(json!({ "resources": [resource] }), Update, kind, "ns", expected).await;
        }
    }
    let (node, namespace) = (("", "nodes", ""), ("", "namespaces", ""));
    for (scope, expected) in
        [("*", [true, true, true]), ("Namespaced", [true, false, false]), ("Cluster", [false, true, true])]
    {
        for ((kind, place), expected) in [(pods, "ns"), (node, ""), (namespace, "")].into_iter().zip(expected) {
            check(json!({ "scope": scope }), Create, kind, place, expected).await;
        }
    }
}

#[tokio::test]
async fn selectors_look_at_objects_old_and_new_and_at_their_namespace() {
    let check = async |fields: Value, operation, plural: &'static str, namespace: &str, expected: bool| {
        let found = concerns(fields.clone(), write(operation, ("", plural, ""), namespace)).await;
        assert_eq!(found, expected, "{fields} {operation:?} {plural} {namespace:?}");
    };
    let object = |app: &str| json!({"objectSelector": {"matchLabels": {"app": app}}});
    for (app, expected) in [("new", [true, true, false]), ("old", [false, true, true]), ("other", [false; 3])] {
        for (operation, expected) in [Create, Update, Delete].into_iter().zip(expected) {
            check(object(app), operation, "pods", "ns", expected).await;
        }
    }
    check(json!({"objectSelector": {}}), Delete, "pods", "ns", true).await;
    let namespace = |team: &str| json!({"namespaceSelector": {"matchLabels": {"team": team}}});
    check(namespace("a"), Create, "pods", "ns", true).await;
    check(namespace("b"), Create, "pods", "ns", false).await;
    check(namespace("b"), Create, "nodes", "", true).await;
    // A Namespace is looked at by its own labels.
    let labels = |app: &str| json!({"namespaceSelector": {"matchLabels": {"app": app}}});
    check(labels("new"), Create, "namespaces", "", true).await;
    check(labels("old"), Create, "namespaces", "", false).await;
    check(labels("old"), Delete, "namespaces", "", true).await;
    let nowhere = context(namespace("a")).await;
    let refused = write(Create, ("", "pods", ""), "nowhere").refused(&nowhere, &super::MUTATING).await;
    assert_eq!((refused.code, refused.message.as_str()), (404, "namespaces \"nowhere\" not found"));
}

#[tokio::test]
async fn configurations_are_exempt_and_forgotten_when_they_go() {
    const GROUP: &str = "admissionregistration.k8s.io";
    for plural in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies"] {
        assert!(!concerns(json!({}), write(Create, (GROUP, plural, ""), "")).await, "{plural}");
    }
    assert!(concerns(json!({}), write(Create, ("a.io", "mutatingwebhookconfigurations", ""), "")).await);
    let context = context(json!({})).await;
    context.webhooks.object_changed(MUTATING, "c", None);
    write(Create, ("", "pods", ""), "ns").through(&context, &super::MUTATING).await.expect("nobody is asked");
}
