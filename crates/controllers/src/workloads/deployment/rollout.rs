//! Moving Pods from old templates to the current one: step by step, or all at once.

use controller::Write;

use super::{
    Observed, Rollout,
    revision::revision,
    sizes::{self, available, size},
};

impl Rollout<'_> {
    /// RollingUpdate: grow the current ReplicaSet as far as the surge allows, shrink old ones as far as availability does.
    pub fn roll(&mut self, observed: &Observed) {
        if !self.find_revision() {
            self.create_current(observed);
            return self.sync_rollout_status();
        }
        if !self.grow_current() && !self.shrink_old() && self.is_complete_now() {
            self.clean_up();
        }
        self.sync_rollout_status();
    }

    /// Recreate: no new Pod before the last old one has ended.
    pub fn recreate(&mut self, observed: &Observed) {
        self.find_revision();
        let mut shrunk = false;
        for old in self.old_sets() {
            if size(&self.sets[old]) > 0 {
                shrunk |= self.resize(old, 0);
            }
        }
        let old_pods = self.old_sets().into_iter().any(|i| {
            let uid = self.sets[i].metadata.uid.as_ref();
            uid.is_some_and(|uid| observed.with_pods.contains(uid))
        });
        if shrunk || old_pods {
            return self.sync_rollout_status();
        }
        match self.current {
            None => self.create_current(observed),
            Some(current) => {
                self.resize(current, sizes::wanted(self.spec));
                if self.is_complete_now() {
                    self.clean_up();
                }
            }
        }
        self.sync_rollout_status();
    }

    fn grow_current(&mut self) -> bool {
        let Some(current) = self.current else { return false };
        let (wanted, held) = (sizes::wanted(self.spec), size(&self.sets[current]));
        let to = match held.cmp(&wanted) {
            std::cmp::Ordering::Equal => return false,
            std::cmp::Ordering::Greater => wanted,
            std::cmp::Ordering::Less => sizes::current_size(self.spec, sizes::sum(&self.sets, size), held),
        };
        to != held && self.resize(current, to)
    }

    fn shrink_old(&mut self) -> bool {
        let old = self.old_sets();
        if old.iter().all(|i| size(&self.sets[*i]) == 0) {
            return false;
        }
        let least = sizes::wanted(self.spec) - sizes::max_unavailable(self.spec);
        let current_missing = self.current.map_or(0, |i| size(&self.sets[i]) - available(&self.sets[i]));
        let may_go = sizes::sum(&self.sets, size) - least - current_missing;
        if may_go <= 0 {
            return false;
        }
        // First what serves nobody, then as many more as availability allows; one write per ReplicaSet.
        let mut to: Vec<i32> = self.sets.iter().map(size).collect();
        let mut left = may_go;
        for i in &old {
            let unhealthy = (to[*i] - available(&self.sets[*i])).clamp(0, left);
            to[*i] -= unhealthy;
            left -= unhealthy;
        }
        // The status of a ReplicaSet that was just shrunk still counts Pods that are about to go.
        let staying = |set: &_| available(set).min(size(set));
        let mut spare = (sizes::sum(&self.sets, staying) - least).max(0);
        for i in &old {
            let down = to[*i].min(spare);
            to[*i] -= down;
            spare -= down;
        }
        let mut shrunk = false;
        for i in old {
            if to[i] != size(&self.sets[i]) {
                shrunk |= self.resize(i, to[i]);
            }
        }
        shrunk
    }

    fn is_complete_now(&self) -> bool {
        self.old.status.as_ref().is_some_and(|status| super::status::is_complete(self.old, status))
    }

    /// Deletes the oldest revisions beyond `revisionHistoryLimit` that have no Pods.
    pub fn clean_up(&mut self) {
        let Some(limit) = self.spec.revision_history_limit.filter(|n| *n != i32::MAX) else { return };
        let mut old = self.old_sets();
        old.retain(|i| self.sets[*i].metadata.deletion_timestamp.is_none());
        let surplus = old.len().saturating_sub(limit.max(0) as usize);
        old.sort_by_key(|i| revision(&self.sets[*i].metadata));
        for i in old.into_iter().take(surplus) {
            let set = &self.sets[i];
            let observed = set.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
            let idle = size(set) == 0 && sizes::actual(set) == 0;
            if idle && set.metadata.generation.unwrap_or(0) <= observed {
                self.plan.step(Write::delete(set));
            }
        }
    }
}
