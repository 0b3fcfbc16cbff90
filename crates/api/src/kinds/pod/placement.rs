//! Validation of where a Pod may go: affinity, tolerations, spreading.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::kinds::rollout::validate_selector;
use crate::rules::taint;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

pub(crate) fn tolerations(list: &[Toleration], path: &Path) -> Errors {
    list.iter().enumerate().flat_map(|(i, one)| toleration(one, &path.index(i))).collect()
}

fn toleration(toleration: &Toleration, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let key = toleration.key.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    if !key.is_empty() {
        errors.extend(invalid_at(path, "key", key, names::qualified_name(key)));
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(&path.child("operator"), operator, detail));
    }
    if toleration.toleration_seconds.is_some() && effect != taint::NO_EXECUTE {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(&path.child("effect"), effect, detail));
    }
    match operator {
        "" | "Equal" => {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(&path.child("operator"), value, &wrong.join(";")));
            }
        }
        "Exists" if !value.is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(&path.child("operator"), value, detail));
        }
        "Exists" => {}
        other => errors.push(FieldError::not_supported(&path.child("operator"), other, &["Equal", "Exists"])),
    }
    if !effect.is_empty() {
        errors.extend(taint_effect(effect, path));
    }
    errors
}

/// The effect of a taint, where one is given.
pub(crate) fn taint_effect(effect: &str, path: &Path) -> Option<FieldError> {
    let known = &[taint::NO_SCHEDULE, taint::PREFER_NO_SCHEDULE, taint::NO_EXECUTE];
    (!known.contains(&effect)).then(|| FieldError::not_supported(&path.child("effect"), effect, known))
}

pub(crate) fn affinity(affinity: &Affinity, path: &Path) -> Errors {
    let mut errors = Errors::new();
    errors.extend(affinity.node_affinity.iter().flat_map(|node| node_affinity(node, &path.child("nodeAffinity"))));
    let pods = affinity.pod_affinity.as_ref().map(|a| {
        (
            "podAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            "podAntiAffinity",
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (field, required, preferred) in [pods, anti].into_iter().flatten() {
        let path = path.child(field);
        let place = path.child(REQUIRED);
        for (i, term) in required.iter().flatten().enumerate() {
            errors.extend(pod_term(term, &place.index(i)));
        }
        let place = path.child(PREFERRED);
        for (i, WeightedPodAffinityTerm { weight, pod_affinity_term }) in preferred.iter().flatten().enumerate() {
            errors.extend(bad_weight(*weight, &place.index(i)));
            errors.extend(pod_term(pod_affinity_term, &place.index(i).child("podAffinityTerm")));
        }
    }
    errors
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn bad_weight(weight: i32, path: &Path) -> Option<FieldError> {
    let wrong = || FieldError::invalid(&path.child("weight"), weight, "must be in the range 1-100");
    (!(1..=100).contains(&weight)).then(wrong)
}

pub(crate) fn node_affinity(affinity: &NodeAffinity, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(required) = &affinity.required_during_scheduling_ignored_during_execution {
        errors.extend(node_selector(required, &path.child(REQUIRED)));
    }
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    for (i, term) in preferred.enumerate() {
        let path = path.child(PREFERRED).index(i);
        errors.extend(bad_weight(term.weight, &path));
        errors.extend(node_term(&term.preference, false, &path.child("preference")));
    }
    errors
}

/// Nodes by their labels and names.
pub(crate) fn node_selector(selector: &NodeSelector, path: &Path) -> Errors {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return vec![FieldError::required(&path, "must have at least one node selector term")];
    }
    let terms = selector.node_selector_terms.iter().enumerate();
    terms.flat_map(|(i, term)| node_term(term, true, &path.index(i))).collect()
}

/// `strict`: the values are label values. In preferences they may be anything.
fn node_term(term: &NodeSelectorTerm, strict: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, one) in term.match_expressions.iter().flatten().enumerate() {
        errors.extend(node_label(one, strict, &path.child("matchExpressions").index(i)));
    }
    for (i, one) in term.match_fields.iter().flatten().enumerate() {
        errors.extend(node_field(one, &path.child("matchFields").index(i)));
    }
    errors
}

fn node_label(one: &NodeSelectorRequirement, strict: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let values = one.values.as_deref().unwrap_or_default();
    let place = path.child("values");
    match one.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(&place, detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&place, detail));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(&place, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    errors.extend(invalid_at(path, "key", &one.key, names::qualified_name(&one.key)));
    for (i, value) in values.iter().enumerate().filter(|_| strict) {
        errors.extend(invalid(&place.index(i), value, names::label_value(value)));
    }
    errors
}

fn node_field(one: &NodeSelectorRequirement, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let values = one.values.as_deref().unwrap_or_default();
    match one.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(FieldError::required(&path.child("values"), detail));
        }
        "In" | "NotIn" => {}
        other => errors.push(FieldError::invalid(&path.child("operator"), other, "not a valid selector operator")),
    }
    if one.key != "metadata.name" {
        errors.push(FieldError::invalid(&path.child("key"), &one.key, "not a valid field selector key"));
        return errors;
    }
    for (i, value) in values.iter().enumerate() {
        errors.extend(invalid(&path.child("values").index(i), value, names::dns1123_subdomain(value)));
    }
    errors
}

fn pod_term(term: &PodAffinityTerm, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, selector) in [("labelSelector", &term.label_selector), ("namespaceSelector", &term.namespace_selector)]
    {
        errors.extend(selector.iter().flat_map(|s| validate_selector(s, &path.child(field))));
    }
    for namespace in term.namespaces.iter().flatten() {
        errors.extend(invalid_at(path, "namespace", namespace, names::dns1123_label(namespace)));
    }
    let given = |list: &'_ Option<Vec<String>>| list.clone().unwrap_or_default();
    let (same, other) = (given(&term.match_label_keys), given(&term.mismatch_label_keys));
    errors.extend(label_keys(&same, &other, term.label_selector.as_ref(), path));
    if term.topology_key.is_empty() {
        errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
    }
    errors.extend(invalid_at(path, "topologyKey", &term.topology_key, names::qualified_name(&term.topology_key)));
    errors
}

/// Keys of labels whose values a Pod compares with its own. The server itself puts them into the selector, once.
fn label_keys(same: &[String], other: &[String], selector: Option<&LabelSelector>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (field, keys) in [("matchLabelKeys", same), ("mismatchLabelKeys", other)] {
        if selector.is_none() && !keys.is_empty() {
            let detail = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(&path.child(field), detail));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            errors.extend(invalid(&path.child(field).index(i), key, names::qualified_name(key)));
        }
    }
    // The last place of each key.
    let places: BTreeMap<&String, usize> = same.iter().enumerate().map(|(i, key)| (key, i)).collect();
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&String> = selector.match_labels.iter().flat_map(|m| m.keys()).collect();
        for expression in selector.match_expressions.iter().flatten() {
            let again = seen.contains(&expression.key);
            if let Some(&i) = places.get(&expression.key).filter(|_| again) {
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.push(FieldError::invalid(&path.index(i), &expression.key, detail));
            }
            seen.insert(&expression.key);
        }
    }
    let other: BTreeSet<&String> = other.iter().collect();
    for (i, key) in same.iter().enumerate().filter(|(_, key)| other.contains(key)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(FieldError::invalid(&path.child("matchLabelKeys").index(i), key, detail));
    }
    errors
}

pub(crate) fn spread(list: &[TopologySpreadConstraint], path: &Path) -> Errors {
    let mut errors = Errors::new();
    // The last place of each pair.
    let pair = |one: &'_ TopologySpreadConstraint| (one.topology_key.clone(), one.when_unsatisfiable.clone());
    let last: BTreeMap<_, usize> = list.iter().enumerate().map(|(i, one)| (pair(one), i)).collect();
    for (i, one) in list.iter().enumerate() {
        let path = path.index(i);
        if one.max_skew <= 0 {
            errors.push(FieldError::invalid(&path.child("maxSkew"), one.max_skew, "must be greater than zero"));
        }
        if one.topology_key.is_empty() {
            errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
        }
        let actions = &["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&one.when_unsatisfiable.as_str()) {
            let place = path.child("whenUnsatisfiable");
            errors.push(FieldError::not_supported(&place, &one.when_unsatisfiable, actions));
        }
        if last.get(&pair(one)).is_some_and(|last| *last > i) {
            let shown = format!("{{{}, {}}}", one.topology_key, one.when_unsatisfiable);
            errors.push(FieldError::duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), shown));
        }
        if let Some(domains) = one.min_domains {
            let path = path.child("minDomains");
            if domains <= 0 {
                errors.push(FieldError::invalid(&path, domains, "must be greater than zero"));
            }
            if one.when_unsatisfiable != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    one.when_unsatisfiable
                );
                errors.push(FieldError::invalid(&path, domains, &detail));
            }
        }
        for (field, policy) in
            [("nodeAffinityPolicy", &one.node_affinity_policy), ("nodeTaintsPolicy", &one.node_taints_policy)]
        {
            if let Some(policy) = policy.as_deref().filter(|p| !matches!(*p, "Honor" | "Ignore")) {
                errors.push(FieldError::not_supported(&path.child(field), policy, &["Honor", "Ignore"]));
            }
        }
        let keys = one.match_label_keys.as_deref().unwrap_or_default();
        errors.extend(label_keys(keys, &[], one.label_selector.as_ref(), &path));
        errors.extend(one.label_selector.iter().flat_map(|s| validate_selector(s, &path.child("labelSelector"))));
    }
    errors
}
