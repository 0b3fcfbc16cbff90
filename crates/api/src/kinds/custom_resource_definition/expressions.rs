//! The rules of a place in a schema: their form, and whether they compile.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

use super::costs::Costs;
use crate::custom::{Compiler, Structural, resolve_field};
use crate::validation::field::{Cause, Errors, FieldError, Path};

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

fn has_breaks(text: &str) -> bool {
    text.contains(['\n', '\r'])
}

/// The errors of rules before they are compiled.
pub fn forms(rules: &[ValidationRule], schema: &Structural, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (i, rule) in rules.iter().enumerate() {
        let place = path.index(i);
        let text = rule.rule.trim();
        let message = rule.message.as_deref().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(&place.child("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            let detail = "must be non-empty if specified";
            errors.push(FieldError::invalid(&place.child("message"), message, detail));
        } else if has_breaks(message.trim()) {
            errors.push(FieldError::invalid(&place.child("message"), message, "must not contain line breaks"));
        } else if has_breaks(text) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&place.child("message"), detail));
        }
        if rule.message_expression.as_deref().is_some_and(|text| !text.is_empty() && text.trim().is_empty()) {
            let detail = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(&place.child("messageExpression"), detail));
        }
        if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(&place.child("reason"), reason, &REASONS));
        }
        let field = rule.field_path.as_deref().unwrap_or_default();
        let of_field = place.child("fieldPath");
        if !field.is_empty() && field.trim().is_empty() {
            errors.push(FieldError::invalid(&of_field, field, "must be non-empty if specified"));
        }
        if has_breaks(field) {
            errors.push(FieldError::invalid(&of_field, field, "must not contain line breaks"));
        }
        if !field.is_empty() && resolve_field(field, schema, true).is_err() {
            errors.push(FieldError::invalid(&of_field, field, "must be a valid path"));
        }
    }
    errors
}

/// Where rules stand.
pub struct Place<'p> {
    pub schema: &'p Structural,
    /// It has kind and metadata of its own.
    pub whole: bool,
    /// The place from which on old and new values cannot be told apart.
    pub lost: Option<&'p Path>,
    pub path: &'p Path,
}

/// The errors of the compiler, and of the rules' costs.
pub fn compile(rules: &[ValidationRule], place: &Place<'_>, cardinality: Option<u64>, costs: &mut Costs) -> Errors {
    let Place { schema, whole, lost, path } = *place;
    let Some(compiler) = Compiler::estimating(schema, whole) else {
        let why = "Internal error: internal error: failed to retrieve type information for x-kubernetes-validations";
        return vec![FieldError { path: path.clone(), cause: Cause::Internal, detail: why.to_owned() }];
    };
    let mut errors = Errors::new();
    for (i, rule) in rules.iter().enumerate() {
        let (place, compiled) = (path.index(i), compiler.compile(rule));
        let cost = compiled.cost.saturating_mul(cardinality.unwrap_or_else(|| compiler.cardinality()));
        errors.extend(costs.of_one("estimated rule cost", &place.child("rule"), cost));
        if let Err(why) = &compiled.rule {
            errors.push(FieldError::invalid(&place.child("rule"), rule, why));
        }
        let of_message = place.child("messageExpression");
        match &compiled.message {
            Some(Err(why)) => errors.push(FieldError::invalid(&of_message, rule, why)),
            Some(Ok(_)) => {
                errors.extend(costs.of_one("estimated messageExpression cost", &of_message, compiled.message_cost));
            }
            None => {}
        }
        if let Some(lost) = lost.filter(|_| compiled.uses_old) {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {lost}");
            errors.push(FieldError::invalid(&place.child("rule"), &rule.rule, &detail));
        } else if !compiled.uses_old
            && compiled.rule.is_ok()
            && let Some(optional) = rule.optional_old_self
        {
            let detail = "may not be set if oldSelf is not used in rule";
            errors.push(FieldError::invalid(&place.child("optionalOldSelf"), optional, detail));
        }
    }
    errors
}
