//! create: a new object, named by the client or by the server from a prefix.

use std::sync::{Arc, OnceLock};

use api::{Value, codec::decode, kind::Definition, meta, status::StatusError};
use http::{StatusCode, header};

use super::{
    owners::{self, Seen},
    request::Request,
    write::{Outcome, Written, without_managers},
};
use crate::{
    admission::attributes::{Attributes, Operation},
    http::body::Response,
    http::options::{WriteOptions, revision_of},
    storage::{
        commit::ATTEMPTS,
        error::is_too_large,
        strategy::{self, wipe},
    },
};

/// Random characters behind a `generateName`, and how long the name may be without them.
const SUFFIX: usize = 5;
const PREFIX_MAX: usize = 58;
/// A generated name that is taken is drawn again this often.
const DRAWS: usize = 8;

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::create(request.waypoint_name());
    let agent = request.header(header::USER_AGENT).to_owned();
    request.view()?;
    let body = request.body().await?;
    let options = WriteOptions::parse(request.query(), "CreateOptions", &agent)?;
    let media_type = request.header(header::CONTENT_TYPE);
    let definition = request.definition.clone();
    spans::event("About to convert to expected version");
    let read = || {
        let mut decoded = decode::decode(&definition.ty, definition.gvk(), &body, media_type, options.validation)?;
        definition.strategy.drop_nulls(&mut decoded.value);
        definition.refuse_unreadable(&decoded.value)?;
        Ok::<_, StatusError>(decoded)
    };
    let mut decoded = read()?;
    spans::event("Conversion done");
    if !request.call.info.name.is_empty() {
        // Upstream's custom kinds make whatever the body names. The right to create was asked for with the name in the path.
        request.check_names(&mut decoded.value)?;
    }
    spans::event("About to store object in database");
    let mut written = request.create(decoded.value, decoded.warnings, &options, true).await;
    if written.as_ref().is_err_and(is_too_large) {
        // Without its managers it may be small enough.
        let mut decoded = read()?;
        without_managers(&mut decoded.value);
        written = request.create(decoded.value, decoded.warnings, &options, false).await;
    }
    let written = written_down(written, body.len())?;
    request.respond_written(StatusCode::CREATED, written).await
}

/// Tells the span of a create or an update how it came out.
pub(super) fn written_down<T>(written: Result<T, StatusError>, len: usize) -> Result<T, StatusError> {
    match &written {
        Ok(_) => spans::event_with("Write to database call succeeded", || [("len", len.into())]),
        Err(error) => {
            let about = || [("len", len.into()), ("err", (&*error.message).into())];
            spans::event_with("Write to database call failed", about);
        }
    }
    written
}

impl Request {
    /// The answer to a write.
    pub(super) async fn respond_written(&self, code: StatusCode, written: Written) -> Result<Response, StatusError> {
        match written.outcome {
            Outcome::Stored(entry) => self.respond(code, entry, &written.warnings).await,
            Outcome::Tried(value) => self.respond_value(code, value, &written.warnings),
        }
    }

    /// Creates a decoded object. With `tracked` its managed fields are still to be made. The warnings are told in any case.
    pub(super) async fn create(
        &self,
        object: Value,
        mut warnings: Vec<String>,
        options: &WriteOptions,
        tracked: bool,
    ) -> Result<Written, StatusError> {
        match self.create_decoded(object, options, tracked, &mut warnings).await {
            Ok(outcome) => Ok(Written { outcome, warnings }),
            Err(refused) => Err(refused.beside(warnings)),
        }
    }

    async fn create_decoded(
        &self,
        mut object: Value,
        options: &WriteOptions,
        tracked: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Outcome, StatusError> {
        let definition = &*self.definition;
        definition.default(&mut object, || clock::now_seconds().to_string());
        if self.call.info.verb == "create" {
            self.call.trail.requested(&object);
        }
        refuse_versioned(&object)?;
        wipe(&mut object);
        self.place(&mut object)?;
        self.refuse_terminating(meta::name(&object))?;
        if self.call.info.verb != "patch" {
            warnings.extend(owners::deduplicate(&mut object, Seen::Written));
        }
        if tracked && self.versions.is_none() {
            self.track(None, &mut object, options);
        } else if tracked {
            let think = || {
                let mut tracked = object.clone();
                self.track(None, &mut tracked, options);
                Ok(tracked)
            };
            object = self.thought_through(think).await?;
        }
        let name = meta::name(&object).to_owned();
        let mut attributes = self.attributes(Operation::Create, &name, options, Some(object), None);
        waypoint::apiserver::admit(self.waypoint_name());
        self.call.state.admission.admit(&mut attributes).await?;
        let mut object = attributes.object.take().unwrap_or_default();
        warnings.append(&mut attributes.warnings);
        warnings.extend(owners::deduplicate(&mut object, Seen::Admitted));
        // A plugin may have named it anew, unless the path names it, but its place is that of the request.
        if self.call.info.name.is_empty() {
            self.place(&mut object)?
        } else {
            self.check_names(&mut object)?
        }
        if meta::name(&object).is_empty() && !generate_name(&object).is_empty() {
            return self.create_drawn(object, attributes, warnings).await;
        }
        self.create_named(object, &mut attributes, warnings).await
    }

    /// Draws a name for an object, and another one where that is taken.
    async fn create_drawn(
        &self,
        object: Value,
        attributes: Attributes<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Outcome, StatusError> {
        let drawn: [OnceLock<String>; DRAWS] = Default::default();
        let (mut attributes, last) = (attributes, DRAWS - 1);
        let Definition { group, plural, .. } = &*self.definition;
        for (draw, name) in drawn.iter().enumerate() {
            let mut candidate = object.clone();
            give_name(&mut candidate);
            attributes.name = name.get_or_init(|| meta::name(&candidate).to_owned());
            match self.create_named(candidate, &mut attributes, warnings).await {
                // Only the store's own word counts: whom admission asks may say this, too.
                Err(mut error) if error == StatusError::already_exists(group, plural, attributes.name) => {
                    if draw == last {
                        error.message.push_str(", the server was not able to generate a unique name for the object");
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
        Err(StatusError::internal("no name was drawn"))
    }

    /// Nothing new comes into a kind that goes.
    fn refuse_terminating(&self, name: &str) -> Result<(), StatusError> {
        let definition = &self.definition;
        if !definition.terminating {
            return Ok(());
        }
        let why = "create not allowed while custom resource definition is terminating";
        let message = format!("{}.{} {name:?} is forbidden: {why}", definition.plural, definition.group);
        Err(StatusError::forbidden(&definition.group, &definition.plural, name, message))
    }

    /// Puts the object into the namespace of the request. One that a kind without namespaces names means nothing.
    pub(super) fn place(&self, object: &mut Value) -> Result<(), StatusError> {
        let wanted = if self.definition.namespaced() { self.call.info.namespace.as_str() } else { "" };
        let given = meta::namespace(object);
        if !given.is_empty() && !wanted.is_empty() && given != wanted {
            return Err(StatusError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if given == wanted && !wanted.is_empty() {
            return Ok(());
        }
        let Some(metadata) = meta::metadata_mut(object) else { return Ok(()) };
        match wanted {
            "" => metadata.remove("namespace"),
            _ => metadata.insert("namespace", Value::from(wanted)),
        };
        Ok(())
    }

    /// Creates an object that has its name, after mutating admission.
    async fn create_named(
        &self,
        mut object: Value,
        attributes: &mut Attributes<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Outcome, StatusError> {
        let definition = &*self.definition;
        // An allocation stands in the spec.
        let asked = self.call.state.allocation(definition).map(|_| object["spec"].clone());
        for _ in 0..ATTEMPTS {
            match self.finish_create(object, attributes, warnings).await? {
                Ok(outcome) => return Ok(outcome),
                Err(lost) => object = lost,
            }
            // Somebody else was given what this object was to get: it is given something else, or told so.
            object["spec"] = asked.clone().unwrap_or_default();
            self.objects().caught_up().await?;
        }
        Err(StatusError::internal("others were always faster to take what was allocated to the object"))
    }

    /// The steps after mutating admission; gives the object back when it cannot have what was allocated to it.
    async fn finish_create(
        &self,
        mut object: Value,
        attributes: &mut Attributes<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Result<Outcome, Value>, StatusError> {
        let definition = &*self.definition;
        let companions = self.allocate(None, &mut object, attributes.dry_run).await?;
        waypoint::apiserver::validate(self.waypoint_name());
        // Plugins that mutate the object may have set one. The store is the one that refuses this, when all others have had their say.
        let versioned = refuse_versioned(&object);
        let checked = strategy::before_create(definition, &mut object)?;
        warnings.extend(checked.warnings);
        attributes.object = Some(object);
        self.call.state.admission.validate(attributes).await?;
        let object = attributes.object.take().unwrap_or_default();
        warnings.append(&mut attributes.warnings);
        let objects = self.objects();
        if attributes.dry_run {
            let name = meta::name(&object);
            return match objects.entry(definition, meta::namespace(&object), name).await {
                Ok(_) => Err(StatusError::already_exists(&definition.group, &definition.plural, name)),
                Err(_) => Ok(Ok(Outcome::Tried(object))),
            };
        }
        versioned?;
        let object = Arc::new(object);
        let inserted = objects.insert_with(definition, &object, companions, checked.typed).await?;
        Ok(inserted.map(Outcome::Stored).ok_or_else(|| Arc::unwrap_or_clone(object)))
    }
}

/// An object that is not there yet has no version. As upstream, one that is no number counts for nothing here.
fn refuse_versioned(object: &Value) -> Result<(), StatusError> {
    match revision_of(object) {
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => Err(StatusError::new(500, "", "resourceVersion should not be set on objects to be created")),
    }
}

fn generate_name(object: &Value) -> &str {
    object["metadata"]["generateName"].as_str().unwrap_or("")
}

fn give_name(object: &mut Value) {
    let prefix = generate_name(object);
    let cut = prefix.char_indices().map(|(at, _)| at).nth(PREFIX_MAX).unwrap_or(prefix.len());
    let name = format!("{}{}", &prefix[..cut], clock::name_suffix(SUFFIX));
    if let Some(metadata) = meta::metadata_mut(object) {
        metadata.insert("name", Value::from(name));
    }
}
