//! Why a Pod fits nowhere, in the words that users read in the condition and the event.

use std::collections::BTreeMap;

use crate::plugin::{Rejection, Text};

/// The verdicts of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// How many nodes gave each reason.
    pub reasons: BTreeMap<Text, usize>,
    pub nodes: usize,
    /// How many of them could take the Pod if others went.
    pub resolvable: usize,
    /// Plugins that turned a node away, as bits by their place in the list.
    pub plugins: u32,
    /// Pods of this class never make room for themselves.
    pub never_preempts: bool,
}

impl Failure {
    pub fn add(&mut self, plugin: usize, rejection: Rejection) {
        self.nodes += 1;
        self.plugins |= 1 << plugin;
        self.resolvable += usize::from(!rejection.unresolvable);
        *self.reasons.entry(rejection.reason).or_default() += 1;
        for reason in rejection.more {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    /// `count` nodes were not looked at because a plugin names the only ones that can do.
    pub fn add_unnamed(&mut self, plugin: usize, name: &str, count: usize) {
        if count > 0 {
            self.nodes += count;
            self.plugins |= 1 << plugin;
            *self
                .reasons
                .entry(Text::Shared(format!("node(s) didn't satisfy plugin(s) [{name}]").into()))
                .or_default() += count;
        }
    }

    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let reasons = histogram(self.reasons.iter().map(|(reason, count)| (reason.as_str(), *count)));
        // Upstream asks resource claims for help before it looks at preemption, and says so.
        let after = format!("no new claims to deallocate, preemption: {}", self.preemption());
        format!("0/{} nodes are available: {reasons}. {after}", self.nodes)
    }

    fn preemption(&self) -> String {
        if self.never_preempts {
            return "not eligible due to preemptionPolicy=Never.".to_owned();
        }
        let why = [
            ("No preemption victims found for incoming pod", self.resolvable),
            ("Preemption is not helpful for scheduling", self.nodes - self.resolvable),
        ];
        let why = histogram(why.into_iter().filter(|(_, count)| *count > 0));
        format!("0/{} nodes are available: {why}.", self.nodes)
    }
}

/// `2 this, 3 that`, sorted as text.
fn histogram<'a>(counts: impl Iterator<Item = (&'a str, usize)>) -> String {
    let mut parts: Vec<String> = counts.map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort_unstable();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_upstream() {
        let mut failure = Failure::default();
        assert_eq!(failure.message(), "no nodes available to schedule pods");
        failure.add(1, Rejection::unresolvable("node(s) had untolerated taint(s)"));
        failure.add(4, Rejection::resolvable("Insufficient cpu"));
        failure.add(
            4,
            Rejection { more: vec![Text::Static("Too many pods")], ..Rejection::resolvable("Insufficient cpu") },
        );
        assert_eq!(
            failure.message(),
            "0/3 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new \
             claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 \
             No preemption victims found for incoming pod."
        );
        failure.never_preempts = true;
        assert!(failure.message().ends_with("preemption: not eligible due to preemptionPolicy=Never."));
    }
}
