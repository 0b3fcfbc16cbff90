//! MutatingAdmissionPolicy: changes of the cluster's administrators, in expressions, that are made to objects before they are
//! written. Each policy sees what those before it made.
//! Upstream counterpart: staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/mutating.

use std::sync::Arc;

use api::k8s_openapi::{
    api::admissionregistration::v1beta1::MutatingAdmissionPolicySpec, apimachinery::pkg::apis::meta::v1::StatusCause,
};
use api::{Value, kind::Definition, meta, status::StatusError};
use clock::{Duration, Instant};

use super::super::{
    attributes::{Attributes, Group, Operation},
    plugin::{Context, forbid},
    shape::{Shape, restore_managers},
};
use super::changes::Failure;
use super::input::Input;
use super::invocations;
use super::source;

type Hook = source::Hook<MutatingAdmissionPolicySpec>;
type Invocation = invocations::Invocation<MutatingAdmissionPolicySpec>;

/// Something wrong with a policy, which refuses the write.
struct Refusal {
    message: String,
    /// The reason of the answer, where it is not that of a refusal.
    reason: Option<&'static str>,
}

pub(super) async fn admit(
    context: &Context,
    attributes: &mut Attributes<'_>,
    hooks: Arc<Vec<Hook>>,
) -> Result<(), StatusError> {
    let namespace = invocations::namespace(context, attributes).await?;
    let (mut refusals, mut all) = (Vec::new(), Vec::new());
    for found in invocations::select(context, attributes, &hooks, namespace.as_deref()).await {
        match found {
            Ok(invocation) => all.push(invocation),
            Err(wrong) if wrong.policy.about.ignores_failures => {}
            Err(wrong) => {
                let binding = wrong.binding.as_ref().map(|b| b.name.as_str());
                refusals.push(Refusal { message: denied(&wrong.policy.name, binding, &wrong.message()), reason: None });
            }
        }
    }
    if !all.is_empty() {
        attributes.reinvocation.enter(Group::Policies, attributes.object.as_ref());
        let mut changes = Changes { context, namespace, seen: None, ran: false };
        for invocation in &all {
            refusals.extend(changes.invoke(attributes, invocation).await?);
            // An evaluation may take as long as its budget allows.
            tokio::task::yield_now().await;
        }
        // Upstream takes every mutation that was made for a change of the object.
        if changes.ran {
            attributes.reinvocation.changed(Group::Policies);
        }
        attributes.reinvocation.leave(Group::Policies, attributes.object.as_ref());
    }
    if refusals.is_empty() { Ok(()) } else { Err(refuse(attributes, refusals)) }
}

/// The mutations of one round.
struct Changes<'c> {
    context: &'c Context,
    namespace: Option<Arc<Value>>,
    /// The write as the last policy sees it, with the kind that it wants to see.
    seen: Option<(Arc<Definition>, Input)>,
    /// Whether any mutation was made.
    ran: bool,
}

impl Changes<'_> {
    async fn invoke(
        &mut self,
        attributes: &mut Attributes<'_>,
        invocation: &Invocation,
    ) -> Result<Vec<Refusal>, StatusError> {
        let Invocation { policy, binding, params, definition } = invocation;
        let failed = |why: &str| {
            let message = denied(&policy.name, Some(&binding.name), why);
            (!policy.about.ignores_failures).then_some(Refusal { message, reason: Some("Invalid") })
        };
        let params = params.as_deref();
        let evaluator = policy.evaluator();
        let mut input = self.input(attributes, definition).await?;
        let (matches, cost) = input.settled(|| evaluator.conditions.hold(&input, params)).await;
        let about = ("policy", "validate", policy.name.as_str());
        self.context.policies.metrics.conditions(about, attributes.operation, cost);
        let key = key(invocation);
        let called = *matches.as_ref().unwrap_or(&false) && attributes.reinvocation.calls(Group::Policies, &key);
        let mut refusals = Vec::new();
        if let Err(why) = matches {
            refusals.extend(failed(&why));
        }
        if !called {
            self.seen = Some((definition.clone(), input));
            return Ok(refusals);
        }
        let mut changed = false;
        let steps = attributes.object.as_ref().map_or(&[][..], |_| &evaluator.mutations);
        for step in steps {
            let shape = Shape::of(definition, &input.object);
            let ty = shape.known().ok_or_else(|| unknown(&input.object))?;
            let began = Instant::now();
            let made = input.settled(|| evaluator.change(step, &input, params, ty)).await;
            self.count(invocation, &made, began.elapsed());
            match made {
                Ok(object) => {
                    self.ran = true;
                    changed |= take(attributes, definition, &mut input, object)?;
                }
                Err(Failure::Policy(why)) => refusals.extend(failed(&why)),
                Err(Failure::Request(error)) => return Err(error),
            }
        }
        if changed {
            let back = match Shape::of(definition, &input.object) {
                Shape::Own(_) => {
                    self.context.objects.between(definition, attributes.definition, &input.object).await.map_err(
                        |error| StatusError::internal(format!("failed to convert object: {}", error.message)),
                    )?
                }
                _ => input.object.clone(),
            };
            attributes.object = Some(back);
            attributes.reinvocation.changed(Group::Policies);
        }
        if evaluator.reinvocable {
            attributes.reinvocation.called(Group::Policies, &key);
        }
        self.seen = Some((definition.clone(), input));
        Ok(refusals)
    }

    fn count(&self, Invocation { policy, binding, .. }: &Invocation, made: &Result<Value, Failure>, took: Duration) {
        let why = made.as_ref().err().map(|failure| match failure {
            Failure::Policy(why) => why.as_str(),
            Failure::Request(error) => error.message.as_str(),
        });
        self.context.policies.metrics.changed((&policy.name, &binding.name), why, took);
    }

    /// The write in the kind that a policy wants to see.
    async fn input(&mut self, attributes: &Attributes<'_>, definition: &Arc<Definition>) -> Result<Input, StatusError> {
        match self.seen.take() {
            Some((known, input)) if Arc::ptr_eq(&known, definition) => Ok(input),
            _ => {
                let asked = (&*self.context.objects, self.context.authorizer.clone());
                let input = Input::new(asked, attributes, definition, self.namespace.clone()).await;
                input.map_err(|error| StatusError::internal(error.message))
            }
        }
    }
}

/// Puts an object that a mutation made in the place of the one before. True when they differ.
fn take(
    attributes: &mut Attributes<'_>,
    definition: &Definition,
    input: &mut Input,
    mut object: Value,
) -> Result<bool, StatusError> {
    let before = &input.object;
    if (&object["apiVersion"], &object["kind"]) != (&before["apiVersion"], &before["kind"]) {
        return Err(StatusError::internal("a policy attempted to make another kind of the object"));
    }
    attributes.warnings.extend(restore_managers(&mut object, before));
    let old = (attributes.operation == Operation::Update).then_some(&input.old);
    Shape::of(definition, before).default(&mut object, old);
    let changed = object != *before;
    input.object = object;
    Ok(changed)
}

/// The text that tells an invocation apart from others in the rounds.
fn key(invocation: &Invocation) -> String {
    let Invocation { policy, binding, params, .. } = invocation;
    let params = params.as_deref().map(|params| (meta::namespace(params), meta::name(params)));
    format!("{:?}", (&policy.name, &binding.name, params))
}

fn unknown(object: &Value) -> StatusError {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (group, version) = meta::group_and_version(text("apiVersion"));
    let kind = text("kind");
    let why = "There can be a delay between when CustomResourceDefinitions are created and when they are available.";
    StatusError::new(
        503,
        "ServiceUnavailable",
        format!("Resource kind {group}/{version}, Kind={kind} not found. {why}"),
    )
}

fn denied(policy: &str, binding: Option<&str>, why: &str) -> String {
    match binding {
        Some(binding) => format!("policy '{policy}' with binding '{binding}' denied request: {why}"),
        None => format!("policy {policy:?} denied request: {why}"),
    }
}

/// The first refusal is what the client reads; all are among the causes.
fn refuse(attributes: &Attributes<'_>, refusals: Vec<Refusal>) -> StatusError {
    let mut error = forbid(attributes, "admission request denied by policy");
    if let Some(first) = refusals.first() {
        error.message.clone_from(&first.message);
        if let Some(reason) = first.reason {
            error.reason = reason.into();
        }
    }
    if let Some(details) = &mut error.details {
        let cause = |refusal: Refusal| StatusCause { message: Some(refusal.message), ..StatusCause::default() };
        details.causes.get_or_insert_default().extend(refusals.into_iter().map(cause));
    }
    error
}
