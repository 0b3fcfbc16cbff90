//! delete: at once, after a grace period, or when the last finalizer is gone.

use api::{Value, kind::Definition, meta, status::StatusError};
use http::{StatusCode, header};
use json::json;
use store::Entry;

use super::{request::Request, write::has_finalizers};
use crate::{
    admission::attributes::{Attributes, Operation},
    audit::Trail,
    auth::User,
    http::{
        body::Response,
        options::{DeleteOptions, Propagation},
        respond,
    },
    state::State,
    storage::object,
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::delete(request.waypoint_name());
    request.view()?;
    let body = request.body().await?;
    let media_type = request.header(header::CONTENT_TYPE);
    let options = DeleteOptions::read(request.query(), &body, media_type, &request.call.trail)?;
    spans::event("About to delete object from database");
    let entry = request.entry().await?;
    // Only clients that ask in the old way are told that the deletion is still under way.
    let pending = if options.orphan_dependents == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
    let (deleted, warnings) = Deletion::asked(&request, &options).run(entry).await?;
    spans::event("Object deleted from database");
    match deleted {
        Deleted::Gone { last, graceful: true } => request.respond_value(StatusCode::OK, last, &warnings),
        Deleted::Gone { last, graceful: false } => {
            let mut response = respond::value(StatusCode::OK, &success(&request.definition, &last));
            respond::warn(&mut response, &warnings);
            Ok(response)
        }
        Deleted::Marked(entry) => request.respond(pending, entry, &warnings).await,
        Deleted::Tried(value) => request.respond_value(StatusCode::OK, value, &warnings),
    }
}

/// The fate of the object.
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

/// The effect of a delete on the object as it is.
enum Step {
    Nothing,
    Mark(Value),
    Remove,
}

/// The deletion of objects of one kind.
pub(crate) struct Deletion<'a> {
    pub state: &'a State,
    pub definition: &'a Definition,
    pub options: &'a DeleteOptions,
    /// The user whose deletion admission is asked about. Without one it is not asked: it has let the write through that this
    /// deletion is a part of.
    pub user: Option<(&'a User, &'a Trail)>,
    /// The object is deleted with others, and the request does not name it.
    pub collection: bool,
}

impl<'a> Deletion<'a> {
    /// The deletion that a request asks for.
    pub(super) fn asked(request: &'a Request, options: &'a DeleteOptions) -> Self {
        let Request { call, definition, .. } = request;
        Deletion {
            state: &call.state,
            definition,
            options,
            user: Some((&call.user, &call.trail)),
            collection: request.call.info.verb == "deletecollection",
        }
    }

    /// Deletes the object that `entry` is the state of. Returns also what admission warns the client of.
    pub(crate) async fn run(&self, entry: Entry) -> Result<(Deleted, Vec<String>), StatusError> {
        let mut warnings = Vec::new();
        let deleted = self.run_warning(entry, &mut warnings).await?;
        Ok((deleted, warnings))
    }

    async fn run_warning(&self, entry: Entry, warnings: &mut Vec<String>) -> Result<Deleted, StatusError> {
        let Deletion { state, definition, options, mut user, .. } = *self;
        let mut swap = state.objects.swap(definition, entry);
        loop {
            let old = swap.read().await?;
            check_preconditions(definition, &old, options)?;
            if let Some(user) = user.take() {
                *warnings = self.admit(user, &old).await?;
            }
            let graceful = definition.strategy.grace_seconds(&old, options.grace_seconds);
            let step = plan(definition, &old, options, graceful);
            if options.dry_run {
                return Ok(match step {
                    Step::Mark(value) => Deleted::Tried(value),
                    Step::Nothing => Deleted::Tried(old),
                    Step::Remove => Deleted::Gone { last: old, graceful: graceful.is_some() },
                });
            }
            match step {
                Step::Nothing => return Ok(Deleted::Marked(swap.entry)),
                Step::Mark(new) => {
                    if let Some(marked) = swap.replace(new).await? {
                        return Ok(Deleted::Marked(marked));
                    }
                }
                Step::Remove => {
                    if let Some(allocation) = state.allocation(definition) {
                        swap.bring(Some(allocation.release(&old).await?));
                    }
                    if let Some(removed) = swap.remove().await? {
                        let mut last = old;
                        object::set_revision(&mut last, removed.modified);
                        return Ok(Deleted::Gone { last, graceful: graceful.is_some() });
                    }
                }
            }
        }
    }

    async fn admit(&self, (user, trail): (&User, &Trail), old: &Value) -> Result<Vec<String>, StatusError> {
        let dry_run = self.options.dry_run;
        let mut attributes = Attributes {
            definition: self.definition,
            operation: Operation::Delete,
            subresource: "",
            namespace: meta::namespace(old),
            name: meta::name(old),
            user,
            dry_run,
            object: None,
            old: Some(old),
            options: self.options.object(),
            warnings: Vec::new(),
            trail,
            charged: false,
            reinvocation: Default::default(),
            collection: self.collection,
        };
        self.state.admission.admit(&mut attributes).await?;
        self.state.admission.validate(&mut attributes).await?;
        Ok(attributes.warnings)
    }
}

/// Refuses to delete another object, or another state of it, than the one that is meant.
pub(crate) fn check_preconditions(
    definition: &Definition,
    old: &Value,
    options: &DeleteOptions,
) -> Result<(), StatusError> {
    let refuse = |why: String| Err(StatusError::conflict(&definition.group, &definition.kind, meta::name(old), &why));
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
    let held_by = definition.delete_finalizer.filter(|_| meta::deletion_timestamp(old).is_none());
    // The common case, decided without a copy.
    if held_by.is_none()
        && options.propagation.is_none()
        && grace.is_none_or(|g| g <= 0)
        && !has_finalizers(definition, old)
    {
        return Step::Remove;
    }
    let mut new = old.clone();
    let propagated = propagate(&mut new, options.propagation);
    if let Some(finalizer) = held_by {
        add_finalizer(&mut new, finalizer);
    }
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
    let Some(metadata) = meta::metadata_mut(object) else { return };
    metadata.insert("deletionTimestamp", Value::from(end.to_string()));
    if definition.strategy.prepare_delete(object) {
        return;
    }
    let Some(metadata) = meta::metadata_mut(object) else { return };
    if already.is_none() && generation > 0 {
        metadata.insert("generation", Value::from(generation + 1));
    }
    metadata.insert("deletionGracePeriodSeconds", Value::from(grace));
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    if meta::finalizers(object).all(|known| known != finalizer)
        && let Some(metadata) = meta::metadata_mut(object)
        && let Some(list) = metadata.entry("finalizers").or_insert_with(|| json!([])).as_array_mut()
    {
        list.push(Value::from(finalizer));
    }
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
        metadata.insert("finalizers", json!(after));
    }
    true
}
