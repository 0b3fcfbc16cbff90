//! The common steps of creates, updates and patches: admission, allocation, validation, and the answer.

use api::{
    Value,
    kind::{Definition, Target},
    meta,
    status::StatusError,
    validation::field::{FieldError, Path},
    write::entries::Writer,
};
use json::Key;
use store::Entry;

use super::{
    owners::{self, Seen},
    request::Request,
    scale_object,
};
use crate::{
    admission::attributes::{Attributes, Operation},
    http::{
        large,
        options::{WriteOptions, revision_of},
    },
    pages::metrics::issued::Issued,
    storage::{
        commit::{Companions, Swap},
        error::is_too_large,
        object, strategy,
    },
};

/// So often a write is thought through: for each version that somebody owns fields in, and a few steps of pruning.
const ROUNDS: usize = 64;

/// The result of a write.
pub(super) enum Outcome {
    Stored(Entry),
    /// The object that would be stored (in a dry run), or that was stored last (when it is gone).
    Tried(Value),
}

pub(super) struct Written {
    pub outcome: Outcome,
    pub warnings: Vec<String>,
}

/// The fate of the managers of a changed object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Managers {
    Tracked,
    /// Whoever made the object has seen to them.
    Given,
    Dropped,
}

impl Request {
    pub(super) fn attributes<'a>(
        &'a self,
        operation: Operation,
        name: &'a str,
        options: &WriteOptions,
        object: Option<Value>,
        old: Option<&'a Value>,
    ) -> Attributes<'a> {
        // A patch is judged as the create or update that comes of it.
        let kind = if operation == Operation::Create { "CreateOptions" } else { "UpdateOptions" };
        Attributes {
            definition: &self.definition,
            operation,
            subresource: self.call.info.subresource,
            namespace: &self.call.info.namespace,
            name,
            user: &self.call.user,
            dry_run: options.dry_run,
            object,
            old,
            options: options.object(kind),
            warnings: Vec::new(),
            trail: &self.call.trail,
            charged: false,
            reinvocation: Default::default(),
            collection: false,
        }
    }

    /// Calls `f` with the writer that managed fields are kept for.
    pub(super) fn with_writer<T>(&self, options: &WriteOptions, f: impl FnOnce(&Writer<'_>) -> T) -> T {
        let api_version = self.definition.api_version();
        let writer = Writer {
            manager: &options.manager,
            api_version: &api_version,
            subresource: self.call.info.subresource,
            now: clock::now_seconds(),
            resets: self.definition.strategy.resets(self.target),
            versions: self.versions.as_ref(),
        };
        f(&writer)
    }

    /// Thinks a write through, and once more for as long as it turns out that other versions of the kind have to be asked.
    pub(super) async fn thought_through<T>(
        &self,
        mut think: impl FnMut() -> Result<T, StatusError>,
    ) -> Result<T, StatusError> {
        for _ in 0..ROUNDS {
            let thought = think();
            let Some(versions) = &self.versions else { return thought };
            let wanted = versions.wanted();
            if wanted.is_empty() {
                return thought;
            }
            for question in wanted {
                let answer = self.objects().conversions.seen(versions.webhook(), &question).await?;
                versions.learn(question, answer);
            }
        }
        Err(StatusError::internal("the versions of the object's managers give no end of questions"))
    }

    pub(super) fn track(&self, old: Option<&Value>, new: &mut Value, options: &WriteOptions) {
        self.with_writer(options, |writer| api::write::managed_fields::update(&self.definition.ty, old, new, writer));
    }

    pub(super) async fn allocate(
        &self,
        old: Option<&Value>,
        new: &mut Value,
        dry_run: bool,
    ) -> Result<Option<Box<dyn Companions>>, StatusError> {
        match self.call.state.allocation(&self.definition).filter(|_| self.target == Target::Object) {
            Some(allocation) => allocation.allocate(old, new, dry_run).await.map(Some),
            None => Ok(None),
        }
    }

    /// Changes an existing object. `change` makes the new object from the one that is stored, and may run several times.
    pub(super) async fn change(
        &self,
        options: &WriteOptions,
        tracked: bool,
        mut change: impl FnMut(&Value) -> Result<(Value, Vec<String>), StatusError> + Send,
    ) -> Result<Written, StatusError> {
        let (namespace, name) = (&self.call.info.namespace, &self.call.info.name);
        let mut swap = self.objects().swap_at_hand(&self.definition, (namespace, name), options.dry_run).await?;
        let mut managers = if tracked { Managers::Tracked } else { Managers::Given };
        loop {
            match self.change_once(&mut swap, options, managers, &mut change).await {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => {}
                // Without its managers it may be small enough.
                Err(refused) if managers == Managers::Tracked && is_too_large(&refused) => {
                    managers = Managers::Dropped;
                }
                // Perhaps only an older object has to refuse it.
                Err(refused) if refused.code < 500 && swap.look_again().await? => {}
                Err(refused) => return Err(refused),
            }
        }
    }

    /// `None` when somebody else was faster, and the change is to be made again.
    async fn change_once(
        &self,
        swap: &mut Swap<'_>,
        options: &WriteOptions,
        managers: Managers,
        change: &mut (impl FnMut(&Value) -> Result<(Value, Vec<String>), StatusError> + Send),
    ) -> Result<Option<Written>, StatusError> {
        let definition = &*self.definition;
        large::enter(swap.entry.value.len()).await?;
        let old = swap.read().await?;
        let revision = swap.entry.modified;
        let think = || {
            let (mut new, mut warnings) = change(&old)?;
            if self.call.info.verb != "patch" {
                warnings.extend(owners::deduplicate(&mut new, Seen::Written));
            }
            let unconditional = self.check_preconditions(&new, &old)?;
            object::set_revision(&mut new, revision);
            definition.default_changed(&mut new, &old, || clock::now_seconds().to_string());
            match managers {
                Managers::Tracked => self.track(Some(&old), &mut new, options),
                Managers::Given => {}
                Managers::Dropped => without_managers(&mut new),
            }
            Ok((new, warnings, unconditional))
        };
        let (new, mut warnings, unconditional) = self.thought_through(think).await?;
        let admitted = self.admit_update(options, new, &old, &mut warnings).await;
        let (mut new, companions) = admitted.map_err(|refused| refused.beside(warnings.clone()))?;
        if options.dry_run {
            return Ok(Some(Written { outcome: Outcome::Tried(new), warnings }));
        }
        // The last finalizer is gone from an object that waits for its deletion: it leaves the store.
        let finished = is_finished(definition, &new);
        let issued = Issued::by(definition, self.target, &old, &new);
        let written = if finished {
            if let Some(allocation) = self.call.state.allocation(definition) {
                swap.bring(Some(allocation.release(&old).await?));
            }
            swap.remove().await?
        } else {
            new = without_idle_times(new, &old);
            swap.bring(companions);
            swap.replace(std::mem::take(&mut new)).await?
        };
        let outcome = match written {
            // Somebody else was given what this object was to get: it is given something else, or told so.
            None if swap.lost => {
                self.objects().caught_up().await?;
                return Ok(None);
            }
            None if unconditional => return Ok(None),
            None => return Err(swap.modified()),
            Some(removed) if finished => {
                object::set_revision(&mut new, removed.modified);
                Outcome::Tried(new)
            }
            Some(entry) => Outcome::Stored(entry),
        };
        if let Some(issued) = issued {
            issued.count(&self.call.state.metrics.all);
        }
        Ok(Some(Written { outcome, warnings }))
    }

    /// Whether the new object may replace the old one; true when the client named no resourceVersion, or the one
    /// that a patch merely carried over.
    fn check_preconditions(&self, new: &Value, old: &Value) -> Result<bool, StatusError> {
        let (definition, name) = (&self.definition, &self.call.info.name);
        // In a patch a uid is no precondition but a change, which validation refuses.
        if self.call.info.verb != "patch" {
            self.check_uid(new, old)?;
        }
        let version = meta::resource_version(new);
        if self.call.info.verb == "patch" && version == meta::resource_version(old) {
            return Ok(true);
        }
        let (wanted, found) = (revision_of(new)?, revision_of(old)?);
        let unconditional = wanted == 0;
        if !unconditional && wanted != found {
            return Err(StatusError::modified(&definition.group, &definition.plural, name));
        }
        // A Scale without a version is for the object as it is.
        let must_say = !definition.unconditional_update && self.target != Target::Other("scale");
        if unconditional && must_say && self.call.info.verb == "update" {
            let path = Path::new("metadata").child("resourceVersion");
            let error = FieldError::invalid(&path, 0, "must be specified for an update");
            return Err(StatusError::invalid(&definition.group, &definition.plural, name, &[error]));
        }
        Ok(unconditional)
    }

    /// That the object under this name is the one that the client means, if it says which.
    pub(super) fn check_uid(&self, wanted: &Value, found: &Value) -> Result<(), StatusError> {
        let (uid, found) = (meta::uid(wanted), meta::uid(found));
        if uid.is_empty() || uid == found { Ok(()) } else { Err(self.other_uid(uid, found)) }
    }

    /// The object under this name is not the one that the client means.
    pub(super) fn other_uid(&self, wanted: &str, found: &str) -> StatusError {
        let (definition, name) = (&self.definition, &self.call.info.name);
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
             in precondition: {wanted}, UID in object meta: {found}",
            object::key(definition, &self.call.info.namespace, name)
        );
        StatusError::conflict(&definition.group, &definition.plural, name, &why)
    }

    async fn admit_update(
        &self,
        options: &WriteOptions,
        new: Value,
        old: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(Value, Option<Box<dyn Companions>>), StatusError> {
        let (definition, name) = (&*self.definition, self.call.info.name.as_str());
        let admission = &self.call.state.admission;
        // Of a change of the scale admission sees the Scale, and nothing else of the object.
        let scale = definition.scale.as_ref().filter(|_| self.target == Target::Other("scale"));
        let old_scale = scale.map(|scale| scale_object::of(definition, scale, old)).transpose()?;
        let (seen, whole) = match scale {
            Some(scale) => (scale_object::of(definition, scale, &new)?, new),
            None => (new, Value::Null),
        };
        let old_seen = old_scale.as_ref().unwrap_or(old);
        let mut attributes = self.attributes(Operation::Update, name, options, Some(seen), Some(old_seen));
        if self.call.info.verb == "patch" {
            spans::event("About to check admission control");
        }
        waypoint::apiserver::admit(self.waypoint_name());
        admission.admit(&mut attributes).await?;
        let mut new = attributes.object.take().unwrap_or_default();
        warnings.append(&mut attributes.warnings);
        warnings.extend(owners::deduplicate(&mut new, Seen::Admitted));
        if let Some(scale) = scale {
            new = scale_object::with_replicas(definition, scale, &whole, &new)?;
        }
        definition.strategy.prepare_update(&mut new, old, self.target);
        let companions = self.allocate(Some(old), &mut new, options.dry_run).await?;
        waypoint::apiserver::validate(self.waypoint_name());
        warnings.extend(strategy::check_update(definition, &new, old, self.target)?);
        let seen = match scale {
            Some(scale) => scale_object::of(definition, scale, &new)?,
            None => std::mem::take(&mut new),
        };
        attributes.object = Some(seen);
        admission.validate(&mut attributes).await?;
        let seen = attributes.object.take().unwrap_or_default();
        if scale.is_none() {
            new = seen;
        }
        warnings.append(&mut attributes.warnings);
        Ok((new, companions))
    }
}

/// An object that nobody manages any more.
pub(super) fn without_managers(object: &mut Value) {
    if let Some(metadata) = meta::metadata_mut(object) {
        metadata.remove("managedFields");
    }
}

/// Whether an object that is being deleted has nothing left to wait for.
pub(super) fn is_finished(definition: &Definition, object: &Value) -> bool {
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    meta::deletion_timestamp(object).is_some() && grace == 0 && !has_finalizers(definition, object)
}

/// Finalizers of the metadata and, where the kind has them, those of the spec.
pub(super) fn has_finalizers(definition: &Definition, object: &Value) -> bool {
    let of_spec =
        || definition.spec_finalizers && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    meta::finalizers(object).next().is_some() || of_spec()
}

/// A write that changes nothing but the times in managedFields is no change.
fn without_idle_times(mut new: Value, old: &Value) -> Value {
    let (new_fields, old_fields) = (&new["metadata"]["managedFields"], &old["metadata"]["managedFields"]);
    if new_fields == old_fields || !same_but_for_times(new_fields, old_fields) {
        return new;
    }
    let Some(metadata) = meta::metadata_mut(&mut new) else { return new };
    let newer = metadata.insert("managedFields", old_fields.clone());
    if new == *old {
        return new;
    }
    if let (Some(newer), Some(metadata)) = (newer, meta::metadata_mut(&mut new)) {
        metadata.insert("managedFields", newer);
    }
    new
}

/// Whether two lists of managers differ in nothing but their times.
fn same_but_for_times(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_array(), old.as_array()) else { return new == old };
    let same = |(new, old): (&Value, &Value)| match (new.as_object(), old.as_object()) {
        (Some(new), Some(old)) => {
            let timeless = |(name, _): &(&Key, &Value)| *name != "time";
            new.iter().filter(timeless).eq(old.iter().filter(timeless))
        }
        _ => new == old,
    };
    new.len() == old.len() && new.iter().zip(old).all(same)
}
