//! DynamicResources: the Pod's ResourceClaims are there, and their devices are on the node or can be had there. Claims
//! without devices get them with the node: they are kept for the Pod when it has one, and written before it is bound.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources.

use std::sync::Arc;

use client::Key;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest};

use crate::{
    cache::Cache,
    change::Change,
    claims::Named,
    class::Class,
    device_writes::bind_claims,
    devices::{Claim, Problem},
    failure::{Failure, Release},
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, normalise},
    queue::Waiting,
    rejection::{Rejection, Text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DynamicResources",
    weight: 1,
    concerns: |c| !c.class.devices.is_empty(),
    admit: Some(admit),
    filter: Filter::Live(filter),
    score: Some(score),
    release: Some(release),
    reserve: Some(reserve),
    unreserve: Some(|cache, pod, _| cache.devices.take_back(&pod.key, &pod.uid)),
    holds: true,
    bring: |cache, pod| Arc::new(cache.devices.promised_for(pod)),
    pre_bind: Some(bind_claims),
    retry_on: &[Change::NodeAdded, Change::NodeLabels, Change::Devices],
    node_local: false,
    ..Plugin::NONE
};

const ELSEWHERE: &str = "resourceclaim not available on the node";

/// The claims of a class that are there.
fn claims<'a>(cache: &'a Cache, class: &'a Class) -> impl Iterator<Item = (Key, &'a Claim)> + 'a {
    let named = class.devices.iter().filter_map(|named| named.name.as_ref());
    let keys = named.map(|name| Key::new(class.namespace.as_str(), name.as_str()));
    keys.filter_map(|key| Some((key.clone(), cache.devices.claim(&key)?)))
}

/// Those of them that have no devices yet, each once.
fn without_devices(cache: &Cache, class: &Class) -> Vec<Key> {
    let mut keys: Vec<Key> =
        claims(cache, class).filter(|(_, claim)| claim.allocation.is_none()).map(|(key, _)| key).collect();
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    keys
}

fn admit(context: &Context) -> Result<(), Text> {
    let (cache, class) = (context.cache, context.class);
    cache.devices.next_pod();
    let there = class.devices.iter().try_for_each(|named| check(context, named));
    let ready = there.and_then(|()| {
        let mut waiting = claims(cache, class).filter(|(_, claim)| claim.allocation.is_none());
        waiting.try_for_each(|(key, claim)| {
            if cache.devices.is_promised(&key) {
                return Err(format!("resource claim {key} is in the process of being allocated"));
            }
            claim.spec.requests.iter().flatten().try_for_each(|request| check_classes(cache, &key, request))
        })
    });
    ready.map_err(|why| Text::Shared(why.into()))
}

/// What is wrong with a claim, in upstream's words.
fn check(context: &Context, named: &Named) -> Result<(), String> {
    let namespace = &context.class.namespace;
    let Some(name) = &named.name else {
        let pod = named.made_for.as_ref().map_or("", |(pod, _)| pod.as_str());
        return Err(format!("pod \"{namespace}/{pod}\": ResourceClaim not created yet"));
    };
    match (context.cache.devices.claim(&Key::new(namespace.as_str(), name.as_str())), &named.made_for) {
        (None, _) => Err(format!("resourceclaim.resource.k8s.io {name:?} not found")),
        (Some(claim), _) if claim.leaving => Err(format!("resourceclaim {name:?} is being deleted")),
        (Some(claim), Some((pod, uid))) if claim.owner.as_ref() != Some(uid) => Err(format!(
            "ResourceClaim {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
        )),
        (Some(_), _) => Ok(()),
    }
}

/// The classes that a request names must be there, all of them if it has alternatives.
fn check_classes(cache: &Cache, claim: &Key, request: &DeviceRequest) -> Result<(), String> {
    let (name, alternatives) = (&request.name, request.first_available.as_deref().unwrap_or_default());
    if request.exactly.is_none() && alternatives.is_empty() {
        return Err(format!("resource claim {claim}, request {name}: unknown request type"));
    }
    let exactly = request.exactly.iter().map(|exactly| (name.clone(), &exactly.device_class_name));
    let alternatives = alternatives.iter().map(|sub| (format!("{name}/{}", sub.name), &sub.device_class_name));
    let mut missing = exactly.chain(alternatives).filter(|(_, class)| !cache.devices.classes.contains_key(*class));
    match missing.next() {
        Some((name, class)) => Err(format!("request {name}: device class {class} does not exist")),
        None => Ok(()),
    }
}

fn reaches(claim: &Claim, node: &Node) -> bool {
    let nodes = claim.allocation.as_ref().and_then(|allocation| allocation.nodes.as_ref());
    nodes.is_none_or(|nodes| api::rules::node_affinity::matches(nodes, &node.facts.labels, &node.name))
}

fn filter(context: &Context, _: NodeId, node: &Node) -> Result<(), Rejection> {
    let (cache, class) = (context.cache, context.class);
    allocate(cache, &without_devices(cache, class), node)?;
    match claims(cache, class).all(|(_, claim)| reaches(claim, node)) {
        true => Ok(()),
        false => Err(Rejection::unresolvable(ELSEWHERE)),
    }
}

/// The devices for these claims on a node.
fn allocate(cache: &Cache, claims: &[Key], node: &Node) -> Result<Vec<AllocationResult>, Rejection> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    match cache.devices.allocate(&claims.iter().collect::<Vec<_>>(), node) {
        Ok(Some(results)) => Ok(results),
        Ok(None) => Err(Rejection::unresolvable("cannot allocate all claims")),
        Err(Problem::Here(why)) => Err(Rejection::unresolvable(why)),
        Err(Problem::Broken(why)) => Err(Rejection::broken(why)),
    }
}

/// The most alternatives that a request can have.
const ALTERNATIVES: usize = 8;

/// Nodes where claims get their first alternatives are better.
fn score(context: &Context, nodes: &[NodeId], scores: &mut [i64]) {
    let cache = context.cache;
    let wanted = without_devices(cache, context.class);
    let lists = wanted.iter().filter_map(|key| cache.devices.claim(key)).flat_map(|c| c.spec.requests.iter().flatten());
    if lists.filter(|request| request.first_available.is_some()).count() == 0 {
        return;
    }
    for (id, score) in nodes.iter().zip(scores.iter_mut()) {
        let Ok(results) = allocate(cache, &wanted, cache.node(*id)) else { continue };
        let claims = wanted.iter().filter_map(|key| cache.devices.claim(key)).zip(&results);
        *score = claims.map(|(claim, result)| rank(claim, result)).sum();
    }
    normalise(scores, false);
}

fn rank(claim: &Claim, result: &AllocationResult) -> i64 {
    let results = || result.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let has = |name: &str| results().any(|device| device.request == name);
    let of_request = |request: &DeviceRequest| -> i64 {
        let alternatives = request.first_available.iter().flatten().enumerate();
        let taken = alternatives.filter(|(_, sub)| has(&format!("{}/{}", request.name, sub.name)));
        taken.map(|(at, _)| ALTERNATIVES.saturating_sub(at) as i64).sum()
    };
    claim.spec.requests.iter().flatten().map(of_request).sum()
}

/// A claim that has its devices where the Pod cannot run, and that nobody else uses, can have others.
fn release(context: &Context, pod: &Waiting, failure: &Failure) -> Release {
    if failure.outright.is_some() {
        return Release::None;
    }
    if !failure.reasons.keys().any(|reason| reason.as_str() == ELSEWHERE) {
        return Release::Nothing;
    }
    let blocks = |claim: &Claim| {
        let nodes = context.cache.nodes().filter(|(_, node)| node.known);
        claim.users.iter().all(|user| *user == pod.uid) && nodes.into_iter().any(|(_, node)| !reaches(claim, node))
    };
    let mut blocking = claims(context.cache, context.class).filter(|(_, claim)| blocks(claim));
    blocking.next().map_or(Release::Nothing, |(key, _)| Release::Devices(key))
}

/// Another Pod may have been given a device since the filter looked.
fn reserve(cache: &mut Cache, pod: &Waiting, node: NodeId) -> Result<(), Rejection> {
    let wanted = without_devices(cache, cache.class(pod.class));
    if wanted.is_empty() {
        return Ok(());
    }
    let mut given = allocate(cache, &wanted, cache.node(node))?;
    let results =
        given.iter_mut().flat_map(|result| result.devices.iter_mut()).flat_map(|d| d.results.iter_mut().flatten());
    // Several shares of a device are told apart by these.
    results.filter_map(|result| result.share_id.as_mut()).for_each(|id| *id = clock::uuid());
    cache.devices.promise(pod, wanted.into_iter().zip(given));
    Ok(())
}
