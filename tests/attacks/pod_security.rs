//! The standards that namespaces name hold: who may make Pods does not get around them.

use std::time::Instant;

use json::{Value, json};

use crate::{
    caller::{Caller, PATIENCE},
    server::Server,
};

const RULES: &[&str] = &["pods", "pods/ephemeralcontainers", "deployments.apps", "namespaces"];
const PREFIX: &str = "pod-security.kubernetes.io";

fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn plain() -> Value {
    json!({"containers": [{"name": "c", "image": "a"}]})
}

fn privileged() -> Value {
    json!({"containers": [{"name": "c", "image": "a", "securityContext": {"privileged": true}}]})
}

fn restricted() -> Value {
    json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [{"name": "c",
        "image": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

/// A namespace with these labels where mallory may do with Pods and Deployments as she likes. When this returns, the
/// labels count: like upstream's, the plugin reads a copy that follows the store.
async fn namespace(server: &Server, name: &str, labels: Value) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    server.admin().create("/api/v1/namespaces", &object).await.expect(201);
    server.allow("mallory", name, &["*"], RULES).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    server.admin().create(&format!("/api/v1/namespaces/{name}/serviceaccounts"), &account).await.expect(201);
    until_refused(&server.admin(), name).await;
}

/// Waits until a Pod on the node's network is refused, which all of these namespaces refuse.
async fn until_refused(caller: &Caller, namespace: &str) {
    let mut probe = plain();
    (probe["hostNetwork"], probe["serviceAccountName"]) = (json!(true), json!("robot"));
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
    let deadline = Instant::now() + PATIENCE;
    while caller.create(&path, &pod("probe", probe.clone())).await.code != 403 {
        assert!(Instant::now() < deadline, "the labels of {namespace} do not count");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

fn as_robot(mut spec: Value) -> Value {
    spec["serviceAccountName"] = json!("robot");
    spec
}

#[tokio::test]
async fn a_restricted_namespace_takes_no_privileged_pod() {
    let server = Server::start().await;
    namespace(&server, "safe", json!({format!("{PREFIX}/enforce"): "restricted"})).await;
    let mallory = server.user("mallory");
    let pods = "/api/v1/namespaces/safe/pods";
    let refused = mallory.create(pods, &pod("x", as_robot(privileged()))).await.expect(403).message();
    let expected = "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": privileged (container \"c\" must not \
        set securityContext.privileged=true), allowPrivilegeEscalation != false (container \"c\" must set \
        securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
        securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
        securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
        securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
    assert_eq!(refused, expected);
    // The other ways to make one: applied, made by an update, named by the server, tried.
    let apply = format!("{pods}/x?fieldManager=m");
    mallory.patch("apply", &apply, pod("x", as_robot(privileged())).to_string()).await.expect(403);
    mallory.create(&format!("{pods}?dryRun=All"), &pod("x", as_robot(privileged()))).await.expect(403);
    let nameless =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}, "spec": as_robot(plain())});
    mallory.create(pods, &nameless).await.expect(403);
    // Not even an administrator's, and not one that says it is another system's.
    server.admin().create(pods, &pod("x", as_robot(privileged()))).await.expect(403);
    let mut windows = as_robot(privileged());
    windows["os"] = json!({"name": "windows"});
    assert_ne!(mallory.create(pods, &pod("x", windows)).await.code, 201);
    let made = mallory.create(pods, &pod("good", as_robot(restricted()))).await.expect(201);
    assert_eq!(made.warnings(), [""; 0]);

    // Labels of the Pod, or of no one, change nothing; who may not write the namespace does not change its labels.
    let relaxed = json!({"metadata": {"labels": {format!("{PREFIX}/enforce"): "privileged"}}}).to_string();
    server.user("bob").patch("merge", "/api/v1/namespaces/safe", relaxed.clone()).await.expect(403);
    let mut labelled = pod("x", as_robot(privileged()));
    labelled["metadata"]["labels"] = json!({format!("{PREFIX}/enforce"): "privileged"});
    mallory.create(pods, &labelled).await.expect(403);
}

#[tokio::test]
async fn a_workload_is_warned_of_and_its_pods_are_refused() {
    let server = Server::start().await;
    namespace(&server, "safe", json!({format!("{PREFIX}/enforce"): "baseline"})).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": as_robot(privileged())});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let mallory = server.user("mallory");
    let made = mallory.create("/apis/apps/v1/namespaces/safe/deployments", &deployment).await.expect(201);
    let expected = "299 - \"would violate PodSecurity \\\"baseline:latest\\\": privileged (container \\\"c\\\" must not set \
        securityContext.privileged=true)\"";
    assert_eq!(made.warnings(), [expected]);
    // The controller's attempt is refused, and the ReplicaSet says so.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sets = server.admin().get("/apis/apps/v1/namespaces/safe/replicasets").await.expect(200).json();
        let conditions = sets["items"][0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if let Some(failure) = conditions.iter().find(|c| c["type"] == "ReplicaFailure") {
            let message = failure["message"].as_str().unwrap();
            assert!(message.contains("violates PodSecurity \"baseline:latest\": privileged"), "{message}");
            break;
        }
        assert!(Instant::now() < deadline, "the controller says nothing: {sets}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let pods = mallory.get("/api/v1/namespaces/safe/pods").await.expect(200).json();
    assert_eq!(pods["items"], json!([]));
}

#[tokio::test]
async fn a_pod_grows_nothing_that_it_was_not_let_in_with() {
    let server = Server::start().await;
    namespace(
        &server,
        "safe",
        json!({format!("{PREFIX}/enforce"): "baseline", format!("{PREFIX}/warn"): "restricted"}),
    )
    .await;
    let mallory = server.user("mallory");
    let pods = "/api/v1/namespaces/safe/pods";
    mallory.create(pods, &pod("p", as_robot(plain()))).await.expect(201);
    let debugger = |context: Value| {
        json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "a", "securityContext": context}]}}).to_string()
    };
    let path = format!("{pods}/p/ephemeralcontainers");
    for context in [json!({"privileged": true}), json!({"capabilities": {"add": ["SYS_ADMIN"]}})] {
        let refused = mallory.patch("strategic", &path, debugger(context)).await.expect(403).message();
        assert!(
            refused.starts_with("pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": "),
            "{refused}"
        );
        assert!(refused.contains("container \"e\""), "{refused}");
    }
    mallory.patch("strategic", &path, debugger(json!({}))).await.expect(200);
    let stored = mallory.get(&format!("{pods}/p")).await.expect(200).json();
    assert_eq!(stored["spec"]["ephemeralContainers"].as_array().unwrap().len(), 1);
    // Of a Pod that would not be let in any more nothing is exchanged, but all else goes on.
    let admin = server.admin();
    let stricter = json!({"metadata": {"labels": {format!("{PREFIX}/enforce"): "restricted"}}}).to_string();
    let told = admin.patch("merge", "/api/v1/namespaces/safe", stricter).await.expect(200).warnings();
    let first = "299 - \"existing pods in namespace \\\"safe\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\"\"";
    let second = "299 - \"p: allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile\"";
    assert_eq!(told, [first, second]);
    let image = json!({"spec": {"containers": [{"name": "c", "image": "b"}]}}).to_string();
    let deadline = Instant::now() + PATIENCE;
    while mallory.patch("strategic", &format!("{pods}/p?dryRun=All"), image.clone()).await.code != 403 {
        assert!(Instant::now() < deadline, "the new label does not count");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    mallory.patch("merge", &format!("{pods}/p"), label).await.expect(200);
}

#[tokio::test]
async fn a_label_that_nobody_understands_is_refused() {
    let server = Server::start().await;
    let admin = server.admin();
    let object = |label: &str, value: &str| {
        let labels = json!({format!("{PREFIX}/{label}"): value});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}})
    };
    let level = "must be one of privileged, baseline, restricted";
    let version = "must be \"latest\" or \"v1.x\"";
    for (label, value, why) in [
        ("enforce", "strict", level),
        ("enforce", "Restricted", level),
        ("enforce", "", level),
        ("warn", "yes", level),
        ("audit", "yes", level),
        ("enforce-version", "1.35", version),
        ("warn-version", "v1.035", version),
        ("audit-version", "v2.0", version),
    ] {
        let expected =
            format!("Namespace \"n\" is invalid: metadata.labels[{PREFIX}/{label}]: Invalid value: {value:?}: {why}");
        let refused = admin.create("/api/v1/namespaces", &object(label, value)).await.expect(422);
        assert_eq!(refused.message(), expected);
        let patch = json!({"metadata": {"labels": {format!("{PREFIX}/{label}"): value}}}).to_string();
        let refused = admin.patch("merge", "/api/v1/namespaces/default", patch).await.expect(422).message();
        assert_eq!(refused, expected.replace("\"n\"", "\"default\""));
    }
    admin.create("/api/v1/namespaces", &object("enforce-version", "v1.35")).await.expect(201);
}

/// The file's defaults hold where no label stands, and its exemptions are the only ones.
#[tokio::test]
async fn the_configuration_counts_and_must_be_understood() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admission.yaml");
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  path: \
        podsec.yaml\n";
    std::fs::write(&file, text).unwrap();
    let settings = |more: &str| {
        let head = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n";
        std::fs::write(folder.path().join("podsec.yaml"), format!("{head}{more}")).unwrap();
    };
    let flag = format!("--admission-control-config-file={}", file.display());
    settings("defaults: {enforce: baseline}\nexemptions: {usernames: [bob], namespaces: [kube-system]}\n");
    let server = Server::with(&[&flag]).await;
    namespace(&server, "plain", json!({})).await;
    server.allow("bob", "plain", &["*"], RULES).await;
    server.allow("mallory", "kube-system", &["*"], RULES).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    server.admin().create("/api/v1/namespaces/kube-system/serviceaccounts", &account).await.expect(201);
    let wanted = pod("p", as_robot(privileged()));
    let refused = server.user("mallory").create("/api/v1/namespaces/plain/pods", &wanted).await.expect(403).message();
    assert!(refused.contains("violates PodSecurity \"baseline:latest\": privileged"), "{refused}");
    server.user("bob").create("/api/v1/namespaces/plain/pods", &wanted).await.expect(201);
    server.user("mallory").create("/api/v1/namespaces/kube-system/pods", &wanted).await.expect(201);
    drop(server);

    settings("defaults: {enforce: strict}\n");
    let said = Server::refusal(&[&flag]).await;
    let place = format!("{}: defaults.enforce: Invalid value: \"strict\"", folder.path().join("podsec.yaml").display());
    assert!(said.contains("--admission-control-config-file") && said.contains(&place), "{said}");
}
