//! Conditions for a binding: some devices are ready for their Pod only some time after they were given to its claim, and
//! their driver says so in the claim's status.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (isClaimReadyForBinding, isClaimTimeout).

use std::time::Duration;

use clock::Timestamp;
use k8s_openapi::{
    api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim},
    apimachinery::pkg::apis::meta::v1::Condition,
};

/// How far the devices of a claim are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Readiness {
    #[default]
    Ready,
    /// Conditions are not met that were to be met after this time, when it is known.
    Waits {
        since: Option<Timestamp>,
    },
    Failed,
}

impl Readiness {
    pub fn of(claim: &ResourceClaim) -> Self {
        match is_ready(claim) {
            Ok(true) => Readiness::Ready,
            Ok(false) => Readiness::Waits { since: waits_since(claim) },
            Err(_) => Readiness::Failed,
        }
    }

    /// Whether nothing is to be hoped for any more.
    pub fn is_hopeless(self, patience: Duration, now: Option<Timestamp>) -> bool {
        match self {
            Readiness::Ready => false,
            Readiness::Failed => true,
            Readiness::Waits { since } => {
                now.is_some_and(|now| left(since, patience, now).is_some_and(|d| d.is_zero()))
            }
        }
    }
}

fn results(allocation: &AllocationResult) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten())
}

fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// The conditions that a device's binding waits for.
fn waits_for(result: &DeviceRequestAllocationResult) -> &[String] {
    result.binding_conditions.as_deref().unwrap_or_default()
}

/// Whether a claim has devices whose binding waits for conditions, met or not.
pub fn has_conditions(claim: &ResourceClaim) -> bool {
    allocation(claim).is_some_and(|allocation| results(allocation).any(|result| !waits_for(result).is_empty()))
}

/// Since when a claim has such devices.
pub fn waits_since(claim: &ResourceClaim) -> Option<Timestamp> {
    let since = allocation(claim)?.allocation_timestamp.as_ref()?.0;
    has_conditions(claim).then_some(since)
}

/// How much of the patience is left: nothing once the time is over, `None` when no time was set.
pub fn left(since: Option<Timestamp>, patience: Duration, now: Timestamp) -> Option<Duration> {
    let end = since?.checked_add(patience).unwrap_or(Timestamp::MAX);
    Some(Duration::try_from(end.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// Whether all conditions for the binding are met; the error says which device will never be ready. A claim without devices
/// is not ready.
pub fn is_ready(claim: &ResourceClaim) -> Result<bool, String> {
    let Some(allocation) = allocation(claim) else { return Ok(false) };
    for result in results(allocation).filter(|result| !waits_for(result).is_empty()) {
        let told = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
        let own = |device: &(&String, &String, &String)| *device == (&result.driver, &result.pool, &result.device);
        let mut told = told.filter(|told| own(&(&told.driver, &told.pool, &told.device)));
        let Some(told) = told.next() else { return Ok(false) };
        let conditions = told.conditions.as_deref().unwrap_or_default();
        let met = |name: &String| conditions.iter().find(|c| c.type_ == *name && c.status == "True");
        let failed: Option<&Condition> = result.binding_failure_conditions.iter().flatten().find_map(met);
        if let Some(Condition { reason, message, .. }) = failed {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            return Err(format!("claim {name} binding failed: reason={reason}, message={message:?}"));
        }
        if !waits_for(result).iter().all(|name| met(name).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    /// A claim with a device whose binding waits for `Attached` and `Wired`.
    fn claim(conditions: Option<&[(&str, &str)]>) -> ResourceClaim {
        let result = json!({"request": "r", "driver": "drv", "pool": "p", "device": "d",
            "bindingConditions": ["Attached", "Wired"], "bindingFailureConditions": ["Broken"]});
        let condition = |(name, status): &(&str, &str)| {
            json!({"type": name, "status": status, "reason": "Why",
            "message": "it \"hums\"", "lastTransitionTime": "2025-01-01T00:00:00Z"})
        };
        let told = |list: &[(&str, &str)]| {
            json!({"driver": "drv", "pool": "p", "device": "d",
            "conditions": list.iter().map(condition).collect::<Vec<_>>()})
        };
        let allocation = json!({"devices": {"results": [result]}, "allocationTimestamp": "2025-01-01T00:00:00Z"});
        let devices: Vec<Value> = conditions.map(told).into_iter().collect();
        let status = json!({"allocation": allocation, "devices": devices});
        json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn a_claim_is_ready_when_all_its_conditions_are_met() {
        let check = |conditions: Option<&[(&str, &str)]>, expected: Result<bool, &str>| {
            let found = is_ready(&claim(conditions));
            assert_eq!(found, expected.map_err(str::to_owned), "{conditions:?}");
        };
        check(None, Ok(false));
        check(Some(&[]), Ok(false));
        check(Some(&[("Attached", "True")]), Ok(false));
        check(Some(&[("Attached", "True"), ("Wired", "False")]), Ok(false));
        check(Some(&[("Attached", "True"), ("Wired", "True")]), Ok(true));
        check(Some(&[("Attached", "True"), ("Wired", "True"), ("Broken", "False")]), Ok(true));
        let failed = r#"claim c binding failed: reason=Why, message="it \"hums\"""#;
        check(Some(&[("Broken", "True")]), Err(failed));
        check(Some(&[("Attached", "True"), ("Wired", "True"), ("Broken", "True")]), Err(failed));
        let mut free = claim(None);
        free.status.as_mut().unwrap().allocation.as_mut().unwrap().devices = None;
        assert_eq!((is_ready(&free), has_conditions(&free)), (Ok(true), false));
        free.status = None;
        assert_eq!(is_ready(&free), Ok(false));
    }

    #[test]
    fn patience_ends() {
        let at = |second: i64| {
            Some("2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(second as u64))
        };
        let patience = Duration::from_secs(60);
        let waits = Readiness::of(&claim(None));
        assert_eq!(waits, Readiness::Waits { since: at(0) });
        assert!(!waits.is_hopeless(patience, at(59)) && waits.is_hopeless(patience, at(60)));
        assert!(!waits.is_hopeless(patience, None) && !Readiness::Waits { since: None }.is_hopeless(patience, at(99)));
        assert!(Readiness::Failed.is_hopeless(patience, None) && !Readiness::Ready.is_hopeless(patience, at(99)));
    }
}
