//! Whether the answers fit into one order.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::log::{Log, Point, change_at, state_of};
use crate::record::{Answer, Call, Fresh, Operation, Revision};

/// Each answer has a point at which it is true, and points follow the order in which things really happened: the point of
/// what was answered before something else was asked for is not behind that one's. The earliest possible points are tried;
/// if those do not fit, none do.
pub fn check(log: &Log, operations: &[Operation], complaints: &mut Vec<String>) {
    let truth = Truth::of(log);
    let mut sorted: Vec<&Operation> = operations.iter().collect();
    sorted.sort_by_key(|operation| operation.began);
    // The answered ones by when they ended, each with its point.
    let mut answered: BTreeMap<(Duration, usize), Point> = BTreeMap::new();
    let mut floor = 0;
    for (at, operation) in sorted.into_iter().enumerate() {
        let rest = answered.split_off(&(operation.began, 0));
        floor = answered.values().copied().fold(floor, Point::max);
        answered = rest;
        match truth.point(operation, floor) {
            When::At(point) if operation.answer != Answer::Unknown => {
                answered.insert((operation.ended, at), point);
            }
            When::At(_) | When::Anywhere => {}
            When::Nowhere(why) => complaints.push(format!("{why}: {operation:?}, asked for behind point {floor}")),
        }
    }
}

/// When an answer is true.
enum When {
    At(Point),
    /// It says nothing about the order.
    Anywhere,
    Nowhere(String),
}

struct Truth<'a> {
    log: &'a Log,
    /// When each incarnation was deleted.
    deletions: HashMap<&'a str, Revision>,
    /// When each value was written.
    values: HashMap<&'a str, Revision>,
}

impl<'a> Truth<'a> {
    fn of(log: &'a Log) -> Self {
        let deleted = log.changes.iter().filter(|(_, change)| change.value.is_none());
        let written = log.changes.iter().filter_map(|(revision, change)| Some((change.value.as_deref()?, *revision)));
        let deletions = deleted.map(|(revision, change)| (change.uid.as_str(), *revision)).collect();
        Truth { log, deletions, values: written.collect() }
    }

    /// The first point from `floor` on at which the answer is true.
    fn point(&self, operation: &Operation, floor: Point) -> When {
        let exactly = |point: Point| {
            if point >= floor { When::At(point) } else { When::Nowhere(format!("it was true at point {point}")) }
        };
        let state = |name: &str, fits: &dyn Fn(Option<Revision>) -> bool| {
            let found = self.log.earliest(name, floor, |state| fits(state.map(|(at, _)| at)));
            found.map_or_else(|| When::Nowhere("it is true no more".to_owned()), When::At)
        };
        match (&operation.call, &operation.answer) {
            (Call::Create { value, .. } | Call::Replace { value, .. } | Call::Patch { value, .. }, Answer::Unknown) => {
                let done = self.values.get(value.as_str());
                done.map_or(When::Anywhere, |revision| exactly(change_at(*revision)))
            }
            (_, Answer::Unknown) | (Call::List(Fresh::Exactly(_)), Answer::Forgotten) => When::Anywhere,
            (Call::Create { .. } | Call::Replace { .. } | Call::Patch { .. }, Answer::Written(object)) => {
                exactly(change_at(object.revision))
            }
            (Call::Delete { .. }, Answer::Deleted { uid }) => {
                let done = self.deletions.get(uid.as_str());
                done.map_or(When::Anywhere, |revision| exactly(change_at(*revision)))
            }
            (Call::Get { name }, Answer::Found(object)) => state(name, &|at| at == Some(object.revision)),
            (Call::List(Fresh::Newest), Answer::Listed(revision, _)) => exactly(state_of(*revision)),
            (Call::List(Fresh::Any), Answer::Listed(..)) => When::Anywhere,
            (Call::List(Fresh::Exactly(wanted)), Answer::Listed(revision, _)) if wanted == revision => When::Anywhere,
            (Call::Create { name, .. }, Answer::Exists) => state(name, &|at| at.is_some()),
            (
                Call::Get { name } | Call::Replace { name, .. } | Call::Patch { name, .. } | Call::Delete { name, .. },
                Answer::Absent,
            ) => state(name, &|at| at.is_none()),
            (
                Call::Replace { name, over: Some(wanted), .. } | Call::Delete { name, over: Some(wanted) },
                Answer::Changed,
            ) => state(name, &|at| at.is_some_and(|at| at != *wanted)),
            _ => When::Nowhere("that is no answer".to_owned()),
        }
    }
}
