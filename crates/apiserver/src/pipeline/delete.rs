//! delete: at once, after a grace period, or when the last finalizer is gone.

use api::{Value, kind::Definition, meta, status::StatusError};
use http::{StatusCode, header};
use serde_json::json;
use store::Entry;

use super::{
    Request,
    write::{has_finalize, has_finalizers},
};
use crate::{
    admission::attributes::{Operation, Review},
    http::{
        options::{DeleteOptions, Propagation, WriteOptions},
        respond,
    },
    special::Response,
    storage::{core::Replaced, object},
};

const ATTEMPTS: usize = 100;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::delete(request.waypoint_name());
    request.view()?;
    let body = request.body().await?;
    let options = DeleteOptions::parse(request.query(), &body, request.header(header::CONTENT_TYPE))?;
    let info = &request.call.info;
    let entry = request.call.server.core().entry(&request.definition, &info.namespace, &info.name).await?;
    // Only clients that ask in the old way are told that the deletion is still under way.
    let pending = if options.orphan_dependents == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
    match request.delete(entry, &options, true).await? {
        Deleted::Gone { last, graceful: true } => request.respond_value(StatusCode::OK, last, &[]),
        Deleted::Gone { last, graceful: false } => {
            Ok(respond::value(StatusCode::OK, &success(&request.definition, &last)))
        }
        Deleted::Marked(entry) => request.respond(pending, &entry, &[]),
        Deleted::Tried(value) => request.respond_value(StatusCode::OK, value, &[]),
    }
}

/// What became of the object.
pub(crate) enum Deleted {
    /// It left the store. Kinds with graceful deletion answer with the object, the others with a `Status`.
    Gone { last: Value, graceful: bool },
    /// It waits for its grace period or its finalizers.
    Marked(Entry),
    /// A dry run.
    Tried(Value),
}

fn success(definition: &Definition, last: &Value) -> Value {
    let mut details = json!({"name": meta::name(last), "kind": definition.plural, "uid": meta::uid(last)});
    if !definition.group.is_empty() {
        details["group"] = json!(definition.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// What a delete does to the object as it is.
enum Step {
    Nothing,
    Mark(Value),
    Remove,
}

impl Request {
    /// Deletes the object that `entry` is the state of. `wanted` is false for a delete that may lose a race (of a
    /// collection): the object being gone already is then no error.
    pub(crate) async fn delete(
        &self,
        mut entry: Entry,
        options: &DeleteOptions,
        wanted: bool,
    ) -> Result<Deleted, StatusError> {
        let definition = &*self.definition;
        let core = self.call.server.core();
        let (namespace, name) = object::names(definition, &entry.key);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        for attempt in 0..ATTEMPTS {
            let old = object::of_entry(definition, &entry);
            self.check_delete(&old, options)?;
            if attempt == 0 {
                self.admit_delete(&namespace, &name, &old, options).await?;
            }
            let graceful = definition.strategy.grace_seconds(&old, options.grace_seconds);
            let step = plan(definition, &old, options, graceful);
            if options.dry_run {
                return Ok(match step {
                    Step::Mark(value) => Deleted::Tried(value),
                    _ => Deleted::Tried(old),
                });
            }
            let outcome = match step {
                Step::Nothing => return Ok(Deleted::Marked(entry)),
                Step::Mark(new) => core.replace(definition, &entry, &new).await.map(|r| (r, false))?,
                Step::Remove => core.remove(&entry).await.map(|r| (r, true))?,
            };
            match outcome {
                (Replaced::Written(written), false) => return Ok(Deleted::Marked(written)),
                (Replaced::Written(written), true) => {
                    if let Some(allocation) = self.allocation() {
                        allocation.release(&old);
                    }
                    let mut last = old;
                    object::set_revision(&mut last, written.modified);
                    return Ok(Deleted::Gone { last, graceful: graceful.is_some() });
                }
                (Replaced::Conflict(Some(current)), _) => entry = current,
                (Replaced::Conflict(None), _) if !wanted => return Ok(Deleted::Gone { last: old, graceful: false }),
                (Replaced::Conflict(None), _) => {
                    return Err(StatusError::not_found(&definition.group, &definition.plural, &name));
                }
            }
        }
        Err(StatusError::modified(&definition.group, &definition.plural, &name))
    }

    fn check_delete(&self, old: &Value, options: &DeleteOptions) -> Result<(), StatusError> {
        let (definition, name) = (&self.definition, meta::name(old));
        let refuse = |why: String| Err(StatusError::conflict(&definition.group, &definition.kind, name, &why));
        let (uid, version) = (meta::uid(old), meta::resource_version(old));
        if let Some(wanted) = options.uid.as_deref().filter(|w| *w != uid) {
            return refuse(format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been \
                 deleted and then recreated"
            ));
        }
        if let Some(wanted) = options.resource_version.as_deref().filter(|w| *w != version) {
            return refuse(format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). \
                 The object might have been modified"
            ));
        }
        Ok(())
    }

    async fn admit_delete(
        &self,
        namespace: &str,
        name: &str,
        old: &Value,
        options: &DeleteOptions,
    ) -> Result<(), StatusError> {
        let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
        let mut review = Review {
            definition: &self.definition,
            operation: Operation::Delete,
            subresource: "",
            namespace,
            name,
            user: &self.call.user,
            dry_run: options.dry_run,
            object: None,
            old: Some(old),
            options: write.object("DeleteOptions"),
            warnings: Vec::new(),
            annotations: Vec::new(),
        };
        let admission = self.call.server.admission();
        admission.admit(&mut review).await?;
        admission.validate(&mut review).await
    }
}

/// Decides between removing the object, marking it, and leaving it as it is.
fn plan(definition: &Definition, old: &Value, options: &DeleteOptions, graceful: Option<i64>) -> Step {
    let mut grace = graceful;
    if meta::deletion_timestamp(old).is_some() && graceful.is_some() {
        let present = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        grace = match options.grace_seconds {
            _ if present == 0 => None,
            Some(shorter) if shorter < present => Some(shorter),
            // A grace period under way may only be shortened.
            _ => return Step::Nothing,
        };
    }
    // The common case, decided without a copy.
    if options.propagation.is_none() && grace.is_none_or(|g| g <= 0) && !has_finalizers(definition, old) {
        return Step::Remove;
    }
    let mut new = old.clone();
    let propagated = propagate(&mut new, options.propagation);
    let pending = has_finalizers(definition, &new);
    match grace {
        Some(seconds) if seconds > 0 || pending => mark(definition, &mut new, seconds),
        _ if pending => mark(definition, &mut new, 0),
        _ => return Step::Remove,
    }
    if new == *old && !propagated { Step::Nothing } else { Step::Mark(new) }
}

/// Sets the time of deletion; one that is set already only moves forward.
fn mark(definition: &Definition, object: &mut Value, grace: i64) {
    let already = meta::deletion_timestamp(object).and_then(|t| t.parse::<clock::Timestamp>().ok());
    let before = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if already.is_some() && before <= grace {
        return;
    }
    let start = match already {
        Some(end) => end.as_second() - before,
        None => clock::now_seconds().as_second(),
    };
    let end = clock::Timestamp::from_second(start.saturating_add(grace)).unwrap_or(clock::Timestamp::MAX);
    let generation = meta::generation(object);
    // What has a finalize subresource shows in its phase that others are to finalize it.
    if has_finalize(definition) {
        object["status"]["phase"] = json!("Terminating");
    }
    let Some(metadata) = meta::metadata_mut(object) else { return };
    if already.is_none() && generation > 0 {
        metadata.insert("generation".to_owned(), Value::from(generation + 1));
    }
    metadata.insert("deletionTimestamp".to_owned(), Value::from(end.to_string()));
    metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(grace));
}

/// Turns the propagation policy into finalizers for the garbage collector; true when they changed.
fn propagate(object: &mut Value, policy: Option<Propagation>) -> bool {
    let Some(policy) = policy else { return false };
    let before: Vec<String> = meta::finalizers(object).map(ToOwned::to_owned).collect();
    let mut after: Vec<String> = before.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    match policy {
        Propagation::Orphan => after.push(ORPHAN.to_owned()),
        Propagation::Foreground => after.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    if after == before {
        return false;
    }
    if let Some(metadata) = meta::metadata_mut(object) {
        metadata.insert("finalizers".to_owned(), json!(after));
    }
    true
}
