//! The expressions of a policy: each is there, compiles, and has a result of the right type.

use cel::{Environment, Type};
use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchCondition, ValidatingAdmissionPolicy, Validation, Variable,
};

use crate::rules::cel::admission::{OptionalVariables, VARIABLES, compile, environment};
use crate::rules::cel::refused;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names::qualified_name;
use crate::validation::object_meta::invalid;

const MOST_CONDITIONS: usize = 64;
const MOST_ANNOTATIONS: usize = 20;
const LONGEST_ANNOTATION: usize = 5 * 1024;
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// `conditions` is whether those are checked, too, before which a policy is asked about an object.
pub(super) fn validate(policy: &ValidatingAdmissionPolicy, conditions: bool, path: &Path) -> Errors {
    let Some(spec) = &policy.spec else { return Errors::new() };
    let params = spec.param_kind.is_some();
    let conditions = spec.match_conditions.as_deref().filter(|_| conditions).unwrap_or_default();
    let mut errors = match_conditions(conditions, params, &path.child("matchConditions"));
    // Messages are made without the right to ask what users may do.
    let mut asking = environment(OptionalVariables { params, authorizer: true });
    let mut telling = environment(OptionalVariables { params, authorizer: false });
    for (i, one) in spec.variables.iter().flatten().enumerate() {
        errors.extend(variable(one, &mut asking, &mut telling, &path.child("variables").index(i)));
    }
    let validations = spec.validations.as_deref().unwrap_or_default();
    let annotations = spec.audit_annotations.as_deref().unwrap_or_default();
    if validations.is_empty() && annotations.is_empty() {
        let detail = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required(&path.child("validations"), detail));
        errors.push(FieldError::required(&path.child("auditAnnotations"), detail));
        return errors;
    }
    for (i, one) in validations.iter().enumerate() {
        errors.extend(validation(one, &asking, &telling, &path.child("validations").index(i)));
    }
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    errors.extend(audit_annotations(annotations, name, &asking, &path.child("auditAnnotations")));
    errors
}

pub(super) fn compiles(
    environment: &Environment,
    expression: &str,
    results: &[Type],
    path: &Path,
) -> Option<FieldError> {
    compile(environment, expression, results).err().map(|why| refused(path, expression, &why))
}

/// Conditions are asked before variables have a meaning.
pub(crate) fn match_conditions(conditions: &[MatchCondition], params: bool, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if conditions.len() > MOST_CONDITIONS {
        errors.push(FieldError::too_many(path, conditions.len(), MOST_CONDITIONS));
        return errors;
    }
    let environment = environment(OptionalVariables { params, authorizer: true });
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        match condition.expression.trim() {
            "" => errors.push(FieldError::required(&path.child("expression"), "")),
            text => errors.extend(compiles(&environment, text, &[Type::Bool], &path.child("expression"))),
        }
        let place = path.child("name");
        if condition.name.is_empty() {
            errors.push(FieldError::required(&place, ""));
            continue;
        }
        errors.extend(invalid(&place, &condition.name, qualified_name(&condition.name)));
        if conditions[..i].iter().any(|before| before.name == condition.name) {
            errors.push(FieldError::duplicate(&place, &condition.name));
        }
    }
    errors
}

/// A variable is known to those behind it, also when it does not compile. It is an expression of the first environment.
pub(super) fn variable(one: &Variable, asking: &mut Environment, telling: &mut Environment, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if one.name.trim().is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name is not specified"));
    } else if !cel::is_identifier(&one.name) {
        let detail = "name is not a valid CEL identifier";
        errors.push(FieldError::invalid(&path.child("name"), &one.name, detail));
    }
    let mut kind = Type::Dyn;
    if one.expression.trim().is_empty() {
        errors.push(FieldError::required(&path.child("expression"), "expression is not specified"));
    } else {
        match compile(asking, &one.expression, &[]) {
            Ok(program) => kind = program.result_type().clone(),
            Err(why) => errors.push(refused(&path.child("expression"), &one.expression, &why)),
        }
    }
    asking.compose(VARIABLES, &one.name, kind.clone());
    telling.compose(VARIABLES, &one.name, kind);
    errors
}

fn validation(one: &Validation, asking: &Environment, telling: &Environment, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let place = path.child("expression");
    if one.expression.trim().is_empty() {
        errors.push(FieldError::required(&place, "expression is not specified"));
    } else {
        errors.extend(compiles(asking, &one.expression, &[Type::Bool], &place));
    }
    let place = path.child("messageExpression");
    match one.message_expression.as_deref().filter(|m| !m.is_empty()) {
        Some(text) if text.trim().is_empty() => {
            errors.push(FieldError::invalid(&place, text, "must be non-empty if specified"));
        }
        Some(text) => errors.extend(compiles(telling, text, &[Type::String], &place)),
        None => {}
    }
    let message = one.message.as_deref().unwrap_or_default();
    if !message.is_empty() && message.trim().is_empty() {
        let detail = "message must be non-empty if specified";
        errors.push(FieldError::invalid(&path.child("message"), message, detail));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(&path.child("message"), message, "message must not contain line breaks"));
    }
    if let Some(reason) = one.reason.as_deref().filter(|r| !REASONS.contains(r)) {
        errors.push(FieldError::not_supported(&path.child("reason"), reason, &REASONS));
    }
    errors
}

fn audit_annotations(annotations: &[AuditAnnotation], policy: &str, asking: &Environment, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if annotations.len() > MOST_ANNOTATIONS {
        let detail = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        errors.push(FieldError::invalid(path, annotations, &detail));
        return errors;
    }
    for (i, one) in annotations.iter().enumerate() {
        let path = path.index(i);
        let whole = format!("{policy}/{}", one.key);
        if policy.is_empty() {
            errors.push(FieldError::invalid(&path.child("key"), &one.key, "requires metadata.name be non-empty"));
        } else {
            errors.extend(invalid(&path.child("key"), &whole, qualified_name(&whole)));
        }
        let place = path.child("valueExpression");
        match one.value_expression.trim() {
            "" => errors.push(FieldError::required(&place, "valueExpression is not specified")),
            text if text.len() > LONGEST_ANNOTATION => {
                let detail = format!("must not exceed {LONGEST_ANNOTATION} bytes in length");
                errors.push(FieldError::required(&place, &detail));
            }
            text => {
                let found = compile(asking, text, &[Type::String, Type::Null]).err();
                errors.extend(found.map(|why| refused(&place, &one.value_expression, &why)));
            }
        }
        if annotations[..i].iter().any(|before| before.key == one.key) {
            errors.push(FieldError::duplicate(&path.child("key"), &one.key));
        }
    }
    errors
}
