//! A policy's expressions, compiled, and what they say about a write.

use api::Value;
use api::k8s_openapi::api::admissionregistration::v1::{AuditAnnotation, ValidatingAdmissionPolicySpec, Validation};
use api::rules::cel::admission::{OptionalVariables, VARIABLES, compile, environment};
use cel::{Composed, Type, Value as Cel};
use clock::{Duration, Instant};

use super::BUDGET;
use super::conditions::{Conditions, Cost};
use super::expressions::{Compiled, OUT_OF_BUDGET, OutOfBudget, Run};
use super::input::Input;

const LONGEST_MESSAGE: usize = 5 * 1024;

struct Rule {
    expression: Compiled,
    message: String,
    message_expression: Option<Compiled>,
    reason: String,
}

pub struct Evaluator {
    ignores_failures: bool,
    conditions: Conditions,
    variables: Vec<Composed>,
    rules: Vec<Rule>,
    annotations: Vec<(String, Compiled)>,
}

pub(super) struct Denial {
    pub message: String,
    pub reason: String,
}

impl Denial {
    pub(super) fn error(message: String) -> Self {
        Denial { message, reason: String::new() }
    }
}

pub(super) enum Decision {
    Admit,
    /// The rule failed, and its policy ignores that.
    Ignored(String),
    Deny(Denial),
}

pub(super) enum Audit {
    Publish {
        key: String,
        value: String,
    },
    /// Refuses the write.
    Failed {
        why: String,
        took: Duration,
    },
}

/// The outcome of one run.
#[derive(Default)]
pub(super) struct Outcome {
    /// Each with the time that its expression took.
    pub decisions: Vec<(Decision, Duration)>,
    pub audits: Vec<Audit>,
    /// The cost of the match conditions.
    pub conditions: Option<Cost>,
}

impl Evaluator {
    pub(super) fn new(spec: &ValidatingAdmissionPolicySpec) -> Evaluator {
        let params = spec.param_kind.is_some();
        let mut asking = environment(OptionalVariables { params, authorizer: true });
        let mut telling = environment(OptionalVariables { params, authorizer: false });
        let ignores_failures = spec.failure_policy.as_deref() == Some("Ignore");
        let conditions = spec.match_conditions.as_deref().unwrap_or_default();
        let conditions = Conditions::new(&asking, conditions, ignores_failures);
        let mut variables = Vec::new();
        for variable in spec.variables.iter().flatten() {
            let program = compile(&asking, &variable.expression, &[]);
            let kind = program.as_ref().map_or(Type::Dyn, |p| p.result_type().clone());
            asking.compose(VARIABLES, &variable.name, kind.clone());
            telling.compose(VARIABLES, &variable.name, kind);
            variables.push((variable.name.clone(), program));
        }
        let rule = |v: &Validation| Rule {
            expression: Compiled::new(&asking, &v.expression, &[Type::Bool]),
            message: v.message.as_deref().unwrap_or_default().trim().to_owned(),
            message_expression: v
                .message_expression
                .as_deref()
                .filter(|m| !m.is_empty())
                .map(|m| Compiled::new(&telling, m, &[Type::String])),
            reason: v.reason.clone().unwrap_or_else(|| "Invalid".to_owned()),
        };
        let annotation = |a: &AuditAnnotation| {
            (a.key.clone(), Compiled::new(&asking, &a.value_expression, &[Type::String, Type::Null]))
        };
        Evaluator {
            ignores_failures,
            conditions,
            rules: spec.validations.iter().flatten().map(rule).collect(),
            annotations: spec.audit_annotations.iter().flatten().map(annotation).collect(),
            variables,
        }
    }

    /// The decision that follows from an expression that could not be evaluated.
    fn failure(&self, message: String) -> Decision {
        if self.ignores_failures { Decision::Ignored(message) } else { Decision::Deny(Denial::error(message)) }
    }

    fn failed(&self, message: String) -> Outcome {
        Outcome { decisions: vec![(self.failure(message), Duration::ZERO)], ..Outcome::default() }
    }

    pub(super) fn validate(&self, input: &Input, params: Option<&Value>) -> Outcome {
        let (hold, conditions) = self.conditions.hold(input, params);
        let outcome = match hold {
            Ok(true) => self.checked(input, params),
            Ok(false) => Outcome::default(),
            Err(why) => self.failed(why),
        };
        Outcome { conditions, ..outcome }
    }

    fn checked(&self, input: &Input, params: Option<&Value>) -> Outcome {
        let mut run = Run::new(&self.variables, input.of_validations(params), BUDGET);
        let mut results = Vec::new();
        for rule in &self.rules {
            let began = Instant::now();
            match run.evaluate(&rule.expression) {
                Ok(result) => {
                    results.push((result.map(|value| matches!(value, Cel::Bool(true))), began.elapsed()));
                }
                Err(OutOfBudget) => return self.failed(OUT_OF_BUDGET.to_owned()),
            }
        }
        let messages = self.messages(input, params, run.remaining);
        let mut decisions = Vec::new();
        for (index, (rule, (result, took))) in self.rules.iter().zip(results).enumerate() {
            let decision = match (result, &messages) {
                (Err(why), _) => self.failure(why),
                (Ok(_), Err(OutOfBudget)) => self.failure(format!("failed messageExpression: {OUT_OF_BUDGET}")),
                (Ok(true), _) => Decision::Admit,
                (Ok(false), Ok(messages)) => {
                    let message = rule.message(messages[index].as_deref());
                    Decision::Deny(Denial { message, reason: rule.reason.clone() })
                }
            };
            decisions.push((decision, took));
        }
        match self.audits(input, params) {
            Ok(audits) => Outcome { decisions, audits, conditions: None },
            Err(OutOfBudget) => self.failed(OUT_OF_BUDGET.to_owned()),
        }
    }

    /// The messages that expressions make, where they succeed.
    fn messages(&self, input: &Input, params: Option<&Value>, budget: u64) -> Result<Vec<Option<String>>, OutOfBudget> {
        let mut run = Run::new(&self.variables, input.of_messages(params), budget);
        let mut messages = Vec::new();
        for rule in &self.rules {
            let made = rule.message_expression.as_ref().map(|m| run.evaluate(m)).transpose()?;
            messages.push(match made {
                Some(Ok(Cel::String(text))) => Some(text.trim().to_owned()),
                _ => None,
            });
        }
        Ok(messages)
    }

    fn audits(&self, input: &Input, params: Option<&Value>) -> Result<Vec<Audit>, OutOfBudget> {
        let mut run = Run::new(&self.variables, input.of_messages(params), BUDGET);
        let mut audits = Vec::new();
        for (key, annotation) in &self.annotations {
            let began = Instant::now();
            let failed = |why: String| Audit::Failed { why, took: began.elapsed() };
            match run.evaluate(annotation)? {
                Ok(Cel::String(text)) if !text.trim().is_empty() => {
                    audits.push(Audit::Publish { key: key.clone(), value: text.trim().to_owned() });
                }
                Ok(Cel::String(_) | Cel::Null) => {}
                Ok(other) => audits.push(failed(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or \
                     null.",
                    annotation.text,
                    other.type_of()
                ))),
                Err(_) if self.ignores_failures => {}
                Err(why) => audits.push(failed(why)),
            }
        }
        Ok(audits)
    }
}

impl Rule {
    /// The message of a denial: what its expression made, or its own, or the expression that failed.
    fn message(&self, made: Option<&str>) -> String {
        let fits = |m: &&str| !m.is_empty() && m.len() <= LONGEST_MESSAGE && !m.contains('\n');
        match made.filter(fits) {
            Some(made) => made.to_owned(),
            None if !self.message.is_empty() => self.message.clone(),
            None => format!("failed expression: {}", self.expression.text.trim()),
        }
    }
}
