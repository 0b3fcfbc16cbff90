//! VolumeBinding: the Pod's PersistentVolumeClaims are there, and their volumes can be used on the node. Claims that wait
//! for their Pod get their volumes with the node: those that are there are reserved, the others are ordered, and the Pod is
//! bound when all are bound.
//! Upstream counterpart: pkg/scheduler/framework/plugins/volumebinding.
//!
//! A chosen volume is kept from other Pods until the write that gives it to the claim is seen or has failed. The write
//! names the version of the volume that was chosen, so nothing is given twice even if another scheduler runs.

use std::sync::Arc;

use api::rules::volume::{self, BOUND_BY_CONTROLLER, Offer, SELECTED_NODE, Wish};
use client::{
    Cache as Objects, Key,
    rest::{self, Resource, Verb},
};
use futures::future::BoxFuture;
use json::{Value, json};
use k8s_openapi::api::core::v1::{Node as NodeObject, PersistentVolume, PersistentVolumeClaim, Pod};

use crate::{
    cache::Cache,
    change::Change,
    claims::{Claim, Lack, Named},
    class::Class,
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, Preparing},
    queue::Waiting,
    rejection::{Rejection, Text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "VolumeBinding",
    concerns: |c| !c.class.claims.is_empty(),
    admit: Some(admit),
    filter: Filter::Live(filter),
    reserve: Some(reserve),
    unreserve: Some(|cache, pod, _| cache.claims.give_back(&pod.key)),
    bring: |cache, pod| Arc::new(cache.claims.taken_for(&pod.key)),
    pre_bind: Some(pre_bind),
    retry_on: &[
        Change::NodeAdded,
        Change::NodeLabels,
        Change::Claims,
        Change::Volumes,
        Change::StorageClasses,
        Change::StorageCapacity,
    ],
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

/// The fault of a claim, in upstream's words.
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
    let (known, labels) = (&context.cache.claims, &node.facts.labels);
    let mut reasons = Vec::new();
    for named in &context.class.claims {
        let Some(claim) = known.claims.get(&key(context, named)).filter(|claim| claim.bound) else { continue };
        match known.volumes.get(&claim.volume) {
            None => {
                let why = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
                return Err(Rejection::unresolvable(why));
            }
            Some(volume) if !volume.reaches(&node.name, labels) => {
                reasons.push("node(s) didn't match PersistentVolume's node affinity");
                break;
            }
            Some(_) => {}
        }
    }
    if let Err(lack) = known.choose(&waiting(context.cache, context.class), &node.name, labels) {
        reasons.push(words(lack));
    }
    match reasons[..] {
        [] => Ok(()),
        [first, ref more @ ..] => {
            let more = more.iter().copied().map(Text::Static).collect();
            Err(Rejection { more, ..Rejection::unresolvable(first) })
        }
    }
}

fn words(lack: Lack) -> &'static str {
    match lack {
        Lack::Volume => "node(s) didn't find available persistent volumes to bind",
        Lack::Room => "node(s) did not have enough free storage",
    }
}

/// The claims of a Pod of this class that get their volumes with the node.
fn waiting(cache: &Cache, class: &Class) -> Vec<Key> {
    let keys = class.claims.iter().filter_map(|named| Some(Key::new(class.namespace.as_str(), named.name.as_deref()?)));
    keys.filter(|key| cache.claims.claims.get(key).is_some_and(|claim| cache.claims.waits_for_pod(claim))).collect()
}

/// Another Pod may have been given a volume since the filter looked.
fn reserve(cache: &mut Cache, pod: &Waiting, node: NodeId) -> Result<(), Rejection> {
    let waiting = waiting(cache, cache.class(pod.class));
    if waiting.is_empty() {
        return Ok(());
    }
    let node = cache.node(node);
    let choice = cache.claims.choose(&waiting, &node.name, &node.facts.labels);
    let choice = choice.map_err(|lack| Rejection::unresolvable(words(lack)))?;
    cache.claims.take(&pod.key, &choice);
    Ok(())
}

fn pre_bind(preparing: Preparing) -> BoxFuture<'static, Result<(), String>> {
    Box::pin(async move {
        let binding = Binding::new(preparing);
        let written = async {
            binding.write().await?;
            binding.bound().await
        };
        let bound = clock::timeout(binding.preparing.args.bind_timeout, written).await;
        let bound = bound.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        bound.map_err(|why| format!("binding volumes: {why}"))
    })
}

/// The claims of a Pod that were not bound when its node was chosen.
struct Binding {
    preparing: Preparing,
    claims: Vec<Key>,
    /// Those of them that get a volume that is there, with its name.
    given: Arc<Vec<(Key, String)>>,
    volumes: Arc<Objects<PersistentVolume>>,
}

impl Binding {
    fn new(preparing: Preparing) -> Self {
        let held = preparing.caches.of::<PersistentVolumeClaim>();
        let namespace = &preparing.pod.key.namespace;
        let names = preparing.class.claims.iter().filter_map(|named| named.name.as_deref());
        let keys = names.map(|name| Key::new(namespace.as_str(), name));
        let claims = keys.filter(|key| held.get(key).is_none_or(|claim| !Claim::of(&claim).bound)).collect();
        let given = preparing.brought.clone().downcast().unwrap_or_default();
        let volumes = preparing.caches.of::<PersistentVolume>();
        Binding { preparing, claims, given, volumes }
    }

    fn given(&self, claim: &Key) -> Option<&str> {
        self.given.iter().find(|(key, _)| key == claim).map(|(_, volume)| volume.as_str())
    }

    /// Gives the claims the volumes that were chosen for them, and orders the others.
    async fn write(&self) -> Result<(), String> {
        let claims = self.preparing.caches.of::<PersistentVolumeClaim>();
        for key in &self.claims {
            let Some(claim) = claims.get(key) else { continue };
            match self.given(key) {
                Some(volume) => self.give(&claim, volume).await?,
                None => self.order(key, &claim).await?,
            }
        }
        Ok(())
    }

    async fn give(&self, claim: &PersistentVolumeClaim, name: &str) -> Result<(), String> {
        let volume = self.volumes.get(&Key::new("", name));
        let volume = volume.ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
        let (offer, wish, meta) = (Offer::of(&volume), Wish::of(claim), &claim.metadata);
        if !offer.suits(&wish) {
            return Err(format!("persistentvolume {name:?} is no longer available"));
        }
        if offer.claim().is_some_and(|held| held.uid == meta.uid) {
            return Ok(());
        }
        let reference = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": meta.namespace,
            "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version});
        // A reservation by a user stays the user's doing.
        let marks = if offer.claim().is_none() { json!({BOUND_BY_CONTROLLER: "yes"}) } else { json!({}) };
        let patch = json!({"metadata": {"annotations": marks, "resourceVersion": volume.metadata.resource_version},
            "spec": {"claimRef": reference}});
        self.patch::<PersistentVolume>(&Key::new("", name), patch).await
    }

    async fn order(&self, key: &Key, claim: &PersistentVolumeClaim) -> Result<(), String> {
        let node = &*self.preparing.node;
        if volume::annotation(&claim.metadata, SELECTED_NODE) == Some(node) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": claim.metadata.uid, "annotations": {SELECTED_NODE: node}}});
        self.patch::<PersistentVolumeClaim>(key, patch).await
    }

    async fn patch<K: client::Kind>(&self, key: &Key, patch: Value) -> Result<(), String> {
        let (client, resource) = (self.preparing.caches.client(), Resource::of::<K>());
        let written = rest::write(client, &resource, &key.namespace, &key.name, "", &Verb::MergePatch(patch)).await;
        let written = written.map_err(|error| rest::message(&error))?;
        self.preparing.caches.of::<K>().reached(written.revision).await;
        Ok(())
    }

    /// Until all claims are bound, or it is clear that they will not be.
    async fn bound(&self) -> Result<(), String> {
        let caches = &self.preparing.caches;
        let (claims, pods) = (caches.of::<PersistentVolumeClaim>(), caches.of::<Pod>());
        let (mut claim_changes, mut volume_changes, mut pod_changes) =
            (claims.subscribe(), self.volumes.subscribe(), pods.subscribe());
        loop {
            let pod = &self.preparing.pod;
            if pods.get(&pod.key).is_none_or(|held| held.metadata.uid.as_ref() != Some(&pod.uid)) {
                let name = &pod.key.name;
                return Err(format!("pod does not exist any more: pod {name:?} not found"));
            }
            let mut all = true;
            for key in &self.claims {
                let claim = claims.get(key);
                let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {:?} not found", key.name))?;
                all &= self.is_bound(key, &claim)?;
            }
            if all {
                return Ok(());
            }
            // Changes that were lost are as good as any, since the caches are looked at anew.
            tokio::select! {
                _ = claim_changes.recv() => {}
                _ = volume_changes.recv() => {}
                _ = pod_changes.recv() => {}
            }
        }
    }

    fn is_bound(&self, key: &Key, claim: &PersistentVolumeClaim) -> Result<bool, String> {
        let name = volume::volume_of(claim);
        match self.given(key) {
            Some(given) => {
                let volume = self.volumes.get(&Key::new("", given));
                let held = volume.as_ref().and_then(|volume| Offer::of(volume).claim());
                if held.is_none_or(|held| held.uid.is_none()) {
                    return Err(format!("ClaimRef got reset for pv {given:?}"));
                }
            }
            // Whoever cannot make the volume there takes the annotation away.
            None if volume::annotation(&claim.metadata, SELECTED_NODE) != Some(&*self.preparing.node) => {
                return Err(format!("provisioning failed for PVC {:?}", key.name));
            }
            None => {}
        }
        let node = &self.preparing.node;
        if let Some(volume) = self.volumes.get(&Key::new("", name)) {
            let object = self.preparing.caches.of::<NodeObject>().get(&Key::new("", &**node));
            let labels = object.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
            if !Offer::of(&volume).reaches(node, &labels) {
                let why = "no matching NodeSelectorTerms";
                return Err(format!("pv {name:?} node affinity doesn't match node {:?}: {why}", &**node));
            }
        }
        Ok(Claim::of(claim).bound)
    }
}
