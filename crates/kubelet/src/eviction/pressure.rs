//! When the node runs short of memory, disk or process ids: thresholds, the conditions that follow from them, and which Pod
//! has to go first. Pure. Upstream counterpart: pkg/kubelet/eviction.

use std::{collections::BTreeMap, fmt};

use api::rules::{pod, quantity::Quantity, taint};
use clock::{Duration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodSpec, Taint};

use crate::pod::admit::{Refusal, is_critical};

/// Upstream's thresholds on Linux, but for the disk: it is content with 5 %, because it is the user's own disk as a rule,
/// and 15 % of a large one are more than all Pods on it need.
pub const DEFAULT: &str =
    "memory.available<100Mi,nodefs.available<5%,nodefs.inodesFree<5%,imagefs.available<5%,imagefs.inodesFree<5%";

/// The signals that are measured, in the order in which a shortage is dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    PidAvailable,
}

use Signal::*;

const SIGNALS: [(Signal, &str, &str, &str); 6] = [
    (MemoryAvailable, "memory.available", MEMORY, "memory"),
    (NodefsAvailable, "nodefs.available", DISK, "ephemeral-storage"),
    (NodefsInodesFree, "nodefs.inodesFree", DISK, "inodes"),
    (ImagefsAvailable, "imagefs.available", DISK, "ephemeral-storage"),
    (ImagefsInodesFree, "imagefs.inodesFree", DISK, "inodes"),
    (PidAvailable, "pid.available", PID, "pids"),
];

pub const MEMORY: &str = "MemoryPressure";
pub const DISK: &str = "DiskPressure";
pub const PID: &str = "PIDPressure";

impl Signal {
    fn row(self) -> &'static (Signal, &'static str, &'static str, &'static str) {
        SIGNALS.iter().find(|row| row.0 == self).expect("every signal has its row")
    }

    /// As flags call it.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub fn named(name: &str) -> Result<Self, String> {
        let row = SIGNALS.iter().find(|row| row.1 == name);
        row.map(|row| row.0).ok_or_else(|| format!("unsupported eviction signal {name}"))
    }

    pub fn condition(self) -> &'static str {
        self.row().2
    }

    /// As messages call it.
    pub fn resource(self) -> &'static str {
        self.row().3
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Least {
    /// Bytes, inodes or process ids.
    Amount(i64),
    /// A hundredth part of the capacity.
    Percent(f64),
}

/// The least that must be left of something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub least: Least,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    pub available: i64,
    pub capacity: i64,
}

pub type Measures = BTreeMap<Signal, Measured>;

/// A threshold that is not kept, with the amounts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shortage {
    pub signal: Signal,
    pub least: i64,
    pub available: i64,
}

impl Least {
    pub fn amount(&self, capacity: i64) -> i64 {
        match self {
            Least::Amount(amount) => *amount,
            Least::Percent(share) => (capacity as f64 * share / 100.0) as i64,
        }
    }
}

impl Threshold {
    /// The least that must be left, given the capacity.
    pub fn amount(&self, capacity: i64) -> i64 {
        self.least.amount(capacity)
    }
}

/// Reads `signal<value,…`, in the words of upstream where it is wrong. An empty text sets no threshold.
pub fn parse(text: &str) -> Result<Vec<Threshold>, String> {
    text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(one).collect()
}

fn one(text: &str) -> Result<Threshold, String> {
    let (name, value) = text
        .split_once('<')
        .ok_or_else(|| format!("invalid eviction threshold syntax {text}, expected <signal><operator><value>"))?;
    let signal = Signal::named(name)?;
    let least = least(value).map_err(|why| format!("eviction threshold {name}: {why}"))?;
    Ok(Threshold { signal, least })
}

/// Reads an amount or a percentage.
pub fn least(value: &str) -> Result<Least, String> {
    match value.strip_suffix('%') {
        Some(share) => match share.parse::<f64>() {
            Ok(share) if (0.0..=100.0).contains(&share) => Ok(Least::Percent(share)),
            Ok(_) => Err("the percentage must be between 0% and 100%".to_owned()),
            Err(_) => Err(format!("{value:?} is not a percentage")),
        },
        None => match value.parse::<Quantity>() {
            Ok(amount) if amount.value() >= 0 => Ok(Least::Amount(amount.value())),
            _ => Err(format!("it must be positive, not {value:?}")),
        },
    }
}

/// Which pressures the node is under: each from the moment it is seen until it was not seen for a while.
#[derive(Debug, Default)]
pub struct Pressures(BTreeMap<&'static str, Timestamp>);

impl Pressures {
    /// Takes in a measurement; whether a pressure has begun or ended with it.
    pub fn note(&mut self, shortages: &[Shortage], lasts: Duration, now: Timestamp) -> bool {
        let before: Vec<&str> = self.0.keys().copied().collect();
        self.0.extend(shortages.iter().map(|s| (s.signal.condition(), now)));
        self.0.retain(|_, seen| now <= seen.checked_add(lasts).unwrap_or(*seen));
        !self.0.keys().eq(&before)
    }

    pub fn holds(&self, condition: &str) -> bool {
        self.0.contains_key(condition)
    }

    /// Whether a new Pod is let in meanwhile: if it is critical, or if only memory is short and it either states what it
    /// needs or tolerates that.
    pub fn admit(&self, pod: &Pod, is_static: bool) -> Result<(), Refusal> {
        let under: Vec<&str> = self.0.keys().copied().collect();
        if under.is_empty() || is_critical(pod, is_static) {
            return Ok(());
        }
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let key = "node.kubernetes.io/memory-pressure".to_owned();
        let pressed = Taint { key, effect: taint::NO_SCHEDULE.to_owned(), ..Default::default() };
        let patient = taint::tolerated(spec.tolerations.as_deref().unwrap_or_default(), &pressed);
        if under == [MEMORY] && (patient || pod::qos(pod) != pod::BEST_EFFORT) {
            return Ok(());
        }
        let message = format!("The node had condition: [{}]. ", under.join(" "));
        Err(Refusal { reason: "Evicted".to_owned(), message })
    }
}

/// A Pod that could go, and what it takes of the resource that is short.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub uid: String,
    pub priority: i32,
    pub requested: i64,
    pub used: i64,
    /// By container: used and requested.
    pub containers: Vec<(String, i64, i64)>,
}

/// Sorts by who is evicted first: Pods that use more than they requested, then the least important, then those that exceed
/// their request the most.
pub fn rank(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|c| (c.used <= c.requested, c.priority, c.requested - c.used, c.uid.clone()));
}

/// The message of the evicted Pod's status and event.
pub fn message(shortage: &Shortage, candidate: &Candidate) -> String {
    let amount = |value: i64| Amount(shortage.signal, value).to_string();
    let mut text = format!(
        "The node was low on resource: {}. Threshold quantity: {}, available: {}. ",
        shortage.signal.resource(),
        amount(shortage.least),
        amount(shortage.available)
    );
    for (name, used, requested) in candidate.containers.iter().filter(|(_, used, requested)| used > requested) {
        text.push_str(&format!(
            "Container {name} was using {}, request is {}, has larger consumption of {}. ",
            amount(*used),
            amount(*requested),
            shortage.signal.resource()
        ));
    }
    text
}

/// An amount as messages show it: memory and disk in the largest binary unit that keeps it exact.
struct Amount(Signal, i64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amount(signal, value) = *self;
        let counted = matches!(signal, NodefsInodesFree | ImagefsInodesFree | PidAvailable);
        if counted || value == 0 {
            return write!(f, "{value}");
        }
        let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        match units.iter().find(|(_, bits)| value % (1 << bits) == 0) {
            Some((unit, bits)) => write!(f, "{}{unit}", value >> bits),
            None => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now, pod};

    #[test]
    fn thresholds_are_read_as_upstream_writes_them() {
        assert_eq!(parse(DEFAULT).unwrap().len(), 5);
        assert_eq!(parse("").unwrap(), []);
        let two = parse("memory.available<1Gi, nodefs.available<7.5%").unwrap();
        assert_eq!(two[0], Threshold { signal: MemoryAvailable, least: Least::Amount(1 << 30) });
        assert_eq!(two[1], Threshold { signal: NodefsAvailable, least: Least::Percent(7.5) });
        for (text, expected) in [
            (
                "memory.available",
                "invalid eviction threshold syntax memory.available, expected <signal><operator><value>",
            ),
            ("disk<1", "unsupported eviction signal disk"),
            (
                "nodefs.available<101%",
                "eviction threshold nodefs.available: the percentage must be between 0% and 100%",
            ),
            ("memory.available<-1", "eviction threshold memory.available: it must be positive, not \"-1\""),
            ("memory.available<x%", "eviction threshold memory.available: \"x%\" is not a percentage"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_pressure_holds_for_five_minutes_and_keeps_pods_away() {
        let best_effort = pod(r#"{"containers": [{"name": "c"}]}"#);
        let burstable = pod(r#"{"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}"#);
        let patient = pod(r#"{"containers": [{"name": "c"}],
                "tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]}"#);
        let critical = pod(r#"{"priority": 2000000000, "containers": [{"name": "c"}]}"#);
        const LASTS: Duration = Duration::from_secs(300);
        let mut pressures = Pressures::default();
        let one = |signal| [Shortage { signal, least: 1, available: 0 }];
        assert!(pressures.note(&one(MemoryAvailable), LASTS, now()), "it begins");
        assert!(!pressures.note(&one(MemoryAvailable), LASTS, now()), "it goes on");
        let refused = pressures.admit(&best_effort.pod, false).unwrap_err();
        assert_eq!(
            (refused.reason.as_str(), refused.message.as_str()),
            ("Evicted", "The node had condition: [MemoryPressure]. ")
        );
        for let_in in [&burstable, &patient, &critical] {
            assert_eq!(pressures.admit(&let_in.pod, false), Ok(()));
        }
        assert_eq!(pressures.admit(&best_effort.pod, true), Ok(()), "static");
        pressures.note(&one(NodefsAvailable), LASTS, at(100));
        for kept_out in [&burstable, &patient] {
            let message = pressures.admit(&kept_out.pod, false).unwrap_err().message;
            assert_eq!(message, "The node had condition: [DiskPressure MemoryPressure]. ");
        }
        assert_eq!(pressures.admit(&critical.pod, false), Ok(()));
        pressures.note(&[], LASTS, at(300));
        assert!(pressures.holds(MEMORY));
        assert!(pressures.note(&[], LASTS, at(301)), "it ends");
        assert!(!pressures.holds(MEMORY) && pressures.holds(DISK));
        pressures.note(&[], LASTS, at(401));
        assert_eq!(pressures.admit(&best_effort.pod, false), Ok(()));
    }

    #[test]
    fn who_takes_more_than_it_asked_for_goes_first() {
        let one = |uid: &str, priority, requested, used| Candidate {
            uid: uid.into(),
            priority,
            requested,
            used,
            containers: vec![("c".into(), used, requested)],
        };
        let mut all = [
            one("modest", 0, 100, 50),
            one("important", 10, 0, 900),
            one("greedy", 0, 0, 500),
            one("greedier", 0, 100, 700),
        ];
        rank(&mut all);
        assert_eq!(all.each_ref().map(|c| c.uid.as_str()), ["greedier", "greedy", "important", "modest"]);
    }

    #[test]
    fn the_message_says_who_used_how_much() {
        let mi = 1 << 20;
        let shortage = Shortage { signal: MemoryAvailable, least: 100 * mi, available: 51_200 };
        let candidate = Candidate {
            uid: "u".into(),
            priority: 0,
            requested: 0,
            used: 3 * mi,
            containers: vec![("c".into(), 3 * mi, 0), ("d".into(), 1, 2)],
        };
        let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Ki. Container c was \
                        using 3Mi, request is 0, has larger consumption of memory. ";
        assert_eq!(message(&shortage, &candidate), expected);
    }
}
