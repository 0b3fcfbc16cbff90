//! ServiceAccount: every Pod runs as an account, and its containers find that account's token where they look for it. A mirror Pod, which
//! runs whatever the API server says, names nothing that it would be given; and an account may say that its Pods name its own Secrets only.

use std::{collections::BTreeSet, sync::Arc};

use api::{Value, k8s_openapi::api::core::v1::Pod, object::Object, rules::pod_references, status::StatusError};
use clock::Duration;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, Verdict, forbid, is, items, require, spec_list, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "ServiceAccount",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// An hour, and a little: so that it can be told from one that somebody asked for.
const TOKEN_SECONDS: i64 = 3607;
/// The default account of a new namespace is made by a controller: a Pod waits a moment for it.
const ATTEMPTS: usize = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// With this annotation an account's Pods name its own Secrets only.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

fn concerns(attributes: &Attributes<'_>) -> bool {
    match attributes.operation {
        Operation::Create => is(attributes, "", "pods", ""),
        Operation::Update => is(attributes, "", "pods", "ephemeralcontainers"),
        _ => false,
    }
}

fn is_mirror(pod: &Value) -> bool {
    api::meta::annotation(pod, api::rules::pod::MIRROR_ANNOTATION).is_some()
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    // The Pod that it stands for runs already, and a change would make it another one.
    if is_mirror(pod) {
        return mirror(pod).map_err(|why| forbid(attributes, why));
    }
    let given = text(pod, "/spec/serviceAccountName").to_owned();
    let name = if given.is_empty() { "default".to_owned() } else { given };
    let account = account(context, attributes, &name).await?;
    if let Some(pod) = &mut attributes.object {
        apply(pod, &name, &account);
    }
    Ok(())
}

async fn account(context: &Context, attributes: &Attributes<'_>, name: &str) -> Result<Arc<Value>, StatusError> {
    let attempts = if name == "default" { ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            clock::sleep(BETWEEN_ATTEMPTS).await;
        }
        if let Some(account) = context.objects.get("", "serviceaccounts", attributes.namespace, name).await? {
            return Ok(account);
        }
    }
    let place = attributes.namespace;
    let why = format!("error looking up service account {place}/{name}: serviceaccount \"{name}\" not found");
    Err(forbid(attributes, why))
}

/// Writes the account into the Pod.
fn apply(pod: &mut Value, name: &str, account: &Value) {
    pod["spec"]["serviceAccountName"] = json!(name);
    pod["spec"]["serviceAccount"] = json!(name);
    let wants = |object: &Value, path: &str| api::meta::at(object, path).and_then(Value::as_bool);
    let automount = wants(pod, "/spec/automountServiceAccountToken")
        .or_else(|| wants(account, "/automountServiceAccountToken"))
        .unwrap_or(true);
    if automount {
        mount(pod);
    }
    if items(pod, "/spec/imagePullSecrets").next().is_none() {
        let secrets: Vec<Value> = items(account, "/imagePullSecrets").cloned().collect();
        if !secrets.is_empty() {
            pod["spec"]["imagePullSecrets"] = json!(secrets);
        }
    }
}

/// Gives every container the token's volume that has nothing else in that place.
fn mount(pod: &mut Value) {
    let is_there = |volume: &&Value| text(volume, "/name").starts_with(VOLUME_PREFIX);
    let existing = items(pod, "/spec/volumes").find(is_there).map(|v| text(v, "/name").to_owned());
    let name = existing.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{}", clock::name_suffix(5)));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = pod.get_mut("spec").and_then(|s| s.get_mut(list)).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if !mounts.iter().any(|m| text(m, "/mountPath") == MOUNT_PATH) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                mounted = true;
            }
        }
    }
    if mounted
        && existing.is_none()
        && let Some(volumes) = spec_list(pod, "volumes")
    {
        volumes.push(volume(&name));
    }
}

/// Token, authority and namespace, as client libraries expect them.
fn volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ],
        },
    })
}

/// Others may have changed the Pod since it got its account.
async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let creates = attributes.operation == Operation::Create;
    if creates && is_mirror(pod) {
        return mirror(pod).map_err(|why| forbid(attributes, why));
    }
    let name = text(pod, "/spec/serviceAccountName");
    if name.is_empty() {
        let (place, pod) = (attributes.namespace, api::meta::name(pod));
        return Err(forbid(attributes, format!("no service account specified for pod {place}/{pod}")));
    }
    let account = account(context, attributes, name).await?;
    let says = api::meta::annotation(&account, ENFORCE).unwrap_or_default();
    if !["1", "t", "T", "TRUE", "true", "True"].contains(&says) {
        return Ok(());
    }
    if creates {
        return own_secrets(pod, &account).map_err(|why| forbid(attributes, why));
    }
    // Upstream's refusal of a debugging container is no Status of any reason.
    of_containers(pod, "ephemeralContainers", "ephemeral container", &account)
        .map_err(|why| StatusError::new(500, "", why))
}

fn mirror(pod: &Value) -> Verdict {
    require(text(pod, "/spec/serviceAccountName").is_empty(), || {
        "a mirror pod may not reference service accounts".to_owned()
    })?;
    let read = Pod::from_value(pod).map_err(|why| format!("the pod cannot be read: {why}"))?;
    require(!read.spec.as_ref().is_some_and(pod_references::names_secret), || {
        "a mirror pod may not reference secrets".to_owned()
    })?;
    let mut sources = items(pod, "/spec/volumes").flat_map(|volume| items(volume, "/projected/sources"));
    require(!sources.any(|source| api::meta::at(source, "/serviceAccountToken").is_some()), || {
        "a mirror pod may not use ServiceAccountToken volume projections".to_owned()
    })
}

fn names<'a>(account: &'a Value, path: &str) -> BTreeSet<&'a str> {
    items(account, path).map(|secret| text(secret, "/name")).collect()
}

/// A Pod names no other Secrets than its account does.
fn own_secrets(pod: &Value, account: &Value) -> Verdict {
    let (secrets, name) = (names(account, "/secrets"), api::meta::name(account));
    let why = format!("is not allowed because service account {name} does not reference that");
    for volume in items(pod, "/spec/volumes").filter_map(|volume| api::meta::at(volume, "/secret")) {
        let secret = text(volume, "/secretName");
        require(secrets.contains(secret), || format!("volume with secret.secretName=\"{secret}\" {why} secret"))?;
    }
    of_containers(pod, "initContainers", "init container", account)?;
    of_containers(pod, "containers", "container", account)?;
    let pulls = names(account, "/imagePullSecrets");
    for (at, secret) in items(pod, "/spec/imagePullSecrets").enumerate() {
        let secret = text(secret, "/name");
        require(pulls.contains(secret), || format!("imagePullSecrets[{at}].name=\"{secret}\" {why} imagePullSecret"))?;
    }
    Ok(())
}

fn of_containers(pod: &Value, list: &str, what: &str, account: &Value) -> Verdict {
    let (secrets, name) = (names(account, "/secrets"), api::meta::name(account));
    let check = |container: &str, by: String, secret: &str| {
        require(secrets.contains(secret), || {
            format!(
                "{what} {container} with {by} referencing secret.secretName=\"{secret}\" is not allowed because service account \
                 {name} does not reference that secret"
            )
        })
    };
    for container in items(pod, &format!("/spec/{list}")) {
        let name = text(container, "/name");
        for env in items(container, "/env") {
            if let Some(key) = api::meta::at(env, "/valueFrom/secretKeyRef") {
                check(name, format!("envVar {}", text(env, "/name")), text(key, "/name"))?;
            }
        }
        for from in items(container, "/envFrom").filter_map(|from| api::meta::at(from, "/secretRef")) {
            check(name, "envFrom".to_owned(), text(from, "/name"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    fn pod(spec: Value) -> Write {
        Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_gets_account_token_and_pull_secrets() {
        let account = |name: &str, more: Value| {
            let mut account = json!({"metadata": {"name": name, "namespace": "ns"}});
            account.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ("serviceaccounts", account)
        };
        let context = context(vec![
            account("default", json!({"imagePullSecrets": [{"name": "pull"}]})),
            account("quiet", json!({"automountServiceAccountToken": false})),
        ])
        .await;
        let out = pod(
            json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]}),
        );
        let out = out.through(&context, &PLUGIN).await.unwrap();
        let volume = out["spec"]["volumes"][0]["name"].as_str().unwrap();
        assert!(volume.starts_with("kube-api-access-") && volume.len() == "kube-api-access-".len() + 5);
        let mount = json!([{"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}]);
        assert_eq!(out["spec"]["containers"][0]["volumeMounts"], mount);
        assert_eq!(out["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(out["spec"]["serviceAccountName"], "default");
        assert_eq!(out["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));

        let quiet = pod(json!({"serviceAccountName": "quiet", "containers": [{"name": "a"}]}));
        let quiet = quiet.through(&context, &PLUGIN).await.unwrap();
        assert!(quiet["spec"].get("volumes").is_none());
        let loud = pod(
            json!({"serviceAccountName": "quiet", "automountServiceAccountToken": true, "containers": [{"name": "a"}]}),
        );
        assert!(loud.through(&context, &PLUGIN).await.unwrap()["spec"].get("volumes").is_some());

        let missing = pod(json!({"serviceAccountName": "none"})).through(&context, &PLUGIN).await.unwrap_err();
        let expected =
            r#"pods "p" is forbidden: error looking up service account ns/none: serviceaccount "none" not found"#;
        assert_eq!(missing, expected);
    }

    #[tokio::test]
    async fn a_mirror_pod_names_nothing_that_it_would_be_given() {
        let context = context(Vec::new()).await;
        let mirror = |mut spec: Value| {
            spec["containers"] = json!([{"name": "a"}]);
            let metadata = json!({"name": "p", "namespace": "ns", "annotations": {"kubernetes.io/config.mirror": "x"}});
            Write::create("pods", json!({"metadata": metadata, "spec": spec}))
        };
        let plain = mirror(json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
        let expected = plain.object.clone();
        assert_eq!(plain.through(&context, &PLUGIN).await.ok(), expected, "nothing is changed");
        for (spec, why) in [
            (json!({"serviceAccountName": "default"}), "reference service accounts"),
            (json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), "reference secrets"),
            (json!({"volumes": [{"name": "v", "secret": {}}]}), "reference secrets"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "reference secrets"),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                "use ServiceAccountToken volume projections",
            ),
        ] {
            for plugin in [&PLUGIN, &Plugin { admit: None, ..PLUGIN }] {
                let refused = mirror(spec.clone()).through(&context, plugin).await.unwrap_err();
                assert_eq!(refused, format!("pods \"p\" is forbidden: a mirror pod may not {why}"));
            }
        }
    }

    #[tokio::test]
    async fn an_account_may_keep_its_pods_to_its_own_secrets() {
        let account = |name: &str, says: &str| {
            let metadata = json!({"name": name, "namespace": "ns", "annotations": {ENFORCE: says}});
            let account =
                json!({"metadata": metadata, "secrets": [{"name": "own"}], "imagePullSecrets": [{"name": "pull"}]});
            ("serviceaccounts", account)
        };
        let context = context(vec![account("strict", "true"), account("lax", "yes")]).await;
        let env = |secret: &str| json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
        let from = |secret: &str| json!([{"secretRef": {"name": secret}}]);
        let cases = |secret: &str| {
            let one = |field: &str, value: Value| json!([{"name": "c", field: value}]);
            [
                (json!({"volumes": [{"name": "v", "secret": {"secretName": secret}}]}), "volume with secret"),
                (
                    json!({"initContainers": one("env", env(secret))}),
                    "init container c with envVar E referencing secret",
                ),
                (
                    json!({"initContainers": one("envFrom", from(secret))}),
                    "init container c with envFrom referencing secret",
                ),
                (json!({"containers": one("env", env(secret))}), "container c with envVar E referencing secret"),
                (json!({"containers": one("envFrom", from(secret))}), "container c with envFrom referencing secret"),
            ]
        };
        let of = |account: &str, mut spec: Value| {
            spec["serviceAccountName"] = json!(account);
            pod(spec)
        };
        let why = "is not allowed because service account strict does not reference that";
        for (spec, what) in cases("other") {
            assert!(of("lax", spec.clone()).through(&context, &PLUGIN).await.is_ok());
            let refused = of("strict", spec).through(&context, &PLUGIN).await.unwrap_err();
            assert_eq!(refused, format!("pods \"p\" is forbidden: {what}.secretName=\"other\" {why} secret"));
        }
        for (spec, _) in cases("own") {
            assert!(of("strict", spec).through(&context, &PLUGIN).await.is_ok());
        }
        let pulls = |name: &str| of("strict", json!({"imagePullSecrets": [{"name": name}]}));
        assert!(pulls("pull").through(&context, &PLUGIN).await.is_ok());
        let refused = pulls("own").through(&context, &PLUGIN).await.unwrap_err();
        let expected = format!("pods \"p\" is forbidden: imagePullSecrets[0].name=\"own\" {why} imagePullSecret");
        assert_eq!(refused, expected);
        // Containers for debugging come later, and are asked about then.
        let debug = |secret: &str| {
            let spec = json!({"ephemeralContainers": [{"name": "d", "env": env(secret)}]});
            let (operation, kind) = (Operation::Update, ("", "pods", "ephemeralcontainers"));
            Write { operation, kind, ..of("strict", spec) }
        };
        assert!(debug("own").through(&context, &PLUGIN).await.is_ok());
        let refused = debug("other").refused(&context, &PLUGIN).await;
        let what = "ephemeral container d with envVar E referencing secret.secretName=\"other\"";
        assert_eq!((refused.code, refused.message), (500, format!("{what} {why} secret")));
    }

    /// Upstream: TestIgnoresNonCreate, TestIgnoresNonPodResource, TestIgnoresNilObject, TestFetchesUncachedServiceAccount,
    /// TestDeniesInvalidServiceAccount, TestRespectsExistingMount, TestDoNotAddImagePullSecrets, TestAddImagePullSecrets.
    #[tokio::test(start_paused = true)]
    async fn a_pod_keeps_what_it_says_itself_and_other_writes_are_left_alone() {
        let account = json!({"metadata": {"name": "default", "namespace": "ns"},
            "imagePullSecrets": [{"name": "foo"}, {"name": "bar"}]});
        let context = context(vec![("serviceaccounts", account)]).await;
        let of = |spec: Value| pod(spec).through(&context, &PLUGIN);
        let spec = of(json!({"containers": [{"name": "c"}]})).await.unwrap()["spec"].take();
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "foo"}, {"name": "bar"}]));
        assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("default"), &json!("default")));
        let own = of(json!({"imagePullSecrets": [{"name": "foo"}]})).await.unwrap();
        assert_eq!(own["spec"]["imagePullSecrets"], json!([{"name": "foo"}]));
        let mounts = json!([{"name": "my-custom-mount", "mountPath": MOUNT_PATH}]);
        let out = of(json!({"containers": [{"name": "c", "volumeMounts": mounts}]})).await.unwrap();
        assert_eq!(out["spec"]["containers"][0]["volumeMounts"], mounts);
        assert_eq!(out["spec"].get("volumes"), None, "nobody would mount it");
        let elsewhere = json!({"metadata": {"name": "p", "namespace": "empty"}, "spec": {}});
        let refused = Write::create("pods", elsewhere.clone()).through(&context, &PLUGIN).await.unwrap_err();
        let expected = "pods \"p\" is forbidden: error looking up service account empty/default: serviceaccount \"default\" \
                        not found";
        assert_eq!(refused, expected);
        for (operation, (plural, subresource)) in [
            (Operation::Update, ("pods", "")),
            (Operation::Delete, ("pods", "")),
            (Operation::Connect, ("pods", "exec")),
            (Operation::Create, ("pods", "binding")),
            (Operation::Create, ("customresources", "")),
        ] {
            let write = Write { operation, kind: ("", plural, subresource), ..Write::create("", elsewhere.clone()) };
            assert_eq!(
                write.through(&context, &PLUGIN).await.unwrap(),
                elsewhere,
                "{operation:?} {plural} {subresource}"
            );
        }
    }

    #[tokio::test]
    async fn a_volume_of_the_tokens_name_is_taken_for_it() {
        let context = context(vec![("serviceaccounts", json!({"metadata": {"name": "a", "namespace": "ns"}}))]).await;
        let volumes = json!([{"name": "kube-api-access-x", "emptyDir": {}}]);
        let spec = json!({"serviceAccountName": "a", "volumes": volumes, "initContainers": [{"name": "i"}], "containers": [{"name": "c"}]});
        let out = pod(spec).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(out["spec"]["volumes"], volumes);
        for list in ["initContainers", "containers"] {
            assert_eq!(out["spec"][list][0]["volumeMounts"][0]["name"], "kube-api-access-x");
        }
    }
}
