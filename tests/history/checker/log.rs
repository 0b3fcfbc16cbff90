//! The changes at each revision, as far as anybody was shown them.

use std::collections::{BTreeMap, HashMap};

use crate::record::{Answer, History, Kind, Object, Revision, Seen};

/// The change of an object at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub name: String,
    pub uid: String,
    /// `None` when it was deleted.
    pub value: Option<String>,
}

/// Points in the order of things: the change of revision `r` is at `2r - 1`, the state it leaves begins at `2r`.
pub type Point = u64;

pub fn change_at(revision: Revision) -> Point {
    2 * revision - 1
}

pub fn state_of(revision: Revision) -> Point {
    2 * revision
}

pub struct Log {
    pub changes: BTreeMap<Revision, Change>,
    /// The revisions at which each object changed.
    pub of: HashMap<String, Vec<Revision>>,
}

impl Log {
    pub fn of(history: &History, complaints: &mut Vec<String>) -> Log {
        let mut log = Log { changes: BTreeMap::new(), of: HashMap::new() };
        let mut shown = |object: &Object, deleted: bool| {
            let value = (!deleted).then(|| object.value.clone());
            let change = Change { name: object.name.clone(), uid: object.uid.clone(), value };
            match log.changes.get(&object.revision) {
                Some(known) if *known != change => {
                    complaints.push(format!("revision {} is shown as {known:?} and as {change:?}", object.revision));
                }
                Some(_) => {}
                None => drop(log.changes.insert(object.revision, change)),
            }
        };
        for operation in &history.operations {
            match &operation.answer {
                Answer::Written(object) | Answer::Found(object) => shown(object, false),
                Answer::Listed(_, objects) => objects.iter().for_each(|object| shown(object, false)),
                _ => {}
            }
        }
        for seen in history.watchers.iter().flatten() {
            match seen {
                Seen::Event(kind, object) => shown(object, *kind == Kind::Deleted),
                Seen::Listed(_, objects) => objects.iter().for_each(|object| shown(object, false)),
                Seen::Bookmark(_) => {}
            }
        }
        for (revision, change) in &log.changes {
            log.of.entry(change.name.clone()).or_default().push(*revision);
        }
        log
    }

    /// The object as it was at a revision.
    pub fn state(&self, name: &str, revision: Revision) -> Option<(Revision, &Change)> {
        let revisions = self.of.get(name)?;
        let at = *revisions[..revisions.partition_point(|r| *r <= revision)].last()?;
        self.changes.get(&at).filter(|change| change.value.is_some()).map(|change| (at, change))
    }

    pub fn kind(&self, revision: Revision) -> Kind {
        let change = &self.changes[&revision];
        match (&change.value, self.state(&change.name, revision - 1)) {
            (None, _) => Kind::Deleted,
            (Some(_), None) => Kind::Added,
            (Some(_), Some(_)) => Kind::Modified,
        }
    }

    /// An object keeps its uid until it is deleted, and the next one has another.
    pub fn check_incarnations(&self, complaints: &mut Vec<String>) {
        let mut seen: HashMap<&str, Revision> = HashMap::new();
        for (revision, change) in &self.changes {
            let before = self.state(&change.name, revision - 1);
            match before {
                Some((_, old)) if old.uid != change.uid => {
                    complaints
                        .push(format!("{} has another uid at revision {revision}, and was not deleted", change.name));
                }
                None if change.value.is_none() => {
                    complaints.push(format!("{} was deleted at revision {revision}, and was not there", change.name));
                }
                None => {
                    if let Some(first) = seen.insert(&change.uid, *revision) {
                        complaints.push(format!("the uid of revision {first} is given again at {revision}"));
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// The first revision behind `after` at which something changed.
    pub fn next(&self, after: Revision) -> Option<Revision> {
        self.changes.range(after + 1..).next().map(|(revision, _)| *revision)
    }

    /// The first point from `floor` on at which the object's state fits.
    pub fn earliest(
        &self,
        name: &str,
        floor: Point,
        fits: impl Fn(Option<(Revision, &Change)>) -> bool,
    ) -> Option<Point> {
        let none = Vec::new();
        let revisions = self.of.get(name).unwrap_or(&none);
        // The state between two changes lasts until right before the second.
        let first = revisions.partition_point(|next| state_of(next - 1) < floor);
        (first..=revisions.len()).find_map(|at| {
            let begin = at.checked_sub(1).map_or(0, |before| revisions[before]);
            fits(self.state(name, begin)).then(|| floor.max(state_of(begin)))
        })
    }
}
