//! Mutating webhooks: asked one after another, each about what the ones before it made of the object.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/mutating.

use std::sync::Arc;

use api::{
    codec::decode::Validation,
    kind::Definition,
    status::StatusError,
    write::patch::{Kind, Patch, Unfit},
};

use super::super::{
    attributes::{Attributes, Group, Operation},
    plugin::Context,
    policy::input::Input,
    shape::{Shape, restore_managers},
};
use super::annotations::Notes;
use super::call::{Failure, ask, end, settle, span, verdict};
use super::scene::Scene;
use super::source::Hook;
use crate::http::timing;

const SORT: &str = "admit";

pub(super) async fn admit(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Arc<Hook>>>,
) -> Result<(), StatusError> {
    attributes.reinvocation.enter(Group::Webhooks, attributes.object.as_ref());
    let mut scene = Scene::new(context, attributes, SORT).await?;
    let round = attributes.reinvocation.round();
    for (index, hook) in hooks.iter().enumerate() {
        let Some((definition, input)) = scene.concerned(hook, attributes).await? else { continue };
        if !attributes.reinvocation.calls(Group::Webhooks, &hook.key) {
            continue;
        }
        let started = clock::Instant::now();
        let notes = Notes { trail: attributes.trail, hook, round, index };
        let asked = one(context, attributes, (hook, &notes), &definition, &input);
        let done = spans::within(span(hook, true, &input), || asked).await;
        notes.mutation(matches!(done, Ok(true)));
        let (metrics, took) = (&context.webhooks.metrics, started.elapsed());
        timing::changed(took);
        metrics.asked(&hook.name, SORT, attributes.operation, took, end(hook, &done));
        if let Ok(true) = done {
            attributes.reinvocation.changed(Group::Webhooks);
            scene.changed();
        }
        if hook.reinvocable {
            attributes.reinvocation.called(Group::Webhooks, &hook.key);
        }
        if let Err(failure) = done {
            settle(hook, failure).map(|()| notes.failed_open("mutation"))?;
        }
    }
    attributes.reinvocation.leave(Group::Webhooks, attributes.object.as_ref());
    Ok(())
}

/// Asks one webhook and does what it says. True when that changed the object.
async fn one(
    context: &Context,
    attributes: &mut Attributes<'_>,
    (hook, notes): (&Hook, &Notes<'_>),
    definition: &Definition,
    input: &Input,
) -> Result<bool, Failure> {
    let mut answer = ask(context.webhooks.way(), hook, true, attributes.dry_run, input).await?;
    verdict(hook, attributes, &mut answer)?;
    let Some((patch_type, patch)) = answer.patch else { return Ok(false) };
    let undecodable = |error: StatusError| {
        let why = error.message.strip_prefix("error decoding patch: ").unwrap_or(&error.message);
        Failure::unanswered(503, format!("received undecodable patch in webhook response: {why}"))
    };
    let text = patch;
    let patch = Patch::read(Kind::Json, &text).map_err(undecodable)?;
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
    let patched = patch.result(shape.ty(), before, Validation::Ignore).map_err(inapplicable)?;
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
    spans::event("Patch applied");
    attributes.object = Some(object);
    notes.patch(&text);
    Ok(changed)
}

fn impossible(why: String) -> Failure {
    Failure::Impossible(StatusError::internal(why))
}

/// A patch that does not fit the object, in the words of its first cause.
fn inapplicable(unfit: Unfit) -> Failure {
    let error = match unfit {
        Unfit::Refused(error) => error,
        Unfit::Undecodable(why) => return impossible(why),
    };
    let cause = error.details.and_then(|details| details.causes?.into_iter().next()?.message);
    impossible(cause.unwrap_or(error.message))
}
