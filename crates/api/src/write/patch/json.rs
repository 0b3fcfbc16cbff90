//! JSON patch, RFC 6902: a list of operations, all or none.

use json_patch::jsonptr::{Pointer, index::Index};
use json_patch::{AddOperation, PatchOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use serde::Deserialize;
use serde_json::Value;

use crate::codec::bounds::{self, DEPTH_MAX, STEP_MAX, TOO_DEEP};
use crate::status::StatusError;

/// Upstream's limits: operations, and the bytes that all `copy` operations together add.
const MAX_OPERATIONS: usize = 10_000;
const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;

/// List items that all operations together may move up or down, and values looked at for their depth. Taking ten thousand
/// items one by one off the front of a list stays within it.
const MAX_STEPS: usize = 100_000_000;

/// Carries out the operations on `current`. The library that does so has a tree of its own.
pub fn apply(current: json::Value, patch: &json::Value) -> Result<json::Value, StatusError> {
    let count = patch.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}"
        )));
    }
    let operations = Vec::<PatchOperation>::deserialize(patch)
        .map_err(|e| StatusError::bad_request(format!("error decoding patch: {e}")))?;
    let mut current = Value::from(current);
    let mut account = Account { copied: 0, steps: MAX_STEPS };
    for (at, mut operation) in operations.into_iter().enumerate() {
        account.charge(&current, &operation).map_err(|why| refused(at, operation.path(), &why))?;
        add_for_replace(&current, &mut operation);
        json_patch::patch_unsafe(&mut current, std::slice::from_ref(&operation))
            .map_err(|error| refused(at, &error.path, &reason(&operation, &error)))?;
    }
    Ok(current.into())
}

/// A field that is to be replaced need not be there, as upstream's library has it.
fn add_for_replace(current: &Value, operation: &mut PatchOperation) {
    let PatchOperation::Replace(replace) = operation else { return };
    let parent = replace.path.split_back().and_then(|(parent, _)| current.pointer(parent.as_str()));
    if parent.is_some_and(Value::is_object) {
        let (path, value) = (replace.path.clone(), replace.value.take());
        *operation = PatchOperation::Add(AddOperation { path, value });
    }
}

/// Whether a patch was refused because what it tests for is not so.
pub fn is_failed_test(error: &StatusError) -> bool {
    why(error).is_some_and(|why| why.ends_with(FAILED_TEST))
}

/// The fault of a patch, beyond the general sentence.
pub fn why(error: &StatusError) -> Option<&str> {
    error.details.as_ref()?.causes.as_ref()?.first()?.message.as_deref()
}

const FAILED_TEST: &str = "the value is not the one tested for";

/// The cost of the operations so far. An operation is charged before it is carried out.
struct Account {
    copied: usize,
    steps: usize,
}

impl Account {
    fn charge(&mut self, current: &Value, operation: &PatchOperation) -> Result<(), String> {
        let at = |path: &Pointer| current.pointer(path.as_str()).unwrap_or(&Value::Null);
        match operation {
            PatchOperation::Add(add) => {
                self.shift(current, &add.path)?;
                self.depth(&add.path, &add.value)
            }
            PatchOperation::Replace(replace) => self.depth(&replace.path, &replace.value),
            PatchOperation::Remove(remove) => self.shift(current, &remove.path),
            PatchOperation::Move(moved) => {
                self.shift(current, &moved.from)?;
                self.shift(current, &moved.path)?;
                self.depth(&moved.path, at(&moved.from))
            }
            PatchOperation::Copy(copy) => {
                let source = at(&copy.from);
                self.copied += bounds::json_bytes(source, usize::MAX).unwrap_or(0);
                if self.copied > MAX_COPY_BYTES {
                    return Err(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit \
                         {MAX_COPY_BYTES}",
                        self.copied
                    ));
                }
                self.shift(current, &copy.path)?;
                self.depth(&copy.path, source)
            }
            // The value to compare with is in the patch: it ends where that ends.
            PatchOperation::Test(_) => Ok(()),
        }
    }

    fn step(&mut self, steps: usize) -> Result<(), String> {
        let left = self.steps.checked_sub(steps);
        self.steps = left.ok_or_else(|| format!("the operations together take more than {MAX_STEPS} steps"))?;
        Ok(())
    }

    /// An item that comes into a list, or leaves it, moves those behind it.
    fn shift(&mut self, current: &Value, path: &Pointer) -> Result<(), String> {
        let Some((list, item)) = path.split_back() else { return Ok(()) };
        match (current.pointer(list.as_str()), item.to_index()) {
            (Some(Value::Array(list)), Ok(Index::Num(at))) => self.step(list.len().saturating_sub(at)),
            _ => Ok(()),
        }
    }

    fn depth(&mut self, path: &Pointer, value: &Value) -> Result<(), String> {
        if path.count() + self.height(value)? > DEPTH_MAX { Err(TOO_DEEP.to_owned()) } else { Ok(()) }
    }

    /// Objects and lists inside one another.
    fn height(&mut self, value: &Value) -> Result<usize, String> {
        self.step(1)?;
        let mut highest = 0;
        match value {
            Value::Array(list) => {
                for item in list {
                    highest = highest.max(self.height(item)?);
                }
            }
            Value::Object(map) => {
                for item in map.values() {
                    highest = highest.max(self.height(item)?);
                }
            }
            _ => return Ok(0),
        }
        Ok(highest + 1)
    }
}

fn reason(operation: &PatchOperation, error: &json_patch::PatchError) -> String {
    match operation {
        PatchOperation::Test(_) => FAILED_TEST.to_owned(),
        PatchOperation::Add(_) | PatchOperation::Remove(_) | PatchOperation::Replace(_) => {
            "the object has no such path".to_owned()
        }
        _ => error.kind.to_string(),
    }
}

/// Upstream's message says no more than that; the cause says which operation failed and why.
fn refused(at: usize, path: &Pointer, why: &str) -> StatusError {
    let cause = StatusCause {
        field: Some(bounds::cut(path.as_str(), STEP_MAX).into_owned()),
        message: Some(format!("operation {at} failed: {why}")),
        ..Default::default()
    };
    let details = StatusDetails { causes: Some(vec![cause]), ..Default::default() };
    let message = "the server rejected our request due to an error in our request";
    StatusError { details: Some(Box::new(details)), ..StatusError::new(422, "Invalid", message) }
}

#[cfg(test)]
mod tests {
    use ::json::{Value, json};

    use super::*;

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
        check(json!([{"op": "replace", "path": "/a/c", "value": 1}]), Ok(json!({"a": {"b": [1, 2], "c": 1}})));
        check(json!([{"op": "replace", "path": "/a/b/0", "value": 3}]), Ok(json!({"a": {"b": [3, 2]}})));
        let absent = "operation 0 failed: the object has no such path";
        check(json!([{"op": "replace", "path": "/a/b/-", "value": 3}]), Err(("/a/b/-", absent)));
        check(json!([{"op": "replace", "path": "/x/y", "value": 3}]), Err(("/x/y", absent)));
        check(json!([{"op": "remove", "path": "/x"}]), Err(("/x", "operation 0 failed: the object has no such path")));
        check(
            json!([{"op": "move", "from": "/a", "path": "/a/b/0"}]),
            Err(("/a/b/0", "operation 0 failed: cannot move the value inside itself")),
        );
    }

    fn cause(error: &StatusError) -> &str {
        why(error).unwrap_or_default()
    }

    #[test]
    fn failed_tests_are_told_apart() {
        let check = |patch: Value, expected: bool| {
            let error = apply(json!({"a": 1}), &patch).expect_err("refused");
            assert_eq!(is_failed_test(&error), expected, "{patch}");
        };
        check(json!([{"op": "test", "path": "/a", "value": 2}]), true);
        check(json!([{"op": "remove", "path": "/b"}]), false);
    }

    #[test]
    fn ten_thousand_operations_are_taken() {
        let patch = |count| Value::from(vec![json!({"op": "test", "path": "/a", "value": 1}); count]);
        assert_eq!(apply(json!({"a": 1}), &patch(10_000)), Ok(json!({"a": 1})));
        let error = apply(json!({"a": 1}), &patch(10_001)).expect_err("too many");
        assert_eq!((error.code, &*error.reason), (413, "RequestEntityTooLarge"));
        let words = "The allowed maximum operations in a JSON patch is 10000, got 10001";
        assert!(error.message.ends_with(words), "{}", error.message);
    }

    /// Each operation doubles the object: without a bound 28 of them fill any memory.
    #[test]
    fn copies_add_up_to_a_limit() {
        let double: Vec<Value> =
            (0..28).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/c{i}")})).collect();
        let error = apply(json!({"a": {"text": "x".repeat(1000)}}), &double.into()).expect_err("too large");
        assert_eq!(error.code, 422);
        let words = "Unable to complete the copy, the accumulated size increase of copy is";
        assert!(cause(&error).contains(words) && cause(&error).ends_with("exceeding the limit 3145728"), "{error:?}");
        let once = json!([{"op": "copy", "from": "/a", "path": "/b"}]);
        assert_eq!(apply(json!({"a": [1]}), &once), Ok(json!({"a": [1], "b": [1]})));
    }

    #[test]
    fn no_operation_nests_deeper_than_documents_may() {
        // Each round hangs the object below a chain of fifty and takes the place of the chain.
        let chain = (0..50).fold(json!({}), |inner, _| json!({"x": inner}));
        let end = "/x".repeat(51);
        let round = [
            json!({"op": "add", "path": "/b", "value": chain}),
            json!({"op": "move", "from": "/a", "path": format!("/b{end}")}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let rounds: Vec<Value> = (0..3000).flat_map(|_| round.clone()).collect();
        let error = apply(json!({"a": {}}), &rounds.into()).expect_err("too deep");
        assert!(cause(&error).ends_with(TOO_DEEP), "{error:?}");
        assert!(apply(json!({"a": {}}), &round.to_vec().into()).is_ok());
    }

    #[test]
    fn lists_are_not_shifted_for_ever() {
        let first = |count| Value::from(vec![json!({"op": "remove", "path": "/a/0"}); count]);
        let list = |length: i32| json!({"a": (0..length).collect::<Vec<_>>()});
        assert_eq!(apply(list(10_000), &first(10_000)), Ok(json!({"a": []})));
        let error = apply(list(1_000_000), &first(10_000)).expect_err("too many steps");
        assert!(cause(&error).ends_with("the operations together take more than 100000000 steps"), "{error:?}");
        let last = Value::from(vec![json!({"op": "add", "path": "/a/-", "value": 0}); 10_000]);
        assert!(apply(list(1_000_000), &last).is_ok());
    }
}
