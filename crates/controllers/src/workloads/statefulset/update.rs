//! Brings Pods to the present revision, highest ordinal first: within a partition, and never more at once than may be
//! unavailable.

use api::rules::pod;
use controller::Write;
use k8s_openapi::api::{apps::v1::RollingUpdateStatefulSetStrategy, core::v1::Pod};

use super::{Sync, identity};
use crate::workloads::{history, portion::scaled};

impl<'a> Sync<'a> {
    fn strategy(&self) -> &str {
        self.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate")
    }

    fn rolling(&self) -> Option<&'a RollingUpdateStatefulSetStrategy> {
        self.spec.update_strategy.as_ref()?.rolling_update.as_ref()
    }

    /// How many places, counted from the lowest, are not updated.
    fn partition(&self) -> i32 {
        self.rolling().and_then(|r| r.partition).unwrap_or(0)
    }

    /// Whether a Pod that is made for this ordinal is of the current revision, and not of the present one.
    pub fn keeps_current(&self, ordinal: i32) -> bool {
        let start = identity::ordinals(self.spec).start;
        let kept = match self.rolling() {
            Some(_) => self.partition(),
            None if self.strategy() == "RollingUpdate" => {
                self.set.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0)
            }
            None => 0,
        };
        ordinal < start.saturating_add(kept)
    }

    fn max_unavailable(&self) -> usize {
        let most = self.rolling().and_then(|r| r.max_unavailable.as_ref());
        let most = most.map_or(1, |most| scaled(Some(most), self.places.len() as i32, false));
        most.max(1) as usize
    }

    /// Deletes Pods of other revisions; [`Sync::scale`] makes them anew.
    ///
    /// Where Pods may start in any order, those of another revision that serve nobody go first and cost nothing: a set whose
    /// template was broken gets out of it by itself. Where they start in order, all are available at this point.
    pub fn update(&mut self) {
        if self.strategy() == "OnDelete" {
            return;
        }
        let present = history::name(self.history.present());
        let from = self.places.len().min(self.partition().max(0) as usize);
        let outdated = self.places[from..].iter().rev().filter_map(|place| place.pod);
        let outdated = outdated.filter(|pod| identity::revision(pod) != present && !pod::is_deleted(pod));
        let (useless, useful): (Vec<&Pod>, Vec<&Pod>) = outdated.partition(|pod| self.is_unavailable(Some(pod)));
        let unavailable = self.places.iter().filter(|place| self.is_unavailable(place.pod)).count();
        let room = self.max_unavailable().saturating_sub(unavailable);
        let doomed: Vec<&Pod> = useless.into_iter().chain(useful.into_iter().take(room)).collect();
        let current = history::name(self.current);
        self.outdated = doomed.iter().filter(|pod| identity::revision(pod) == current).count() as i32;
        // A Pod that ended is being deleted already, to be made again.
        let doomed: Vec<Write> =
            doomed.into_iter().filter(|pod| !api::rules::pod::is_terminal(pod)).map(|pod| self.delete(pod)).collect();
        self.all(doomed);
    }
}
