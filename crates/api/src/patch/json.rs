//! JSON patch, RFC 6902: a list of operations, all or none.

use json_patch::PatchOperation;
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
        Err(error) => {
            let operation = operations.get(error.operation);
            Err(StatusError::new(422, "Invalid", message(operation, &error)))
        }
    }
}

/// What upstream's library says.
fn message(operation: Option<&PatchOperation>, error: &json_patch::PatchError) -> String {
    let path = error.path.to_string();
    match operation {
        Some(PatchOperation::Test(_)) => format!("testing value {path} failed: test failed"),
        Some(PatchOperation::Remove(_)) => {
            format!("remove operation does not apply: doc is missing path: {path:?}: missing value")
        }
        Some(PatchOperation::Replace(_)) => {
            format!("replace operation does not apply: doc is missing path: {path:?}: missing value")
        }
        Some(PatchOperation::Add(_)) => {
            format!("add operation does not apply: doc is missing path: {path:?}: missing value")
        }
        _ => format!("{path}: {}", error.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_apply_or_say_why_not() {
        let check = |patch: Value, expected: Result<Value, &str>| {
            let result = apply(json!({"a": {"b": [1, 2]}}), &patch);
            assert_eq!(result.map_err(|e| e.message), expected.map_err(str::to_owned), "{patch}");
        };
        check(json!([{"op": "add", "path": "/a/b/-", "value": 3}]), Ok(json!({"a": {"b": [1, 2, 3]}})));
        check(json!([{"op": "remove", "path": "/a/b/0"}]), Ok(json!({"a": {"b": [2]}})));
        check(json!([{"op": "test", "path": "/a/b/0", "value": 9}]), Err("testing value /a/b/0 failed: test failed"));
        check(
            json!([{"op": "remove", "path": "/x"}]),
            Err("remove operation does not apply: doc is missing path: \"/x\": missing value"),
        );
    }
}
