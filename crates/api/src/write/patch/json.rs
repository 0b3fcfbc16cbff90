//! JSON patch, RFC 6902: a list of operations, all or none. Where the RFC and upstream's library differ, this is the library: a
//! field that is replaced need not be there, indices below zero count from the end, a value that is left out is null.
//! Upstream counterpart: gopkg.in/evanphx/json-patch.v4, whose errors are those of the operations here.

use ::json::Value;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

use crate::codec::bounds::{self, DEPTH_MAX, STEP_MAX, TOO_DEEP};
use crate::status::StatusError;
use crate::validation::field::quote;

/// Upstream's limits: operations, and the bytes that all `copy` operations together add.
const MAX_OPERATIONS: usize = 10_000;
const MAX_COPY_BYTES: usize = 3 * 1024 * 1024;

/// List items that all operations together may move up or down, and values looked at for their depth. Taking ten thousand
/// items one by one off the front of a list stays within it.
const MAX_STEPS: usize = 100_000_000;

/// Unknown fields of operations named at most, as upstream.
const STRICT_LIMIT: usize = 100;

const MISSING: &str = "missing value";
const FAILED_TEST: &str = "test failed";

/// Whether the body of a request is a list of operations; the answer names the fields that these do not know.
pub fn read(body: &Value) -> Result<Vec<String>, String> {
    let wrong = |found: &Value, into: &str| format!("json: cannot unmarshal {} into Go {into}", super::go_kind(found));
    let Some(operations) = body.as_array() else { return Err(wrong(body, "value of type []handlers.jsonPatchOp")) };
    let mut unknown = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        let fields = operation.as_object().ok_or_else(|| wrong(operation, "value of type handlers.jsonPatchOp"))?;
        for (name, value) in fields {
            match name.as_str() {
                "op" | "path" | "from" if !value.is_string() && !value.is_null() => {
                    return Err(wrong(value, &format!("struct field jsonPatchOp.{name} of type string")));
                }
                "op" | "path" | "from" | "value" => {}
                other if unknown.len() < STRICT_LIMIT => {
                    unknown.push(format!("unknown field \"[{at}].{}\"", bounds::cut(other, STEP_MAX)));
                }
                _ => {}
            }
        }
    }
    Ok(unknown)
}

/// Carries out the operations on `current`.
pub fn apply(mut current: Value, patch: &Value) -> Result<Value, StatusError> {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    if operations.len() > MAX_OPERATIONS {
        return Err(StatusError::too_large(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut account = Account { copied: 0, steps: MAX_STEPS };
    for fields in operations {
        let operation = Operation { fields, kind: fields["op"].as_str().unwrap_or("unknown") };
        operation.carry_out(&mut current, &mut account).map_err(|why| refused(&operation, &why))?;
    }
    Ok(current)
}

/// Whether a patch was refused because what it tests for is not so.
pub fn is_failed_test(error: &StatusError) -> bool {
    why(error).is_some_and(|why| why.strip_suffix(FAILED_TEST).is_some_and(|rest| rest.ends_with(" failed: ")))
}

/// The fault of a patch, beyond the general sentence.
pub fn why(error: &StatusError) -> Option<&str> {
    error.details.as_ref()?.causes.as_ref()?.first()?.message.as_deref()
}

struct Operation<'o> {
    fields: &'o Value,
    kind: &'o str,
}

impl Operation<'_> {
    fn carry_out(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        match self.kind {
            "add" => self.add(document, account),
            "remove" => self.remove(document, account),
            "replace" => self.replace(document, account),
            "move" => self.move_value(document, account),
            "test" => self.test(document),
            "copy" => self.copy(document, account),
            other => Err(format!("Unexpected kind: {}", bounds::cut(other, STEP_MAX))),
        }
    }

    fn text(&self, field: &str) -> Result<&str, String> {
        let (kind, given) = (self.kind, &self.fields[field]);
        let why = match (field, kind) {
            _ if !given.is_null() => "json: cannot unmarshal into Go value of type string",
            ("path", "add" | "remove" | "copy") => MISSING,
            ("path", _) => "operation missing path field: missing value",
            _ => "operation, missing from field: missing value",
        };
        given.as_str().ok_or_else(|| format!("{kind} operation failed to decode {field}: {why}"))
    }

    /// A value that is left out is null.
    fn value(&self) -> &Value {
        &self.fields["value"]
    }

    fn add(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        let path = self.text("path")?;
        let shown = bounds::cut(path, STEP_MAX);
        let missing = || format!("add operation does not apply: doc is missing path: \"{shown}\": {MISSING}");
        let (place, key) = find(document, path).ok_or_else(missing)?;
        account.depth(path, self.value())?;
        let added = insert(place, &key, self.value().clone(), account);
        added.map_err(|why| format!("error in add for path: '{shown}': {why}"))
    }

    fn remove(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        let path = self.text("path")?;
        let shown = bounds::cut(path, STEP_MAX);
        let missing = || format!("remove operation does not apply: doc is missing path: \"{shown}\": {MISSING}");
        let (place, key) = find(document, path).ok_or_else(missing)?;
        let removed = take(place, &key, account);
        removed.map(drop).map_err(|why| format!("error in remove for path: '{shown}': {why}"))
    }

    fn replace(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        let (path, value) = (self.text("path")?, self.value());
        account.depth(path, value)?;
        if path.is_empty() {
            if !value.is_object() && !value.is_array() {
                return Err("replace operation value must be object or array".to_owned());
            }
            *document = value.clone();
            return Ok(());
        }
        let shown = bounds::cut(path, STEP_MAX);
        let missing =
            |what: &str| format!("replace operation does not apply: doc is missing {what}: {shown}: {MISSING}");
        match find(document, path).ok_or_else(|| missing("path"))? {
            (Value::Array(items), key) => {
                let at = index(&key, items.len()).map_err(|_| missing("key"))?;
                items[at] = value.clone();
                Ok(())
            }
            (place, key) => insert(place, &key, value.clone(), account),
        }
    }

    fn move_value(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        let from = self.text("from")?;
        let shown = bounds::cut(from, STEP_MAX);
        let missing = || format!("move operation does not apply: doc is missing from path: {shown}: {MISSING}");
        let (place, key) = find(document, from).ok_or_else(missing)?;
        let value = take(place, &key, account)
            .map_err(|why| format!("error in move for path: '{}': {why}", bounds::cut(&key, STEP_MAX)))?;
        let path = self.text("path")?;
        let shown = bounds::cut(path, STEP_MAX);
        let missing = || format!("move operation does not apply: doc is missing destination path: {shown}: {MISSING}");
        let (place, key) = find(document, path).ok_or_else(missing)?;
        account.depth(path, &value)?;
        insert(place, &key, value, account).map_err(|why| format!("error in move for path: '{shown}': {why}"))
    }

    /// A field that is not there passes for null.
    fn test(&self, document: &mut Value) -> Result<(), String> {
        let path = self.text("path")?;
        let shown = bounds::cut(path, STEP_MAX);
        let found = if path.is_empty() {
            &*document
        } else {
            let missing = || format!("test operation does not apply: is missing path: {shown}: {MISSING}");
            let (place, key) = find(document, path).ok_or_else(missing)?;
            look(place, &key).map_err(|why| format!("error in test for path: '{shown}': {why}"))?
        };
        if found == self.value() { Ok(()) } else { Err(format!("testing value {shown} failed: {FAILED_TEST}")) }
    }

    fn copy(&self, document: &mut Value, account: &mut Account) -> Result<(), String> {
        let from = self.text("from")?;
        let shown = bounds::cut(from, STEP_MAX);
        let missing = || format!("copy operation does not apply: doc is missing from path: {shown}: {MISSING}");
        let (place, key) = find(document, from).ok_or_else(missing)?;
        let value = look(place, &key).map_err(|why| format!("error in copy for from: '{shown}': {why}"))?;
        account.copy(value)?;
        let value = value.clone();
        let path = self.text("path")?;
        let shown = bounds::cut(path, STEP_MAX);
        let missing = || format!("copy operation does not apply: doc is missing destination path: {shown}: {MISSING}");
        let (place, key) = find(document, path).ok_or_else(missing)?;
        account.depth(path, &value)?;
        insert(place, &key, value, account).map_err(|why| format!("error while adding value during copy: {why}"))
    }
}

/// The object or list that the last part of a path is in, and that part. The text in front of the first slash says nothing.
fn find<'d>(document: &'d mut Value, path: &str) -> Option<(&'d mut Value, String)> {
    let (_, rest) = path.split_once('/')?;
    let (above, key) = rest.rsplit_once('/').map_or((None, rest), |(above, key)| (Some(above), key));
    let mut place = document;
    for part in above.into_iter().flat_map(|above| above.split('/')) {
        let part = unescaped(part);
        place = match place {
            Value::Object(fields) => fields.get_mut(&part)?,
            Value::Array(items) => {
                let at = index(&part, items.len()).ok()?;
                &mut items[at]
            }
            _ => return None,
        };
    }
    (place.is_object() || place.is_array()).then(|| (place, unescaped(key)))
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// A number as a key.
fn number(key: &str) -> Result<i64, String> {
    key.parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let why =
            if matches!(error.kind(), PosOverflow | NegOverflow) { "value out of range" } else { "invalid syntax" };
        format!("strconv.Atoi: parsing {}: {why}", quote(&bounds::cut(key, STEP_MAX)))
    })
}

/// The place that a key names in a list.
fn index(key: &str, places: usize) -> Result<usize, String> {
    let at = number(key)?;
    let whole = i64::try_from(places).unwrap_or(i64::MAX);
    let from_start = if at < 0 { at.checked_add(whole) } else { Some(at) };
    let found = from_start.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < places);
    found.ok_or_else(|| format!("Unable to access invalid index: {at}: invalid index referenced"))
}

fn look<'d>(place: &'d Value, key: &str) -> Result<&'d Value, String> {
    match place {
        Value::Array(items) => Ok(&items[index(key, items.len())?]),
        _ => Ok(place.get(key).unwrap_or(&Value::Null)),
    }
}

fn take(place: &mut Value, key: &str, account: &mut Account) -> Result<Value, String> {
    match place {
        Value::Array(items) => {
            let at = index(key, items.len())?;
            account.step(items.len() - at)?;
            Ok(items.remove(at))
        }
        _ => {
            let removed = place.as_object_mut().and_then(|fields| fields.remove(key));
            let key = bounds::cut(key, STEP_MAX);
            removed.ok_or_else(|| format!("Unable to remove nonexistent key: {key}: {MISSING}"))
        }
    }
}

fn insert(place: &mut Value, key: &str, value: Value, account: &mut Account) -> Result<(), String> {
    match place {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let shown = bounds::cut(key, STEP_MAX);
            number(key).map_err(|why| format!("value was not a proper array index: '{shown}': {why}"))?;
            let at = index(key, items.len() + 1)?;
            account.step(items.len() - at)?;
            items.insert(at, value);
        }
        _ => drop(place.as_object_mut().and_then(|fields| fields.insert(key.to_owned(), value))),
    }
    Ok(())
}

/// The cost of the operations so far. An operation is charged before it is carried out.
struct Account {
    copied: usize,
    steps: usize,
}

impl Account {
    fn copy(&mut self, value: &Value) -> Result<(), String> {
        self.copied += bounds::json_bytes(value, usize::MAX).unwrap_or(0);
        let copied = self.copied;
        let why = || {
            format!(
                "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit \
                 {MAX_COPY_BYTES}"
            )
        };
        if copied > MAX_COPY_BYTES { Err(why()) } else { Ok(()) }
    }

    /// An item that comes into a list, or leaves it, moves those behind it.
    fn step(&mut self, steps: usize) -> Result<(), String> {
        let left = self.steps.checked_sub(steps);
        self.steps = left.ok_or_else(|| format!("the operations together take more than {MAX_STEPS} steps"))?;
        Ok(())
    }

    fn depth(&mut self, path: &str, value: &Value) -> Result<(), String> {
        let above = path.bytes().filter(|byte| *byte == b'/').count();
        if above + self.height(value)? > DEPTH_MAX { Err(TOO_DEEP.to_owned()) } else { Ok(()) }
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

/// The refusal as clients of the API see it: upstream does not tell them which operation failed. Causes that have a reason are about
/// fields, and theirs.
pub fn without_causes(mut refusal: StatusError) -> StatusError {
    if let Some(details) = &mut refusal.details {
        details.causes = details.causes.take().filter(|causes| causes.iter().any(|cause| cause.reason.is_some()));
    }
    refusal
}

/// Upstream's message says no more than that; the cause says to callers in this process which operation failed and why.
fn refused(operation: &Operation<'_>, why: &str) -> StatusError {
    let path = operation.fields["path"].as_str().unwrap_or_default();
    let cause = StatusCause {
        field: Some(bounds::cut(path, STEP_MAX).into_owned()),
        message: Some(why.to_owned()),
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

    /// Upstream's cases, and those of its library.
    #[test]
    fn operations_apply_or_say_why_not() {
        let check = |patch: Value, expected: Result<Value, &str>| {
            let result = apply(json!({"a": {"b": [1, 2], "n": null}}), &json!([patch]));
            assert_eq!(result.map_err(|error| cause(&error).to_owned()), expected.map_err(str::to_owned), "{patch}");
        };
        let whole = |inner: Value| Ok(json!({ "a": inner }));
        let list = |list: Value| Ok(json!({"a": {"b": list, "n": null}}));
        let add = |path: &str| json!({"op": "add", "path": path, "value": 3});
        check(add("/a/b/-"), list(json!([1, 2, 3])));
        check(add("/a/b/0"), list(json!([3, 1, 2])));
        check(add("/a/b/2"), list(json!([1, 2, 3])));
        check(add("/a/b/-1"), list(json!([1, 2, 3])));
        check(add("/a/b"), list(json!(3)));
        check(add("/a~1b/x"), Err("add operation does not apply: doc is missing path: \"/a~1b/x\": missing value"));
        check(add(""), Err("add operation does not apply: doc is missing path: \"\": missing value"));
        check(add("/a/n/x"), Err("add operation does not apply: doc is missing path: \"/a/n/x\": missing value"));
        let far = "error in add for path: '/a/b/3': Unable to access invalid index: 3: invalid index referenced";
        check(add("/a/b/3"), Err(far));
        let no_index = "error in add for path: '/a/b/x': value was not a proper array index: 'x': strconv.Atoi: parsing \"x\": \
                        invalid syntax";
        check(add("/a/b/x"), Err(no_index));
        check(json!({"op": "add", "path": "/a/b"}), list(Value::Null));
        check(json!({"op": "add"}), Err("add operation failed to decode path: missing value"));
        check(json!({"op": "grow", "path": "/a"}), Err("Unexpected kind: grow"));
        check(json!({"path": "/a"}), Err("Unexpected kind: unknown"));

        let remove = |path: &str| json!({"op": "remove", "path": path});
        check(remove("/a/b/0"), list(json!([2])));
        check(remove("/a/b/-1"), list(json!([1])));
        check(remove("/a/n"), whole(json!({"b": [1, 2]})));
        check(remove("/x"), Err("error in remove for path: '/x': Unable to remove nonexistent key: x: missing value"));
        check(remove("/x/y"), Err("remove operation does not apply: doc is missing path: \"/x/y\": missing value"));
        let far = "error in remove for path: '/a/b/-3': Unable to access invalid index: -3: invalid index referenced";
        check(remove("/a/b/-3"), Err(far));

        let replace = |path: &str| json!({"op": "replace", "path": path, "value": 3});
        check(replace("/a/c"), whole(json!({"b": [1, 2], "c": 3, "n": null})));
        check(replace("/a/b/-2"), list(json!([3, 2])));
        check(replace("/a/b/-"), Err("replace operation does not apply: doc is missing key: /a/b/-: missing value"));
        check(replace("/x/y"), Err("replace operation does not apply: doc is missing path: /x/y: missing value"));
        check(replace(""), Err("replace operation value must be object or array"));
        check(json!({"op": "replace", "path": "", "value": {"c": 1}}), Ok(json!({"c": 1})));

        let moved = |from: &str, path: &str| json!({"op": "move", "from": from, "path": path});
        check(moved("/a/b/0", "/a/n"), whole(json!({"b": [2], "n": 1})));
        check(moved("/a/b/0", "/a/b/-"), list(json!([2, 1])));
        check(
            moved("/a", "/a/b/0"),
            Err("move operation does not apply: doc is missing destination path: /a/b/0: missing value"),
        );
        check(
            moved("/a/x", "/y"),
            Err("error in move for path: 'x': Unable to remove nonexistent key: x: missing value"),
        );
        check(moved("/x/y", "/y"), Err("move operation does not apply: doc is missing from path: /x/y: missing value"));
        let unsaid = "move operation failed to decode from: operation, missing from field: missing value";
        check(json!({"op": "move", "path": "/a"}), Err(unsaid));

        let copy = |from: &str, path: &str| json!({"op": "copy", "from": from, "path": path});
        check(copy("/a/b/0", "/a/b/-"), list(json!([1, 2, 1])));
        check(copy("/a/x", "/a/b"), list(Value::Null));
        check(copy("/x/y", "/y"), Err("copy operation does not apply: doc is missing from path: /x/y: missing value"));
        check(
            copy("/a/n", "/x/y"),
            Err("copy operation does not apply: doc is missing destination path: /x/y: missing value"),
        );

        let test = |path: &str, value: Value| json!({"op": "test", "path": path, "value": value});
        for (path, value) in
            [("/a/b", json!([1, 2])), ("/a/n", Value::Null), ("/a/x", Value::Null), ("/a/b/-1", json!(2))]
        {
            check(test(path, value), list(json!([1, 2])));
        }
        check(test("/a/b/0", json!(9)), Err("testing value /a/b/0 failed: test failed"));
        check(test("/x/y", json!(9)), Err("test operation does not apply: is missing path: /x/y: missing value"));
    }

    #[test]
    fn patches_are_carried_out_as_a_whole_or_not_at_all() {
        let patch = json!([{"op": "add", "path": "/c", "value": 1}, {"op": "test", "path": "/a", "value": 9}]);
        let error = apply(json!({"a": 1}), &patch).expect_err("refused");
        assert_eq!((error.code, &*error.reason), (422, "Invalid"));
        let cause = error.details.and_then(|details| details.causes?.into_iter().next()).unwrap_or_default();
        assert_eq!(cause.field.as_deref(), Some("/a"));
        let told = without_causes(apply(json!({}), &json!([{"op": "remove", "path": "/a"}])).unwrap_err());
        assert_eq!((told.code, told.details), (422, Some(Box::default())));
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
