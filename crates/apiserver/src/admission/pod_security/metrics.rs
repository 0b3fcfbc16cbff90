//! The metrics of PodSecurity, under upstream's names.
//! Upstream counterpart: k8s.io/pod-security-admission/metrics.

use std::sync::Arc;

use meter::{Metric, Metrics, Series};

use super::{
    checks::NEWEST,
    level::{Level, Standard, Version},
};
use crate::admission::attributes::{Attributes, Operation};

static EVALUATIONS: Metric = Metric::counter(
    "pod_security_evaluations_total",
    "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.",
);
static EXEMPTIONS: Metric = Metric::counter(
    "pod_security_exemptions_total",
    "[ALPHA] Number of exempt requests, not counting ignored or out of scope requests.",
);
static ERRORS: Metric = Metric::counter(
    "pod_security_errors_total",
    "[ALPHA] Number of errors preventing normal evaluation. Non-fatal errors may result in the latest restricted profile being \
     used for evaluation.",
);

/// The mode whose standard a Pod was held against.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mode {
    Enforce,
    Audit,
    Warn,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Audit => "audit",
            Mode::Warn => "warn",
        }
    }
}

/// The counts of evaluations, exemptions and errors.
pub struct Counts {
    all: Metrics,
    /// Pods that were created, and updated, where nothing is demanded: mostly these are all that there are.
    privileged: [Arc<Series>; 2],
}

impl Default for Counts {
    fn default() -> Self {
        let all = Metrics::new();
        let privileged = ["create", "update"].map(|operation| {
            for resource in ["pod", "controller"] {
                all.series(&EXEMPTIONS, &about(operation, resource, ""));
            }
            all.series(
                &EVALUATIONS,
                &evaluation(true, (Level::Privileged, "latest"), Mode::Enforce, operation, ("pod", "")),
            )
        });
        Counts { all, privileged }
    }
}

fn about<'a>(operation: &'a str, resource: &'a str, subresource: &'a str) -> [(&'a str, &'a str); 3] {
    [("request_operation", operation), ("resource", resource), ("subresource", subresource)]
}

fn evaluation<'a>(
    allowed: bool,
    (level, version): (Level, &'a str),
    mode: Mode,
    operation: &'a str,
    (resource, subresource): (&'a str, &'a str),
) -> [(&'a str, &'a str); 7] {
    let [operation, resource, subresource] = about(operation, resource, subresource);
    let decision = if allowed { "allow" } else { "deny" };
    let policy = [("policy_level", level.name()), ("policy_version", version)];
    [("decision", decision), ("mode", mode.name()), policy[0], policy[1], operation, resource, subresource]
}

/// Only creates and updates are looked at.
fn operation(attributes: &Attributes<'_>) -> &'static str {
    if attributes.operation == Operation::Create { "create" } else { "update" }
}

/// All but Pods are workloads that make some.
fn resource(attributes: &Attributes<'_>) -> &'static str {
    let definition = attributes.definition;
    if definition.group.is_empty() && definition.plural == "pods" { "pod" } else { "controller" }
}

impl Counts {
    /// A Pod was held against a standard.
    pub(super) fn evaluated(&self, attributes: &Attributes<'_>, mode: Mode, standard: Standard, allowed: bool) {
        let version = match standard.version {
            _ if standard.level == Level::Privileged => "latest".to_owned(),
            // A release that this server does not know: there are as many as somebody thinks of.
            Version::Minor(minor) if minor > NEWEST => "future".to_owned(),
            known => known.to_string(),
        };
        let (operation, resource) = (operation(attributes), resource(attributes));
        let of = evaluation(allowed, (standard.level, &version), mode, operation, (resource, attributes.subresource));
        self.all.count(&EVALUATIONS, &of);
    }

    /// Nothing is demanded of a Pod.
    pub(super) fn unrestricted(&self, attributes: &Attributes<'_>) {
        if attributes.subresource.is_empty() {
            self.privileged[usize::from(attributes.operation != Operation::Create)].count();
        } else {
            self.evaluated(attributes, Mode::Enforce, Standard::PRIVILEGED, true);
        }
    }

    pub(super) fn exempted(&self, attributes: &Attributes<'_>) {
        self.all.count(&EXEMPTIONS, &about(operation(attributes), resource(attributes), attributes.subresource));
    }

    /// `fatal` is an error that kept a Pod from being looked at; after another one it is looked at as strictly as can be.
    pub(super) fn failed(&self, attributes: &Attributes<'_>, fatal: bool) {
        let fatal = ("fatal", if fatal { "true" } else { "false" });
        let [operation, resource, subresource] =
            about(operation(attributes), resource(attributes), attributes.subresource);
        self.all.count(&ERRORS, &[fatal, operation, resource, subresource]);
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.all.render()
    }
}
