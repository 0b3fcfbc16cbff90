//! Writes case by case, of Pods and of Deployments that make them: what becomes of each, what is noted for an audit log, and
//! what is counted. Upstream: TestValidatePodAndController.

use json::{Value, json};

use super::{
    tests::{baseline, labels, named, pod, privileged, restricted},
    *,
};
use crate::{
    auth::User,
    tests::admission::{Write, context},
};

const NOTHING: &str = "";
const PRIVILEGED: &str = "enforce=privileged warn=privileged audit=privileged";
const BASELINE: &str = "enforce=baseline warn=baseline audit=baseline";
const RESTRICTED: &str = "enforce=restricted warn=restricted audit=restricted";
const WARNED: &str = "warn=baseline";
const AUDITED: &str = "audit=baseline";
const INVALID: &str = "enforce=nonsense";
const EXEMPT: &str = "enforce=restricted warn=restricted audit=baseline";

async fn cluster() -> Context {
    let sets = [NOTHING, PRIVILEGED, BASELINE, RESTRICTED, WARNED, AUDITED, INVALID, EXEMPT];
    let namespace = |set: &&str| ("namespaces", json!({"metadata": {"name": named(set), "labels": labels(set)}}));
    let mut context = context(sets.iter().map(namespace).collect()).await;
    context.pod_security.exempt = Exemptions {
        users: vec!["exempt-user".to_owned()],
        namespaces: vec![named(EXEMPT)],
        runtime_classes: vec!["exempt-class".to_owned()],
    };
    context
}

/// The series that were counted, each as the words of its labels that differ among cases.
fn counted(context: &Context) -> Vec<String> {
    let page = context.pod_security_counts.render();
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
    lines.map(shown).collect()
}

fn shown(line: &str) -> String {
    let (name, rest) = line.split_once('{').unwrap();
    let labels = rest.split_once('}').unwrap().0;
    let value = |label: &str| {
        let found = labels.split(',').find_map(|pair| pair.strip_prefix(label)?.strip_prefix("=\""));
        found.map(|value| value.trim_end_matches('"').to_owned()).unwrap_or_default()
    };
    match name {
        "pod_security_evaluations_total" => {
            format!("{} {}:{} {}", value("mode"), value("policy_level"), value("policy_version"), value("decision"))
        }
        "pod_security_exemptions_total" => "exempted".to_owned(),
        "pod_security_errors_total" => format!("error fatal={}", value("fatal")),
        other => panic!("{other}"),
    }
}

/// The outcome in words: the reason of a refusal, `warned`, the keys of annotations, and what was counted.
async fn outcome(write: Write) -> String {
    let context = cluster().await;
    let (done, notes) = write.noted(&context, &PLUGIN, false).await;
    let first = match done {
        Err(refusal) => {
            assert!(refusal.warnings.is_empty(), "a refusal warns of nothing");
            refusal.reason.into_owned()
        }
        Ok(told) if told.warnings.is_empty() => "ok".to_owned(),
        Ok(_) => "warned".to_owned(),
    };
    let keys = notes.iter().map(|(key, _)| key.trim_start_matches("pod-security.kubernetes.io/"));
    let keys = keys.collect::<Vec<_>>().join(" ");
    [first, keys, counted(&context).join(", ")].join("; ").trim_end_matches("; ").to_owned()
}

fn deployment(pod: &Value) -> Value {
    json!({"metadata": pod["metadata"], "spec": {"template": {"metadata": {}, "spec": pod["spec"]}}})
}

/// A Pod in a namespace with these labels, and a Deployment of such Pods. `old` is what an update changes.
async fn check(labels: &str, spec: Value, old: Option<Value>, of_pod: &str, of_deployment: &str) {
    let (new, old) = (pod(labels, spec), old.map(|old| pod(labels, old)));
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let write = Write { operation, old: old.clone(), ..Write::create("pods", new.clone()) };
    assert_eq!(outcome(write).await, of_pod, "a Pod: {labels}");
    let write = Write::create("", deployment(&new));
    let old = old.map(|old| deployment(&old));
    let write = Write { operation, old, kind: ("apps", "deployments", ""), ..write };
    assert_eq!(outcome(write).await, of_deployment, "a Deployment: {labels}");
}

#[tokio::test]
async fn each_write_is_judged_noted_and_counted() {
    let denied =
        "Forbidden; audit-violations enforce-policy; audit restricted:latest deny, enforce restricted:latest deny";
    let warned = "warned; audit-violations; audit restricted:latest deny, warn restricted:latest deny";
    let unrestricted = "ok; enforce-policy; enforce privileged:latest allow";
    let exempt = "ok; exempt; exempted";
    let changed = |mut spec: Value| {
        spec["containers"][0]["image"] = json!("https://example.com/a-different-image");
        spec
    };
    let with = |field: &str, value: Value| {
        let mut spec = privileged();
        spec[field] = value;
        spec
    };
    check(RESTRICTED, privileged(), None, denied, warned).await;
    check(BASELINE, baseline(), None, "ok; enforce-policy; enforce baseline:latest allow", "ok").await;
    check(EXEMPT, privileged(), None, exempt, exempt).await;
    check(RESTRICTED, with("runtimeClassName", json!("exempt-class")), None, exempt, exempt).await;
    check(RESTRICTED, with("runtimeClassName", json!("another")), None, denied, warned).await;
    check(NOTHING, privileged(), None, unrestricted, "ok").await;
    check(PRIVILEGED, privileged(), None, unrestricted, "ok").await;
    let told = "warned; enforce-policy; enforce privileged:latest allow, warn baseline:latest deny";
    check(WARNED, privileged(), None, told, "warned; ; warn baseline:latest deny").await;
    let noted = "ok; audit-violations enforce-policy; enforce privileged:latest allow, audit baseline:latest deny";
    check(AUDITED, privileged(), None, noted, "ok; audit-violations; audit baseline:latest deny").await;
    // Labels that nobody understands are as strict as can be, and count as an error.
    let strict = "Forbidden; enforce-policy error; error fatal=false, enforce restricted:latest deny";
    check(INVALID, baseline(), None, strict, "ok; error; error fatal=false").await;
    // An update is judged by what it brings in. Deployments are looked at whatever changed.
    let tolerant = with("tolerations", json!([{"operator": "Exists"}]));
    check(RESTRICTED, tolerant, Some(privileged()), "ok", warned).await;
    check(RESTRICTED, changed(privileged()), Some(privileged()), denied, warned).await;
    let allowed = "ok; enforce-policy; enforce restricted:latest allow";
    check(RESTRICTED, changed(restricted()), Some(restricted()), allowed, "ok").await;
    // A Pod that no kubelet could read is refused, and its Deployment let in.
    let unreadable = json!({"containers": [{"name": "c", "securityContext": {"privileged": "yes"}}]});
    check(BASELINE, unreadable, None, "BadRequest; error; error fatal=true", "ok; error; error fatal=true").await;
    let lost = "InternalError; error; error fatal=true";
    check("no=such", restricted(), None, lost, "ok; error; error fatal=true").await;
}

#[tokio::test]
async fn users_subresources_and_missing_templates() {
    let exempt = || User::new("exempt-user", [""; 0]);
    let new = || pod(RESTRICTED, privileged());
    let by_user = Write { user: exempt(), ..Write::create("pods", new()) };
    assert_eq!(outcome(by_user).await, "ok; exempt; exempted");
    let of = |subresource: &'static str, object: Value| Write {
        kind: ("apps", "deployments", subresource),
        ..Write::create("", object)
    };
    let by_user = Write { user: exempt(), ..of("", deployment(&new())) };
    assert_eq!(outcome(by_user).await, "ok; exempt; exempted");
    let status = Write { kind: ("", "pods", "status"), ..Write::create("", new()) };
    assert_eq!(outcome(status).await, "ok");
    assert_eq!(outcome(of("status", deployment(&new()))).await, "ok");
    let bare = json!({"metadata": {"name": "w", "namespace": named(RESTRICTED)}, "spec": {}});
    assert_eq!(outcome(of("", bare)).await, "ok");
}

/// The words for who reads the audit log and the metrics.
#[tokio::test]
async fn errors_are_told_in_upstreams_words() {
    let gone = json!({"name": "p", "namespace": "gone"});
    let said = async |write: Write| {
        let (_, notes) = write.noted(&cluster().await, &PLUGIN, false).await;
        notes.into_iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join("\n")
    };
    let lost = "failed to lookup namespace \"gone\": namespaces \"gone\" not found";
    let write = Write::create("pods", json!({"metadata": gone, "spec": restricted()}));
    assert_eq!(said(write).await, format!("pod-security.kubernetes.io/error: Internal error occurred: {lost}"));
    let made = deployment(&json!({"metadata": gone, "spec": restricted()}));
    let write = Write { kind: ("apps", "deployments", ""), ..Write::create("", made) };
    assert_eq!(said(write).await, format!("pod-security.kubernetes.io/error: {lost}"));
}

#[tokio::test]
async fn the_page_has_upstreams_labels() {
    let context = cluster().await;
    let write = || Write::create("pods", pod(RESTRICTED, privileged()));
    write().noted(&context, &PLUGIN, false).await.0.err().unwrap();
    Write { user: User::new("exempt-user", [""; 0]), ..write() }.through(&context, &PLUGIN).await.unwrap();
    Write::create("pods", pod(NOTHING, privileged())).through(&context, &PLUGIN).await.unwrap();
    let page = context.pod_security_counts.render();
    for line in [
        r#"pod_security_evaluations_total{decision="allow",mode="enforce",policy_level="privileged",policy_version="latest",request_operation="create",resource="pod",subresource=""} 1"#,
        r#"pod_security_evaluations_total{decision="allow",mode="enforce",policy_level="privileged",policy_version="latest",request_operation="update",resource="pod",subresource=""} 0"#,
        r#"pod_security_evaluations_total{decision="deny",mode="audit",policy_level="restricted",policy_version="latest",request_operation="create",resource="pod",subresource=""} 1"#,
        r#"pod_security_exemptions_total{request_operation="create",resource="pod",subresource=""} 1"#,
        r#"pod_security_exemptions_total{request_operation="update",resource="controller",subresource=""} 0"#,
    ] {
        assert!(page.lines().any(|one| one == line), "{line} in {page}");
    }
    let version = async |version: &str| {
        let object = json!({"metadata": {"name": "v", "labels": labels(&format!("enforce=baseline enforce-version={version}"))}});
        let context = crate::tests::admission::context(vec![("namespaces", object)]).await;
        let pod = json!({"metadata": {"name": "p", "namespace": "v"}, "spec": baseline()});
        Write::create("pods", pod).through(&context, &PLUGIN).await.unwrap();
        counted(&context).join(", ")
    };
    assert_eq!(version("v1.20").await, "enforce baseline:v1.20 allow");
    assert_eq!(version("v1.35").await, "enforce baseline:v1.35 allow");
    assert_eq!(version("v1.36").await, "enforce baseline:future allow");
}
