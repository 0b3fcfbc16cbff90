//! The metrics of policies and of match conditions, those of webhooks too, under upstream's names.
//! Upstream counterpart: policy/{validating,mutating}/metrics and pkg/admission/metrics of apiserver.

use clock::Duration;
use meter::{Metric, Metrics};

use super::super::attributes::Operation;
use super::conditions::Cost;

const SECONDS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];

static CHECKS: Metric = Metric::counter(
    "apiserver_validating_admission_policy_check_total",
    "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
);
static CHECK_SECONDS: Metric = Metric::histogram(
    "apiserver_validating_admission_policy_check_duration_seconds",
    "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding \
     and enforcement action taken.",
    SECONDS,
);
static CHANGES: Metric = Metric::counter(
    "apiserver_mutating_admission_policy_check_total",
    "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding.",
);
static CHANGE_SECONDS: Metric = Metric::histogram(
    "apiserver_mutating_admission_policy_check_duration_seconds",
    "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
    SECONDS,
);
static CONDITION_ERRORS: Metric = Metric::counter(
    "apiserver_admission_match_condition_evaluation_errors_total",
    "[ALPHA] Admission match condition evaluation errors count, identified by name of resource containing the match condition and broken \
     out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
);
static CONDITION_SECONDS: Metric = Metric::histogram(
    "apiserver_admission_match_condition_evaluation_seconds",
    "[ALPHA] Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing \
     matchConditions (webhook or policy), operation and type (validate or admit).",
    &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
);

/// Upstream's sort of an error, which it takes from its beginning. A rule that refuses is an error here, too.
fn sort(why: Option<&str>) -> &'static str {
    match why {
        None => "no_error",
        Some(why) if why.starts_with("compilation") => "compile_error",
        Some(why) if why.starts_with("validation failed due to running out of cost budget") => "out_of_budget",
        Some(_) => "invalid_error",
    }
}

#[derive(Default)]
pub struct Counts(Metrics);

/// A policy and its binding, by their names.
pub(super) type Names<'n> = (&'n str, &'n str);

impl Counts {
    /// A rule of a validating policy failed or refused, of which this came.
    pub(super) fn checked(&self, (policy, binding): Names<'_>, why: &str, action: &str, took: Duration) {
        let sort = sort(Some(why));
        let labels =
            [("enforcement_action", action), ("error_type", sort), ("policy", policy), ("policy_binding", binding)];
        self.0.count(&CHECKS, &labels);
        self.0.observe(&CHECK_SECONDS, &labels, took.as_secs_f64());
    }

    /// A mutation was made, or could not be.
    pub(super) fn changed(&self, (policy, binding): Names<'_>, why: Option<&str>, took: Duration) {
        let labels = [("error_type", sort(why)), ("policy", policy), ("policy_binding", binding)];
        self.0.count(&CHANGES, &labels);
        self.0.observe(&CHANGE_SECONDS, &labels, took.as_secs_f64());
    }

    /// The match conditions of a webhook or policy, if it has any, were evaluated.
    pub(crate) fn conditions(&self, (kind, sort, name): (&str, &str, &str), operation: Operation, cost: Option<Cost>) {
        let Some(cost) = cost else { return };
        let labels = [("kind", kind), ("name", name), ("operation", operation.name()), ("type", sort)];
        if cost.errors > 0 {
            self.0.series(&CONDITION_ERRORS, &labels).count_more(cost.errors);
        }
        self.0.observe(&CONDITION_SECONDS, &labels, cost.took.as_secs_f64());
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.0.render()
    }
}
