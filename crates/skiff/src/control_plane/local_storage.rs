//! The storage of a new cluster: the class `local`, which is the default, and what its controllers need.
//! Writes: CSIDriver, StorageClass, and the rights of the service account that makes the volumes.
//!
//! The class is the user's from the moment it is there: it is made once in a cluster's life. That this was done is told by
//! the CSIDriver object, which is made after it. The class does not become the default where another one is already.

use api::rules::{local_volume::PROVISIONER, volume};
use client::{Api, Client};
use json::{Value, json};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};

use crate::control_plane::objects::{Attempts, apply, bind_cluster_role};

const CLASS: &str = "local";
const ROLE: &str = "system:controller:local-volume-provisioner";

/// Writes everything, trying until it succeeds.
pub async fn run(client: Client) {
    let mut attempts = Attempts::new();
    while let Err(error) = write(&client).await {
        let tell = |error| tracing::warn!(error, "cannot write the class of local volumes, trying again");
        attempts.failed(&error, tell).await;
    }
}

async fn write(client: &Client) -> Result<(), client::Error> {
    let account =
        json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": controllers::storage::local::ACCOUNT});
    for object in [&role(), &bind_cluster_role(ROLE, ROLE, account)] {
        apply(client, object).await?;
    }
    let (drivers, classes) = (Api::<CSIDriver>::all(client.clone()), Api::<StorageClass>::all(client.clone()));
    if drivers.find(PROVISIONER).await?.is_some() {
        return Ok(());
    }
    let has_default = classes.list(&[]).await?.iter().any(|held| volume::is_default_class(&held.metadata));
    made(classes.create(&class(!has_default)).await)?;
    made(drivers.create(&driver()).await)
}

/// An object that is there already was made by a start that was interrupted, or by another server.
fn made<T>(outcome: Result<T, client::Error>) -> Result<(), client::Error> {
    match outcome {
        Err(client::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

fn class(is_default: bool) -> StorageClass {
    let class = json!({
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": is_default.to_string()}},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    });
    json::from_value(class).expect("the fields of a class")
}

/// The scheduler reads from it that there are capacities to look at.
fn driver() -> CSIDriver {
    let driver = json!({"metadata": {"name": PROVISIONER}, "spec": {"attachRequired": false, "storageCapacity": true}});
    json::from_value(driver).expect("the fields of a driver")
}

fn role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/finalizers"], "verbs": ["update"]},
            {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["create", "delete", "update"]},
            {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["update"]},
            {"apiGroups": ["storage.k8s.io"], "resources": ["csistoragecapacities"], "verbs": ["create", "delete", "update"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        ],
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// The objects that are created in a cluster with this driver or without, and with these classes: each name with its annotations.
    async fn created(has_driver: bool, classes: Value) -> Vec<Value> {
        let created = Arc::new(Mutex::new(Vec::new()));
        let seen = created.clone();
        let client = client::in_process(tower::service_fn(move |request: http::Request<client::Body>| {
            let (seen, classes) = (seen.clone(), classes.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = http_body_util::BodyExt::collect(body).await.map(|body| body.to_bytes()).unwrap_or_default();
                let path = parts.uri.path();
                let missing = json!({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"});
                let (code, answer) = match parts.method.as_str() {
                    "GET" if path.ends_with("/storageclasses") => (200, json!({"metadata": {}, "items": classes})),
                    "GET" if has_driver => (200, json!({"metadata": {"name": PROVISIONER}, "spec": {}})),
                    "GET" => (404, missing),
                    "POST" => {
                        let object: Value = json::parse(std::str::from_utf8(&body).unwrap()).unwrap();
                        seen.lock().push(object["metadata"].clone());
                        (201, object)
                    }
                    _ => (200, json!({"metadata": {"name": "x", "resourceVersion": "1"}})),
                };
                let answer = http_body_util::Full::new(bytes::Bytes::from(answer.to_string()));
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(answer).unwrap())
            }
        }));
        write(&client).await.unwrap();
        let created = created.lock();
        created.clone()
    }

    #[tokio::test]
    async fn the_class_is_made_once_and_takes_no_others_place() {
        let class = |default: &str| json!({"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": default}});
        let driver = || json!({"name": PROVISIONER});
        assert_eq!(created(false, json!([])).await, [class("true"), driver()]);
        let other = |default: &str| {
            let meta = json!({"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": default}});
            json!([{"metadata": meta, "provisioner": "p"}])
        };
        assert_eq!(created(false, other("false")).await, [class("true"), driver()]);
        assert_eq!(created(false, other("true")).await, [class("false"), driver()]);
        // The user has deleted the class: it does not come again.
        assert!(created(true, json!([])).await.is_empty());
    }
}
