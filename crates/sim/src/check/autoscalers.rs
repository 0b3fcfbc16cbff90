//! The checkers of autoscalers.

use std::collections::BTreeMap;

use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v2::HorizontalPodAutoscaler};

use crate::objects::set;

/// How far a load may be from the target without a change.
const TOLERANCE: f64 = 0.1;

#[derive(Default)]
pub struct Autoscalers {
    autoscalers: BTreeMap<String, HorizontalPodAutoscaler>,
    /// The bounds that the target of each autoscaler has ever had, and the counts that users asked for, by the target's name.
    allowed: BTreeMap<String, Vec<(i32, i32)>>,
    /// How often the count of a target changed.
    pub scaled: usize,
}

fn bounds(autoscaler: &HorizontalPodAutoscaler) -> (String, (i32, i32)) {
    let spec = autoscaler.spec.as_ref();
    let target = spec.map(|s| s.scale_target_ref.name.clone()).unwrap_or_default();
    (target, spec.map_or((0, 0), |s| (s.min_replicas.unwrap_or(1), s.max_replicas)))
}

/// The load that one Pod should have, in thousandths of a CPU.
fn aim(autoscaler: &HorizontalPodAutoscaler) -> Option<i64> {
    let metric = autoscaler.spec.as_ref()?.metrics.as_ref()?.first()?.resource.as_ref()?;
    Some(api::rules::quantity::parse(metric.target.average_value.as_ref()?).milli_value())
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Whether an autoscaler rests at this count. It knows the load as whole thousandths of each Pod.
fn rests(replicas: i32, (least, most): (i32, i32), load: i64, aim: i64) -> bool {
    let pods = i64::from(replicas.max(1));
    let ratio = (load / pods * pods) as f64 / aim as f64;
    let wanted = (ratio.ceil() as i32).clamp(least, most);
    let near = (ratio / f64::from(replicas.max(1)) - 1.0).abs() <= TOLERANCE;
    (least..=most).contains(&replicas) && (replicas == wanted || near)
}

impl Autoscalers {
    pub fn autoscaler(&mut self, key: String, new: Option<HorizontalPodAutoscaler>) {
        if let Some(new) = &new {
            let (target, bounds) = bounds(new);
            self.allowed.entry(target).or_default().push(bounds);
        }
        set(&mut self.autoscalers, key, new);
    }

    /// A user asks for this many, whatever the bounds are.
    pub fn asked(&mut self, target: &str, replicas: i32) {
        self.allowed.entry(target.to_owned()).or_default().push((replicas, replicas));
    }

    /// A count of Pods changes to what the bounds allow, or a user asked for.
    pub fn target(&mut self, old: Option<&Deployment>, new: &Deployment) -> Option<String> {
        let name = new.metadata.name.as_deref().unwrap_or_default();
        let (before, after) = (old.map(replicas)?, replicas(new));
        let allowed = self.allowed.get(name).filter(|_| before != after)?;
        self.scaled += 1;
        let fine = allowed.iter().any(|(least, most)| (*least..=*most).contains(&after));
        (!fine).then(|| format!("{after} replicas are out of the bounds of its autoscaler: {allowed:?}"))
    }

    /// Whether each target has the count that its load asks for.
    pub fn settled<'a>(
        &self,
        deployments: impl Iterator<Item = &'a Deployment> + Clone,
        load: impl Fn(&str) -> i64,
    ) -> bool {
        self.autoscalers.values().all(|autoscaler| {
            let (target, bounds) = bounds(autoscaler);
            let deployment = deployments.clone().find(|d| d.metadata.name.as_deref() == Some(&target));
            let (Some(deployment), Some(aim)) = (deployment, aim(autoscaler)) else { return true };
            rests(replicas(deployment), bounds, load(&target), aim)
        })
    }

    pub fn count(&self) -> usize {
        self.autoscalers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_count_rests_where_its_load_says() {
        let check = |replicas, bounds, load, expected| {
            assert_eq!(rests(replicas, bounds, load, 100), expected, "{replicas} {bounds:?} {load}");
        };
        check(3, (1, 5), 250, true);
        check(2, (1, 5), 250, false);
        check(4, (1, 5), 420, true);
        check(5, (1, 5), 900, true);
        check(1, (1, 5), 0, true);
        check(2, (1, 5), 0, false);
        check(6, (1, 5), 900, false);
        // 95 of 87 each, as far as anybody can see.
        assert!(rests(5, (1, 9), 479, 87));
    }

    #[test]
    fn counts_stay_in_the_bounds() {
        let deployment = |replicas: i32| -> Deployment {
            let spec = json!({"replicas": replicas, "selector": {}, "template": {"spec": {"containers": []}}});
            json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
        };
        let mut all = Autoscalers::default();
        let check = |all: &mut Autoscalers, from: i32, to: i32, fine: bool| {
            let wrong = all.target(Some(&deployment(from)), &deployment(to));
            assert_eq!(wrong.is_none(), fine, "{from} {to}: {wrong:?}");
        };
        check(&mut all, 1, 9, true);
        let target = json!({"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 2, "maxReplicas": 4});
        all.autoscaler("k".into(), json::from_value(json!({"metadata": {}, "spec": target})).unwrap());
        check(&mut all, 1, 2, true);
        check(&mut all, 2, 4, true);
        check(&mut all, 4, 5, false);
        check(&mut all, 9, 9, true);
        all.asked("d", 9);
        check(&mut all, 4, 9, true);
        check(&mut all, 4, 1, false);
    }
}
