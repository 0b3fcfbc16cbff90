//! The status of a policy: what was found out about its expressions, and its conditions.

use json::Value;
use k8s_openapi::api::admissionregistration::v1::{ExpressionWarning, ValidatingAdmissionPolicyStatus};

use crate::custom::json_path::JsonPath;
use crate::object::decode;
use crate::validation::conditions;
use crate::validation::field::{Errors, FieldError, Path};

pub(super) fn validate(new: &Value, _: &Value) -> Errors {
    let path = Path::new("status");
    let status = match new.get("status").filter(|status| !status.is_null()) {
        None => return Errors::new(),
        Some(status) => decode::<ValidatingAdmissionPolicyStatus>(status),
    };
    let status = match status {
        Ok(status) => status,
        Err(why) => return vec![FieldError::invalid(&path, "", &why.to_string())],
    };
    let warnings = status.type_checking.and_then(|checking| checking.expression_warnings).unwrap_or_default();
    let place = path.child("typeChecking").child("expressionWarnings");
    let mut errors: Errors =
        warnings.iter().enumerate().flat_map(|(i, given)| warning(given, &place.index(i))).collect();
    let list = status.conditions.unwrap_or_default();
    errors.extend(conditions::validate(&list, &path.child("conditions")));
    errors
}

fn warning(given: &ExpressionWarning, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if given.warning.is_empty() {
        errors.push(FieldError::required(&path.child("warning"), ""));
    }
    let (place, field) = (path.child("fieldRef"), given.field_ref.trim());
    let start = if field.starts_with(['.', '[', '$']) { "" } else { "." };
    if field.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else if JsonPath::parse(&format!("{start}{field}")).is_none() {
        errors.push(FieldError::invalid(&place, field, "invalid JSONPath"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn warnings_name_a_field_and_conditions_have_their_form() {
        let check = |status: Value, expected: &[&str]| {
            let found: Vec<String> =
                validate(&json!({ "status": status }), &Value::Null).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{status}");
        };
        let warnings = |list: Value| json!({"typeChecking": {"expressionWarnings": list}});
        check(json!({}), &[]);
        check(Value::Null, &[]);
        check(warnings(json!([{"fieldRef": "spec.validations[0].expression", "warning": "w"}])), &[]);
        let place = "status.typeChecking.expressionWarnings[0]";
        let required = |field: &str| format!("{place}.{field}: Required value");
        check(warnings(json!([{"fieldRef": " ", "warning": ""}])), &[&required("warning"), &required("fieldRef")]);
        let path = format!("{place}.fieldRef: Invalid value: \"spec[foo]\": invalid JSONPath");
        check(warnings(json!([{"fieldRef": "spec[foo]", "warning": "w"}])), &[&path]);
        let condition = json!({"type": "a", "status": "Maybe", "reason": "R", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"});
        let unknown = "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"";
        check(json!({"conditions": [condition]}), &[unknown]);
        let timeless = json!({"type": "a", "status": "True", "reason": "R", "message": ""});
        let required = "status.conditions[0].lastTransitionTime: Required value: must be set";
        check(json!({"conditions": [timeless]}), &[required]);
    }
}
