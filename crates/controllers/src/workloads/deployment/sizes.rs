//! The numbers of a rollout: how many Pods there may be, must be, are.

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};

use crate::workloads::portion::scaled;

pub fn wanted(spec: &DeploymentSpec) -> i32 {
    spec.replicas.unwrap_or(1)
}

fn is_rolling(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// `(maxSurge, maxUnavailable)` as numbers of Pods. Both 0 would never get anywhere, so then one may be unavailable.
fn fenceposts(spec: &DeploymentSpec) -> (i32, i32) {
    let rolling = spec.strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    let surge = scaled(rolling.and_then(|r| r.max_surge.as_ref()), wanted(spec), true);
    let unavailable = scaled(rolling.and_then(|r| r.max_unavailable.as_ref()), wanted(spec), false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// How many Pods more than wanted there may be during a rolling update.
pub fn max_surge(spec: &DeploymentSpec) -> i32 {
    if is_rolling(spec) { fenceposts(spec).0 } else { 0 }
}

/// How many of the wanted Pods may be missing.
pub fn max_unavailable(spec: &DeploymentSpec) -> i32 {
    if !is_rolling(spec) || wanted(spec) == 0 {
        return 0;
    }
    fenceposts(spec).1.min(wanted(spec))
}

pub fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

/// Pods that exist, as the ReplicaSet counted them.
pub fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |s| s.replicas)
}

pub fn sum<'a>(sets: impl IntoIterator<Item = &'a ReplicaSet>, of: fn(&ReplicaSet) -> i32) -> i32 {
    sets.into_iter().map(of).sum()
}

/// The size that the ReplicaSet with the current template should have now, given the sizes of all.
pub fn current_size(spec: &DeploymentSpec, all: i32, current: i32) -> i32 {
    if !is_rolling(spec) {
        return wanted(spec);
    }
    let room = wanted(spec) + max_surge(spec) - all;
    if room <= 0 { current } else { current + room.min(wanted(spec) - current) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn percentages_round_surge_up_and_unavailable_down() {
        let check = |replicas: i32, surge: json::Value, unavailable: json::Value, expected: (i32, i32)| {
            let spec: DeploymentSpec = json::from_value(json!({
                "replicas": replicas, "selector": {}, "template": {},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
            }))
            .unwrap();
            assert_eq!((max_surge(&spec), max_unavailable(&spec)), expected, "{replicas} {surge} {unavailable}");
        };
        check(3, json!("25%"), json!("25%"), (1, 0));
        check(10, json!("25%"), json!("25%"), (3, 2));
        check(1, json!(0), json!("25%"), (0, 1));
        check(2, json!(1), json!(5), (1, 2));
        check(0, json!("25%"), json!("25%"), (0, 0));
    }
}
