//! Topology hints of Services with `service.kubernetes.io/topology-mode: Auto`: each zone gets endpoints in proportion to
//! the CPU of its nodes, of its own as far as they go. Where that would overload endpoints of a zone by more than a fifth,
//! or too little is known, there are no hints at all.
//! Upstream counterpart: staging/src/k8s.io/endpointslice/topologycache.
//!
//! Hints that endpoints have stay while no zone gets too much or too little; otherwise all are worked out anew, from
//! nothing but the endpoints, so that looking again changes nothing.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::quantity;
use controller::Note;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone},
};

use super::slice_packing::{Group, identity};

/// How much more traffic than its share an endpoint may get.
const OVERLOAD: f64 = 0.2;
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
const ANNOTATIONS: [&str; 2] = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
const DISABLED: &str = "TopologyAwareHintsDisabled";
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// The part of all CPU that each zone has.
pub type Ratios = BTreeMap<String, f64>;

/// Whether a Service wants hints by zone; the older annotation counts first.
pub fn is_auto(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| ANNOTATIONS.iter().find_map(|name| all.get(*name)));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

pub fn zone(node: &Node) -> Option<&String> {
    node.metadata.labels.as_ref()?.get(ZONE)
}

/// The part of a node that decides about the ratios: its zone and its CPU in thousandths. `None` for one that does not
/// count.
pub fn share(node: &Node) -> Option<(Option<&String>, i64)> {
    let excluded = |name: &&str| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(*name));
    let status = node.status.as_ref()?;
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    if CONTROL_PLANE.iter().any(excluded) || !ready {
        return None;
    }
    let cpu = status.allocatable.as_ref().and_then(|all| all.get("cpu")).map(quantity::parse).unwrap_or_default();
    Some((zone(node).filter(|zone| !zone.is_empty()), cpu.milli_value()))
}

/// The ratios, unless a node does not say what it has, or all are in one zone.
pub fn ratios<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<Ratios> {
    let mut zones: BTreeMap<String, i64> = BTreeMap::new();
    for (zone, cpu) in nodes.filter_map(share) {
        if cpu == 0 {
            return None;
        }
        *zones.entry(zone?.clone()).or_default() += cpu;
    }
    let total: i64 = zones.values().sum();
    (zones.len() > 1).then(|| zones.into_iter().map(|(zone, cpu)| (zone, cpu as f64 / total as f64)).collect())
}

struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

/// How many endpoints each zone may, must and should have, or why there cannot be hints.
fn allocations(ratios: Option<&Ratios>, endpoints: usize) -> Result<BTreeMap<&str, Allocation>, String> {
    let Some(ratios) = ratios else {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(why.to_owned());
    };
    let counts = format!("({endpoints} endpoints, {} zones)", ratios.len());
    if ratios.len() > endpoints {
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    let mut all = BTreeMap::new();
    for (zone, ratio) in ratios {
        let desired = ratio * endpoints as f64;
        let minimum = (desired * (1.0 / (1.0 + OVERLOAD))).ceil() as usize;
        all.insert(zone.as_str(), Allocation { minimum, maximum: minimum, desired: desired.max(minimum as f64) });
    }
    let least: usize = all.values().map(|one| one.minimum).sum();
    let Some(spare) = endpoints.checked_sub(least) else {
        let why = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(format!("{why} {counts}"));
    };
    all.values_mut().for_each(|one| one.maximum += spare);
    Ok(all)
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

fn for_zone(endpoint: &Endpoint) -> Option<&str> {
    endpoint.hints.as_ref()?.for_zones.as_ref()?.first().map(|zone| zone.name.as_str())
}

/// A ready endpoint: the zone where it is, and the one that it is for.
struct Place<'a> {
    zone: &'a str,
    target: Option<String>,
}

/// Gives every place that has no target one; `None` when a zone has too much or too little then.
fn assign(places: &mut [Place<'_>], allocations: &BTreeMap<&str, Allocation>) -> Option<()> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for place in places.iter() {
        *count.entry(place.target.as_deref().unwrap_or(place.zone).to_owned()).or_default() += 1;
    }
    let (mut giving, mut receiving) = exchange(allocations, &count);
    for place in places.iter_mut().filter(|place| place.target.is_none()) {
        let give = giving.get_mut(place.zone).filter(|left| **left > 0);
        let receive = receiving.iter_mut().find(|(_, left)| **left > 0);
        let target = match (give, receive) {
            (Some(give), Some((zone, receive))) => {
                *give -= 1;
                *receive -= 1;
                zone.clone()
            }
            _ => place.zone.to_owned(),
        };
        place.target = Some(target);
    }
    count.clear();
    for place in places.iter() {
        *count.entry(place.target.clone().unwrap_or_default()).or_default() += 1;
    }
    let fits = |(zone, one): (&&str, &Allocation)| {
        let count = count.get(*zone).copied().unwrap_or(0);
        (one.minimum..=one.maximum).contains(&count)
    };
    (count.keys().all(|zone| allocations.contains_key(zone.as_str())) && allocations.iter().all(fits)).then_some(())
}

/// How many endpoints each zone gives to others, and how many each gets: whole ones, from who has most too many to who
/// has most too few.
fn exchange(
    allocations: &BTreeMap<&str, Allocation>,
    count: &BTreeMap<String, usize>,
) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let spare = |(zone, one): (&&str, &Allocation)| {
        ((*zone).to_owned(), count.get(*zone).copied().unwrap_or(0) as f64 - one.desired)
    };
    let differences: Vec<(String, f64)> = allocations.iter().map(spare).collect();
    let side = |sign: f64| -> BTreeMap<String, f64> {
        differences
            .iter()
            .map(|(zone, spare)| (zone.clone(), spare * sign))
            .filter(|(_, amount)| *amount > 0.0)
            .collect()
    };
    let (mut spare, mut missing) = (side(1.0), side(-1.0));
    // Endpoints in a zone without nodes that count are for others, too.
    for (zone, count) in count.iter().filter(|(zone, _)| !allocations.contains_key(zone.as_str())) {
        spare.insert(zone.clone(), *count as f64);
    }
    let most = |amounts: &BTreeMap<String, f64>| {
        amounts.iter().fold(
            (String::new(), 0.0),
            |best, (zone, amount)| {
                if *amount > best.1 { (zone.clone(), *amount) } else { best }
            },
        )
    };
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let ((from, give), (to, receive)) = (most(&spare), most(&missing));
        if from.is_empty() || to.is_empty() || (give < 1.0 && receive < 1.0) || give < 0.5 || receive < 0.5 {
            return (giving, receiving);
        }
        *giving.entry(from.clone()).or_default() += 1;
        *receiving.entry(to.clone()).or_default() += 1;
        *spare.entry(from).or_default() -= 1.0;
        *missing.entry(to).or_default() -= 1.0;
    }
}

/// The zone that each ready endpoint is for, in their order; those in `held` keep theirs if that can be.
fn targets(ratios: Option<&Ratios>, endpoints: &[(&str, Option<&str>)]) -> Result<Vec<String>, String> {
    let allocations = allocations(ratios, endpoints.len())?;
    if endpoints.iter().any(|(zone, _)| zone.is_empty()) {
        return Err("One or more endpoints do not have a zone specified".to_owned());
    }
    let places = |keep: bool| -> Vec<Place<'_>> {
        let target = |held: Option<&str>| held.filter(|_| keep).map(str::to_owned);
        endpoints.iter().map(|(zone, held)| Place { zone, target: target(*held) }).collect()
    };
    let mut kept = places(true);
    if assign(&mut kept, &allocations).is_none() {
        kept = places(false);
        // The result is the best there is.
        let _ = assign(&mut kept, &allocations);
    }
    Ok(kept.into_iter().map(|place| place.target.unwrap_or_default()).collect())
}

/// Hints for all endpoints of a family, which have none yet, and the event that tells about them.
pub fn give_hints(
    family: &str,
    groups: &mut [(Group, Vec<Endpoint>)],
    held: &[Arc<EndpointSlice>],
    ratios: Option<&Ratios>,
) -> Option<Note> {
    let of_family = held.iter().filter(|slice| slice.address_type == family).flat_map(|slice| &slice.endpoints);
    let held: BTreeMap<_, &str> = of_family.filter_map(|e| Some((identity(e), for_zone(e)?))).collect();
    let groups = groups.iter_mut().filter(|(group, _)| group.0 == family);
    let mut ready: Vec<&mut Endpoint> = groups.flat_map(|(_, list)| list).filter(|e| is_ready(e)).collect();
    ready.sort_by_key(|endpoint| identity(endpoint));
    let places: Vec<(String, Option<&str>)> =
        ready.iter().map(|e| (e.zone.clone().unwrap_or_default(), held.get(&identity(e)).copied())).collect();
    let places: Vec<(&str, Option<&str>)> = places.iter().map(|(zone, held)| (zone.as_str(), *held)).collect();
    match targets(ratios, &places) {
        Err(why) => Some(Note::warning(DISABLED, format!("{why}, addressType: {family}"))),
        Ok(targets) => {
            for (endpoint, name) in ready.into_iter().zip(targets) {
                endpoint.hints = Some(EndpointHints { for_zones: Some(vec![ForZone { name }]), for_nodes: None });
            }
            let enabled = format!("Topology Aware Hints has been enabled, addressType: {family}");
            held.is_empty().then(|| Note::normal("TopologyAwareHintsEnabled", enabled))
        }
    }
}

/// The event about a Service that no longer wants hints, and still has some.
pub fn taken_away(family: &str, held: &[Arc<EndpointSlice>]) -> Option<Note> {
    let mut of_family = held.iter().filter(|slice| slice.address_type == family).flat_map(|slice| &slice.endpoints);
    let disabled = format!("Topology Aware Hints has been disabled, addressType: {family}");
    of_family.any(|endpoint| for_zone(endpoint).is_some()).then(|| Note::warning(DISABLED, disabled))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn ratios_of(zones: &[(&str, f64)]) -> Ratios {
        zones.iter().map(|(zone, ratio)| (format!("zone-{zone}"), *ratio)).collect()
    }

    /// Endpoints as words `zone` or `zone=target`; the answer in the same order.
    fn check(zones: &[(&str, f64)], endpoints: &str, expected: &str) {
        let words: Vec<(&str, Option<&str>)> = endpoints
            .split_whitespace()
            .map(|word| word.split_once('=').map_or((word, None), |(zone, target)| (zone, Some(target))))
            .collect();
        let name = |zone: &str| if zone == "-" { String::new() } else { format!("zone-{zone}") };
        let named: Vec<(String, Option<String>)> =
            words.iter().map(|(zone, held)| (name(zone), held.map(name))).collect();
        let places: Vec<(&str, Option<&str>)> =
            named.iter().map(|(zone, held)| (zone.as_str(), held.as_deref())).collect();
        let ratios = ratios_of(zones);
        let found = targets(Some(&ratios).filter(|ratios| !ratios.is_empty()), &places);
        let shown = found.map(|all| all.iter().map(|z| z.replace("zone-", "")).collect::<Vec<_>>().join(" "));
        assert_eq!(shown.unwrap_or_else(|why| why), expected, "{endpoints}");
    }

    #[test]
    fn each_zone_gets_its_share() {
        let info = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        check(&[], "", info);
        check(&[], "a", info);
        check(&[("a", 0.3), ("b", 0.4), ("c", 0.3)], "a b", "Insufficient number of endpoints (2 endpoints, 3 zones)");
        check(&[("a", 0.45), ("b", 0.55)], "a b", "a b");
        let over = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        check(&[("a", 0.7), ("b", 0.3)], "a b", &format!("{over} (2 endpoints, 2 zones)"));
        check(&[("a", 0.5), ("b", 0.5)], "a - b b", "One or more endpoints do not have a zone specified");
        check(&[("a", 0.35), ("b", 0.35), ("c", 0.3)], "a b c c a a a b c a", "b b c c a a a b c a");
        check(&[("a", 0.5), ("b", 0.5)], "a a a a", "b b a a");
        check(&[("a", 1.0 / 3.0), ("b", 1.0 / 3.0), ("c", 1.0 / 3.0)], "a a a a a a", "b b c c a a");
        // A zone whose nodes do not count gives all that it has.
        check(&[("a", 0.5), ("b", 0.5)], "c c a b", "a b a b");
    }

    #[test]
    fn hints_stay_while_they_do_no_harm() {
        check(&[("a", 0.5), ("b", 0.5)], "a=b a=b a=a a=a", "b b a a");
        check(&[("a", 0.5), ("b", 0.5)], "a=a a=a a=b a=b a a", "a a b b b a");
        // Too much for one zone, and a zone that is gone: all anew.
        check(&[("a", 0.5), ("b", 0.5)], "a=a a=a a=a a=a", "b b a a");
        check(&[("a", 0.5), ("b", 0.5)], "a=c a=b b=b b=b", "a a b b");
    }

    #[test]
    fn looking_again_changes_nothing() {
        let mut seed = 7_u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        for _ in 0..2000 {
            let cpu: Vec<u64> = (0..2 + next(3)).map(|_| 1 + next(20)).collect();
            let total: u64 = cpu.iter().sum();
            let zone = |i: u64| format!("z{i}");
            let ratios: Ratios =
                cpu.iter().enumerate().map(|(i, cpu)| (zone(i as u64), *cpu as f64 / total as f64)).collect();
            let endpoints: Vec<(String, Option<String>)> =
                (0..next(30)).map(|_| (zone(next(5)), (next(2) == 0).then(|| zone(next(5))))).collect();
            let places = |held: &[(String, Option<String>)]| {
                targets(
                    Some(&ratios),
                    &held.iter().map(|(zone, held)| (zone.as_str(), held.as_deref())).collect::<Vec<_>>(),
                )
            };
            let Ok(first) = places(&endpoints) else { continue };
            let again: Vec<_> =
                endpoints.iter().zip(&first).map(|((zone, _), to)| (zone.clone(), Some(to.clone()))).collect();
            assert_eq!(places(&again).as_ref(), Ok(&first), "{ratios:?} {endpoints:?}");
        }
    }

    #[test]
    fn nodes_count_by_what_they_say() {
        let check = |nodes: &[(&str, &str, bool, &str)], expected: Option<&[(&str, f64)]>| {
            let nodes: Vec<Node> = nodes
                .iter()
                .map(|(zone, cpu, ready, label)| {
                    let mut labels = json!({"l": ""});
                    if !zone.is_empty() {
                        labels[ZONE] = json!(format!("zone-{zone}"));
                    }
                    if !label.is_empty() {
                        labels[label] = json!("");
                    }
                    json::from_value(json!({"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": cpu},
                        "conditions": [{"type": "Ready", "status": if *ready { "True" } else { "False" }}]}}))
                    .unwrap()
                })
                .collect();
            assert_eq!(ratios(nodes.iter()), expected.map(ratios_of));
        };
        check(&[], None);
        check(&[("a", "1000m", true, "")], None);
        check(&[("a", "1000m", true, ""), ("a", "1000m", true, "")], None);
        check(&[("a", "1000m", true, ""), ("b", "1000m", false, "")], None);
        check(&[("a", "1000m", true, ""), ("", "1000m", true, "")], None);
        check(&[("a", "1000m", true, ""), ("b", "0", true, "")], None);
        check(&[("a", "1000m", true, ""), ("b", "3", true, "")], Some(&[("a", 0.25), ("b", 0.75)]));
        let control = "node-role.kubernetes.io/control-plane";
        check(
            &[("a", "1", true, ""), ("b", "1", true, ""), ("c", "1", true, control)],
            Some(&[("a", 0.5), ("b", 0.5)]),
        );
    }
}
