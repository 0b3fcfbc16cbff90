//! A witness of a watch: it notes the revision of every change of a Pod that the API tells it, through all weather.

use std::sync::Arc;

use client::{
    Client, Sink,
    reflector::{Listing, reflect, revision_in},
    rest::{Collection, Form, Resource},
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

/// One list and the events after it: its revision, and the revisions of the changes since.
#[derive(Debug, Default, Clone)]
struct Stretch {
    listed: u64,
    changes: Vec<u64>,
}

/// See the module. Clones note into the same record.
#[derive(Clone, Default)]
pub struct Witness(Arc<Mutex<Vec<Stretch>>>);

impl Sink for Witness {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Begun(self))
    }

    fn apply(&self, pod: &str) -> Result<u64, serde_json::Error> {
        let revision = revision_in(pod)?;
        self.note(revision);
        Ok(revision)
    }

    fn delete(&self, pod: &str) -> Result<u64, serde_json::Error> {
        self.apply(pod)
    }

    fn advance(&self, _: u64) {}
}

/// A list; of its objects nothing is noted.
struct Begun<'a>(&'a Witness);

impl Listing for Begun<'_> {
    fn add(&mut self, _: &str) -> Result<(), serde_json::Error> {
        Ok(())
    }

    fn finish(self: Box<Self>, revision: u64) {
        self.0.0.lock().push(Stretch { listed: revision, changes: Vec::new() });
    }
}

impl Witness {
    /// Watches until the future is dropped.
    pub async fn watch(self, client: Client) {
        reflect(&client, &Collection::all(Resource::of::<Pod>(), Form::Whole), &self).await;
    }

    fn note(&self, revision: u64) {
        let mut all = self.0.lock();
        if all.is_empty() {
            all.push(Stretch::default());
        }
        all.last_mut().expect("just made sure").changes.push(revision);
    }

    /// The first difference between what was told and what happened (the revisions of all changes, which rise).
    pub fn objection(&self, happened: &[u64]) -> Option<String> {
        self.0.lock().iter().find_map(|stretch| {
            let since = happened.partition_point(|revision| *revision <= stretch.listed);
            let mut pairs = happened[since..].iter().zip(&stretch.changes);
            let (missing, told) = pairs.find(|(happened, told)| happened != told)?;
            Some(format!("a watch told of revision {told} where {missing} should have come"))
        })
    }

    /// How many changes were told, and how often everything was listed.
    pub fn figures(&self) -> (usize, usize) {
        let all = self.0.lock();
        (all.iter().map(|s| s.changes.len()).sum(), all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_repetition_and_a_wrong_order_are_seen() {
        let check = |told: &[u64], fine: bool| {
            let witness = Witness::default();
            witness.list().finish(3);
            told.iter().for_each(|revision| witness.note(*revision));
            let objection = witness.objection(&[2, 3, 5, 6, 9]);
            assert_eq!(objection.is_none(), fine, "{told:?}: {objection:?}");
        };
        check(&[], true);
        check(&[5, 6], true);
        check(&[5, 9], false);
        check(&[5, 5], false);
        check(&[6, 5], false);
        check(&[3, 5], false);
    }
}
