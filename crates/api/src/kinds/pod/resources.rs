//! Validation of requests, limits and claims, of a container or a whole Pod, and of what a resize may change of them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceClaim, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::codec::bounds::{self, STEP_MAX};
use crate::rules::pod;
use crate::rules::quantity::{Quantity, parse};
use crate::rules::resource_name::{is_extended, is_huge, is_native, is_standard};
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

type NameRule = fn(&str, &Path) -> Errors;
type Amounts = BTreeMap<String, Text>;

pub(crate) fn of_container(needs: &ResourceRequirements, claims: &BTreeSet<&str>, path: &Path) -> Errors {
    validate(needs, container_resource, claims, path)
}

/// Overhead is the amount that a Pod itself takes on top of its containers.
pub(crate) fn overhead(amounts: &Amounts, path: &Path) -> Errors {
    let needs = ResourceRequirements { limits: Some(amounts.clone()), ..ResourceRequirements::default() };
    of_container(&needs, &BTreeSet::new(), path)
}

/// Amounts for the whole Pod: none smaller than what its containers ask for, and no container's limit above the Pod's.
pub(crate) fn of_pod(spec: &PodSpec, claims: &BTreeSet<&str>, path: &Path) -> Errors {
    let Some(needs) = &spec.resources else { return Errors::new() };
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return vec![FieldError::forbidden(path, "may not be set for a windows pod")];
    }
    let mut errors = Errors::new();
    if needs.claims.is_some() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(&path.child("claims"), detail));
    }
    errors.extend(validate(needs, pod_resource, claims, path));
    let of_containers = PodSpec { overhead: None, resources: None, ..spec.clone() };
    let asked = needs.requests.iter().flatten();
    let sums = pod::requests(&of_containers);
    for (name, text) in asked {
        if let Some(sum) = sums.get(name).filter(|sum| **sum > parse(text)) {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(FieldError::invalid(&path.child("requests").key(name), parse(text).to_string(), &detail));
        }
    }
    let sums = pod::limits(&of_containers);
    for (name, text) in needs.limits.iter().flatten().filter(|(name, _)| is_huge(name)) {
        if let Some(sum) = sums.get(name).filter(|sum| **sum > parse(text)) {
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.push(FieldError::invalid(&path.child("limits").key(name), parse(text).to_string(), &detail));
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        errors.extend(within(container, needs, &path.child("containers").index(i)));
    }
    errors
}

fn within(container: &Container, whole: &ResourceRequirements, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (name, text) in container.resources.iter().flat_map(|r| r.limits.iter().flatten()) {
        let most = whole.limits.as_ref().and_then(|l| l.get(name)).map(parse);
        if let Some(most) = most.filter(|most| parse(text) > *most) {
            let detail = format!("must be less than or equal to pod limits of {most}");
            errors.push(FieldError::invalid(&path.key(name).child("limits"), parse(text).to_string(), &detail));
        }
    }
    errors
}

fn validate(needs: &ResourceRequirements, rule: NameRule, claims: &BTreeSet<&str>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let empty = Amounts::new();
    let limits = needs.limits.as_ref().unwrap_or(&empty);
    let requests = needs.requests.as_ref().unwrap_or(&empty);
    let limit_path = path.child("limits");
    for (name, text) in limits {
        let limit = parse(text);
        errors.extend(amount(name, &limit, rule, &limit_path.key(name)));
        errors.extend(whole_pages(name, &limit, &limit_path));
    }
    let request_path = path.child("requests");
    for (name, text) in requests {
        let request = parse(text);
        errors.extend(amount(name, &request, rule, &request_path.key(name)));
        match limits.get(name).map(parse) {
            Some(limit) if request != limit && !overcommits(name) => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&request_path, request.to_string(), &detail));
            }
            Some(limit) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&request_path, request.to_string(), &detail));
            }
            None if !overcommits(name) => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(&limit_path, detail));
            }
            _ => {}
        }
        errors.extend(whole_pages(name, &request, &request_path));
    }
    let mut names = limits.keys().chain(requests.keys());
    if names.clone().any(|n| is_huge(n)) && !names.any(|n| matches!(n.as_str(), "cpu" | "memory")) {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    errors.extend(claimed(needs.claims.as_deref().unwrap_or_default(), claims, &path.child("claims")));
    errors
}

fn amount(name: &str, amount: &Quantity, rule: NameRule, path: &Path) -> Errors {
    let mut errors = rule(name, path);
    if amount.is_negative() {
        errors.push(FieldError::invalid(path, amount.to_string(), "must be greater than or equal to 0"));
    }
    if is_extended(name) && !amount.is_integer() {
        errors.push(FieldError::invalid(path, amount.to_string(), "must be an integer"));
    }
    errors
}

/// Huge pages come whole.
fn whole_pages(name: &str, amount: &Quantity, path: &Path) -> Option<FieldError> {
    let page: Quantity = name.strip_prefix("hugepages-")?.parse().ok()?;
    let (amount_bytes, page_bytes) = (amount.value(), page.value());
    if page_bytes > 0 && amount_bytes > 0 && amount_bytes % page_bytes == 0 {
        return None;
    }
    let detail = format!("{amount} is not positive integer multiple of {name}");
    Some(FieldError::invalid(&path.key(name), amount.to_string(), &detail))
}

/// More of it can be promised than there is.
fn overcommits(name: &str) -> bool {
    is_native(name) && !is_huge(name)
}

fn resource(name: &str, path: &Path) -> Errors {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        return invalid(path, name, wrong).collect();
    }
    if name.contains('/') || is_standard(name) {
        return Errors::new();
    }
    vec![FieldError::invalid(path, name, "must be a standard resource type or fully qualified")]
}

fn container_resource(name: &str, path: &Path) -> Errors {
    if matches!(name, "cpu" | "memory" | "ephemeral-storage") {
        return Errors::new();
    }
    let mut errors = resource(name, path);
    if !name.contains('/') && !is_huge(name) {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid(path, name, "doesn't follow extended resource name standard"));
    }
    errors
}

fn pod_resource(name: &str, path: &Path) -> Errors {
    let mut errors = resource(name, path);
    if errors.is_empty() && !matches!(name, "cpu" | "memory") && !is_huge(name) {
        errors.push(FieldError::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
    errors
}

/// Claims that a container names; each whole or by request, once.
fn claimed(list: &[ResourceClaim], known: &BTreeSet<&str>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    // Claims that are named by request.
    let mut in_part: BTreeSet<&str> = BTreeSet::new();
    let all = known.iter().copied().collect::<Vec<_>>().join(", ");
    let all = bounds::cut(&all, STEP_MAX);
    for (i, claim) in list.iter().enumerate() {
        let path = path.index(i);
        let name = claim.name.as_str();
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        if seen.contains(name) {
            errors.push(FieldError::duplicate(&path, name));
        } else {
            let mut key = name.to_owned();
            if let Some(request) = claim.request.as_deref().filter(|r| !r.is_empty()) {
                errors.extend(invalid_at(&path, "request", request, names::dns1123_label(request)));
                key = format!("{name}/{request}");
                in_part.insert(name);
            } else if in_part.contains(name) {
                errors.push(FieldError::duplicate(&path, name));
            }
            if !seen.insert(key.clone()) {
                errors.push(FieldError::duplicate(&path, key));
            }
        }
        if !known.contains(name) {
            let rest = if all.is_empty() { " which is empty".to_owned() } else { format!(": {all}") };
            let missing = FieldError::not_found(&path, name);
            let detail = format!("{}: must be one of the names in pod.spec.resourceClaims{rest}", missing.detail);
            errors.push(FieldError { detail, ..missing });
        }
    }
    errors
}
/// The new amounts with the old ones of what may change.
fn without_change(new: Option<&Amounts>, old: Option<&Amounts>) -> Option<Amounts> {
    let mut amounts = new.cloned().unwrap_or_default();
    for name in ["cpu", "memory"] {
        amounts.remove(name);
        amounts.extend(old.and_then(|old| old.get(name)).map(|amount| (name.to_owned(), amount.clone())));
    }
    if amounts.is_empty() { old.cloned() } else { Some(amounts) }
}

fn is_removed(old: Option<&Amounts>, new: Option<&Amounts>) -> bool {
    let mut names = old.into_iter().flatten().map(|(name, _)| name);
    names.any(|name| !new.is_some_and(|new| new.contains_key(name)))
}

/// Takes back what may change in the resources of a container or a whole Pod, and tells what may not be left out.
fn resize_one(new: &mut Option<ResourceRequirements>, old: Option<&ResourceRequirements>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let none = ResourceRequirements::default();
    let (wanted, held) = (new.clone().unwrap_or_default(), old.unwrap_or(&none));
    let path = path.child("resources");
    if is_removed(held.requests.as_ref(), wanted.requests.as_ref()) {
        errors.push(FieldError::forbidden(&path.child("requests"), "resource requests cannot be removed"));
    }
    if is_removed(held.limits.as_ref(), wanted.limits.as_ref()) {
        errors.push(FieldError::forbidden(&path.child("limits"), "resource limits cannot be removed"));
    }
    let requests = without_change(wanted.requests.as_ref(), held.requests.as_ref());
    let limits = without_change(wanted.limits.as_ref(), held.limits.as_ref());
    *new = Some(ResourceRequirements { requests, limits, ..wanted });
    errors
}

/// The new spec of a resize without what may change of it, which is to be the old one; and what it may not leave out.
pub(super) fn resize(new: &PodSpec, old: &PodSpec) -> (PodSpec, Errors) {
    let (mut rest, mut errors, path) = (new.clone(), Errors::new(), Path::new("spec"));
    let both = rest.init_containers.iter_mut().flatten().zip(old.init_containers.iter().flatten());
    for (index, (new, old)) in both.enumerate().filter(|(_, (new, _))| pod::is_sidecar(new)) {
        errors.extend(resize_one(
            &mut new.resources,
            old.resources.as_ref(),
            &path.child("initContainers").index(index),
        ));
    }
    for (index, (new, old)) in rest.containers.iter_mut().zip(&old.containers).enumerate() {
        errors.extend(resize_one(&mut new.resources, old.resources.as_ref(), &path.child("containers").index(index)));
    }
    errors.extend(resize_one(&mut rest.resources, old.resources.as_ref(), &path));
    if old.resources.is_none() && rest.resources == Some(ResourceRequirements::default()) {
        rest.resources = None;
    }
    (rest, errors)
}
