//! Shares of a device's capacity: how much a request takes, and whether the device's rules allow so much.
//! Upstream counterpart: staging/src/k8s.io/dynamic-resource-allocation/structured (consumable_capacity).

use std::collections::BTreeMap;

use api::rules::quantity::{self, Quantity, parse};
use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicyRange, CapacityRequirements, DeviceCapacity},
    apimachinery::pkg::api::resource::Quantity as Text,
};

/// Amounts of capacity by name.
pub(super) type Shares = BTreeMap<String, Quantity>;

/// The share that a request takes of a device's capacities; `None` when it asks for one that the device does not have,
/// or for an amount that the device does not give.
pub(super) fn share(
    wanted: Option<&CapacityRequirements>,
    offered: &BTreeMap<String, DeviceCapacity>,
) -> Option<Shares> {
    let requests = wanted.and_then(|wanted| wanted.requests.as_ref());
    if requests.into_iter().flatten().any(|(name, _)| !offered.contains_key(name)) {
        return None;
    }
    let one = |(name, capacity): (&String, &DeviceCapacity)| {
        let amount = taken(requests.and_then(|requests| requests.get(name)), capacity);
        allows(capacity, amount).then(|| (name.clone(), amount))
    };
    offered.iter().map(one).collect()
}

/// How much is taken: what is asked for, rounded up to what the device gives; without a wish the default, or everything.
fn taken(wanted: Option<&Text>, capacity: &DeviceCapacity) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(wanted) = wanted.map(parse) else {
        return policy.and_then(|policy| policy.default.as_ref()).map_or_else(|| parse(&capacity.value), parse);
    };
    if let Some(range) = policy.and_then(|policy| policy.valid_range.as_ref()) {
        return rounded(wanted, range);
    }
    let mut valid = policy.and_then(|policy| policy.valid_values.as_ref()).into_iter().flatten().map(parse);
    valid.find(|value| wanted <= *value).unwrap_or(wanted)
}

fn rounded(wanted: Quantity, range: &CapacityRequestPolicyRange) -> Quantity {
    let least = parse(&range.min);
    let Some(step) = range.step.as_ref().map(|step| parse(step).value()).filter(|step| *step > 0) else {
        return wanted.max(least);
    };
    if wanted < least {
        return least;
    }
    let above = wanted.value().saturating_sub(least.value());
    let steps = above / step + i64::from(above % step != 0);
    Quantity::new(least.value().saturating_add(steps.saturating_mul(step)), quantity::Format::BinarySi)
}

fn allows(capacity: &DeviceCapacity, amount: Quantity) -> bool {
    let Some(policy) = &capacity.request_policy else { return true };
    if policy.default.as_ref().is_some_and(|default| parse(default) == amount) {
        return true;
    }
    if let Some(range) = &policy.valid_range {
        let step = range.step.as_ref().map(|step| parse(step).value()).filter(|step| *step > 0);
        let in_step = step.is_none_or(|step| (amount.value() - parse(&range.min).value()) % step == 0);
        return range.max.as_ref().is_none_or(|most| amount <= parse(most)) && in_step;
    }
    let valid = policy.valid_values.as_deref().unwrap_or_default();
    valid.is_empty() || valid.iter().any(|value| parse(value) == amount)
}

/// Whether a share fits into what is offered beside what others have.
pub(super) fn fits(share: &Shares, offered: &BTreeMap<String, DeviceCapacity>, others: [Option<&Shares>; 2]) -> bool {
    share.iter().all(|(name, amount)| {
        let mut sum = *amount;
        others.iter().flatten().filter_map(|held| held.get(name)).for_each(|held| sum += *held);
        offered.get(name).is_some_and(|capacity| sum <= parse(&capacity.value))
    })
}

/// Adds a share to those that are held, or takes it away.
pub(super) fn add(held: &mut Shares, share: &Shares) {
    share.iter().for_each(|(name, amount)| *held.entry(name.clone()).or_default() += *amount);
}

pub(super) fn remove(held: &mut Shares, share: &Shares) {
    for (name, amount) in share {
        if let Some(sum) = held.get_mut(name) {
            *sum -= *amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    #[test]
    fn requests_are_rounded_and_refused_by_the_devices_rules() {
        let check = |capacity: Value, wanted: Value, expected: Option<&str>| {
            let offered: DeviceCapacity = json::from_value(capacity.clone()).unwrap();
            let offered = BTreeMap::from([("memory".to_owned(), offered)]);
            let requests: CapacityRequirements = json::from_value(json!({"requests": wanted})).unwrap();
            let found = share(Some(&requests), &offered).map(|shares| shares["memory"]);
            assert_eq!(found, expected.map(|text| text.parse().unwrap()), "{capacity} {wanted}");
        };
        let range = json!({"value": "100Gi", "requestPolicy": {"default": "4Gi",
            "validRange": {"min": "2Gi", "max": "16Gi", "step": "2Gi"}}});
        let values = json!({"value": "100Gi", "requestPolicy": {"default": "4Gi", "validValues": ["4Gi", "8Gi"]}});
        check(json!({"value": "10Gi"}), json!({}), Some("10Gi"));
        check(json!({"value": "10Gi"}), json!({"memory": "3Gi"}), Some("3Gi"));
        check(json!({"value": "10Gi"}), json!({"cores": "1"}), None);
        check(range.clone(), json!({}), Some("4Gi"));
        check(range.clone(), json!({"memory": "1Gi"}), Some("2Gi"));
        check(range.clone(), json!({"memory": "5Gi"}), Some("6Gi"));
        check(range.clone(), json!({"memory": "16Gi"}), Some("16Gi"));
        check(range, json!({"memory": "17Gi"}), None);
        check(values.clone(), json!({"memory": "5Gi"}), Some("8Gi"));
        check(values, json!({"memory": "9Gi"}), None);
    }
}
