//! JSON patch, RFC 6902: a list of operations, all or none.

use json_patch::PatchOperation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use serde::Deserialize;
use serde_json::Value;

use crate::status::StatusError;

/// Upstream's limit.
const MAX_OPERATIONS: usize = 10_000;

/// Carries out the operations on `current`.
pub fn apply(mut current: Value, patch: &Value) -> Result<Value, StatusError> {
    let operations = Vec::<PatchOperation>::deserialize(patch)
        .map_err(|e| StatusError::bad_request(format!("error decoding patch: {e}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    match json_patch::patch_unsafe(&mut current, &operations) {
        Ok(()) => Ok(current),
        Err(error) => Err(refusal(operations.get(error.operation), &error)),
    }
}

/// Upstream's message says no more than that; the cause says which operation failed and why.
fn refusal(operation: Option<&PatchOperation>, error: &json_patch::PatchError) -> StatusError {
    let why = match operation {
        Some(PatchOperation::Test(_)) => "the value is not the one tested for".to_owned(),
        Some(PatchOperation::Add(_) | PatchOperation::Remove(_) | PatchOperation::Replace(_)) => {
            "the object has no such path".to_owned()
        }
        _ => error.kind.to_string(),
    };
    let cause = StatusCause {
        field: Some(error.path.to_string()),
        message: Some(format!("operation {} failed: {why}", error.operation)),
        ..Default::default()
    };
    let details = StatusDetails { causes: Some(vec![cause]), ..Default::default() };
    let message = "the server rejected our request due to an error in our request";
    StatusError { details: Some(Box::new(details)), ..StatusError::new(422, "Invalid", message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_apply_or_say_why_not() {
        let check = |patch: Value, expected: Result<Value, (&str, &str)>| {
            let result = apply(json!({"a": {"b": [1, 2]}}), &patch);
            let cause = |e: StatusError| {
                let cause = e.details.and_then(|d| d.causes?.into_iter().next()).unwrap_or_default();
                (cause.field.unwrap_or_default(), cause.message.unwrap_or_default())
            };
            assert_eq!(result.map_err(cause), expected.map_err(|(f, m)| (f.to_owned(), m.to_owned())), "{patch}");
        };
        check(json!([{"op": "add", "path": "/a/b/-", "value": 3}]), Ok(json!({"a": {"b": [1, 2, 3]}})));
        check(json!([{"op": "remove", "path": "/a/b/0"}]), Ok(json!({"a": {"b": [2]}})));
        check(
            json!([{"op": "add", "path": "/a/c", "value": 1}, {"op": "test", "path": "/a/b/0", "value": 9}]),
            Err(("/a/b/0", "operation 1 failed: the value is not the one tested for")),
        );
        check(json!([{"op": "remove", "path": "/x"}]), Err(("/x", "operation 0 failed: the object has no such path")));
    }
}
