//! The origins of the changes that the log has.

use std::collections::HashMap;

use super::log::{Change, Log};
use crate::record::{Answer, Call, Operation, Revision};

/// Every change was asked for by somebody, once, and what was refused was not done.
pub fn check(log: &Log, operations: &[Operation], complaints: &mut Vec<String>) {
    let mut writes: HashMap<&str, &Operation> = HashMap::new();
    for operation in operations {
        if let Call::Create { value, .. } | Call::Replace { value, .. } | Call::Patch { value, .. } = &operation.call {
            writes.insert(value, operation);
        }
    }
    let mut done: HashMap<&str, Revision> = HashMap::new();
    for (revision, change) in &log.changes {
        let Some(value) = &change.value else { continue };
        if let Some(first) = done.insert(value, *revision) {
            complaints.push(format!("the write of revision {first} was done again at {revision}"));
        }
        match writes.get(value.as_str()) {
            None => complaints.push(format!("nobody wrote what revision {revision} shows: {change:?}")),
            Some(write) => complaints.extend(origin(log, *revision, change, write)),
        }
    }
    check_deletions(log, operations, complaints);
}

/// The objection to the claim that a write made a change.
fn origin(log: &Log, revision: Revision, change: &Change, write: &Operation) -> Option<String> {
    let before = log.state(&change.name, revision - 1).map(|(at, _)| at);
    let (name, fits) = match &write.call {
        Call::Create { name, .. } => (name, before.is_none()),
        Call::Replace { name, over: Some(over), .. } => (name, before == Some(*over)),
        Call::Replace { name, .. } | Call::Patch { name, .. } => (name, before.is_some()),
        Call::Delete { .. } | Call::Get { .. } | Call::List(_) => return Some(format!("{write:?} wrote {revision}")),
    };
    if *name != change.name || !fits {
        return Some(format!("{:?} made {change:?} at {revision} over {before:?}", write.call));
    }
    match &write.answer {
        Answer::Unknown => None,
        Answer::Written(object) if object.revision == revision => None,
        refused => {
            Some(format!("revision {revision} is what {:?} asked for, which was answered {refused:?}", write.call))
        }
    }
}

/// Deletions carry no value, so those that nobody was told of are matched with those of unknown outcome.
fn check_deletions(log: &Log, operations: &[Operation], complaints: &mut Vec<String>) {
    let mut acknowledged: HashMap<&str, &Operation> = HashMap::new();
    let mut unknown: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in operations {
        let Call::Delete { name, .. } = &operation.call else { continue };
        match &operation.answer {
            Answer::Deleted { uid } => {
                let first = acknowledged.insert(uid, operation);
                if first.is_some() {
                    complaints.push(format!("the deletion of one {name} ({uid}) was acknowledged twice"));
                }
            }
            Answer::Unknown => unknown.entry(name).or_default().push(operation),
            _ => {}
        }
    }
    for (revision, change) in log.changes.iter().filter(|(_, change)| change.value.is_none()) {
        let before = log.state(&change.name, revision - 1).map(|(at, _)| at);
        let expects = |operation: &Operation| match &operation.call {
            Call::Delete { over: Some(over), .. } => before == Some(*over),
            _ => true,
        };
        match acknowledged.remove(change.uid.as_str()) {
            Some(operation) if expects(operation) => {}
            Some(operation) => complaints.push(format!("{:?} was done at {revision} over {before:?}", operation.call)),
            None => {
                let candidates = unknown.entry(&change.name).or_default();
                // One that names the revision fits no other deletion, so it goes first.
                let fitting = |(_, operation): &(usize, &&Operation)| expects(operation);
                let exact = |operation: &Operation| matches!(operation.call, Call::Delete { over: Some(_), .. });
                let found = candidates.iter().enumerate().filter(fitting).max_by_key(|(_, o)| exact(o)).map(|(i, _)| i);
                match found {
                    Some(index) => drop(candidates.remove(index)),
                    None => complaints.push(format!("nobody deleted {} at {revision}", change.name)),
                }
            }
        }
    }
    complaints.extend(acknowledged.values().map(|lost| format!("lost, though it was acknowledged: {lost:?}")));
}
