//! Which of several candidates shall lead, and by which strategy that is found.

use std::cmp::Ordering;

use api::rules::semantic_version::SemanticVersion;
use client::candidacy::STRATEGY;
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;

/// How a leader is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy<'c> {
    OldestEmulationVersion,
    /// Somebody else follows this one.
    Foreign(&'c str),
}

impl Strategy<'_> {
    pub fn name(&self) -> &str {
        match self {
            Strategy::OldestEmulationVersion => STRATEGY,
            Strategy::Foreign(name) => name,
        }
    }
}

fn emulation(candidate: &LeaseCandidate) -> Option<SemanticVersion> {
    SemanticVersion::parse(candidate.spec.as_ref()?.emulation_version.as_deref()?)
}

fn binary(candidate: &LeaseCandidate) -> Option<SemanticVersion> {
    SemanticVersion::parse(&candidate.spec.as_ref()?.binary_version)
}

/// Whether one candidate is better (`Less`) than another: it behaves as the older version, it is the older version, or it is
/// there for longer. The name decides between what is equal, so that all rounds of an election end the same.
fn compare(one: &LeaseCandidate, other: &LeaseCandidate) -> Ordering {
    let made = |candidate: &LeaseCandidate| candidate.metadata.creation_timestamp.as_ref().map(|time| time.0);
    emulation(one)
        .cmp(&emulation(other))
        .then_with(|| binary(one).cmp(&binary(other)))
        .then_with(|| made(one).cmp(&made(other)))
        .then_with(|| one.metadata.name.cmp(&other.metadata.name))
}

/// The best of those that say in a readable way what they are.
pub fn best<'c>(candidates: &[&'c LeaseCandidate]) -> Option<&'c LeaseCandidate> {
    let readable = |candidate: &&&LeaseCandidate| emulation(candidate).is_some() && binary(candidate).is_some();
    candidates.iter().filter(readable).min_by(|one, other| compare(one, other)).copied()
}

/// The strategy of the newest candidates; `None` where these do not agree, or where nobody is.
pub fn strategy<'c>(candidates: &[&'c LeaseCandidate]) -> Option<Strategy<'c>> {
    let newest = candidates.iter().map(|candidate| binary(candidate)).max()?;
    let wanted = candidates.iter().filter(|candidate| binary(candidate) == newest);
    let mut wanted = wanted.filter_map(|candidate| Some(candidate.spec.as_ref()?.strategy.as_str()));
    let first = wanted.next()?;
    let strategy = if first == STRATEGY { Strategy::OldestEmulationVersion } else { Strategy::Foreign(first) };
    wanted.all(|other| other == first).then_some(strategy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader_election::tests::candidate;

    fn all(texts: &[&str]) -> Vec<LeaseCandidate> {
        texts.iter().map(|text| candidate(text)).collect()
    }

    #[test]
    fn the_oldest_behaviour_leads() {
        let check = |texts: &[&str], expected: Option<&str>| {
            let candidates = all(texts);
            let best = best(&candidates.iter().collect::<Vec<_>>());
            assert_eq!(best.and_then(|best| best.metadata.name.as_deref()), expected, "{texts:?}");
        };
        check(&[], None);
        check(&["a 0.1.0 0.1.0"], Some("a"));
        check(&["a 0.1.0 0.1.0", "b 0.2.0 0.2.0"], Some("a"));
        check(&["a 1.20.0 1.20.0", "b 1.19.0 1.20.0"], Some("b"));
        check(&["a 1.20.0 1.9.0", "b 1.10.0 1.10.0"], Some("b"));
        check(&["a 0.1.0 0.2.0", "b 0.1.0 0.1.0"], Some("b"));
        check(&["a 1.19.0 1.20.0", "b 1.19.0 1.19.0", "c 1.20.0 1.20.0"], Some("b"));
        check(&["a 1.19.0 1.19.0 made=10", "b 1.19.0 1.19.0 made=9"], Some("b"));
        check(&["b 1.19.0 1.19.0 made=9", "a 1.19.0 1.19.0 made=9"], Some("a"));
        check(&["a xyz 1.0.0", "b 1.20.0 1.20.0"], Some("b"));
        check(&["a 1.0.0 xyz", "b 1.20.0 1.20.0"], Some("b"));
        check(&["a xyz xyz"], None);
        check(&["a 1.20.0-alpha.1 1.20.0", "b 1.20.0 1.20.0"], Some("a"));
    }

    #[test]
    fn the_newest_say_how_it_is_decided() {
        let check = |texts: &[&str], expected: Option<&str>| {
            let candidates = all(texts);
            let found = strategy(&candidates.iter().collect::<Vec<_>>()).map(|strategy| strategy.name().to_owned());
            assert_eq!(found.as_deref(), expected, "{texts:?}");
        };
        check(&[], None);
        check(&["a 1.0.0 1.0.0"], Some(STRATEGY));
        check(&["a 1.0.0 1.0.0 by=foo.com/bar"], Some("foo.com/bar"));
        check(&["a 1.0.0 1.0.0", "b 1.0.0 1.1.0 by=foo.com/bar"], Some("foo.com/bar"));
        check(&["a 1.0.0 1.2.0", "b 1.0.0 1.1.0 by=foo.com/bar"], Some(STRATEGY));
        check(&["a 1.0.0 1.1.0", "b 1.0.0 1.1.0 by=foo.com/bar"], None);
        // The strategies that older ones want do not count, in whichever order they come.
        check(&["a 1.0.0 1.1.0", "b 1.0.0 1.1.0 by=foo.com/bar", "c 1.0.0 1.2.0"], Some(STRATEGY));
        check(&["a 1.0.0 xyz by=foo.com/bar", "b 1.0.0 1.0.0"], Some(STRATEGY));
    }
}
