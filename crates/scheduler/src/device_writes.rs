//! The writes about claims on devices: a claim gets the devices that were chosen for it and its Pod as a user before the Pod
//! is bound, and gives them up when they keep the Pod from every node.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (bindClaim, PostFilter).

use std::sync::Arc;

use client::{
    Api, Caches, Key,
    rest::{self, Resource, Verb},
};
use futures::future::BoxFuture;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use serde_json::{Value, json};

use crate::{plugin::Preparing, queue::Waiting};

/// Keeps a claim while it has devices.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// How often a write is tried that meets another one.
const TRIES: usize = 5;

/// What the plugin brings: claims of the Pod with the devices that they get.
type Given = Vec<(Key, Arc<AllocationResult>)>;

/// Makes the Pod a user of all its claims.
pub(crate) fn bind_claims(preparing: Preparing) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(async move {
        let Preparing { caches, pod, class, args, brought, .. } = preparing;
        let given: Arc<Given> = brought.downcast().unwrap_or_default();
        for name in class.devices.iter().filter_map(|named| named.name.as_deref()) {
            let key = Key::new(&*pod.key.namespace, name);
            let Some(claim) = caches.of::<ResourceClaim>().get(&key) else {
                return Err(format!("resourceclaim.resource.k8s.io {name:?} not found"));
            };
            let allocation = given.iter().find(|(claim, _)| *claim == key).map(|(_, result)| &**result);
            if !users(&claim).iter().any(|user| user["uid"] == json!(pod.uid)) {
                let revision = bind_claim(&caches, &pod, &key, claim, allocation).await?;
                // The engine keeps the devices until it is shown that the claim has them, so that comes first.
                let shown = async { caches.of::<ResourceClaim>().reached(revision).await };
                let late = |_| "context deadline exceeded".to_owned();
                clock::timeout(args.bind_timeout, shown).await.map_err(late)?;
            }
        }
        Ok(())
    })
}

fn users(claim: &ResourceClaim) -> Vec<Value> {
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    users.into_iter().flatten().map(|user| json!(user)).collect()
}

/// Tries until no other write comes between. Answers with the revision of the write.
async fn bind_claim(
    caches: &Caches,
    pod: &Waiting,
    key: &Key,
    claim: Arc<ResourceClaim>,
    allocation: Option<&AllocationResult>,
) -> Result<u64, String> {
    let (mut claim, mut tries) = (claim, 1);
    loop {
        match write(caches, pod, key, &claim, allocation).await {
            Err(Met::Another) if tries < TRIES => {}
            Err(Met::Another) => return Err(format!("claim {key}: the object has been modified")),
            Err(Met::Obstacle(why)) => return Err(why),
            Ok(revision) => return Ok(revision),
        }
        tries += 1;
        let api = Api::<ResourceClaim>::namespaced(caches.client().clone(), &key.namespace);
        let read = api.find(&key.name).await.map_err(|error| rest::message(&error));
        let read = read.and_then(|found| found.ok_or_else(|| "not found".to_owned()));
        claim = Arc::new(read.map_err(|why| format!("get updated claim {key} after conflict: {why}"))?);
    }
}

/// What a write meets.
enum Met {
    Another,
    Obstacle(String),
}

async fn write(
    caches: &Caches,
    pod: &Waiting,
    key: &Key,
    claim: &ResourceClaim,
    allocation: Option<&AllocationResult>,
) -> Result<u64, Met> {
    let obstacle = |why: String| Err(Met::Obstacle(why));
    let meta = &claim.metadata;
    if meta.deletion_timestamp.is_some() {
        return obstacle(format!("claim {key} got deleted in the meantime"));
    }
    let mut version = meta.resource_version.clone();
    let mut status = json!({});
    if let Some(allocation) = allocation {
        if claim.status.as_ref().is_some_and(|status| status.allocation.is_some()) {
            return obstacle(format!("claim {key} got allocated elsewhere in the meantime"));
        }
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|held| held == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": version, "finalizers": finalizers}});
            let written = patch(caches, key, "", body).await;
            let written = written.map_err(|error| met(&error, &format!("add finalizer to claim {key}")))?;
            version = Some(written.to_string());
        }
        status["allocation"] = json!(allocation);
    }
    let mut users = users(claim);
    users.push(json!({"resource": "pods", "name": pod.key.name, "uid": pod.uid}));
    status["reservedFor"] = json!(users);
    let what = if allocation.is_some() { "allocation and reservation" } else { "reservation" };
    // The version makes sure that no other user, who entered meanwhile, is forgotten.
    let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": version}, "status": status});
    patch(caches, key, "status", body).await.map_err(|error| met(&error, &format!("add {what} to claim {key}")))
}

fn met(error: &kube::Error, what: &str) -> Met {
    match rest::reason(error) {
        "Conflict" => Met::Another,
        _ => Met::Obstacle(format!("{what}: {}", rest::message(error))),
    }
}

async fn patch(caches: &Caches, key: &Key, subresource: &str, body: Value) -> Result<u64, kube::Error> {
    let (client, resource) = (caches.client(), Resource::of::<ResourceClaim>());
    let verb = Verb::MergePatch(body);
    Ok(rest::write(client, &resource, &key.namespace, &key.name, subresource, &verb).await?.revision)
}

/// Takes the devices from a claim that keep its Pod from every node, if nobody else has become its user. False when that
/// failed.
pub(crate) async fn give_up(caches: Caches, key: Key, pod: &Waiting) -> bool {
    let claim = caches.of::<ResourceClaim>().get(&key);
    let unused = |claim: &ResourceClaim| users(claim).iter().all(|user| user["uid"] == json!(pod.uid));
    let Some(claim) = claim.filter(|claim| unused(claim)) else { return true };
    let meta = json!({"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version});
    let body = json!({"metadata": meta, "status": {"allocation": null, "reservedFor": null, "devices": null}});
    let written = patch(&caches, &key, "status", body).await;
    if let Err(error) = &written {
        tracing::info!(claim = %key, error = rest::message(error), "cannot deallocate a claim");
    }
    written.is_ok()
}
