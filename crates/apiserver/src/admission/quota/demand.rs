//! The demands of a write on each quota of its namespace. Pure.

use std::{collections::BTreeSet, sync::Arc};

use api::{
    k8s_openapi::api::core::v1::{ResourceQuota, ScopedResourceSelectorRequirement},
    rules::{
        pod::Resources,
        quota::{Counter, Usage, amounts, is_in_all, scopes},
    },
    status::StatusError,
};
use clock::Timestamp;

use super::configuration::Limited;

/// An amount to charge to a quota.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    pub quota: String,
    pub amounts: Resources,
}

/// Why a write may not be.
#[derive(Debug, Clone)]
pub enum Refusal {
    Forbidden(String),
    /// The configuration demands a quota that there is not. Upstream answers this as an error of its own.
    Uncovered(String),
    Failed(Arc<StatusError>),
}

/// A create, or (with `old`) an update.
pub struct Write<'a> {
    pub counter: &'a Counter,
    pub new: &'a dyn Usage,
    pub old: Option<&'a dyn Usage>,
}

fn forbidden<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal::Forbidden(why))
}

/// The amounts that a quota limits and that objects of this sort use, or this one by itself.
fn limits<'a>(quota: &'a ResourceQuota, counter: &Counter, used: &Resources) -> BTreeSet<&'a str> {
    let hard = quota.status.iter().flat_map(|s| s.hard.iter().flatten());
    let names = hard.map(|(name, _)| name.as_str());
    names.filter(|name| counter.counts(name) || used.contains_key(*name)).collect()
}

fn name(quota: &ResourceQuota) -> &str {
    quota.metadata.name.as_deref().unwrap_or("")
}

fn joined<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(",")
}

/// The usage of `new` beyond that of `old`; nothing is ever given back by a write.
fn rise(new: &Resources, old: &Resources) -> Resources {
    let mut rise = new.clone();
    for (name, amount) in &mut rise {
        if let Some(old) = old.get(name) {
            *amount = if *old > *amount { Default::default() } else { minus(*amount, *old) };
        }
    }
    rise
}

fn minus(
    mut amount: api::rules::quantity::Quantity,
    less: api::rules::quantity::Quantity,
) -> api::rules::quantity::Quantity {
    amount -= less;
    amount
}

fn without_zeros(mut amounts: Resources) -> Resources {
    amounts.retain(|_, amount| !amount.is_zero());
    amounts
}

/// The demands on each quota, or the first reason to refuse the write.
pub fn of(
    quotas: &[ResourceQuota],
    write: &Write<'_>,
    limited: &[Limited],
    now: Timestamp,
) -> Result<Vec<Demand>, Refusal> {
    let mut matching = Vec::new();
    let mut covered_names: BTreeSet<&str> = BTreeSet::new();
    let mut covered_scopes: Vec<String> = Vec::new();
    let used = write.new.used(now);
    for quota in quotas {
        let scopes = quota.spec.as_ref().map(scopes).unwrap_or_default();
        covered_scopes.extend(scopes.iter().filter(|s| write.new.is_in(s)).map(|s| s.scope_name.clone()));
        let limits = limits(quota, write.counter, &used);
        if limits.is_empty() || !is_in_all(write.new, &scopes) {
            continue;
        }
        if let Some(words) = write.new.unstated(&limits) {
            return forbidden(format!("failed quota: {}: {words}", name(quota)));
        }
        let known = quota.status.as_ref().and_then(|s| s.used.as_ref());
        if limits.iter().any(|limit| known.is_none_or(|known| !known.contains_key(*limit))) {
            let resources = joined(limits.iter().copied());
            return forbidden(format!("status unknown for quota: {}, resources: {resources}", name(quota)));
        }
        covered_names.extend(limits);
        matching.push((quota, scopes));
    }
    let negative: Vec<&str> = used.iter().filter(|(_, a)| a.is_negative()).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return forbidden(format!("quota usage is negative for resource(s): {}", joined(negative)));
    }
    let beyond = write.old.map(|old| (old, rise(&used, &old.used(now))));
    let asks = |scopes: &[ScopedResourceSelectorRequirement]| match &beyond {
        // An object that was in no scope of the quota before has not been charged to it yet.
        Some((old, beyond)) if is_in_all(*old, scopes) => without_zeros(beyond.clone()),
        _ => without_zeros(used.clone()),
    };
    let demands: Vec<Demand> = matching
        .iter()
        .map(|(quota, scopes)| Demand { quota: name(quota).to_owned(), amounts: asks(scopes) })
        .filter(|demand| !demand.amounts.is_empty())
        .collect();
    let nothing_new = match (&beyond, matching.is_empty()) {
        (_, false) => demands.is_empty(),
        (Some((_, beyond)), true) => beyond.values().all(|amount| amount.is_zero()),
        (None, true) => used.values().all(|amount| amount.is_zero()),
    };
    if !nothing_new {
        must_be_covered(write, &used, limited, &covered_names, &covered_scopes)?;
    }
    Ok(demands)
}

/// Where the configuration says so, what is used must be limited by some quota.
fn must_be_covered(
    write: &Write<'_>,
    used: &Resources,
    limited: &[Limited],
    names: &BTreeSet<&str>,
    scopes: &[String],
) -> Result<(), Refusal> {
    let of_kind = |limited: &&Limited| Counter::of(&limited.group, &limited.resource).as_ref() == Some(write.counter);
    let contains =
        |name: &str| limited.iter().filter(of_kind).any(|l| l.contains.iter().any(|part| name.contains(part.as_str())));
    let consumed = used.iter().filter(|(_, amount)| !amount.is_zero()).map(|(name, _)| name.as_str());
    let uncovered: Vec<&str> = consumed.filter(|name| contains(name) && !names.contains(name)).collect();
    if !uncovered.is_empty() {
        return forbidden(format!("insufficient quota to consume: {}", joined(uncovered)));
    }
    let matched = limited.iter().flat_map(|l| &l.scopes).filter(|scope| write.new.is_in(scope));
    let uncovered: Vec<String> = matched.filter(|scope| !scopes.contains(&scope.scope_name)).map(shown).collect();
    if !uncovered.is_empty() {
        return Err(Refusal::Uncovered(format!("insufficient quota to match these scopes: [{}]", uncovered.join(" "))));
    }
    Ok(())
}

fn shown(scope: &ScopedResourceSelectorRequirement) -> String {
    let values = scope.values.as_deref().unwrap_or_default().join(" ");
    format!("{{{} {} [{values}]}}", scope.scope_name, scope.operator)
}

/// The used amounts of the quota with the demand on top; in a `strict` write the demand must fit.
pub fn charged(quota: &ResourceQuota, demand: &Demand, strict: bool) -> Result<Resources, Refusal> {
    let status = quota.status.as_ref();
    let hard = amounts(status.and_then(|s| s.hard.as_ref()));
    let used = amounts(status.and_then(|s| s.used.as_ref()));
    let mut after = used.clone();
    let mut exceeded = Vec::new();
    for (name, amount) in demand.amounts.iter().filter(|(name, _)| hard.contains_key(*name)) {
        let sum = after.entry(name.clone()).or_default();
        *sum += *amount;
        if *sum > hard[name] {
            exceeded.push(name);
        }
    }
    if !strict || exceeded.is_empty() {
        return Ok(after);
    }
    let list = |amounts: &Resources| {
        let each = exceeded.iter().map(|name| format!("{name}={}", amounts.get(*name).copied().unwrap_or_default()));
        each.collect::<Vec<_>>().join(",")
    };
    forbidden(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        name(quota),
        list(&demand.amounts),
        list(&used),
        list(&hard)
    ))
}
