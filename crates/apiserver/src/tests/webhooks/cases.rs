//! Webhooks that allow, refuse, fail, lie and change, each asked about one write: the outcome, and what an audit log is told.
//! Upstream counterpart: apiserver/pkg/admission/plugin/webhook/testing/testcase.go, with its answers.

use super::*;
use crate::{
    User,
    admission::{
        Context,
        attributes::Operation,
        webhook::{self, shown::Shown, source::Webhooks},
    },
    outbound::{self, service::Routing},
    tests::{
        admission::{self, Write},
        objects,
    },
};

/// A webhook by its name, its path and other fields.
type Given<'g> = (&'g str, &'g str, Value);

fn moods() -> [(&'static str, Mood); 9] {
    let remove = |_: &Value| {
        let mut response = patched(json!([{"op": "remove", "path": "/metadata/labels/remove"}]));
        response["auditAnnotations"] = json!({"key1": "value1"});
        response
    };
    [
        ("internalErr", Mood::Text(500, "webhook internal server error")),
        ("disallow", Mood::Saying(|_| json!({"allowed": false, "status": {"code": 403}}))),
        ("disallowReason", Mood::Saying(|_| json!({"status": {"message": "you shall not pass", "code": 403}}))),
        ("allow", Mood::Saying(|_| json!({"allowed": true, "auditAnnotations": {"key1": "value1"}}))),
        ("nilResponse", Mood::Lying(|_| json!({}))),
        (
            "invalidAnnotation",
            Mood::Saying(|_| json!({"allowed": true, "auditAnnotations": {"invalid*key": "value1"}})),
        ),
        ("removeLabel", Mood::Saying(remove)),
        (
            "addLabel",
            Mood::Saying(|_| patched(json!([{"op": "add", "path": "/metadata/labels/added", "value": "test"}]))),
        ),
        // Its patch is `[{"op": "add", "CORRUPTED_KEY":}]`.
        (
            "invalidMutation",
            Mood::Saying(
                |_| json!({"allowed": true, "patchType": "JSONPatch", "patch": "W3sib3AiOiAiYWRkIiwgIkNPUlJVUFRFRF9LRVkiOn1d"}),
            ),
        ),
    ]
}

async fn hook() -> Hook {
    let hook = Hook::start().await;
    moods().into_iter().for_each(|(path, mood)| hook.be(&format!("/{path}"), mood));
    hook
}

/// The labels that a write ends with, or its refusal; and the annotations.
type Heard = (Result<Value, (u16, String)>, Vec<String>);

async fn run(hook: &Hook, sort: &str, given: &[Given<'_>], dry: bool, more: &Value) -> Heard {
    let everything = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    let webhook = |(name, path, fields): &Given<'_>| {
        let mut webhook = json!({"name": name, "clientConfig": hook.at(&format!("/{path}")), "rules": everything,
            "namespaceSelector": {}, "objectSelector": {}, "admissionReviewVersions": ["v1beta1"]});
        fields.as_object().unwrap().iter().for_each(|(field, value)| webhook[&**field] = value.clone());
        webhook
    };
    let all: Vec<Value> = given.iter().map(webhook).collect();
    let store = objects::store(Vec::new()).await;
    let asking = Arc::new(outbound::webhook::Webhooks::new(&store, Routing::default()));
    let webhooks = Webhooks::new(asking, Shown::default());
    webhooks.object_changed(
        &format!("{sort}webhookconfigurations"),
        "test-webhooks",
        Some(&json!({ "webhooks": all })),
    );
    let namespace = json!({"metadata": {"name": "webhook-test", "labels": {"runlevel": "0"}}});
    let context = Context { webhooks: Arc::new(webhooks), ..admission::context(vec![("namespaces", namespace)]).await };
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "my-pod",
        "namespace": "webhook-test", "labels": {"pod.name": "my-pod"}}});
    let old = object.clone();
    more.as_object().unwrap().iter().for_each(|(label, text)| object["metadata"]["labels"][&**label] = text.clone());
    let write = Write {
        operation: Operation::Update,
        kind: ("", "configmaps", ""),
        user: User::new("webhook-test", ["system:authenticated"]),
        old: Some(old),
        object: Some(object),
    };
    let plugin = if sort == "mutating" { &webhook::MUTATING } else { &webhook::VALIDATING };
    let (done, told) = write.heard(&context, plugin, dry).await;
    let done = done.map(|mut object| object["metadata"]["labels"].take()).map_err(|e| (e.code, e.message));
    (done, told.into_iter().map(|(key, value)| format!("{key}={value}")).collect())
}

fn mutated(index: usize, name: &str, mutated: bool) -> String {
    let said = format!("{{\"configuration\":\"test-webhooks\",\"webhook\":\"{name}\",\"mutated\":{mutated}}}");
    format!("mutation.webhook.admission.k8s.io/round_0_index_{index}={said}")
}

fn patch(index: usize, name: &str, patch: &str) -> String {
    let names = format!("\"configuration\":\"test-webhooks\",\"webhook\":\"{name}\"");
    let said = format!("{{{names},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}");
    format!("patch.webhook.admission.k8s.io/round_0_index_{index}={said}")
}

fn assert_outcome<T: std::fmt::Debug + PartialEq>(
    found: Result<T, (u16, String)>,
    expected: Result<T, (u16, &str)>,
    about: &str,
) {
    match (found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{about}"),
        (Err((code, why)), Err((wanted, part))) => {
            assert!(code == wanted && why.contains(part), "{about}: {code} {why}")
        }
        (found, _) => panic!("{about}: {found:?}"),
    }
}

/// `reached` is how many webhooks are asked where one is asked after another.
async fn both(given: &[Given<'_>], dry: bool, expected: Result<(), (u16, &str)>, told: &[&str], reached: usize) {
    let hook = hook().await;
    for sort in ["validating", "mutating"] {
        let mut wanted: Vec<String> = told.iter().map(|told| (*told).to_owned()).collect();
        if sort == "mutating" {
            wanted.iter_mut().for_each(|told| *told = told.replace("failed-open.validating", "failed-open.mutation"));
            wanted.extend(given.iter().take(reached).enumerate().map(|(i, (name, ..))| mutated(i, name, false)));
        }
        wanted.sort();
        let (done, found) = run(&hook, sort, given, dry, &json!({})).await;
        let about = format!("{sort} {given:?} {dry}");
        assert_outcome(done.map(drop), expected, &about);
        assert_eq!(found, wanted, "{about}");
    }
}

fn plain<'g>(name: &'g str, path: &'g str) -> Given<'g> {
    (name, path, json!({}))
}

#[tokio::test]
async fn answers_without_a_patch_say_the_same_to_both_sorts() {
    let key1 = &["allow.example.com/key1=value1"][..];
    let nothing = json!({"rules": [{"operations": ["CREATE"]}]});
    both(&[("nomatch", "disallow", nothing)], false, Ok(()), &[], 0).await;
    both(&[plain("allow.example.com", "allow")], false, Ok(()), key1, 1).await;
    both(&[plain("disallow", "disallow")], false, Err((403, "without explanation")), &[], 1).await;
    both(&[plain("disallowReason", "disallowReason")], false, Err((403, "you shall not pass")), &[], 1).await;
    for (operator, level) in [("In", "1"), ("NotIn", "0")] {
        let selector = json!({"matchExpressions": [{"key": "runlevel", "operator": operator, "values": [level]}]});
        both(&[("disallow", "disallow", json!({"namespaceSelector": selector}))], false, Ok(()), &[], 0).await;
    }
    both(&[plain("invalidAnnotation", "invalidAnnotation")], false, Ok(()), &[], 1).await;
    let other = ("other", "disallow", json!({"objectSelector": {"matchLabels": {"label": "nonexistent"}}}));
    both(&[plain("allow.example.com", "allow"), other], false, Ok(()), key1, 1).await;
}

#[tokio::test]
async fn failures_follow_the_policy_of_each_webhook() {
    let names = ["internalErr A", "internalErr B", "internalErr C"];
    let three = |fields: Value| names.map(|name| (name, "internalErr", fields.clone()));
    let open = names.iter().enumerate();
    let open: Vec<String> = open
        .map(|(i, name)| format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{i}={name}"))
        .collect();
    let open: Vec<&str> = open.iter().map(String::as_str).collect();
    both(&three(json!({"failurePolicy": "Ignore"})), false, Ok(()), &open, 3).await;
    let failed = Err((500, "failed calling webhook \"internalErr A\": failed to call webhook: "));
    both(&three(json!({})), false, failed, &[], 1).await;
    both(&three(json!({"failurePolicy": "Fail"})), false, failed, &[], 1).await;
    let absent = |policy: &str| [("nilResponse", "nilResponse", json!({ "failurePolicy": policy }))];
    let told = "failed-open.validating.webhook.admission.k8s.io/round_0_index_0=nilResponse";
    both(&absent("Ignore"), false, Ok(()), &[told], 1).await;
    both(&absent("Fail"), false, Err((500, "webhook response was absent")), &[], 1).await;
}

#[tokio::test]
async fn dry_runs_reach_webhooks_without_effects() {
    let with = |effects: &str| [("allow", "allow", json!({ "sideEffects": effects }))];
    let refused = Err((400, "admission webhook \"allow\" does not support dry run"));
    let nothing = json!({"rules": [{"operations": ["CREATE"]}], "sideEffects": "Some"});
    both(&[("nomatch", "allow", nothing)], true, Ok(()), &[], 0).await;
    both(&with("Unknown"), true, refused, &[], 1).await;
    both(&with("Some"), true, refused, &[], 1).await;
    both(&with("None"), true, Ok(()), &["allow/key1=value1"], 1).await;
    both(&with("NoneOnDryRun"), true, Ok(()), &["allow/key1=value1"], 1).await;
}

/// Of several validating webhooks one counts among those that are asked, a mutating one among all.
#[tokio::test]
async fn webhooks_are_counted_where_annotations_name_them() {
    let hook = hook().await;
    let none = ("none", "allow", json!({"rules": []}));
    let other = ("other", "allow", json!({"objectSelector": {"matchLabels": {"label": "nonexistent"}}}));
    let given = [none, other, ("open", "internalErr", json!({"failurePolicy": "Ignore"}))];
    let (_, found) = run(&hook, "validating", &given, false, &json!({})).await;
    assert_eq!(found, ["failed-open.validating.webhook.admission.k8s.io/round_0_index_0=open"]);
    let (_, found) = run(&hook, "mutating", &given, false, &json!({})).await;
    let open = "failed-open.mutation.webhook.admission.k8s.io/round_0_index_2=open";
    assert_eq!(found, [open.to_owned(), mutated(2, "open", false)]);
}

#[tokio::test]
async fn patches_change_the_object_and_are_told_of() {
    let hook = hook().await;
    let check = async |given: &[Given<'_>], dry, expected: Result<Value, (u16, &str)>, told: &[String]| {
        let (done, found) = run(&hook, "mutating", given, dry, &json!({"remove": "me"})).await;
        let about = format!("{given:?} {dry}");
        assert_outcome(done, expected, &about);
        let mut told = told.to_vec();
        told.sort();
        assert_eq!(found, told, "{about}");
    };
    let removed = |name: &str| {
        let key1 = format!("{name}/key1=value1");
        vec![key1, mutated(0, name, true), patch(0, name, r#"[{"op":"remove","path":"/metadata/labels/remove"}]"#)]
    };
    let added = r#"[{"op":"add","path":"/metadata/labels/added","value":"test"}]"#;
    let (name, left) = ("removelabel.example.com", json!({"pod.name": "my-pod"}));
    check(&[plain(name, "removeLabel")], false, Ok(left.clone()), &removed(name)).await;
    let both = json!({"pod.name": "my-pod", "remove": "me", "added": "test"});
    let told = [mutated(0, "addLabel", true), patch(0, "addLabel", added)];
    check(&[plain("addLabel", "addLabel")], false, Ok(both), &told).await;
    let wrong = Err((500, "received undecodable patch in webhook response: "));
    let told = [mutated(0, "invalidMutation", false)];
    check(&[plain("invalidMutation", "invalidMutation")], false, wrong, &told).await;
    let refused = Err((400, "does not support dry run"));
    let unknown = ("removeLabel", "removeLabel", json!({"sideEffects": "Unknown"}));
    check(&[unknown], true, refused, &[mutated(0, "removeLabel", false)]).await;
    let selected = json!({"objectSelector": {"matchLabels": {"remove": "me"}}});
    let given = [(name, "removeLabel", selected.clone()), ("shouldNotBeCalled", "disallow", selected)];
    check(&given, false, Ok(left), &removed(name)).await;
    let unchanged = json!({"pod.name": "my-pod", "remove": "me"});
    check(&[plain("noop", "noop")], false, Ok(unchanged), &[mutated(0, "noop", false)]).await;
}
