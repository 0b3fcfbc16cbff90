//! Why a Pod fits nowhere, in the words that users read in the condition and the event.

use std::{collections::BTreeMap, sync::Arc};

use client::Key;

use crate::{
    node_id::NodeId,
    rejection::{Rejection, Text},
};

/// How many nodes gave each reason.
pub type Reasons = BTreeMap<Text, usize>;

/// The verdicts of all nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// How many nodes gave each reason.
    pub reasons: Reasons,
    /// Why no node can do, when that was clear before any was looked at.
    pub outright: Option<Text>,
    pub nodes: usize,
    /// The nodes among them that could take the Pod if others went.
    pub resolvable: Vec<NodeId>,
    /// Plugins that turned a node away, as bits by their place in the list.
    pub plugins: u32,
    /// Why the Pod cannot be decided about at all, with the plugin that says so.
    pub broken: Option<Text>,
    pub release: Release,
}

/// The claims that are given up so that the Pod fits later. Upstream asks resource claims for help before it looks at
/// preemption, and says what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Release {
    /// The Pod has no claims on devices, or they were not looked at.
    #[default]
    None,
    /// It has, and no one of them can be given up.
    Nothing,
    /// The devices of this claim, which nobody uses.
    Devices(Key),
    /// This claim, which was made for the Pod's extended resources when it was tried before.
    Claim(Key),
}

impl Release {
    fn as_str(&self) -> &'static str {
        match self {
            Release::None => "no new claims to deallocate",
            Release::Nothing => "still not schedulable",
            Release::Devices(_) => "deallocation of ResourceClaim completed",
            Release::Claim(_) => "deletion of ResourceClaim completed",
        }
    }
}

/// The outcome of an attempt to make room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preemption {
    Victims(Victims),
    /// No node's Pods of lower priority would make room; why, node by node.
    Fruitless(String),
    /// Nobody makes room for Pods of the profile.
    Off,
    /// The Pod had a node, and not its company.
    NotTried,
    /// The Pod may not take room from others; why.
    NotEligible(&'static str),
}

/// The Pods that have to go from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victims {
    pub node: Arc<str>,
    /// Those among them that nobody deletes yet.
    pub pods: Vec<Key>,
    /// Those that waited for their gangs on the node. They stay, and have lost it.
    pub sent_back: Vec<Key>,
    /// Waiting Pods that were nominated for the node, and are so no longer.
    pub displaced: Vec<Key>,
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
        let reasons = match &self.outright {
            Some(reason) => reason.as_str().to_owned(),
            None => histogram(&self.reasons),
        };
        let reasons = format!("0/{} nodes are available: {reasons}.", self.nodes);
        let release = self.release.as_str();
        let in_vain = |why: &str| format!("{reasons} {release}, preemption: {why}");
        match preemption {
            Preemption::Victims(..) | Preemption::NotTried => reasons,
            Preemption::Off => format!("{reasons} {release}"),
            Preemption::NotEligible(why) => in_vain(why),
            Preemption::Fruitless(why) => in_vain(why),
        }
    }

    /// No room can be made: `why` counts the reasons of the `tried` nodes where others could have gone.
    pub fn fruitless(&self, tried: usize, mut why: Reasons) -> Preemption {
        let others = self.nodes - tried;
        if others > 0 {
            why.insert(Text::Static("Preemption is not helpful for scheduling"), others);
        }
        Preemption::Fruitless(format!("0/{} nodes are available: {}.", self.nodes, histogram(&why)))
    }
}

/// `2 this, 3 that`, sorted as text.
fn histogram(counts: &Reasons) -> String {
    let mut parts: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {}", reason.as_str())).collect();
    parts.sort_unstable();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_upstream() {
        let mut failure = Failure::default();
        let (node, fruitless) = (NodeId(0), Failure::default().fruitless(0, Reasons::default()));
        assert_eq!(failure.message(&fruitless), "no nodes available to schedule pods");
        let short = || Rejection::resolvable("Insufficient cpu");
        failure.add(1, node, Rejection::unresolvable("node(s) had untolerated taint(s)"));
        failure.add(4, node, short());
        failure.add(4, node, Rejection { more: vec![Text::Static("Too many pods")], ..short() });
        let reasons =
            "0/3 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 2 Insufficient cpu.";
        let tried = [("No preemption victims found for incoming pod", 1), ("Insufficient cpu", 1)];
        let fruitless = failure.fruitless(2, tried.map(|(reason, count)| (Text::Static(reason), count)).into());
        assert_eq!(
            failure.message(&fruitless),
            format!(
                "{reasons} no new claims to deallocate, preemption: 0/3 nodes are available: 1 Insufficient cpu, 1 No \
                 preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
            )
        );
        assert_eq!(
            failure.message(&Preemption::NotEligible("not eligible due to preemptionPolicy=Never.")),
            format!("{reasons} no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.")
        );
        let victims = Victims { node: "n".into(), pods: Vec::new(), sent_back: Vec::new(), displaced: Vec::new() };
        assert_eq!(failure.message(&Preemption::Victims(victims)), reasons);
        let outright =
            Failure { nodes: 2, outright: Some(Text::Static("pod affinity terms conflict")), ..Failure::default() };
        let fruitless = outright.fruitless(0, Reasons::default());
        assert_eq!(
            outright.message(&fruitless),
            "0/2 nodes are available: pod affinity terms conflict. no new claims to deallocate, preemption: 0/2 nodes are \
             available: 2 Preemption is not helpful for scheduling."
        );
    }
}
