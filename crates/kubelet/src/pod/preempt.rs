//! Which Pods go for a critical Pod to have room: as few as possible, and of the better classes of service only as many as the
//! lesser ones leave short. Pure. Upstream counterpart: pkg/kubelet/preemption.

use std::fmt::Write as _;

use crate::pod::{
    admit::{Refusal, Shortage, in_units, is_critical},
    desired::DesiredPod,
};
use api::rules::pod::{self, BURSTABLE, GUARANTEED, Resources};

/// The reason of a preempted Pod's status and event, and their message.
pub const PREEMPTING: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";

/// Whether a Pod may go for the critical one that `asks`.
pub fn may_go(asks: &DesiredPod, other: &DesiredPod) -> bool {
    let stated = |pod: &DesiredPod| pod.spec().priority;
    let is_lower = stated(asks).zip(stated(other)).is_some_and(|(asks, other)| asks > other);
    is_lower || is_critical(&asks.pod, asks.is_static) && !is_critical(&other.pod, other.is_static)
}

/// A Pod that could go.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub uid: String,
    qos: String,
    requests: Resources,
}

impl Candidate {
    pub fn new(desired: &DesiredPod) -> Self {
        let (qos, requests) = (pod::qos(&desired.pod).to_owned(), pod::requests(desired.spec()));
        Candidate { uid: desired.uid().to_owned(), qos, requests }
    }

    /// The amount of a resource that becomes free with it.
    fn frees(&self, resource: &str) -> i64 {
        match resource {
            "pods" => 1,
            _ => self.requests.get(resource).map_or(0, |amount| in_units(resource, *amount)),
        }
    }
}

/// Amounts that are still to become free, in the order in which they were found short.
#[derive(Clone)]
struct Lacking(Vec<(String, i64)>);

impl Lacking {
    fn after<'a>(&self, gone: impl IntoIterator<Item = &'a Candidate>) -> Lacking {
        let gone: Vec<&Candidate> = gone.into_iter().collect();
        let left = |(name, amount): &(String, i64)| {
            let left = amount - gone.iter().map(|pod| pod.frees(name)).sum::<i64>();
            (left > 0).then(|| (name.clone(), left))
        };
        Lacking(self.0.iter().filter_map(left).collect())
    }

    /// How much a Pod leaves lacking: each amount counts as a part of what is lacking of it.
    fn distance(&self, pod: &Candidate) -> f64 {
        let of = |(name, amount): &(String, i64)| {
            let left = (amount - pod.frees(name)).max(0);
            (left as f64 / *amount as f64).powi(2)
        };
        self.0.iter().map(of).sum()
    }

    /// The fewest and smallest of these Pods that leave nothing lacking, one by one the one that helps most.
    fn fewest(mut self, mut pods: Vec<&Candidate>) -> Option<Vec<&Candidate>> {
        let mut going = Vec::new();
        while !self.0.is_empty() {
            let size = |pod: &Candidate| (pod.frees("memory"), pod.frees("cpu"));
            let order = |a: &&Candidate, b: &&Candidate| {
                self.distance(a).total_cmp(&self.distance(b)).then_with(|| size(a).cmp(&size(b)))
            };
            let best = pods.iter().copied().min_by(|a, b| order(a, b))?;
            self = self.after([best]);
            pods.retain(|pod| !std::ptr::eq(*pod, best));
            going.push(best);
        }
        Some(going)
    }

    fn refusal(&self) -> Refusal {
        let mut list = String::new();
        for (name, amount) in &self.0 {
            let _ = write!(list, "(res: {name}, q: {amount}), ");
        }
        let message = format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods \
             to preempt: no set of running pods found to reclaim resources: [{list}]"
        );
        Refusal::new("UnexpectedAdmissionError", message)
    }
}

/// The Pods that go for what is short.
pub fn victims<'a>(short: &[Shortage], candidates: &'a [Candidate]) -> Result<Vec<&'a Candidate>, Refusal> {
    let lacking = Lacking(short.iter().map(|short| (short.resource.clone(), short.lacking())).collect());
    let never = lacking.after(candidates);
    if !never.0.is_empty() {
        return Err(never.refusal());
    }
    let (mut guaranteed, mut burstable, mut best_effort) = (Vec::new(), Vec::new(), Vec::new());
    for candidate in candidates {
        match candidate.qos.as_str() {
            GUARANTEED => guaranteed.push(candidate),
            BURSTABLE => burstable.push(candidate),
            _ => best_effort.push(candidate),
        }
    }
    let all = |some: &[&'a Candidate], others: &[&'a Candidate]| lacking.after(some.iter().chain(others).copied());
    // All together free enough, so each class frees what the others leave.
    let none = || lacking.refusal();
    let first = all(&best_effort, &burstable).fewest(guaranteed).ok_or_else(none)?;
    let second = all(&best_effort, &first).fewest(burstable).ok_or_else(none)?;
    let third = all(&second, &first).fewest(best_effort).ok_or_else(none)?;
    Ok(third.into_iter().chain(second).chain(first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{
        admit::{self, NodeFacts},
        fixture::{pod, pod_of},
    };
    use json::json;
    use std::collections::BTreeMap;

    /// `name class cpu memory`, where memory is in Mi.
    fn candidate(text: &str) -> Candidate {
        let [name, qos, cpu, memory] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let requests = [("cpu", cpu.to_owned()), ("memory", format!("{memory}Mi"))];
        let requests = requests.map(|(name, amount)| (name.to_owned(), amount.parse().unwrap())).into();
        Candidate { uid: name.to_owned(), qos: qos.to_owned(), requests }
    }

    /// Which of the Pods go for a critical one that asks for these amounts of a node that has nothing left.
    fn check(cpu: &str, memory: &str, pods: &[&str], expected: &str) {
        let amounts = format!(r#"{{"cpu": "{cpu}", "memory": "{memory}Mi"}}"#);
        let asks = pod(&format!(
            r#"{{"priority": 2000001000, "containers": [{{"name": "c", "resources": {{"requests": {amounts}}}}}]}}"#
        ));
        let allocatable: Resources = [("pods".to_owned(), "100".parse().unwrap())].into();
        let (labels, others) = (BTreeMap::new(), Vec::new());
        let node = NodeFacts { name: "n", labels: &labels, taints: &[], allocatable: &allocatable, others: &others };
        let short = admit::admit(&asks.pod, false, &node).unwrap();
        let candidates: Vec<Candidate> = pods.iter().map(|text| candidate(text)).collect();
        let got = match victims(&short, &candidates) {
            Ok(victims) => victims.iter().map(|v| v.uid.as_str()).collect::<Vec<_>>().join(" "),
            Err(refusal) => format!("{}: {}", refusal.reason, refusal.message.rsplit(": [").next().unwrap_or_default()),
        };
        assert_eq!(got, expected, "{cpu} {memory}: {pods:?}");
    }

    #[test]
    fn as_few_as_possible_go_and_the_better_classes_last() {
        let (g1, g2) = ("g1 Guaranteed 1 100", "g2 Guaranteed 2 200");
        let (b1, b2, b3) = ("b1 Burstable 1 100", "b2 Burstable 2 200", "b3 Burstable 3 300");
        check("1", "100", &[g1, g2, b1, b2, b3], "b1");
        check("2", "200", &[g1, b1, b2, b3], "b2");
        check("2", "250", &[g1, b1, b2, b3], "b3");
        // No single one is enough: the one that helps most, then the smallest that does the rest.
        check("4", "400", &[b1, b2, b3, g2], "b3 b1");
        check("7", "700", &[b1, b2, b3, g1, g2], "b3 b2 b1 g1");
        // One resource alone.
        check("0", "250", &["x Burstable 4 10", b1, b3], "b3");
        check("9", "100", &[b1, b2], "UnexpectedAdmissionError: (res: cpu, q: 6000), ]");
        check("0", "0", &[b1], "");
    }

    #[test]
    fn who_goes_for_whom() {
        let of = |priority: Option<i32>| pod_of(json!({"spec": {"priority": priority, "containers": []}}));
        let (none, low, high, system) = (of(None), of(Some(1)), of(Some(5)), of(Some(2_000_000_000)));
        let node_critical = of(Some(2_000_001_000));
        let mut fixed = of(None);
        fixed.is_static = true;
        for (asks, other, expected) in [
            (&system, &none, true),
            (&system, &high, true),
            (&system, &system, false),
            (&system, &fixed, false),
            (&node_critical, &system, true),
            (&fixed, &high, true),
            (&fixed, &system, false),
            (&high, &low, true),
            (&low, &none, false),
        ] {
            assert_eq!(may_go(asks, other), expected, "{:?} {:?}", asks.spec().priority, other.spec().priority);
        }
    }
}
