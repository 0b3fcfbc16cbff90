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

/// The options of a connection cannot have labels.
#[tokio::test]
async fn connections_are_selected_by_no_labels() {
    let selectors = [
        (json!({}), true),
        (json!({"matchExpressions": [{"key": "runlevel", "operator": "NotIn", "values": ["1"]}]}), false),
        (json!({"matchExpressions": [{"key": "runlevel", "operator": "DoesNotExist"}]}), false),
        (json!({"matchLabels": {"app": "new"}}), false),
    ];
    for (selector, expected) in selectors {
        let write = write(Connect, ("", "pods", "exec"), "ns");
        let fields = json!({ "objectSelector": selector });
        assert_eq!(concerns(fields.clone(), write).await, expected, "{fields}");
    }
    // The Namespace that is finalized is looked at as it is.
    let old = json!({"namespaceSelector": {"matchLabels": {"app": "old"}}});
    assert!(concerns(old.clone(), write(Update, ("", "namespaces", "finalize"), "")).await);
    assert!(!concerns(old, write(Update, ("", "namespaces", ""), "")).await);
}

/// Upstream counterpart: the tests of `matchconditions`, and `match_conditions_test.go` among those of integration.
#[tokio::test]
async fn conditions_decide_together() {
    const WRONG: &str = "object.nonExistentProperty == 'someval'";
    let check = async |conditions: &[&str], policy: Option<&str>, expected: Result<bool, &str>| {
        let named = |(i, expression): (usize, &&str)| json!({"name": format!("test{i}"), "expression": expression});
        let list: Vec<Value> = conditions.iter().enumerate().map(named).collect();
        let context = context(json!({"matchConditions": list, "failurePolicy": policy})).await;
        let found = match write(Create, ("", "pods", ""), "ns").through(&context, &super::MUTATING).await {
            Ok(_) => Ok(false),
            Err(why) if why.ends_with("this server asks no webhooks") => Ok(true),
            Err(why) => Err(why),
        };
        assert_eq!(
            found,
            expected.map_err(|why| format!("pods \"x\" is forbidden: {why}")),
            "{conditions:?} {policy:?}"
        );
    };
    check(&[], None, Ok(true)).await;
    check(&["true"], None, Ok(true)).await;
    check(&["true", "oldObject == null"], None, Ok(true)).await;
    for some_false in
        [&["false"][..], &["false", "false"], &["false", "true"], &["true", "false"], &["true", "false", "true"]]
    {
        check(some_false, None, Ok(false)).await;
    }
    check(&["true", WRONG, "false", "true", WRONG], None, Ok(false)).await;
    let why = format!("expression '{WRONG}' resulted in error: no such key: nonExistentProperty");
    for policy in [None, Some("Fail")] {
        check(&["true", WRONG, "true", WRONG], policy, Err(&why)).await;
    }
    check(&["true", WRONG, "true", WRONG], Some("Ignore"), Ok(false)).await;
    let both = format!("[{why}, expression 'object.other == 1' resulted in error: no such key: other]");
    check(&[WRONG, "object.other == 1"], None, Err(&both)).await;
    // One of these is cheap enough, all of them are not, whatever one of them says.
    let mut dear = vec!["authorizer.requestResource.check('a').allowed()"; 8];
    let budget = "validation failed due to running out of cost budget, no further validation rules will be run";
    check(&dear, None, Err(budget)).await;
    dear.insert(0, "false");
    check(&dear, None, Err(budget)).await;
    check(&dear, Some("Ignore"), Ok(false)).await;
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
