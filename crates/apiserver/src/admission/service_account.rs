//! ServiceAccount: every Pod runs as an account, and its containers find that account's token where they look for it.

use std::sync::Arc;

use api::Value;
use api::status::StatusError;
use clock::Duration;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, items, spec_list, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "ServiceAccount",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// An hour, and a little: so that it can be told from one that somebody asked for.
const TOKEN_SECONDS: i64 = 3607;
/// The default account of a new namespace is made by a controller: a Pod waits a moment for it.
const ATTEMPTS: usize = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create && is(attributes, "", "pods", "")
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let given = text(pod, "/spec/serviceAccountName").to_owned();
    if api::meta::annotation(pod, api::rules::pod::MIRROR_ANNOTATION).is_some() {
        if !given.is_empty() {
            return Err(forbid(attributes, "a mirror pod may not reference service accounts"));
        }
        return Ok(());
    }
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
    let projected = |v: &&Value| v.get("projected").is_some() && text(v, "/name").starts_with(VOLUME_PREFIX);
    let existing = items(pod, "/spec/volumes").find(projected).map(|v| text(v, "/name").to_owned());
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
    if let Some(volumes) = spec_list(pod, "volumes").filter(|_| mounted && existing.is_none()) {
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
}
