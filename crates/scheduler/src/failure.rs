//! Why a Pod fits nowhere, in the words that users read in the condition and the event.

use std::{collections::BTreeMap, sync::Arc};

use client::Key;

use crate::{
    node_id::NodeId,
    rejection::{Rejection, Text},
};

/// The verdicts of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// How many nodes gave each reason.
    pub reasons: BTreeMap<Text, usize>,
    pub nodes: usize,
    /// The nodes among them that could take the Pod if others went.
    pub resolvable: Vec<NodeId>,
    /// Plugins that turned a node away, as bits by their place in the list.
    pub plugins: u32,
}

/// The outcome of an attempt to make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preemption {
    /// These Pods must go from this node.
    Victims(Arc<str>, Vec<Key>),
    /// No node's Pods of lower priority would make room.
    Fruitless,
    /// The Pod may not take room from others; why.
    NotEligible(&'static str),
}

impl Failure {
    pub fn add(&mut self, plugin: usize, node: NodeId, rejection: Rejection) {
        self.nodes += 1;
        self.plugins |= 1 << plugin;
        if !rejection.unresolvable {
            self.resolvable.push(node);
        }
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

    pub fn message(&self, preemption: &Preemption) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let reasons = histogram(self.reasons.iter().map(|(reason, count)| (reason.as_str(), *count)));
        let reasons = format!("0/{} nodes are available: {reasons}.", self.nodes);
        // Upstream asks resource claims for help before it looks at preemption, and says so.
        let in_vain = |why: &str| format!("{reasons} no new claims to deallocate, preemption: {why}");
        match preemption {
            Preemption::Victims(..) => reasons,
            Preemption::NotEligible(why) => in_vain(why),
            Preemption::Fruitless => in_vain(&self.fruitless()),
        }
    }

    fn fruitless(&self) -> String {
        let why = [
            ("No preemption victims found for incoming pod", self.resolvable.len()),
            ("Preemption is not helpful for scheduling", self.nodes - self.resolvable.len()),
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
        let (node, fruitless) = (NodeId(0), Preemption::Fruitless);
        assert_eq!(failure.message(&fruitless), "no nodes available to schedule pods");
        let short = || Rejection::resolvable("Insufficient cpu");
        failure.add(1, node, Rejection::unresolvable("node(s) had untolerated taint(s)"));
        failure.add(4, node, short());
        failure.add(4, node, Rejection { more: vec![Text::Static("Too many pods")], ..short() });
        let reasons =
            "0/3 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 2 Insufficient cpu.";
        assert_eq!(
            failure.message(&fruitless),
            format!(
                "{reasons} no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful \
                 for scheduling, 2 No preemption victims found for incoming pod."
            )
        );
        assert_eq!(
            failure.message(&Preemption::NotEligible("not eligible due to preemptionPolicy=Never.")),
            format!("{reasons} no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.")
        );
        assert_eq!(failure.message(&Preemption::Victims("n".into(), Vec::new())), reasons);
    }
}
