//! DynamicResources: the Pod's ResourceClaims are there, and their devices are on the node or can be had there. Claims
//! without devices get them with the node: they are kept for the Pod when it has one, and written before it is bound.
//! Extended resources for which a class stands, and that the node has not from a device plugin, get them the same way.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources.

use std::sync::Arc;

use client::Key;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest};

use crate::{
    asks::Resources,
    cache::Cache,
    change::Change,
    claims::Named,
    class::Class,
    device_writes::bind_claims,
    devices::{Allocation, Claim, Problem, Turn, Unnamed},
    failure::{Failure, Release},
    node::Node,
    node_id::NodeId,
    plugin::{Context, Filter, Plugin, normalise},
    queue::Waiting,
    rejection::{Rejection, Text},
    resources::ResourceId,
};

pub const PLUGIN: Plugin = Plugin {
    name: "DynamicResources",
    weight: 1,
    concerns: |c| !c.class.devices.is_empty() || c.cache.devices.stand_for(&c.class.asks),
    admit: Some(admit),
    filter: Filter::Live(filter),
    score: Some(score),
    release: Some(release),
    reserve: Some(reserve),
    unreserve: Some(|cache, pod, _| cache.devices.take_back(&pod.key, &pod.uid)),
    holds: true,
    bring: |cache, pod| Arc::new(cache.devices.promised_for(pod)),
    pre_bind: Some(bind_claims),
    // A device plugin that comes or goes decides whether an extended resource is devices.
    retry_on: &[Change::NodeAdded, Change::NodeLabels, Change::NodeAllocatable, Change::Devices],
    node_local: false,
    ..Plugin::NONE
};

const ELSEWHERE: &str = "resourceclaim not available on the node";
const NOT_ENOUGH: &str = "cannot allocate all claims";
const LEFT_OVER: &str = "cannot schedule extended resource claim";

/// The claims of a class that are there.
fn claims<'a>(cache: &'a Cache, class: &'a Class) -> impl Iterator<Item = (Key, &'a Claim)> + 'a {
    let named = class.devices.iter().filter_map(|named| named.name.as_ref());
    let keys = named.map(|name| Key::new(class.namespace.as_str(), name.as_str()));
    keys.filter_map(|key| Some((key.clone(), cache.devices.claim(&key)?)))
}

/// Those of them that have no devices yet, each once.
fn without_devices(cache: &Cache, class: &Class) -> Vec<Key> {
    cache.devices.turn(class).without.clone()
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

/// The fault of a claim, in upstream's words.
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
    let mut missing = exactly.chain(alternatives).filter(|(_, class)| cache.devices.class(class).is_none());
    match missing.next() {
        Some((name, class)) => Err(format!("request {name}: device class {class} does not exist")),
        None => Ok(()),
    }
}

fn reaches(claim: &Claim, node: &Node) -> bool {
    let nodes = claim.allocation.as_ref().and_then(|allocation| allocation.nodes.as_ref());
    nodes.is_none_or(|nodes| api::rules::node_affinity::matches(nodes, &node.facts.labels, &node.name))
}

/// Whether the devices that a claim has can be used on a node, now or soon.
fn is_available(context: &Context, claim: &Claim, node: &Node) -> bool {
    let devices = &context.cache.devices;
    let hopeless = |allocation: &Allocation| {
        devices.gates.conditions && allocation.readiness.is_hopeless(context.args.binding_timeout, devices.now)
    };
    reaches(claim, node) && !claim.allocation.as_ref().is_some_and(hopeless)
}

fn filter(context: &Context, id: NodeId, node: &Node) -> Result<(), Rejection> {
    let (cache, class) = (context.cache, context.class);
    let turn = cache.devices.turn(class);
    let unnamed = unnamed(cache, class, &turn, node);
    let needs = unnamed.is_some() || !turn.without.is_empty();
    if needs && !cache.devices.fit(&turn, unnamed.as_deref(), id, node).map_err(refusal)? {
        return Err(Rejection::unresolvable(NOT_ENOUGH));
    }
    let mut with = turn.with.iter().filter_map(|key| cache.devices.claim(key));
    match with.all(|claim| is_available(context, claim, node)) {
        true => Ok(()),
        false => Err(Rejection::unresolvable(ELSEWHERE)),
    }
}

fn refusal(problem: Problem) -> Rejection {
    match problem {
        Problem::Here(why) => Rejection::unresolvable(why),
        Problem::Broken(why) => Rejection::broken(why),
    }
}

/// The claim for the extended resources of a class that a node has as devices.
fn unnamed(cache: &Cache, class: &Class, turn: &Turn, node: &Node) -> Option<Arc<Unnamed>> {
    if class.asks.is_empty() {
        return None;
    }
    let asked = class.requests.others.iter().filter(|(_, amount)| *amount > 0).map(|(id, _)| *id);
    let ids: Vec<ResourceId> = asked.filter(|id| cache.devices.provide(&cache.resources, node, *id)).collect();
    cache.devices.unnamed(turn, &cache.resources, &ids)
}

/// The devices for these claims on a node, and those for extended resources.
#[derive(Default)]
struct Gets {
    claims: Vec<AllocationResult>,
    extended: Option<(Resources, AllocationResult)>,
}

/// The devices for these claims of a class on a node, and for those of its extended resources that are devices there.
fn allocate(cache: &Cache, class: &Class, node: &Node) -> Result<Gets, Rejection> {
    let turn = cache.devices.turn(class);
    let unnamed = unnamed(cache, class, &turn, node);
    if turn.without.is_empty() && unnamed.is_none() {
        return Ok(Gets::default());
    }
    let of_resources = unnamed.as_ref().map(|unnamed| (class.namespace.as_str(), &unnamed.claim));
    match cache.devices.allocate(&turn.without, of_resources, node) {
        Ok(Some(mut claims)) => {
            let extended = unnamed.and_then(|unnamed| Some((unnamed.resources.clone(), claims.pop()?)));
            Ok(Gets { claims, extended })
        }
        Ok(None) => Err(Rejection::unresolvable(NOT_ENOUGH)),
        Err(problem) => Err(refusal(problem)),
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
        let node = cache.node(*id);
        let Ok(gets) = allocate(cache, context.class, node) else { continue };
        let claims = wanted.iter().filter_map(|key| cache.devices.claim(key)).zip(&gets.claims);
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
    let blocks = |claim: &Claim| {
        let mut nodes = context.cache.nodes().filter(|(_, node)| node.known);
        claim.users.iter().all(|user| *user == pod.uid) && nodes.any(|(_, node)| !is_available(context, claim, node))
    };
    if failure.reasons.keys().any(|reason| reason.as_str() == ELSEWHERE)
        && let Some((key, _)) = claims(context.cache, context.class).find(|(_, claim)| blocks(claim))
    {
        return Release::Devices(key);
    }
    // A claim of an earlier attempt may be what takes the devices away.
    let left_over = context.cache.devices.claim_made_for(pod).filter(|_| !context.class.asks.is_empty());
    left_over.map_or(Release::Nothing, |key| Release::Claim(key.clone()))
}

/// Another Pod may have been given a device since the filter looked.
fn reserve(cache: &mut Cache, pod: &Waiting, node: NodeId) -> Result<(), Rejection> {
    let class = cache.class(pod.class).clone();
    if cache.devices.stand_for(&class.asks) && cache.devices.claim_made_for(pod).is_some() {
        return Err(Rejection::unresolvable(LEFT_OVER));
    }
    let wanted = without_devices(cache, &class);
    let node = cache.node(node);
    let Gets { mut claims, mut extended } = allocate(cache, &class, node)?;
    let all = claims.iter_mut().chain(extended.iter_mut().map(|(_, result)| result));
    let results = all.flat_map(|result| result.devices.iter_mut()).flat_map(|d| d.results.iter_mut().flatten());
    // Several shares of a device are told apart by these.
    results.filter_map(|result| result.share_id.as_mut()).for_each(|id| *id = clock::uuid());
    cache.devices.promise(pod, wanted.into_iter().zip(claims));
    if let Some((resources, result)) = extended {
        cache.devices.promise_extended(pod, resources, result);
    }
    Ok(())
}
