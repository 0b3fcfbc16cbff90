//! VolumeBinding: the Pod's PersistentVolumeClaims are there, and their volumes can be used on the node. Claims that wait
//! for their Pod get their volume before the Pod is bound.
//!
//! A volume is chosen when the node is, not before: the write that gives it to the claim names the volume's version, so of
//! two Pods that choose one volume the second is refused and tried again.

use std::sync::Arc;

use client::{
    Caches, Key,
    rest::{self, Resource, Verb},
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use crate::{
    change::Change,
    claims::{Claim, Named, Volume},
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, Preparing},
    rejection::{Rejection, Text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeBinding",
    concerns: |c| !c.class.claims.is_empty(),
    admit: Some(admit),
    filter: Filter::Live(filter),
    pre_bind: Some(pre_bind),
    retry_on: &[Change::NodeAdded, Change::NodeLabels, Change::Claims, Change::Volumes, Change::StorageClasses],
    node_local: false,
    ..Plugin::NONE
};

fn key(context: &Context, named: &Named) -> Key {
    Key::new(context.class.namespace.as_str(), named.name.as_deref().unwrap_or_default())
}

/// Every claim is there, and is bound already unless it waits for its Pod.
fn admit(context: &Context) -> Result<(), Text> {
    let claims = &context.cache.claims;
    let mut unbound = false;
    for named in &context.class.claims {
        let key = key(context, named);
        let claim = claims.claims.get(&key);
        unbound |= claim.is_some_and(|claim| !claim.bound && !claims.waits_for_pod(claim));
        check(&key, named, claim).map_err(|why| Text::Shared(why.into()))?;
    }
    match unbound {
        true => Err(Text::Static("pod has unbound immediate PersistentVolumeClaims")),
        false => Ok(()),
    }
}

/// What is wrong with a claim, in upstream's words.
fn check(key: &Key, named: &Named, claim: Option<&Claim>) -> Result<(), String> {
    let name = &key.name;
    match (claim, &named.made_for) {
        (None, None) => Err(format!("persistentvolumeclaim {name:?} not found")),
        (None, Some(_)) => {
            Err(format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"))
        }
        (Some(claim), _) if claim.lost => {
            let volume = &claim.volume;
            Err(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"))
        }
        (Some(claim), _) if claim.leaving => Err(format!("persistentvolumeclaim {name:?} is being deleted")),
        (Some(claim), Some((pod, uid))) if claim.owner.as_ref() != Some(uid) => {
            let namespace = &key.namespace;
            Err(format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"))
        }
        (Some(_), _) => Ok(()),
    }
}

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    let known = &context.cache.claims;
    for named in &context.class.claims {
        let key = key(context, named);
        let Some(claim) = known.claims.get(&key) else { continue };
        if !claim.bound {
            if !known.can_bind_on(&key, claim, &node.name, &node.facts.labels) {
                return Err(Rejection::unresolvable("node(s) didn't find available persistent volumes to bind"));
            }
            continue;
        }
        match known.volumes.get(&claim.volume) {
            None => {
                let why = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
                return Err(Rejection::unresolvable(why));
            }
            Some(volume) if !volume.reaches(&node.name, &node.facts.labels) => {
                return Err(Rejection::unresolvable("node(s) didn't match PersistentVolume's node affinity"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn pre_bind(preparing: Preparing) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(async move {
        let Preparing { caches, pod, class, node, args } = preparing;
        for named in &class.claims {
            let key = Key::new(&*pod.key.namespace, named.name.as_deref().unwrap_or_default());
            let Some(claim) = caches.of::<PersistentVolumeClaim>().get(&key) else { continue };
            if !Claim::of(&claim).bound {
                order(&caches, &key, &claim, &node).await.map_err(|why| format!("binding volumes: {why}"))?;
            }
        }
        let bound = class.claims.iter().map(|named| wait(&caches, &pod.key.namespace, named));
        let bound = clock::timeout(args.bind_timeout, futures::future::try_join_all(bound)).await;
        let bound = bound.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        bound.map(|_| ()).map_err(|why| format!("binding volumes: {why}"))
    })
}

/// Until the claim is bound. One that is gone is an error.
async fn wait(caches: &Caches, namespace: &str, named: &Named) -> Result<(), String> {
    let cache = caches.of::<PersistentVolumeClaim>();
    let key = Key::new(namespace, named.name.as_deref().unwrap_or_default());
    let mut changes = cache.subscribe();
    loop {
        match cache.get(&key) {
            None => return Err(format!("persistentvolumeclaim {:?} not found", key.name)),
            Some(claim) if Claim::of(&claim).bound => return Ok(()),
            // Changes that were lost are as good as any, since the cache is looked at anew.
            Some(_) => _ = changes.recv().await,
        }
    }
}

/// Gives the claim the smallest volume that suits it and reaches the node, or has one made there.
async fn order(caches: &Caches, key: &Key, claim: &PersistentVolumeClaim, node: &Arc<str>) -> Result<(), String> {
    let wanted = Claim::of(claim);
    let labels = caches.of::<NodeObject>().get(&Key::new("", &**node)).and_then(|n| n.metadata.labels.clone());
    let labels = labels.unwrap_or_default();
    let volumes = caches.of::<PersistentVolume>().list();
    let known = volumes.iter().map(|object| (Volume::of(object), object));
    let suiting = known.filter(|(volume, _)| volume.suits(key, &wanted) && volume.reaches(node, &labels));
    let smallest = suiting.min_by_key(|(volume, object)| (volume.bytes(), object.metadata.name.clone()));
    let (resource, namespace, name, patch) = match smallest {
        Some((_, object)) => {
            let meta = &object.metadata;
            let claim = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": key.namespace,
                "name": key.name, "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version});
            let marked = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
            let patch = json!({"metadata": {"annotations": marked, "resourceVersion": meta.resource_version},
                "spec": {"claimRef": claim}});
            (Resource::of::<PersistentVolume>(), "", meta.name.as_deref().unwrap_or_default(), patch)
        }
        None => {
            let patch = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": &**node}}});
            (Resource::of::<PersistentVolumeClaim>(), key.namespace.as_str(), key.name.as_str(), patch)
        }
    };
    let written = rest::write(caches.client(), &resource, namespace, name, "", &Verb::MergePatch(patch)).await;
    written.map(|_| ()).map_err(|error| rest::message(&error))
}
