//! From the number of Pods that the metrics ask for to the one that is set: how far back recommendations count, how fast
//! it may change, and its bounds. Pure. Upstream counterpart: the second half of pkg/controller/podautoscaler/horizontal.go.

use std::time::Duration;

use clock::Timestamp;
use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// No window and no period is longer.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Where nothing else is said, twice as many Pods at once, or this many.
const UP_LIMIT_MIN: i32 = 4;
/// More is not remembered of either; a new one then takes the place of the oldest.
const REMEMBERED_MAX: usize = 1000;

/// The recommendations and rescalings of late, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Memory {
    recommendations: Vec<(Timestamp, i32)>,
    /// Changes of the number of Pods.
    rescales: Vec<(Timestamp, i32)>,
}

fn remember(list: &mut Vec<(Timestamp, i32)>, at: Timestamp, value: i32) {
    list.retain(|(then, _)| then.checked_add(REMEMBERED).is_ok_and(|end| end >= at));
    if list.len() >= REMEMBERED_MAX {
        list.remove(0);
    }
    list.push((at, value));
}

impl Memory {
    /// The state that an autoscaler finds is its first recommendation.
    pub fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    pub fn recommended(&mut self, replicas: i32, now: Timestamp) {
        remember(&mut self.recommendations, now, replicas);
    }

    pub fn rescaled(&mut self, change: i32, at: Timestamp) {
        remember(&mut self.rescales, at, change);
    }

    /// How many Pods were added and removed in a period.
    fn changes(&self, period_seconds: i32, now: Timestamp) -> (i32, i32) {
        let after = now.as_second() - i64::from(period_seconds);
        let recent = self.rescales.iter().filter(|(at, _)| at.as_second() > after).map(|(_, change)| *change);
        recent.fold((0_i32, 0_i32), |(up, down), change| {
            (up.saturating_add(change.max(0)), down.saturating_sub(change.min(0)))
        })
    }

    /// The recommendations of the last seconds.
    fn recent(&self, seconds: i32, now: Timestamp) -> impl Iterator<Item = i32> {
        let from = now.as_second() - i64::from(seconds);
        self.recommendations.iter().filter(move |(at, _)| at.as_second() >= from).map(|(_, replicas)| *replicas)
    }
}

/// Reason and message of a condition.
pub type Words = (&'static str, &'static str);

/// The number of Pods that is to be set, and why it is this one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limited {
    pub replicas: i32,
    pub able: Words,
    /// Whether a limit made it another one.
    pub is_limited: bool,
    pub limit: Words,
}

/// The bounds of one autoscaler.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    pub min: i32,
    pub max: i32,
    pub current: i32,
    pub behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
    /// The highest recommendation of this time counts, where the behavior says nothing else.
    pub stabilization_seconds: i32,
}

const READY: Words = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: Words = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: Words = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const IN_RANGE: Words = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Words = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Words = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: Words = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Words =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl Limits<'_> {
    /// `memory` does not hold this recommendation yet.
    pub fn apply(&self, recommended: i32, memory: &Memory, now: Timestamp) -> Limited {
        let stable = self.stabilized(recommended, memory, now);
        let able = match stable == recommended {
            true => READY,
            false if self.behavior.is_some() && recommended >= self.current => UP_STABILIZED,
            false => DOWN_STABILIZED,
        };
        let (replicas, limit) = match self.behavior {
            None => self.bounded(stable),
            Some(behavior) => self.slowed(stable, behavior, memory, now),
        };
        Limited { replicas, able, is_limited: replicas != stable, limit }
    }

    /// Not less than was recommended lately, nor (only where it is asked for) more.
    fn stabilized(&self, recommended: i32, memory: &Memory, now: Timestamp) -> i32 {
        let highest = |seconds| memory.recent(seconds, now).fold(recommended, i32::max);
        let Some(behavior) = self.behavior else { return highest(self.stabilization_seconds) };
        let window = |rules: &Option<HPAScalingRules>, usual| {
            rules.as_ref().and_then(|r| r.stabilization_window_seconds).unwrap_or(usual)
        };
        // A window of no length holds nothing, not even what was recommended in this very second.
        let (up, down) = (window(&behavior.scale_up, 0), window(&behavior.scale_down, self.stabilization_seconds));
        let least = memory.recent(up - 1, now).fold(recommended, i32::min);
        let most = memory.recent(down - 1, now).fold(recommended, i32::max);
        self.current.max(least).min(most)
    }

    fn bounded(&self, desired: i32) -> (i32, Words) {
        let fastest = self.current.saturating_mul(2).max(UP_LIMIT_MIN);
        let (most, why) = if self.max > fastest { (fastest, UP_LIMIT) } else { (self.max, TOO_MANY) };
        match desired {
            _ if desired < self.min => (self.min, TOO_FEW),
            _ if desired > most => (most, why),
            _ => (desired, IN_RANGE),
        }
    }

    fn slowed(
        &self,
        desired: i32,
        behavior: &HorizontalPodAutoscalerBehavior,
        memory: &Memory,
        now: Timestamp,
    ) -> (i32, Words) {
        if desired > self.current {
            let fastest = self.furthest(behavior.scale_up.as_ref(), true, memory, now).max(self.current);
            let (most, why) = if self.max > fastest { (fastest, UP_LIMIT) } else { (self.max, TOO_MANY) };
            if desired > most {
                return (most, why);
            }
        } else if desired < self.current {
            let fastest = self.furthest(behavior.scale_down.as_ref(), false, memory, now).min(self.current);
            let (least, why) = if self.min < fastest { (fastest, DOWN_LIMIT) } else { (self.min, TOO_FEW) };
            if desired < least {
                return (least, why);
            }
        }
        (desired, IN_RANGE)
    }

    /// How far the policies of one direction let the number go now.
    fn furthest(&self, rules: Option<&HPAScalingRules>, up: bool, memory: &Memory, now: Timestamp) -> i32 {
        let select = rules.and_then(|r| r.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return self.current;
        }
        let reach = |policy: &HPAScalingPolicy| {
            let (added, removed) = memory.changes(policy.period_seconds, now);
            let start = self.current.saturating_sub(added).saturating_add(removed);
            let share = f64::from(policy.value) / 100.0;
            match (policy.type_.as_str(), up) {
                ("Pods", true) => start.saturating_add(policy.value),
                ("Pods", false) => start.saturating_sub(policy.value),
                (_, true) => (f64::from(start) * (1.0 + share)).ceil() as i32,
                (_, false) => (f64::from(start) * (1.0 - share)) as i32,
            }
        };
        let reaches = rules.iter().flat_map(|r| r.policies.iter().flatten()).map(reach);
        // `Max` is the policy that changes most, in either direction.
        let furthest = if up == (select != "Min") { reaches.max() } else { reaches.min() };
        furthest.unwrap_or(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    /// Recommendations and rescalings, each by how many seconds ago.
    fn memory(recommendations: &[(i64, i32)], rescales: &[(i64, i32)]) -> Memory {
        let at = |list: &[(i64, i32)]| {
            let one = |(ago, value): &(i64, i32)| (Timestamp::from_second(now().as_second() - ago).unwrap(), *value);
            list.iter().map(one).collect()
        };
        Memory { recommendations: at(recommendations), rescales: at(rescales) }
    }

    /// From 10 Pods, at least 2 and at most 50.
    fn check(behavior: Value, memory: &Memory, recommended: i32, expected: (i32, &str, &str)) {
        let typed: Option<HorizontalPodAutoscalerBehavior> = json::from_value(behavior.clone()).unwrap();
        let limits = Limits { min: 2, max: 50, current: 10, behavior: typed.as_ref(), stabilization_seconds: 300 };
        let found = limits.apply(recommended, memory, now());
        assert_eq!((found.replicas, found.able.0, found.limit.0), expected, "{behavior} {memory:?} {recommended}");
        assert_eq!(found.is_limited, found.limit.0 != "DesiredWithinRange");
    }

    #[test]
    fn without_behaviour_it_at_most_doubles_and_falls_slowly() {
        let none = memory(&[], &[]);
        check(Value::Null, &none, 10, (10, "ReadyForNewScale", "DesiredWithinRange"));
        check(Value::Null, &none, 30, (20, "ReadyForNewScale", "ScaleUpLimit"));
        check(Value::Null, &none, 1, (2, "ReadyForNewScale", "TooFewReplicas"));
        check(Value::Null, &memory(&[(300, 8), (20, 5)], &[]), 3, (8, "ScaleDownStabilized", "DesiredWithinRange"));
        check(Value::Null, &memory(&[(301, 8), (20, 5)], &[]), 3, (5, "ScaleDownStabilized", "DesiredWithinRange"));
        let few = Limits { min: 1, max: 3, current: 1, behavior: None, stabilization_seconds: 300 };
        assert_eq!(few.apply(9, &none, now()).limit.0, "TooManyReplicas");
        let one = Limits { max: 30, ..few };
        assert_eq!(one.apply(9, &none, now()).replicas, 4);
    }

    #[test]
    fn policies_say_how_fast() {
        let none = memory(&[], &[]);
        let up = |select: &str| {
            let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 25, "periodSeconds": 60}]);
            json!({"scaleUp": {"selectPolicy": select, "policies": policies, "stabilizationWindowSeconds": 0}})
        };
        check(up("Max"), &none, 40, (14, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Min"), &none, 40, (13, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Disabled"), &none, 40, (10, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Max"), &none, 12, (12, "ReadyForNewScale", "DesiredWithinRange"));
        // Pods that were added in the period count, and removed ones are given back.
        check(up("Max"), &memory(&[], &[(59, 3)]), 40, (11, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Max"), &memory(&[], &[(60, 3)]), 40, (14, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Max"), &memory(&[], &[(59, 9)]), 40, (10, "ReadyForNewScale", "ScaleUpLimit"));
        check(up("Max"), &memory(&[], &[(59, -2)]), 40, (16, "ReadyForNewScale", "ScaleUpLimit"));
        let down = |select: &str| {
            let policies = json!([{"type": "Pods", "value": 1, "periodSeconds": 60}, {"type": "Percent", "value": 30, "periodSeconds": 60}]);
            json!({"scaleDown": {"selectPolicy": select, "policies": policies, "stabilizationWindowSeconds": 0}})
        };
        check(down("Max"), &none, 2, (7, "ReadyForNewScale", "ScaleDownLimit"));
        check(down("Min"), &none, 2, (9, "ReadyForNewScale", "ScaleDownLimit"));
        check(down("Disabled"), &none, 2, (10, "ReadyForNewScale", "ScaleDownLimit"));
        check(down("Max"), &memory(&[], &[(10, -2)]), 2, (8, "ReadyForNewScale", "ScaleDownLimit"));
        let all = json!({"scaleDown": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}], "stabilizationWindowSeconds": 0}});
        check(all, &none, 1, (2, "ReadyForNewScale", "TooFewReplicas"));
    }

    #[test]
    fn windows_hold_back() {
        let policies = json!([{"type": "Percent", "value": 1000, "periodSeconds": 15}]);
        let rules = |seconds: Value| json!({"policies": policies, "stabilizationWindowSeconds": seconds});
        let both = json!({"scaleUp": rules(json!(60)), "scaleDown": rules(json!(120))});
        check(both.clone(), &memory(&[(59, 12)], &[]), 20, (12, "ScaleUpStabilized", "DesiredWithinRange"));
        check(both.clone(), &memory(&[(60, 12)], &[]), 20, (20, "ReadyForNewScale", "DesiredWithinRange"));
        check(both.clone(), &memory(&[(119, 8)], &[]), 4, (8, "ScaleDownStabilized", "DesiredWithinRange"));
        check(both.clone(), &memory(&[(119, 12)], &[]), 4, (10, "ScaleDownStabilized", "DesiredWithinRange"));
        // Upwards five minutes are the window only where nothing is said, and a window of zero holds nothing.
        let usual = json!({"scaleUp": rules(json!(0)), "scaleDown": rules(Value::Null)});
        check(usual.clone(), &memory(&[(299, 8)], &[]), 4, (8, "ScaleDownStabilized", "DesiredWithinRange"));
        check(usual, &memory(&[(0, 5), (300, 8)], &[]), 20, (20, "ReadyForNewScale", "DesiredWithinRange"));
        check(
            json!({"scaleDown": rules(json!(0))}),
            &memory(&[(0, 9)], &[]),
            4,
            (4, "ReadyForNewScale", "DesiredWithinRange"),
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut memory = Memory::default();
        for round in 0..2000 {
            memory.recommended(round, now());
        }
        assert_eq!((memory.recommendations.len(), memory.recommendations[0].1), (1000, 1000));
        memory.recommended(7, Timestamp::from_second(now().as_second() + 3601).unwrap());
        assert_eq!(memory.recommendations.len(), 1);
    }
}
