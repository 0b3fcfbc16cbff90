//! The plugin on whole writes: which it looks at, what it refuses, and what it says.

use json::{Value, json};

use super::*;
use crate::{
    auth::User,
    tests::admission::{Told, Write, context},
};

/// A cluster with one namespace for each set of labels (`enforce=baseline warn=restricted`), named after it, with dashes.
async fn cluster() -> Context {
    let sets = [
        "",
        "enforce=privileged audit=privileged warn=privileged",
        "enforce=baseline",
        "enforce=restricted",
        "enforce=restricted enforce-version=v1.0",
        "enforce=nonsense",
        "warn=baseline",
        "audit=baseline",
        "enforce=baseline warn=restricted audit=restricted",
    ];
    let namespace = |set: &&str| ("namespaces", json!({"metadata": {"name": named(set), "labels": labels(set)}}));
    context(sets.iter().map(namespace).collect()).await
}

pub(super) fn named(set: &str) -> String {
    set.replace([' ', '='], "-")
}

pub(super) fn labels(set: &str) -> Value {
    let pairs = set.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), json!(value))).collect::<Value>()
}

pub(super) fn pod(labels: &str, spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": named(labels)}, "spec": spec})
}

pub(super) fn baseline() -> Value {
    json!({"containers": [{"name": "c", "image": "a"}]})
}

pub(super) fn privileged() -> Value {
    json!({"containers": [{"name": "c", "image": "a", "securityContext": {"privileged": true}}]})
}

pub(super) fn restricted() -> Value {
    json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "c",
        "image": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

const OF_BASELINE: &str = "privileged (container \"c\" must not set securityContext.privileged=true)";
const OF_RESTRICTED: &str = "allowPrivilegeEscalation != false (container \"c\" must set \
    securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
    securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
    securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
    securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

/// The outcome of a write: the refusal, or what the client and the audit log are told.
async fn outcome(context: &Context, write: Write) -> String {
    match write.told(context, &PLUGIN).await {
        Err(refusal) => refusal,
        Ok(Told { warnings, annotations, .. }) => {
            let noted = annotations.iter().map(|(key, value)| (key.replace("pod-security.kubernetes.io/", ""), value));
            let noted = noted.map(|(key, value)| format!("[{key}: {value}]"));
            warnings.into_iter().chain(noted).collect::<Vec<_>>().join("\n")
        }
    }
}

async fn create(labels: &str, spec: Value, expected: &str) {
    assert_eq!(outcome(&cluster().await, Write::create("pods", pod(labels, spec))).await, expected, "{labels}");
}

#[tokio::test]
async fn pods_are_held_to_what_the_namespace_enforces() {
    create("", privileged(), "[enforce-policy: privileged:latest]").await;
    let explicit = "enforce=privileged audit=privileged warn=privileged";
    create(explicit, privileged(), "[enforce-policy: privileged:latest]").await;
    create("enforce=baseline", baseline(), "[enforce-policy: baseline:latest]").await;
    let refused =
        |standard: &str, why: &str| format!("pods \"p\" is forbidden: violates PodSecurity \"{standard}\": {why}");
    create("enforce=baseline", privileged(), &refused("baseline:latest", OF_BASELINE)).await;
    create("enforce=restricted", restricted(), "[enforce-policy: restricted:latest]").await;
    create("enforce=restricted", baseline(), &refused("restricted:latest", OF_RESTRICTED)).await;
    let both = format!("{OF_BASELINE}, {OF_RESTRICTED}");
    create("enforce=restricted", privileged(), &refused("restricted:latest", &both)).await;
    let old = "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)";
    create("enforce=restricted enforce-version=v1.0", baseline(), &refused("restricted:v1.0", old)).await;
    // A namespace whose label nobody understands is as strict as can be.
    create("enforce=nonsense", baseline(), &refused("restricted:latest", OF_RESTRICTED)).await;
    let missing = "Internal error occurred: failed to lookup namespace \"gone\"";
    let write = Write::create("pods", json!({"metadata": {"name": "p", "namespace": "gone"}, "spec": baseline()}));
    assert_eq!(outcome(&cluster().await, write).await, missing);
}

#[tokio::test]
async fn what_is_only_warned_of_or_noted_is_let_in() {
    let told = format!("would violate PodSecurity \"baseline:latest\": {OF_BASELINE}");
    create("warn=baseline", privileged(), &format!("{told}\n[enforce-policy: privileged:latest]")).await;
    let noted = format!("[audit-violations: {told}]\n[enforce-policy: privileged:latest]");
    create("audit=baseline", privileged(), &noted).await;
    let labels = "enforce=baseline warn=restricted audit=restricted";
    let told = format!("would violate PodSecurity \"restricted:latest\": {OF_RESTRICTED}");
    create(labels, baseline(), &format!("{told}\n[audit-violations: {told}]\n[enforce-policy: baseline:latest]")).await;
    create(labels, restricted(), "[enforce-policy: baseline:latest]").await;
    let invalid = "[enforce-policy: restricted:latest]\n[error: Failed to parse policy: \
        metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"nonsense\": must be one of privileged, \
        baseline, restricted]";
    create("enforce=nonsense", restricted(), invalid).await;
}

#[tokio::test]
async fn workloads_are_warned_of_and_never_refused() {
    let context = cluster().await;
    let both = format!("{OF_BASELINE}, {OF_RESTRICTED}");
    let told = format!("would violate PodSecurity \"restricted:latest\": {both}");
    let template = json!({"metadata": {}, "spec": privileged()});
    for (group, plural, place) in TEMPLATES {
        let mut object = json!({"metadata": {"name": "w", "namespace": named("enforce=restricted")}});
        let target = place.split('/').skip(1).fold(&mut object, |target, part| &mut target[part]);
        *target = template.clone();
        let write = || Write { kind: (group, plural, ""), ..Write::create("", object.clone()) };
        assert_eq!(outcome(&context, write()).await, told, "{plural}");
        let update = Write { operation: Operation::Update, old: Some(object.clone()), ..write() };
        assert_eq!(outcome(&context, update).await, told, "{plural}");
        let scale = Write { operation: Operation::Update, kind: (group, plural, "scale"), ..write() };
        assert_eq!(outcome(&context, scale).await, "");
        let mut elsewhere = object.clone();
        elsewhere["metadata"]["namespace"] = json!("");
        let nowhere = Write { object: Some(elsewhere), ..write() };
        assert_eq!(outcome(&context, nowhere).await, "", "the namespace without labels demands nothing");
        let bare = Write { object: Some(json!({"metadata": {"namespace": named("enforce=restricted")}})), ..write() };
        assert_eq!(outcome(&context, bare).await, "", "there is no template");
    }
    let other = Write { kind: ("apps", "foobars", ""), ..Write::create("", pod("enforce=restricted", privileged())) };
    assert_eq!(outcome(&context, other).await, "");
}

fn update(subresource: &'static str, old: Value, new: Value) -> Write {
    let labels = "enforce=restricted";
    let write = Write::create("pods", pod(labels, new));
    Write { operation: Operation::Update, kind: ("", "pods", subresource), old: Some(pod(labels, old)), ..write }
}

#[tokio::test]
async fn old_pods_are_left_in_peace_until_something_comes_in() {
    let context = cluster().await;
    let with = |place: &str, value: Value| {
        let mut spec = privileged();
        *place.split('.').fold(&mut spec, |target, part| match part.parse::<usize>() {
            Ok(at) => &mut target[at],
            Err(_) => &mut target[part],
        }) = value;
        spec
    };
    let tolerant = with("tolerations", json!([{"operator": "Exists"}]));
    for subresource in ["", "resize", "ephemeralcontainers"] {
        assert_eq!(outcome(&context, update(subresource, privileged(), tolerant.clone())).await, "");
    }
    let debugger = |image: &str| json!([{"name": "e", "image": image}]);
    let significant = [
        ("", with("containers.0.image", json!("b"))),
        ("", with("initContainers", json!([{"name": "i", "image": "a"}]))),
        ("ephemeralcontainers", with("ephemeralContainers", debugger("a"))),
        ("of-tomorrow", with("containers.0.image", json!("b"))),
    ];
    for (subresource, new) in significant {
        let refusal = outcome(&context, update(subresource, privileged(), new.clone())).await;
        assert!(
            refusal.starts_with("pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": "),
            "{refusal}"
        );
        // The same write of a subresource that changes nothing of the kind passes.
        assert_eq!(outcome(&context, update("status", privileged(), new)).await, "");
    }
    let (old, new) = (with("ephemeralContainers", debugger("a")), with("ephemeralContainers", debugger("b")));
    assert_eq!(outcome(&context, update("ephemeralcontainers", old.clone(), old.clone())).await, "");
    assert!(outcome(&context, update("ephemeralcontainers", old, new)).await.contains("container \"c\""));
    let mut better = restricted();
    better["containers"][0]["image"] = json!("b");
    assert_eq!(outcome(&context, update("", restricted(), better)).await, "[enforce-policy: restricted:latest]");
    let binding = Write { kind: ("", "pods", "binding"), ..Write::create("", pod("enforce=restricted", privileged())) };
    assert_eq!(outcome(&context, binding).await, "");
}

/// A field that the kubelet could not read is refused, not passed over.
#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let spec = json!({"containers": [{"name": "c", "securityContext": {"privileged": "yes"}}]});
    create("enforce=baseline", spec, "failed to decode pod").await;
}

#[tokio::test]
async fn who_is_exempt() {
    let mut context = cluster().await;
    context.pod_security.exempt = Exemptions {
        users: vec!["root".into()],
        namespaces: vec![named("enforce=baseline")],
        runtime_classes: vec!["vm".into()],
    };
    let write = |labels: &str, spec: Value| Write::create("pods", pod(labels, spec));
    assert_eq!(outcome(&context, write("enforce=baseline", privileged())).await, "[exempt: namespace]");
    let by_root = Write { user: User::new("root", [""; 0]), ..write("enforce=restricted", privileged()) };
    assert_eq!(outcome(&context, by_root).await, "[exempt: user]");
    let mut of_class = privileged();
    of_class["runtimeClassName"] = json!("vm");
    assert_eq!(outcome(&context, write("enforce=restricted", of_class.clone())).await, "[exempt: runtimeClass]");
    of_class["runtimeClassName"] = json!("vmx");
    assert!(outcome(&context, write("enforce=restricted", of_class)).await.contains("is forbidden"));
    assert!(outcome(&context, write("enforce=restricted", privileged())).await.contains("is forbidden"));
}

#[tokio::test]
async fn the_configuration_counts_where_no_label_does() {
    let mut context = cluster().await;
    let strict = Standard { level: Level::Restricted, version: Version::Latest };
    context.pod_security.defaults = Policy { enforce: strict, audit: strict, warn: strict };
    let refusal = outcome(&context, Write::create("pods", pod("", baseline()))).await;
    assert!(refusal.contains("violates PodSecurity \"restricted:latest\""), "{refusal}");
    let explicit = "enforce=privileged audit=privileged warn=privileged";
    let allowed = outcome(&context, Write::create("pods", pod(explicit, privileged()))).await;
    assert_eq!(allowed, "[enforce-policy: privileged:latest]");
}

/// A namespace's write: `old` is `None` for a create.
fn namespace(old: Option<&str>, new: &str) -> Write {
    let of = |set: &str| json!({"metadata": {"name": "n", "labels": labels(set)}});
    let write = Write::create("namespaces", of(new));
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    Write { operation, old: old.map(of), ..write }
}

#[tokio::test]
async fn labels_must_be_understood_when_they_are_set() {
    let context = cluster().await;
    let invalid = |label: &str, value: &str, why: &str| {
        format!(
            "Namespace \"n\" is invalid: metadata.labels[pod-security.kubernetes.io/{label}]: Invalid value: {value:?}: {why}"
        )
    };
    let level = "must be one of privileged, baseline, restricted";
    let version = "must be \"latest\" or \"v1.x\"";
    let refused = [
        (None, "enforce=unknown", invalid("enforce", "unknown", level)),
        (
            Some("enforce=restricted enforce-version=v1.0"),
            "enforce=privileged enforce-version=unknown",
            invalid("enforce-version", "unknown", version),
        ),
        (None, "enforce=strict", invalid("enforce", "strict", level)),
        (None, "warn=strict", invalid("warn", "strict", level)),
        (None, "audit=", invalid("audit", "", level)),
        (None, "enforce=baseline enforce-version=1.2", invalid("enforce-version", "1.2", version)),
        (None, "enforce=privileged enforce-version=unknown", invalid("enforce-version", "unknown", version)),
        (Some("enforce=restricted enforce-version=v1.0"), "enforce=unknown", invalid("enforce", "unknown", level)),
        (Some(""), "enforce=Baseline", invalid("enforce", "Baseline", level)),
        (Some("enforce=x"), "enforce=y", invalid("enforce", "y", level)),
        (Some("enforce=baseline"), "enforce=baseline warn-version=2", invalid("warn-version", "2", version)),
    ];
    for (old, new, expected) in refused {
        assert_eq!(outcome(&context, namespace(old, new)).await, expected);
    }
    let two = outcome(&context, namespace(None, "enforce=x warn-version=y")).await;
    assert!(two.starts_with("Namespace \"n\" is invalid: [metadata.labels[") && two.contains("warn-version"), "{two}");
    let malformed = "enforce=baseline enforce-version=unknown";
    for (old, new) in [
        (None, "enforce=privileged enforce-version=v1.0"),
        (None, "enforce=baseline"),
        (None, "enforce=restricted"),
        (Some("enforce=unknown"), "enforce=unknown"),
        (None, "enforce=restricted enforce-version=v1.99"),
        (Some("enforce=x"), "enforce=x app=y"),
        (Some(malformed), malformed),
        // Mistakes may be taken away.
        (Some(malformed), "enforce=baseline"),
    ] {
        assert_eq!(outcome(&context, namespace(old, new)).await, "", "{new}");
    }
    let finalize = Write { kind: ("", "namespaces", "finalize"), ..namespace(Some(""), "enforce=x") };
    assert_eq!(outcome(&context, finalize).await, "");
}

fn running(name: &str, owner: Option<&str>, spec: Value) -> (&'static str, Value) {
    let owners = owner.map(|uid| json!([{"uid": uid, "controller": true}]));
    ("pods", json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": owners}, "spec": spec}))
}

#[tokio::test(start_paused = true)]
async fn who_makes_a_namespace_stricter_hears_of_its_pods() {
    let mut of_class = privileged();
    of_class["runtimeClassName"] = json!("vm");
    let mut host = restricted();
    host["hostNetwork"] = json!(true);
    let mut context = context(vec![
        running("c", None, privileged()),
        running("b", Some("rs"), privileged()),
        running("a", Some("rs"), privileged()),
        running("d", None, host),
        running("good", None, restricted()),
        running("vm", None, of_class),
    ])
    .await;
    context.pod_security.exempt.runtime_classes = vec!["vm".to_owned()];
    let expected = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"\n\
        a (and 2 other pods): privileged\nd: host namespaces";
    assert_eq!(outcome(&context, namespace(Some(""), "enforce=baseline")).await, expected);
    let stricter = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"restricted:v1.0\"\n\
        a (and 2 other pods): privileged, runAsNonRoot != true\nd: host namespaces";
    let change = namespace(Some("enforce=baseline"), "enforce=restricted enforce-version=v1.0");
    assert_eq!(outcome(&context, change).await, stricter);
    // A write that changes nothing, or makes it less strict, is not worth a look.
    let quiet = [
        ("enforce=baseline", "enforce=baseline app=x"),
        ("enforce=restricted enforce-version=v1.0", "enforce=restricted enforce-version=v1.0"),
        ("enforce=restricted", "enforce=baseline"),
        ("enforce=restricted enforce-version=v1.0", "enforce=baseline enforce-version=v1.0"),
        ("enforce=restricted enforce-version=latest", "enforce=baseline enforce-version=latest"),
        ("enforce=restricted", "enforce=privileged enforce-version=v1.0"),
        ("enforce=restricted enforce-version=v1.0", ""),
        ("", "warn=restricted audit=restricted"),
    ];
    for (old, new) in quiet {
        assert_eq!(outcome(&context, namespace(Some(old), new)).await, "", "{old} -> {new}");
    }
    // Another version of a lower level can be stricter.
    let other = namespace(Some("enforce=restricted"), "enforce=baseline enforce-version=v1.0");
    assert!(outcome(&context, other).await.contains("enforce level \"baseline:v1.0\""));
    assert_eq!(outcome(&context, namespace(None, "enforce=restricted")).await, "", "a new namespace has no Pods");
    context.pod_security.defaults.enforce = Standard { level: Level::Baseline, version: Version::Latest };
    assert_eq!(outcome(&context, namespace(Some("enforce=privileged"), "")).await, expected);
    context.pod_security.defaults.enforce = Standard { level: Level::Restricted, version: Version::Latest };
    let implicit = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"restricted:latest\"\n\
        a (and 2 other pods): privileged, allowPrivilegeEscalation != false, unrestricted capabilities, \
        runAsNonRoot != true, seccompProfile\nd: host namespaces";
    let change = namespace(Some("enforce=baseline enforce-version=v1.0"), "");
    assert_eq!(outcome(&context, change).await, implicit);
}

#[tokio::test(start_paused = true)]
async fn pods_of_exempt_classes_are_not_counted() {
    let of = |name: &'static str, class: Option<&str>, host_pid: bool| {
        let mut spec = privileged();
        spec["runtimeClassName"] = json!(class);
        spec["hostPID"] = json!(host_pid);
        running(name, None, spec)
    };
    let mut context = context(vec![
        of("noruntimeclasspod", None, false),
        of("runtimeclass1pod", Some("runtimeclass1"), false),
        of("runtimeclass2pod", Some("runtimeclass2"), false),
        of("runtimeclass3pod", None, true),
    ])
    .await;
    let told = |others: &str| {
        format!(
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"\n\
            noruntimeclasspod (and {others}): privileged\nruntimeclass3pod: host namespaces, privileged"
        )
    };
    let change = || namespace(Some("enforce=privileged"), "enforce=baseline");
    assert_eq!(outcome(&context, change()).await, told("2 other pods"));
    context.pod_security.exempt.runtime_classes = vec!["runtimeclass1".to_owned()];
    assert_eq!(outcome(&context, change()).await, told("1 other pod"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_of_many_pods_is_looked_at_in_part() {
    // The first of each controller come first, so that the second controller is among those that are looked at.
    let many = (0..3005).map(|at| running(&format!("a{at:04}"), Some("one"), privileged()));
    let mut host = baseline();
    host["hostPID"] = json!(true);
    let context = context(many.chain([running("z", Some("two"), host)]).collect()).await;
    let expected = "new PodSecurity enforce level only checked against the first 3000 of 3006 existing pods\n\
        existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"\n\
        a0000 (and 2998 other pods): privileged\nz: host namespaces";
    assert_eq!(outcome(&context, namespace(Some(""), "enforce=baseline")).await, expected);
}

#[tokio::test]
async fn who_labels_an_exempt_namespace_is_told() {
    let mut context = context(vec![running("a", None, privileged())]).await;
    context.pod_security.exempt.namespaces = vec!["n".to_owned()];
    let told = |policy: &str| {
        format!("namespace \"n\" is exempt from Pod Security, and the policy ({policy}) will be ignored")
    };
    let labels = "enforce=restricted enforce-version=v1.0 audit=restricted warn=baseline";
    let all = told("enforce=restricted:v1.0, audit=restricted:latest, warn=baseline:latest");
    assert_eq!(outcome(&context, namespace(Some(""), labels)).await, all);
    for (labels, policy) in [
        ("enforce=restricted", "enforce=restricted:latest"),
        ("enforce=baseline", "enforce=baseline:latest"),
        ("warn=baseline", "warn=baseline:latest"),
    ] {
        assert_eq!(outcome(&context, namespace(None, labels)).await, told(policy));
    }
    let versions = "enforce=privileged enforce-version=v1.24 warn-version=v1.25";
    assert_eq!(outcome(&context, namespace(None, versions)).await, "");
    // Updates that enforce nothing more are not worth a word here either.
    assert_eq!(outcome(&context, namespace(Some(""), "audit=restricted")).await, "");
    assert_eq!(outcome(&context, namespace(Some("enforce=restricted"), "enforce=baseline")).await, "");
    assert_eq!(outcome(&context, namespace(None, "audit=restricted")).await, told("audit=restricted:latest"));
    assert_eq!(outcome(&context, namespace(None, "enforce=privileged warn-version=v1.2")).await, "");
    assert_eq!(outcome(&context, namespace(None, "")).await, "");
    let baseline = Standard { level: Level::Baseline, version: Version::Minor(23) };
    context.pod_security.defaults = Policy { enforce: baseline, audit: baseline, warn: baseline };
    assert_eq!(outcome(&context, namespace(None, "app=x")).await, "");
    assert_eq!(outcome(&context, namespace(None, "warn-version=latest")).await, told("warn=baseline:latest"));
}
