//! The decision of a controller, as data: writes in order, events and when to look again.

use std::{any::TypeId, fmt, time::Duration};

use client::{
    EventKind, Kind,
    rest::{DeleteOptions, Resource, Verb},
};
use json::Value;
use k8s_openapi::api::core::v1::ObjectReference;

/// An event to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The object that the event is about; `None` is the object that is planned for.
    pub about: Option<ObjectReference>,
    pub kind: EventKind,
    pub reason: String,
    /// `{name}` stands for the name of the object written, `{error}` for the server's message.
    pub message: String,
}

impl Note {
    pub fn normal(reason: &str, message: impl Into<String>) -> Self {
        Note { about: None, kind: EventKind::Normal, reason: reason.to_owned(), message: message.into() }
    }

    pub fn warning(reason: &str, message: impl Into<String>) -> Self {
        Note { kind: EventKind::Warning, ..Note::normal(reason, message) }
    }

    pub fn about(mut self, object: ObjectReference) -> Self {
        self.about = Some(object);
        self
    }
}

/// One write.
#[derive(Debug, Clone)]
pub struct Write {
    pub resource: Resource,
    /// The Rust type of the kind, which finds the cache that has to catch up; `None` for a kind known at run time only.
    pub type_id: Option<TypeId>,
    pub namespace: String,
    pub name: String,
    pub subresource: &'static str,
    pub verb: Verb,
    pub on_success: Option<Note>,
    pub on_failure: Option<Note>,
    /// Reasons of the server that count as success, because somebody else was faster.
    pub tolerated: &'static [&'static str],
}

impl Write {
    /// A write of a kind that is known at run time only. An empty name is the whole collection.
    pub fn dynamic(resource: &Resource, namespace: &str, name: &str, verb: Verb) -> Self {
        Write {
            resource: resource.clone(),
            type_id: None,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: "",
            verb,
            on_success: None,
            on_failure: None,
            tolerated: &[],
        }
    }

    fn new<K: Kind>(object: &K, subresource: &'static str, verb: Verb) -> Self {
        let meta = object.metadata();
        let (namespace, name) = (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""));
        let write = Self::dynamic(&Resource::of::<K>(), namespace, name, verb);
        Write { type_id: Some(TypeId::of::<K>()), subresource, ..write }
    }

    pub fn create<K: Kind>(object: &K) -> Self {
        Self::new(object, "", Verb::Create(object.to_value()))
    }

    /// Replaces an object as it was read and changed: a change in between is a conflict.
    pub fn update<K: Kind>(object: &K) -> Self {
        Self::new(object, "", Verb::Update(object.to_value()))
    }

    pub fn update_part<K: Kind>(object: &K, subresource: &'static str) -> Self {
        Self::new(object, subresource, Verb::Update(object.to_value()))
    }

    pub fn merge_patch<K: Kind>(object: &K, subresource: &'static str, patch: Value) -> Self {
        Self::new(object, subresource, Verb::MergePatch(patch))
    }

    pub fn strategic_patch<K: Kind>(object: &K, subresource: &'static str, patch: Value) -> Self {
        Self::new(object, subresource, Verb::StrategicPatch(patch))
    }

    /// Deletes this very object; one that is gone already is fine.
    pub fn delete<K: Kind>(object: &K) -> Self {
        Self::delete_with(object, DeleteOptions::default())
    }

    /// Deletes this very object with these options; the UID is filled in.
    pub fn delete_with<K: Kind>(object: &K, options: DeleteOptions) -> Self {
        let options = DeleteOptions { uid: object.metadata().uid.clone(), ..options };
        Self::new(object, "", Verb::Delete(options)).tolerate(&["NotFound", "Conflict"])
    }

    pub fn tolerate(mut self, reasons: &'static [&'static str]) -> Self {
        self.tolerated = reasons;
        self
    }

    pub fn on_success(mut self, note: Note) -> Self {
        self.on_success = Some(note);
        self
    }

    pub fn on_failure(mut self, note: Note) -> Self {
        self.on_failure = Some(note);
        self
    }

    /// The word for what it does.
    pub fn verb_name(&self) -> &'static str {
        match self.verb {
            Verb::Create(_) => "create",
            Verb::Update(_) => "update",
            Verb::MergePatch(_) | Verb::JsonPatch(_) | Verb::StrategicPatch(_) | Verb::Apply(..) => "patch",
            Verb::Delete(_) => "delete",
            Verb::DeleteCollection(_) => "deletecollection",
        }
    }

    /// The object or patch that is sent; `Null` for a deletion.
    pub fn body(&self) -> &Value {
        match &self.verb {
            Verb::Create(v) | Verb::Update(v) | Verb::Apply(v, _) => v,
            Verb::MergePatch(v) | Verb::JsonPatch(v) | Verb::StrategicPatch(v) => v,
            Verb::Delete(_) | Verb::DeleteCollection(_) => &Value::Null,
        }
    }
}

/// `create pods web-1`, `update deployments/status web`.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb_name(), self.resource.plural)?;
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        write!(f, " {}", self.name)
    }
}

/// A part of a plan. Steps are carried out in order; a failure ends the plan (its status is written all the same).
#[derive(Debug, Clone)]
pub enum Step {
    One(Box<Write>),
    /// All at once, within a bound.
    All(Vec<Write>),
    /// One, then twice as many each time while all succeed: a creation that the server refuses is tried once, not
    /// a thousand times.
    SlowStart(Vec<Write>),
    Tell(Note),
}

impl Step {
    fn writes(&self) -> &[Write] {
        match self {
            Step::One(write) => std::slice::from_ref(&**write),
            Step::All(writes) | Step::SlowStart(writes) => writes,
            Step::Tell(_) => &[],
        }
    }

    fn makes_something(&self) -> bool {
        self.writes().iter().any(|write| matches!(write.verb, Verb::Create(_)))
    }
}

/// The count of a plan that is carried out: what it is of, and the counter, which is told whether it failed.
#[derive(Debug, Clone)]
pub struct Counted {
    pub of: [String; 2],
    pub count: fn(&[String; 2], bool),
}

/// A controller's decision about one object. The default does nothing.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub status: Option<Write>,
    /// Look again after this time, though nothing changed.
    pub requeue_after: Option<Duration>,
    /// Look again after a time that doubles with each attempt, as after a failure.
    pub retry: bool,
    pub counted: Option<Counted>,
}

impl Plan {
    pub fn step(&mut self, write: Write) -> &mut Self {
        self.steps.push(Step::One(Box::new(write)));
        self
    }

    pub fn tell(&mut self, note: Note) -> &mut Self {
        self.steps.push(Step::Tell(note));
        self
    }

    /// Writes `new` as the object's new status, if it differs from what `old` has.
    pub fn set_status<K: Kind>(&mut self, old: &K, new: &K) -> &mut Self {
        let (before, after) = (old.to_value(), new.to_value());
        if before.get("status") != after.get("status") {
            self.status = Some(Write::new(new, "status", Verb::Update(after)));
        }
        self
    }

    /// Looks again after `delay` at the latest.
    pub fn again_after(&mut self, delay: Duration) -> &mut Self {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |d| d.min(delay)));
        self
    }

    /// Looks again soon, and then later and later until a plan no longer asks for it.
    pub fn retry(&mut self) -> &mut Self {
        self.retry = true;
        self
    }

    pub(crate) fn makes_something(&self) -> bool {
        self.steps.iter().any(Step::makes_something)
    }

    /// Leaves out the first step that makes something, and what comes after it, as if that had failed. The status stays.
    pub(crate) fn make_nothing(&mut self) {
        let first = self.steps.iter().position(Step::makes_something);
        self.steps.truncate(first.unwrap_or(self.steps.len()));
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.status.is_none()
    }

    /// All writes in order, the status last.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.steps.iter().flat_map(Step::writes).chain(&self.status)
    }
}

/// `create pods a, delete pods b`: what tests compare.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, write) in self.writes().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{write}")?;
        }
        Ok(())
    }
}

/// The write that ended the last attempt at a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// `create`, `delete`, …
    pub verb: &'static str,
    pub plural: String,
    /// The server's code and reason, 0 and empty when the server was not reached.
    pub code: u16,
    pub reason: String,
    pub message: String,
}
