//! The events and objects that watchers and lists show are those of the log.

use super::log::Log;
use crate::record::{Kind, Object, Revision, Seen};

impl Log {
    pub fn check_list(&self, who: &str, revision: Revision, objects: &[Object], complaints: &mut Vec<String>) {
        let mut listed: Vec<(&str, Revision)> = objects.iter().map(|o| (o.name.as_str(), o.revision)).collect();
        listed.sort_unstable();
        let names = self.of.keys().filter_map(|name| Some((name.as_str(), self.state(name, revision)?.0)));
        let mut expected: Vec<(&str, Revision)> = names.collect();
        expected.sort_unstable();
        if listed != expected {
            complaints.push(format!("{who} lists revision {revision} as {listed:?}, and it was {expected:?}"));
        }
    }

    /// A watcher sees what the log has, from the state it began with on.
    pub fn check_watcher(&self, number: usize, watcher: &[Seen], complaints: &mut Vec<String>) {
        let who = format!("watcher {number}");
        let mut reached = None;
        for seen in watcher {
            match (seen, reached) {
                (Seen::Listed(revision, objects), before) => {
                    if before.is_some_and(|before| before > *revision) {
                        complaints.push(format!("{who} begins anew at {revision}, and was further already"));
                    }
                    self.check_list(&who, *revision, objects, complaints);
                    reached = Some(*revision);
                }
                (_, None) => complaints.push(format!("{who} does not begin with a list")),
                (Seen::Bookmark(revision), Some(before)) => {
                    if let Some(missed) = self.next(before).filter(|next| next <= revision) {
                        complaints.push(format!("{who} has a bookmark at {revision}, and did not see {missed}"));
                    }
                    if *revision < before {
                        complaints.push(format!("{who} has a bookmark at {revision} behind {before}"));
                    }
                    reached = Some(before.max(*revision));
                }
                (Seen::Event(kind, object), Some(before)) => {
                    let revision = object.revision;
                    match self.next(before) {
                        _ if revision <= before => {
                            complaints.push(format!("{who} sees revision {revision} behind {before}"));
                        }
                        Some(next) if next < revision => {
                            complaints.push(format!("{who} sees revision {revision} without {next}"));
                        }
                        _ => {}
                    }
                    self.check_event(&who, *kind, object, complaints);
                    reached = Some(before.max(revision));
                }
            }
        }
        if let Some(missed) = reached.and_then(|reached| self.next(reached)) {
            complaints.push(format!("{who} ends without revision {missed}"));
        }
    }

    fn check_event(&self, who: &str, kind: Kind, object: &Object, complaints: &mut Vec<String>) {
        let revision = object.revision;
        if self.kind(revision) != kind {
            complaints.push(format!("{who} sees revision {revision} as {kind:?}, and it is {:?}", self.kind(revision)));
        }
        if kind == Kind::Deleted {
            let last = self.state(&object.name, revision - 1).and_then(|(_, change)| change.value.as_deref());
            if last.is_some_and(|last| last != object.value) {
                complaints.push(format!("{who} sees at {revision} another object deleted than there was: {last:?}"));
            }
        }
    }

    /// A change that nobody had to see may be missing in the log, and then the rest proves nothing.
    pub fn check_coverage(&self, watchers: &[Vec<Seen>], complaints: &mut Vec<String>) {
        let mut covered: Vec<(Revision, Revision)> = Vec::new();
        for watcher in watchers {
            let mut from = None;
            let mut to = 0;
            for seen in watcher {
                match seen {
                    Seen::Listed(revision, _) => {
                        covered.extend(from.map(|from| (from, to)));
                        (from, to) = (Some(*revision), *revision);
                    }
                    Seen::Event(_, Object { revision, .. }) | Seen::Bookmark(revision) => to = to.max(*revision),
                }
            }
            covered.extend(from.map(|from| (from, to)));
        }
        covered.sort_unstable();
        let Some(&(first, _)) = covered.first() else {
            return complaints.push("nobody watched".to_owned());
        };
        let mut reached = first;
        for (from, to) in covered {
            if from > reached {
                complaints.push(format!("nobody watched the revisions from {reached} to {from}"));
            }
            reached = reached.max(to);
        }
        if let Some((early, _)) = self.changes.range(..=first).next() {
            complaints.push(format!("nobody watched before revision {first}, and {early} was a change"));
        }
        if let Some((late, _)) = self.changes.range(reached + 1..).next() {
            complaints.push(format!("nobody watched after revision {reached}, and {late} was a change"));
        }
    }
}
