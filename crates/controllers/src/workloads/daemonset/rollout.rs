//! Brings Pods to the present revision: within what may be unavailable, or within what may be there in addition.

use api::rules::pod;
use k8s_openapi::{
    api::{apps::v1::RollingUpdateDaemonSet, core::v1::Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Fit, OnNode, Sync};
use crate::workloads::portion::scaled;

/// The Pods of a node that stay, by revision.
enum Pods<'a> {
    /// Too many of one revision: that is for `manage` to mend.
    Excess,
    Some {
        new: Option<&'a Pod>,
        old: Option<&'a Pod>,
    },
}

impl<'a> Sync<'a> {
    fn is_rolling(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
        strategy.is_none_or(|s| s == "RollingUpdate")
    }

    fn portion(&self, of: fn(&RollingUpdateDaemonSet) -> Option<&IntOrString>, nodes: usize) -> usize {
        let rolling = self.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        let value = rolling.filter(|_| self.is_rolling()).and_then(of);
        scaled(value, nodes as i32, true).max(0) as usize
    }

    /// The number of nodes that may have a second Pod, of this many.
    pub fn max_surge(&self, nodes: usize) -> usize {
        self.portion(|r| r.max_surge.as_ref(), nodes)
    }

    pub fn roll(&mut self) {
        if !self.is_rolling() {
            return;
        }
        let wanted = self.nodes.iter().filter(|node| node.fit == Some(Fit::Runs)).count();
        let (surge, unavailable) = (self.max_surge(wanted), self.portion(|r| r.max_unavailable.as_ref(), wanted));
        if surge > 0 {
            return self.roll_with_surge(surge, wanted);
        }
        // Neither would never get anywhere.
        self.roll_in_place(unavailable.max(1));
    }

    fn pods(&self, node: &OnNode<'a>) -> Pods<'a> {
        let staying = node.pods.iter().copied().filter(|pod| !pod::is_deleted(pod));
        let (new, old): (Vec<&Pod>, Vec<&Pod>) = staying.partition(|pod| self.is_updated(pod));
        if new.len() > 1 || old.len() > 1 {
            return Pods::Excess;
        }
        Pods::Some { new: new.first().copied(), old: old.first().copied() }
    }

    /// The nodes that a rollout looks at: those that run a Pod, and those that have one.
    fn rolled(&self) -> impl Iterator<Item = &OnNode<'a>> {
        self.nodes.iter().filter(|node| node.fit == Some(Fit::Runs) || !node.pods.is_empty())
    }

    /// Deletes old Pods, as many as may be unavailable; `manage` makes the new ones. A Pod that serves nobody goes in any
    /// case.
    fn roll_in_place(&mut self, max_unavailable: usize) {
        let (mut unavailable, mut useless, mut useful) = (0, Vec::new(), Vec::new());
        for node in self.rolled() {
            match self.pods(node) {
                Pods::Some { new: Some(new), old: None } if self.is_available(new) => {}
                Pods::Some { new: None, old: Some(old) } if self.is_available(old) => useful.push(old),
                Pods::Some { new: None, old: Some(old) } => {
                    unavailable += 1;
                    useless.push(old);
                }
                _ => unavailable += 1,
            }
        }
        let room = max_unavailable.saturating_sub(unavailable);
        let doomed: Vec<&Pod> = useless.into_iter().chain(useful.into_iter().take(room)).collect();
        self.apply(&[], &doomed);
    }

    /// Makes new Pods beside old ones, as many as are allowed in addition, and deletes an old one when its new one serves.
    fn roll_with_surge(&mut self, max_surge: usize, wanted: usize) {
        let (mut surging, mut available) = (0, 0);
        let (mut doomed, mut misplaced) = (Vec::new(), Vec::new());
        let (mut replaced, mut candidates) = (Vec::new(), Vec::new());
        for node in self.rolled() {
            let Pods::Some { new, old } = self.pods(node) else {
                surging += 1;
                continue;
            };
            available += usize::from(old.or(new).is_some_and(|pod| self.is_available(pod)));
            let Some(old) = old else { continue };
            let runs = node.fit == Some(Fit::Runs);
            match new {
                Some(new) if self.is_available(new) => doomed.push(old),
                Some(_) => surging += 1,
                None if !self.is_available(old) && runs => replaced.push(node.name),
                None if !self.is_available(old) => doomed.push(old),
                None if runs => candidates.push(node.name),
                None => misplaced.push(old),
            }
        }
        // Where the set moves from some nodes to others, an old Pod stays until a new one serves in its place.
        doomed.extend(misplaced.into_iter().take(available.saturating_sub(wanted)));
        let room = max_surge.saturating_sub(surging);
        replaced.extend(candidates.into_iter().take(room));
        self.apply(&replaced, &doomed);
    }
}
