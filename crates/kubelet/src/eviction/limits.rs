//! The amounts that must stay free on the node: hard thresholds, below which a Pod goes at once; soft ones, below which a Pod
//! goes when it has lasted for a while, and with a grace; and how much more must be free again before it is enough. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clock::{Duration, Timestamp};

use crate::eviction::pressure::{self, Least, Measures, Shortage, Signal, Threshold};

/// Upstream's grace of Pods that go at a hard threshold, and the least that any gets.
pub const AT_ONCE: i64 = 1;

/// Upstream's flags of the node's evictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    thresholds: Vec<Limit>,
    /// How much more than the threshold must be free again once a Pod had to go.
    reclaim: BTreeMap<Signal, Least>,
    /// The longest grace, in seconds, of a Pod that goes at a soft threshold.
    max_grace: i64,
    /// A condition holds for this long after its cause was last seen.
    pub transition: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Limit {
    threshold: Threshold,
    /// How long it may be missed, where it is a soft one.
    patience: Option<Duration>,
}

/// The values of the flags, as they are written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Texts<'a> {
    pub hard: &'a str,
    pub soft: &'a str,
    pub soft_grace: &'a str,
    pub reclaim: &'a str,
}

impl Default for Limits {
    fn default() -> Self {
        let transition = Duration::from_secs(300);
        Limits { thresholds: Vec::new(), reclaim: BTreeMap::new(), max_grace: 0, transition }
    }
}

impl Limits {
    /// Reads the flags; the error names the one that is wrong.
    pub fn read(
        texts: Texts<'_>,
        max_grace: u32,
        transition: Duration,
        duration: impl Fn(&str) -> Result<Duration, String>,
    ) -> Result<Self, String> {
        let flag = |name: &'static str| move |why: String| format!("--{name} is not usable: {why}");
        let hard = pressure::parse(texts.hard).map_err(flag("eviction-hard"))?;
        let soft = pressure::parse(texts.soft).map_err(flag("eviction-soft"))?;
        let grace = pairs(texts.soft_grace, duration).map_err(flag("eviction-soft-grace-period"))?;
        let reclaim = pairs(texts.reclaim, pressure::least).map_err(flag("eviction-minimum-reclaim"))?;
        let mut thresholds: Vec<Limit> =
            hard.into_iter().map(|threshold| Limit { threshold, patience: None }).collect();
        for threshold in soft {
            let name = threshold.signal.name();
            let missing = || format!("grace period must be specified for the soft eviction threshold {name}");
            let patience = grace.get(&threshold.signal).copied();
            let patience = patience.ok_or_else(missing).map_err(flag("eviction-soft-grace-period"))?;
            thresholds.push(Limit { threshold, patience: Some(patience) });
        }
        Ok(Limits { thresholds, reclaim, max_grace: i64::from(max_grace), transition })
    }

    /// The amount that no Pod gets: the hard threshold of a signal.
    pub fn kept(&self, signal: Signal, capacity: i64) -> Option<i64> {
        let mut hard = self.thresholds.iter().filter(|limit| limit.patience.is_none());
        hard.find(|limit| limit.threshold.signal == signal).map(|limit| limit.threshold.amount(capacity))
    }
}

/// Reads `signal=value,…`.
fn pairs<T>(text: &str, value: impl Fn(&str) -> Result<T, String>) -> Result<BTreeMap<Signal, T>, String> {
    let one = |text: &str| {
        let (name, given) = text.split_once('=').ok_or_else(|| format!("{text:?} is not <signal>=<value>"))?;
        let signal = Signal::named(name)?;
        Ok((signal, value(given).map_err(|why| format!("{name}: {why}"))?))
    };
    text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(one).collect()
}

/// Which thresholds are missed, and since when.
#[derive(Debug, Default)]
pub struct Watch {
    /// By the place among the thresholds.
    since: BTreeMap<usize, Timestamp>,
    /// Those for which a Pod had to go: they are kept again when there is more than they ask for.
    acted: BTreeSet<usize>,
}

/// A shortage for which a Pod has to go now, with the longest grace that it gets, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    pub shortage: Shortage,
    pub most: i64,
}

impl Watch {
    /// Takes in a measurement: all that is short, and what of it has been short for long enough, the most urgent first.
    pub fn note(&mut self, limits: &Limits, measures: &Measures, now: Timestamp) -> (Vec<Shortage>, Vec<Due>) {
        let (mut short, mut due) = (Vec::new(), Vec::new());
        for (place, limit) in limits.thresholds.iter().enumerate() {
            let signal = limit.threshold.signal;
            let Some(measured) = measures.get(&signal) else { continue };
            let (least, available) = (limit.threshold.amount(measured.capacity), measured.available);
            let more = limits.reclaim.get(&signal).filter(|_| self.acted.contains(&place));
            if available >= least + more.map_or(0, |more| more.amount(measured.capacity)) {
                self.since.remove(&place);
                self.acted.remove(&place);
                continue;
            }
            let shortage = Shortage { signal, least, available };
            short.push(shortage);
            let since = *self.since.entry(place).or_insert(now);
            let patience = limit.patience.unwrap_or_default();
            if since.checked_add(patience).is_ok_and(|end| now >= end) {
                self.acted.insert(place);
                let most = limit.patience.map_or(AT_ONCE, |_| limits.max_grace.max(AT_ONCE));
                due.push(Due { shortage, most });
            }
        }
        short.sort_by_key(|shortage| shortage.signal);
        // Of one signal the hard threshold comes first: it stands first, and sorting keeps that.
        due.sort_by_key(|due| due.shortage.signal);
        (short, due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        eviction::pressure::{Measured, Signal::*},
        pod::fixture::at,
    };

    fn seconds(text: &str) -> Result<Duration, String> {
        let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse().ok());
        seconds.map(Duration::from_secs).ok_or_else(|| "it must be a time".to_owned())
    }

    fn read(texts: Texts<'_>) -> Result<Limits, String> {
        Limits::read(texts, 30, Duration::from_secs(300), seconds)
    }

    fn look(watch: &mut Watch, limits: &Limits, available: i64, second: i64) -> String {
        let measures = Measures::from([(MemoryAvailable, Measured { available, capacity: 1000 })]);
        let (short, due) = watch.note(limits, &measures, at(second));
        let due =
            due.iter().map(|due| format!(" {}<{} within {}s", due.shortage.available, due.shortage.least, due.most));
        format!("{}{}", short.len(), due.collect::<String>())
    }

    #[test]
    fn a_soft_threshold_may_be_missed_for_a_while() {
        let texts = Texts {
            hard: "memory.available<100",
            soft: "memory.available<300",
            soft_grace: "memory.available=60s",
            ..Texts::default()
        };
        let limits = read(texts).unwrap();
        let mut watch = Watch::default();
        let mut check = |available, second, expected: &str| {
            assert_eq!(look(&mut watch, &limits, available, second), expected, "{available} at {second}");
        };
        check(300, 0, "0");
        check(299, 10, "1");
        check(299, 69, "1");
        check(299, 70, "1 299<300 within 30s");
        check(99, 71, "2 99<100 within 1s 99<300 within 30s");
        check(300, 80, "0");
        check(200, 90, "1");
        check(200, 149, "1");
    }

    #[test]
    fn enough_is_more_than_the_threshold_once_a_pod_had_to_go() {
        let limits =
            read(Texts { hard: "memory.available<10%", reclaim: "memory.available=5%", ..Texts::default() }).unwrap();
        let mut watch = Watch::default();
        let mut check = |available, expected: &str| {
            assert_eq!(look(&mut watch, &limits, available, 0), expected, "{available}");
        };
        check(149, "0");
        check(99, "1 99<100 within 1s");
        check(149, "1 149<100 within 1s");
        check(150, "0");
        check(149, "0");
    }

    #[test]
    fn shortages_come_in_the_order_of_their_urgency() {
        let limits =
            read(Texts { hard: "imagefs.available<15%,nodefs.available<10%,memory.available<100", ..Texts::default() });
        let of = |available, capacity| Measured { available, capacity };
        let enough = Measures::from([(MemoryAvailable, of(100, 1000)), (NodefsAvailable, of(10, 100))]);
        let (limits, mut watch) = (limits.unwrap(), Watch::default());
        assert_eq!(watch.note(&limits, &enough, at(0)), (Vec::new(), Vec::new()));
        let less = [(ImagefsAvailable, of(14, 100)), (NodefsAvailable, of(9, 100)), (MemoryAvailable, of(1, 1000))];
        let (short, due) = watch.note(&limits, &less.into(), at(0));
        let text: Vec<_> = short.iter().map(|s| (s.signal, s.least, s.available)).collect();
        assert_eq!(text, [(MemoryAvailable, 100, 1), (NodefsAvailable, 10, 9), (ImagefsAvailable, 15, 14)]);
        assert_eq!(due.iter().map(|due| due.shortage).collect::<Vec<_>>(), short);
    }

    #[test]
    fn what_no_pod_gets_is_the_hard_threshold() {
        let texts = Texts {
            hard: "nodefs.available<7%",
            soft: "memory.available<3",
            soft_grace: "memory.available=1s",
            ..Texts::default()
        };
        let limits = read(texts).unwrap();
        assert_eq!((limits.kept(NodefsAvailable, 200), limits.kept(MemoryAvailable, 200)), (Some(14), None));
    }

    #[test]
    fn flags_that_are_wrong_are_named() {
        let check = |texts: Texts<'_>, expected: &str| assert_eq!(read(texts).unwrap_err(), expected);
        let soft = "memory.available<1";
        let words = "--eviction-soft-grace-period is not usable: ";
        check(
            Texts { soft, ..Texts::default() },
            &format!("{words}grace period must be specified for the soft eviction threshold memory.available"),
        );
        check(
            Texts { soft, soft_grace: "memory.available", ..Texts::default() },
            &format!("{words}\"memory.available\" is not <signal>=<value>"),
        );
        check(
            Texts { soft, soft_grace: "memory.available=x", ..Texts::default() },
            &format!("{words}memory.available: it must be a time"),
        );
        check(
            Texts { reclaim: "disk=1", ..Texts::default() },
            "--eviction-minimum-reclaim is not usable: unsupported eviction signal disk",
        );
        check(
            Texts { reclaim: "nodefs.available=101%", ..Texts::default() },
            "--eviction-minimum-reclaim is not usable: nodefs.available: the percentage must be between 0% and 100%",
        );
    }
}
