//! Mutating webhooks: asked one after another, each about what the ones before it made of the object.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/mutating.

use std::sync::Arc;

use api::{
    Value,
    codec::decode::{Gvk, Validation},
    kind::Definition,
    schema::Type,
    status::StatusError,
    write::{
        managed_fields,
        patch::{Kind, Patch},
    },
};

use super::super::{
    attributes::{Attributes, Operation},
    plugin::Context,
    policy::input::Input,
};
use super::call::{Failure, ask, end, settle, verdict};
use super::scene::Scene;
use super::source::Hook;

const SORT: &str = "admit";

pub(super) async fn admit(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Arc<Hook>>>,
) -> Result<(), StatusError> {
    attributes.reinvocation.enter(attributes.object.as_ref());
    let mut scene = Scene::new(context, attributes, SORT).await?;
    for hook in hooks.iter() {
        let Some((definition, input)) = scene.concerned(hook, attributes).await? else { continue };
        if !attributes.reinvocation.calls(&hook.key) {
            continue;
        }
        let started = clock::Instant::now();
        let done = one(context, attributes, hook, &definition, &input).await;
        let metrics = &context.webhooks.metrics;
        metrics.asked(&hook.name, SORT, attributes.operation, started.elapsed(), end(hook, &done));
        if let Ok(true) = done {
            attributes.reinvocation.changed();
            scene.changed();
        }
        if hook.reinvocable {
            attributes.reinvocation.called(&hook.key);
        }
        if let Err(failure) = done {
            settle(hook, failure)?;
        }
    }
    attributes.reinvocation.leave(attributes.object.as_ref());
    Ok(())
}

/// Asks one webhook and does what it says. True when that changed the object.
async fn one(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hook: &Hook,
    definition: &Definition,
    input: &Input,
) -> Result<bool, Failure> {
    let mut answer = ask(context.webhooks.way(), hook, true, attributes.dry_run, input).await?;
    verdict(hook, attributes, &mut answer)?;
    let Some((patch_type, patch)) = answer.patch else { return Ok(false) };
    let undecodable = |error: StatusError| {
        Failure::unanswered(503, format!("received undecodable patch in webhook response: {}", error.message))
    };
    let patch = Patch::read(Kind::Json, &patch).map_err(undecodable)?;
    if patch.is_empty() {
        return Ok(false);
    }
    if attributes.object.is_none() {
        let what = "attempted to modify the object, which is not supported for this operation";
        return Err(impossible(format!("admission webhook {:?} {what}", hook.name)));
    }
    if patch_type != "JSONPatch" {
        return Err(Failure::unanswered(400, format!("unsupported patch type {patch_type:?}")));
    }
    let before = &input.object;
    let shape = Shape::of(definition, before);
    let patched = patch.apply(shape.ty(), shape.gvk(before), before, Validation::Ignore).map_err(inapplicable)?;
    let mut object = patched.value;
    if (&object["apiVersion"], &object["kind"]) != (&before["apiVersion"], &before["kind"]) {
        return Err(impossible(format!(
            "admission webhook {:?} attempted to make another kind of the object",
            hook.name
        )));
    }
    let changed = object != *before;
    attributes.warnings.extend(restore_managers(&mut object, before));
    shape.default(&mut object, (attributes.operation == Operation::Update).then_some(&input.old));
    if let Shape::Own(_) = shape {
        let back = context.objects.between(definition, attributes.definition, &object).await;
        object = back.map_err(|error| impossible(error.message))?;
    }
    attributes.object = Some(object);
    Ok(changed)
}

fn impossible(why: String) -> Failure {
    Failure::Impossible(StatusError::internal(why))
}

/// A patch that does not fit the object, in the words of its first cause.
fn inapplicable(error: StatusError) -> Failure {
    let cause = error.details.and_then(|details| details.causes?.into_iter().next()?.message);
    impossible(cause.unwrap_or(error.message))
}

/// Gives the object its field managers back when those after the patch cannot be read.
fn restore_managers(object: &mut Value, before: &Value) -> Option<String> {
    let (known, now) = (&before["metadata"]["managedFields"], &object["metadata"]["managedFields"]);
    if now == known || now.as_array().is_none_or(|entries| entries.iter().all(managed_fields::is_valid)) {
        return None;
    }
    object["metadata"]["managedFields"] = known.clone();
    let what = ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
                mutating admission controller; please fix your requests: an entry cannot be read";
    Some(what.to_owned())
}

/// What the object is by: its resource's definition, or, with a subresource, a kind of its own.
enum Shape<'d> {
    Own(&'d Definition),
    BuiltIn(&'d Definition),
    Unknown,
}

impl<'d> Shape<'d> {
    fn of(definition: &'d Definition, object: &Value) -> Self {
        let (group, version, kind) = names(object);
        if kind == definition.kind {
            return Shape::Own(definition);
        }
        api::kinds::built_in().by_kind(group, version, kind).map_or(Shape::Unknown, |known| Shape::BuiltIn(known))
    }

    fn ty(&self) -> &'d Type {
        match self {
            Shape::Own(definition) | Shape::BuiltIn(definition) => &definition.ty,
            Shape::Unknown => &Type::Any,
        }
    }

    fn gvk<'o>(&self, object: &'o Value) -> Gvk<'o> {
        let (group, version, kind) = names(object);
        Gvk { group, version, kind }
    }

    fn default(&self, object: &mut Value, old: Option<&Value>) {
        let now = || clock::now_seconds().to_string();
        match (self, old) {
            (Shape::Own(definition), Some(old)) => definition.default_changed(object, old, now),
            (Shape::Own(definition) | Shape::BuiltIn(definition), _) => definition.default(object, now),
            (Shape::Unknown, _) => {}
        }
    }
}

/// Group, version and kind of an object.
fn names(object: &Value) -> (&str, &str, &str) {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    (group, version, text("kind"))
}
