//! PodSecurity: Pods keep to the standard that the labels of their namespace name, and workloads whose Pods would not
//! are told so.
//!
//! The Pods themselves are held to the enforced standard, their workloads only warned: so a workload is stored, and its
//! controller reads the refusal. Upstream counterpart: k8s.io/pod-security-admission.

mod baseline;
#[cfg(test)]
mod cases;
mod checks;
pub mod configuration;
mod level;
pub mod metrics;
mod namespace;
mod restricted;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;
mod violation;
mod workload;
#[cfg(test)]
mod writes;

use api::{Value, meta, status::StatusError};

pub use self::configuration::{Configuration, Exemptions};
pub use self::level::{Level, Policy, Standard, Version};
use self::{
    checks::{details, violations},
    metrics::{Counts, Mode},
    workload::Workload,
};
use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, items, text},
    reasons,
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodSecurity",
    concerns: |attributes| Concern::of(attributes).is_some(),
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

/// Writes of these subresources of Pods cannot change what a Pod may do. Any other one is looked at, also one that
/// nobody has thought of yet.
const HARMLESS: &[&str] = &["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// The kinds that make Pods, and where they have the template.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("", "replicationcontrollers", "/spec/template"),
    ("", "podtemplates", "/template"),
    ("apps", "replicasets", "/spec/template"),
    ("apps", "deployments", "/spec/template"),
    ("apps", "statefulsets", "/spec/template"),
    ("apps", "daemonsets", "/spec/template"),
    ("batch", "jobs", "/spec/template"),
    ("batch", "cronjobs", "/spec/jobTemplate/spec/template"),
];

/// The sorts of writes that this plugin tells apart.
enum Concern {
    Namespace,
    Pod,
    /// A workload, with the place of its template.
    Template(&'static str),
}

impl Concern {
    fn of(attributes: &Attributes<'_>) -> Option<Concern> {
        if !matches!(attributes.operation, Operation::Create | Operation::Update) {
            return None;
        }
        let (group, plural) = (attributes.definition.group.as_str(), attributes.definition.plural.as_str());
        match (group, plural, attributes.subresource) {
            ("", "pods", subresource) => (!HARMLESS.contains(&subresource)).then_some(Concern::Pod),
            ("", "namespaces", "") => Some(Concern::Namespace),
            (_, _, "") => {
                let found = TEMPLATES.iter().find(|(g, p, _)| (*g, *p) == (group, plural));
                found.map(|(_, _, place)| Concern::Template(place))
            }
            _ => None,
        }
    }
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let template_at = match Concern::of(attributes) {
        None => return Ok(()),
        Some(Concern::Namespace) => return namespace::validate(context, attributes).await,
        Some(Concern::Pod) => None,
        Some(Concern::Template(place)) => Some(place),
    };
    let exempt = &context.pod_security.exempt;
    if exempt.namespaces.iter().any(|name| name == attributes.namespace) {
        exempted(context, attributes, "namespace");
        return Ok(());
    }
    if exempt.users.contains(&attributes.user.name) {
        exempted(context, attributes, "user");
        return Ok(());
    }
    let found = context.objects.get("", "namespaces", "", attributes.namespace).await;
    let found =
        found.and_then(|found| found.ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace)));
    match (template_at, found) {
        (None, Ok(namespace)) => pod(context, &namespace, attributes),
        (Some(place), Ok(namespace)) => {
            template(context, &namespace, place, attributes);
            Ok(())
        }
        (None, Err(error)) => {
            let why = StatusError::internal(format!("failed to lookup namespace {:?}", attributes.namespace));
            failed(context, attributes, &format!("{}: {}", why.message, error.message));
            Err(why)
        }
        // Without a namespace the workload's Pods are refused.
        (Some(_), Err(error)) => {
            let why = format!("failed to lookup namespace {:?}: {}", attributes.namespace, error.message);
            failed(context, attributes, &why);
            Ok(())
        }
    }
}

/// An error keeps the object from being looked at.
fn failed(context: &Context, attributes: &Attributes<'_>, why: &str) {
    context.pod_security_counts.failed(attributes, true);
    annotate(attributes, "error", why);
}

fn exempted(context: &Context, attributes: &Attributes<'_>, by: &str) {
    context.pod_security_counts.exempted(attributes);
    annotate(attributes, "exempt", by);
}

fn pod(context: &Context, namespace: &Value, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let counts = &context.pod_security_counts;
    let (policy, errors) = Policy::of(meta::labels(namespace), &context.pod_security.defaults);
    if errors.is_empty() && policy.is_privileged() {
        counts.unrestricted(attributes);
        annotate(attributes, "enforce-policy", Standard::PRIVILEGED);
        return Ok(());
    }
    let Some(pod) = &attributes.object else { return Ok(()) };
    if attributes.old.is_some_and(|old| !may_matter(pod, old)) {
        return Ok(());
    }
    let workload = Workload::read(pod).map_err(|_| {
        let why = "failed to decode pod";
        failed(context, attributes, why);
        StatusError::bad_request(why)
    })?;
    if is_exempt(context, &workload, attributes) {
        return Ok(());
    }
    tell_errors(context, attributes, &errors);
    annotate(attributes, "enforce-policy", policy.enforce);
    let found = violations(policy.enforce, &workload);
    counts.evaluated(attributes, Mode::Enforce, policy.enforce, found.is_empty());
    audit(counts, policy, &workload, attributes);
    if !found.is_empty() {
        let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
        return Err(forbid(attributes, why));
    }
    warn(counts, policy, &workload, attributes);
    Ok(())
}

/// A workload is never refused.
fn template(context: &Context, namespace: &Value, place: &str, attributes: &mut Attributes<'_>) {
    let (policy, errors) = Policy::of(meta::labels(namespace), &context.pod_security.defaults);
    if errors.is_empty() && policy.warn.level == Level::Privileged && policy.audit.level == Level::Privileged {
        return;
    }
    let template = attributes.object.as_ref().and_then(|object| meta::at(object, place));
    let Some(template) = template.filter(|template| !template.is_null()) else { return };
    let workload = match Workload::read(template) {
        Ok(workload) => workload,
        Err(error) => return failed(context, attributes, &format!("failed to extract pod template: {error}")),
    };
    if !is_exempt(context, &workload, attributes) {
        let counts = &context.pod_security_counts;
        tell_errors(context, attributes, &errors);
        audit(counts, policy, &workload, attributes);
        warn(counts, policy, &workload, attributes);
    }
}

fn is_exempt(context: &Context, workload: &Workload, attributes: &Attributes<'_>) -> bool {
    let class = workload.spec.runtime_class_name.as_ref();
    let exempt = class.is_some_and(|name| context.pod_security.exempt.runtime_classes.contains(name));
    if exempt {
        exempted(context, attributes, "runtimeClass");
    }
    exempt
}

fn audit(counts: &Counts, policy: Policy, workload: &Workload, attributes: &Attributes<'_>) {
    let found = violations(policy.audit, workload);
    if !found.is_empty() {
        counts.evaluated(attributes, Mode::Audit, policy.audit, false);
        let what = format!("would violate PodSecurity \"{}\": {}", policy.audit, details(&found));
        annotate(attributes, "audit-violations", what);
    }
}

fn warn(counts: &Counts, policy: Policy, workload: &Workload, attributes: &mut Attributes<'_>) {
    let found = violations(policy.warn, workload);
    if !found.is_empty() {
        counts.evaluated(attributes, Mode::Warn, policy.warn, false);
        let what = format!("would violate PodSecurity \"{}\": {}", policy.warn, details(&found));
        attributes.warnings.push(what);
    }
}

fn annotate(attributes: &Attributes<'_>, key: &str, value: impl std::fmt::Display) {
    if attributes.trail.is_on() {
        attributes.trail.annotate(format!("pod-security.kubernetes.io/{key}"), value.to_string());
    }
}

/// The labels of the namespace cannot be understood.
fn tell_errors(context: &Context, attributes: &Attributes<'_>, errors: &[api::validation::field::FieldError]) {
    let each: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let Some(all) = reasons::together(&each) else { return };
    context.pod_security_counts.failed(attributes, false);
    annotate(attributes, "error", format!("Failed to parse policy: {all}"));
}

/// Whether an update of a Pod changes something that a check could look at: of what can be changed at all these are the
/// images, and further containers. Everything else of an old Pod is left in peace when its namespace grows stricter.
fn may_matter(new: &Value, old: &Value) -> bool {
    let changed = |list: &str| {
        let images = |pod| items(pod, list).map(|container| text(container, "/image"));
        !images(new).eq(images(old))
    };
    let debuggers = "/spec/ephemeralContainers";
    let known = |container: &Value| {
        let same = |other: &Value| text(other, "/name") == text(container, "/name");
        items(old, debuggers).find(|other| same(other)).is_some_and(|o| text(o, "/image") == text(container, "/image"))
    };
    changed("/spec/containers") || changed("/spec/initContainers") || !items(new, debuggers).all(known)
}
