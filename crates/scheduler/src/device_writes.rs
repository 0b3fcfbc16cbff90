//! The writes about claims on devices: a claim gets the devices that were chosen for it and its Pod as a user before the Pod
//! is bound, and gives them up when they keep the Pod from every node. A claim for extended resources is made with them.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (bindClaim, PreBind, PostFilter).

use std::{sync::Arc, time::Duration};

use api::rules::resource_name::EXTENDED_CLAIM;
use client::{
    Api, Caches, EventKind, Key,
    events::Act,
    rest::{self, DeleteOptions, Resource, Verb},
};
use futures::future::BoxFuture;
use json::{Value, json};
use k8s_openapi::{
    api::{
        core::v1::Pod,
        resource::v1::{AllocationResult, DeviceClaim, ResourceClaim, ResourceClaimSpec},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use crate::{
    asks::{self, Resources},
    devices::{Extended, Given, binding},
    plugin::Preparing,
    queue::{Waiting, reference},
};

/// Keeps a claim while it has devices.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// How often a write is tried that meets another one.
const TRIES: usize = 5;

/// Makes the Pod a user of all its claims, and of one for its extended resources; then waits for the devices.
pub(crate) fn bind_claims(preparing: Preparing) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(async move {
        let given: Arc<Given> = preparing.brought.clone().downcast().unwrap_or_default();
        let (caches, pod) = (&preparing.caches, &preparing.pod);
        let mut keys = Vec::new();
        for name in preparing.class.devices.iter().filter_map(|named| named.name.as_deref()) {
            let key = Key::new(&*pod.key.namespace, name);
            let Some(claim) = caches.of::<ResourceClaim>().get(&key) else {
                return Err(format!("resourceclaim.resource.k8s.io {name:?} not found"));
            };
            let allocation = given.claims.iter().find(|(claim, _)| *claim == key).map(|(_, result)| &**result);
            if !users(&claim).iter().any(|user| user["uid"] == json!(pod.uid)) {
                reserve(&preparing, &key, claim, (allocation, given.waits)).await?;
            }
            keys.push(key);
        }
        if let Some(extended) = &given.extended {
            keys.push(bind_extended(&preparing, extended, given.waits).await?);
        }
        if given.waits { wait_for_devices(&preparing, &keys).await } else { Ok(()) }
    })
}

/// Gives a claim its devices and its Pod as a user, and waits until the engine can see that: it keeps the devices until then.
async fn reserve(
    preparing: &Preparing,
    key: &Key,
    claim: Arc<ResourceClaim>,
    given: (Option<&AllocationResult>, bool),
) -> Result<(), String> {
    let caches = &preparing.caches;
    let revision = bind_claim(caches, &preparing.pod, key, claim, given).await?;
    let shown = async { caches.of::<ResourceClaim>().reached(revision).await };
    let late = |_| "context deadline exceeded".to_owned();
    clock::timeout(preparing.args.bind_timeout, shown).await.map_err(late)
}

/// Makes the claim for the extended resources of a Pod that are devices, and notes it in the Pod's status. A claim that comes
/// to nothing is deleted again.
async fn bind_extended(preparing: &Preparing, extended: &Extended, waits: bool) -> Result<Key, String> {
    let (caches, pod) = (&preparing.caches, &preparing.pod);
    let object = caches.of::<Pod>().get(&pod.key).filter(|object| object.metadata.uid.as_ref() == Some(&pod.uid));
    let object = object.ok_or_else(|| format!("pod {:?} not found", pod.key.name))?;
    let (claim, mappings) = extended_claim(&object, &extended.resources)?;
    let made = Api::<ResourceClaim>::namespaced(caches.client().clone(), &pod.key.namespace).create(&claim).await;
    preparing.made.count(made.is_ok());
    let named =
        |error: client::Error| format!("create claim for extended resources {}: {}", pod.key, rest::message(&error));
    let made = made.map_err(named)?;
    let key = Key::of(&made);
    let status = json!({"resourceClaimName": key.name, "requestMappings": mappings});
    let bound = async {
        reserve(preparing, &key, Arc::new(made), (Some(&extended.result), waits)).await?;
        let body = json!({"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}});
        let (client, resource) = (caches.client(), Resource::of::<Pod>());
        let verb = Verb::MergePatch(body);
        let noted = rest::write(client, &resource, &pod.key.namespace, &pod.key.name, "status", &verb).await;
        let what = |error| format!("update pod {} ExtendedResourceClaimStatus: {}", pod.key, rest::message(&error));
        noted.map(drop).map_err(what)
    };
    match bound.await {
        Ok(()) => Ok(key),
        Err(why) => {
            delete(caches, &key).await;
            Err(why)
        }
    }
}

/// The claim for the extended resources of a Pod, and what its status says of it.
fn extended_claim(pod: &Pod, resources: &Resources) -> Result<(ResourceClaim, Vec<Value>), String> {
    let (name, spec) = (pod.metadata.name.as_deref().unwrap_or_default(), pod.spec.clone().unwrap_or_default());
    let (requests, parts) = asks::requests(&asks::asks(&spec), resources);
    if parts.is_empty() {
        return Err(format!(
            "nil or empty request mappings, no update of pod {} ExtendedResourceClaimStatus",
            Key::of(pod)
        ));
    }
    let containers: Vec<&str> =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.name.as_str()).collect();
    let mapping = |(container, resource, request): (usize, String, String)| json!({"containerName": containers[container], "resourceName": resource, "requestName": request});
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: name.to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let claim = ResourceClaim {
        metadata: ObjectMeta {
            namespace: pod.metadata.namespace.clone(),
            generate_name: Some(format!("{name}-extended-resources-")),
            annotations: Some([(EXTENDED_CLAIM.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec { devices: Some(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() }) },
        status: None,
    };
    Ok((claim, parts.into_iter().map(mapping).collect()))
}

/// Until the devices of all claims are ready for their Pod, or it is clear that they will not be.
async fn wait_for_devices(preparing: &Preparing, keys: &[Key]) -> Result<(), String> {
    let Preparing { caches, recorder, pod, node, args, .. } = preparing;
    let (claims, pods) = (caches.of::<ResourceClaim>(), caches.of::<Pod>());
    let (mut claim_changes, mut pod_changes) = (claims.subscribe(), pods.subscribe());
    let found =
        |key: &Key| claims.get(key).ok_or_else(|| format!("resourceclaim.resource.k8s.io {:?} not found", key.name));
    let all = keys.iter().map(found).collect::<Result<Vec<_>, _>>()?;
    if !all.iter().any(|claim| binding::has_conditions(claim)) {
        return Ok(());
    }
    let message = format!("waiting for binding conditions for device on node {node}");
    let reason = "BindingConditionsPending";
    let act = Act { kind: EventKind::Normal, reason, action: "Scheduling", related: None };
    recorder.tell(&reference(pod), act, &message);
    let ready = async {
        loop {
            if pods.get(&pod.key).is_none_or(|held| held.metadata.uid.as_ref() != Some(&pod.uid)) {
                return Err(format!("pod does not exist any more: pod {:?} not found", pod.key.name));
            }
            let Some(left) = next_wait(keys, &found, args.binding_timeout)? else { return Ok(()) };
            tokio::select! {
                _ = claim_changes.recv() => {}
                _ = pod_changes.recv() => {}
                () = clock::sleep(left) => {}
            }
        }
    };
    let late = |_| Err("device binding timeout".to_owned());
    clock::timeout(args.binding_timeout, ready).await.unwrap_or_else(late)
}

/// How long the first claim that is not ready may still take; `None` when all are.
fn next_wait(
    keys: &[Key],
    found: &impl Fn(&Key) -> Result<Arc<ResourceClaim>, String>,
    patience: Duration,
) -> Result<Option<Duration>, String> {
    for key in keys {
        let claim = found(key)?;
        if !binding::is_ready(&claim)? {
            let left = binding::left(binding::waits_since(&claim), patience, clock::now()).unwrap_or(patience);
            return if left.is_zero() { Err(format!("claim {} binding timeout", key.name)) } else { Ok(Some(left)) };
        }
    }
    Ok(None)
}

/// Deletes a claim that the scheduler made for a Pod, which then has none until it is tried again. False when that failed.
pub(crate) async fn delete(caches: &Caches, key: &Key) -> bool {
    let api = Api::<ResourceClaim>::namespaced(caches.client().clone(), &key.namespace);
    let deleted = async {
        let Some(claim) = api.find(&key.name).await? else { return Ok(()) };
        let mut finalizers = claim.metadata.finalizers.unwrap_or_default();
        if finalizers.iter().any(|held| held == FINALIZER) {
            finalizers.retain(|held| held != FINALIZER);
            let meta = json!({"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
                "finalizers": finalizers});
            patch(caches, key, "", json!({"metadata": meta})).await?;
        }
        api.delete(&key.name, DeleteOptions::default()).await
    };
    match deleted.await {
        Err(error) if rest::reason(&error) != "NotFound" => {
            tracing::info!(claim = %key, error = rest::message(&error), "cannot delete a claim");
            false
        }
        _ => true,
    }
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
    given: (Option<&AllocationResult>, bool),
) -> Result<u64, String> {
    let (mut claim, mut tries) = (claim, 1);
    loop {
        match write(caches, pod, key, &claim, given).await {
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

/// The obstacle that a write meets.
enum Met {
    Another,
    Obstacle(String),
}

async fn write(
    caches: &Caches,
    pod: &Waiting,
    key: &Key,
    claim: &ResourceClaim,
    (allocation, waits): (Option<&AllocationResult>, bool),
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
        if waits {
            status["allocation"]["allocationTimestamp"] = json!(clock::now_seconds());
        }
    }
    let mut users = users(claim);
    users.push(json!({"resource": "pods", "name": pod.key.name, "uid": pod.uid}));
    status["reservedFor"] = json!(users);
    let what = if allocation.is_some() { "allocation and reservation" } else { "reservation" };
    // The version makes sure that no other user, who entered meanwhile, is forgotten.
    let body = json!({"metadata": {"uid": meta.uid, "resourceVersion": version}, "status": status});
    patch(caches, key, "status", body).await.map_err(|error| met(&error, &format!("add {what} to claim {key}")))
}

fn met(error: &client::Error, what: &str) -> Met {
    match rest::reason(error) {
        "Conflict" => Met::Another,
        _ => Met::Obstacle(format!("{what}: {}", rest::message(error))),
    }
}

async fn patch(caches: &Caches, key: &Key, subresource: &str, body: Value) -> Result<u64, client::Error> {
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
