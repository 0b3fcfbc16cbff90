//! The result of an allocation: devices by request, their configuration, and the nodes where they are.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
        resource::v1::{
            AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
        },
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    capacity::Shares,
    search::{Candidate, Goal, UnallocatedClaim},
    slices::Reach,
};
use crate::node::Node;

/// The devices and the configuration that a claim was given.
pub(super) fn of(claim: &UnallocatedClaim, candidates: &[Candidate], node: &Node) -> AllocationResult {
    let results = claim.given.iter().map(|given| {
        let goal = &claim.requests[given.request].goals[given.goal];
        let device = candidates[given.candidate].device;
        let (id, conditions) = (device.id.clone(), device.conditions.as_ref());
        let fails = conditions.map(|conditions| &conditions.fails).filter(|fails| !fails.is_empty());
        DeviceRequestAllocationResult {
            request: goal.full_name(),
            driver: id.driver,
            pool: id.pool,
            device: id.device,
            admin_access: goal.admin.then_some(true),
            tolerations: (!goal.tolerations.is_empty()).then(|| goal.tolerations.to_vec()),
            // Which share it is, is said when the claim gets it.
            share_id: given.share.as_ref().map(|_| String::new()),
            binding_conditions: conditions.map(|conditions| conditions.waits.clone()),
            binding_failure_conditions: fails.cloned(),
            consumed_capacity: given.share.as_ref().filter(|share| !share.is_empty()).map(amounts),
        }
    });
    let (results, config) = (results.collect::<Vec<_>>(), config(claim));
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: (!results.is_empty()).then_some(results),
            config: (!config.is_empty()).then_some(config),
        }),
        node_selector: nodes(claim, candidates, node),
        ..AllocationResult::default()
    }
}

/// The configurations of the classes, each class once with the requests that use it, then those of the claim.
fn config(claim: &UnallocatedClaim) -> Vec<DeviceAllocationConfiguration> {
    let mut config: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut added: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
    let goals: Vec<&Goal> = claim.requests.iter().map(|request| &request.goals[request.chosen]).collect();
    for goal in &goals {
        if let Some((_, range)) = added.iter().find(|(name, _)| *name == goal.class_name) {
            config[range.clone()].iter_mut().for_each(|c| c.requests.get_or_insert_default().push(goal.full_name()));
            continue;
        }
        let from = config.len();
        config.extend(goal.class.spec.config.iter().flatten().map(|of_class| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(vec![goal.full_name()]),
            opaque: of_class.opaque.clone(),
        }));
        added.push((goal.class_name, from..config.len()));
    }
    for of_claim in claim.spec.config.iter().flatten() {
        let names = of_claim.requests.as_deref().unwrap_or_default();
        let is_of = |goal: &&&Goal| names.iter().any(|name| name == goal.request || *name == goal.full_name());
        // Without names it is for all requests; otherwise it comes once for each, as upstream has it.
        let times = if names.is_empty() { 1 } else { goals.iter().filter(is_of).count() };
        let entry = DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: of_claim.requests.clone(),
            opaque: of_claim.opaque.clone(),
        };
        config.extend(std::iter::repeat_n(entry, times));
    }
    config
}

/// The nodes where all devices are: `None` for all nodes.
fn nodes(claim: &UnallocatedClaim, candidates: &[Candidate], node: &Node) -> Option<NodeSelector> {
    let mut term = NodeSelectorTerm::default();
    for given in &claim.given {
        let Candidate { device, slice, .. } = &candidates[given.candidate];
        match device.place(slice) {
            // One local device is enough to tie the claim to its node.
            Reach::Node(_) => return Some(only(node)),
            _ if device.binds_to_node => return Some(only(node)),
            // Validation lets slices have one term only, so that several can be joined.
            Reach::Nodes(nodes) => {
                for more in &nodes.node_selector_terms {
                    join(&mut term.match_fields, more.match_fields.as_deref());
                    join(&mut term.match_expressions, more.match_expressions.as_deref());
                }
            }
            Reach::All | Reach::Each | Reach::Nobody => {}
        }
    }
    (term != NodeSelectorTerm::default()).then(|| NodeSelector { node_selector_terms: vec![term] })
}

fn only(node: &Node) -> NodeSelector {
    let named = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.name.to_string()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![named]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

fn amounts(share: &Shares) -> BTreeMap<String, Quantity> {
    share.iter().map(|(name, amount)| (name.clone(), Quantity::from(*amount))).collect()
}

fn join(held: &mut Option<Vec<NodeSelectorRequirement>>, more: Option<&[NodeSelectorRequirement]>) {
    let values = |requirement: &NodeSelectorRequirement| -> Vec<String> {
        let mut values = requirement.values.clone().unwrap_or_default();
        values.sort();
        values.dedup();
        values
    };
    for requirement in more.into_iter().flatten() {
        let is_same = |other: &NodeSelectorRequirement| {
            other.key == requirement.key
                && other.operator == requirement.operator
                && values(other) == values(requirement)
        };
        let held = held.get_or_insert_default();
        if !held.iter().any(is_same) {
            held.push(requirement.clone());
        }
    }
}
