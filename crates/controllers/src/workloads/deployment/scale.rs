//! Changing sizes: of one ReplicaSet, and of several in proportion while a rollout is under way.

use controller::{Note, Write};
use k8s_openapi::api::apps::v1::ReplicaSet;

use super::{
    Rollout,
    revision::{DESIRED, MAX, annotation},
    sizes::{self, size},
};

impl Rollout<'_> {
    /// Gives the ReplicaSet this size. Whether the size changed (its annotations are kept right in any case).
    pub fn resize(&mut self, at: usize, to: i32) -> bool {
        let mut set = self.sets[at].clone();
        let from = size(&set);
        let annotated = self.annotate_sizes(&mut set.metadata);
        if from == to && !annotated {
            return false;
        }
        set.spec.get_or_insert_default().replicas = Some(to);
        let name = set.metadata.name.clone().unwrap_or_default();
        let mut write = Write::update(&set);
        if from != to {
            let direction = if to > from { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {name} from {from} to {to}");
            write = write.on_success(Note::normal("ScalingReplicaSet", message));
        }
        if !(self.settled_first && Some(at) == self.current) {
            self.plan.step(write);
        }
        self.sets[at] = set;
        from != to
    }

    /// Old ReplicaSets, oldest first.
    pub fn old_sets(&self) -> Vec<usize> {
        (0..self.sets.len()).filter(|i| Some(*i) != self.current).collect()
    }

    /// The Deployment's size was changed since the ReplicaSets were last sized.
    pub fn is_scaling_event(&self) -> bool {
        let wanted = sizes::wanted(self.spec);
        let active = self.sets.iter().filter(|set| size(set) > 0);
        let mut noted = active.filter_map(|set| annotation(&set.metadata, DESIRED)?.parse::<i32>().ok());
        noted.any(|desired| desired != wanted)
    }

    /// Gives the Deployment its new size without a rollout.
    pub fn scale(&mut self) {
        let wanted = sizes::wanted(self.spec);
        let active: Vec<usize> = (0..self.sets.len()).filter(|i| size(&self.sets[*i]) > 0).collect();
        let only = match active.as_slice() {
            [] => self.current.or(self.old_sets().last().copied()),
            [one] => Some(*one),
            _ => None,
        };
        if let Some(only) = only {
            if size(&self.sets[only]) != wanted {
                self.resize(only, wanted);
            }
            return;
        }
        if self.is_saturated() {
            for old in self.old_sets() {
                if size(&self.sets[old]) > 0 {
                    self.resize(old, 0);
                }
            }
            return;
        }
        if !self.is_recreate() && !active.is_empty() {
            self.scale_in_proportion(active);
        }
    }

    fn is_saturated(&self) -> bool {
        let wanted = sizes::wanted(self.spec);
        self.current.map(|i| &self.sets[i]).is_some_and(|set| {
            let desired = annotation(&set.metadata, DESIRED).and_then(|text| text.parse::<i32>().ok());
            size(set) == wanted && desired == Some(wanted) && sizes::available(set) == wanted
        })
    }

    /// Spreads the difference over the active ReplicaSets by their sizes, so that a rollout keeps its balance; what
    /// rounding leaves goes to the largest.
    fn scale_in_proportion(&mut self, mut active: Vec<usize>) {
        let wanted = sizes::wanted(self.spec);
        let allowed = if wanted > 0 { wanted + sizes::max_surge(self.spec) } else { 0 };
        let to_add = allowed - active.iter().map(|i| size(&self.sets[*i])).sum::<i32>();
        // Largest first; of equals, newer ones grow first and older ones shrink first.
        active.sort_by_key(|i| (-size(&self.sets[*i]), if to_add > 0 { -(*i as i64) } else { *i as i64 }));
        let mut added = 0;
        let mut new_sizes = Vec::new();
        for i in &active {
            let share = if to_add == 0 { 0 } else { self.share(&self.sets[*i], to_add, added) };
            added += share;
            new_sizes.push(size(&self.sets[*i]) + share);
        }
        if let Some(largest) = new_sizes.first_mut() {
            *largest = (*largest + to_add - added).max(0);
        }
        for (i, new_size) in active.into_iter().zip(new_sizes) {
            self.resize(i, new_size);
        }
    }

    fn share(&self, set: &ReplicaSet, to_add: i32, added: i32) -> i32 {
        if size(set) == 0 || to_add == added {
            return 0;
        }
        let left = to_add - added;
        let fraction = self.fraction(set);
        if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
    }

    /// How much the ReplicaSet would change if it kept its part of the whole.
    fn fraction(&self, set: &ReplicaSet) -> i32 {
        let wanted = sizes::wanted(self.spec);
        if wanted == 0 {
            return -size(set);
        }
        let most = f64::from(wanted + sizes::max_surge(self.spec));
        let before = annotation(&set.metadata, MAX).and_then(|t| t.parse::<i32>().ok()).filter(|n| *n > 0);
        let before = before.unwrap_or_else(|| self.old.status.as_ref().and_then(|s| s.replicas).unwrap_or(0));
        if before == 0 {
            return 0;
        }
        (f64::from(size(set)) * most / f64::from(before)).round() as i32 - size(set)
    }
}
