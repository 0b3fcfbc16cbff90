//! Upstream's table of what rules cost, `TestCostEstimation` of apiextensions's schema/cel/compilation_test.go: without
//! limits in the schema, and with one.

use json::{Value, json};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

use super::Compiler;
use crate::custom::structural::Structural;

fn cost(schema: &Value, rule: &str) -> u64 {
    let schema = Structural::of(&json::from_value(schema.clone()).expect("a schema"));
    let compiler = Compiler::estimating(&schema, false).expect("a type");
    let compiled = compiler.compile(&ValidationRule { rule: rule.to_owned(), ..ValidationRule::default() });
    assert!(compiled.rule.is_ok(), "{rule}: {:?}", compiled.rule);
    compiled.cost
}

/// A schema with its limit, or without.
type Schema = fn(&str, Option<i64>) -> Value;

fn of(name: &str) -> Value {
    match name {
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        "duration" | "date" | "date-time" | "byte" => json!({"type": "string", "format": name}),
        name => json!({"type": name}),
    }
}

fn with(mut schema: Value, word: &str, limit: Option<i64>) -> Value {
    if let Some(limit) = limit {
        schema[word] = json!(limit);
    }
    schema
}

fn list(items: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "array", "items": of(items)}), "maxItems", limit)
}

fn map(values: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "object", "additionalProperties": of(values)}), "maxProperties", limit)
}

fn list_of_lists(items: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "array", "items": list(items, None)}), "maxItems", limit)
}

fn list_of_maps(values: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "array", "items": map(values, None)}), "maxItems", limit)
}

fn map_of_lists(items: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "object", "additionalProperties": list(items, None)}), "maxProperties", limit)
}

fn text(_: &str, limit: Option<i64>) -> Value {
    with(of("string"), "maxLength", limit)
}

fn texts(_: &str, limit: Option<i64>) -> Value {
    with(json!({"type": "array", "items": text("", limit)}), "maxItems", limit)
}

fn check(schema: Schema, part: &str, rule: &str, unlimited: u64, (limit, limited): (i64, u64)) {
    assert_eq!(cost(&schema(part, None), rule), unlimited, "{part}: {rule}");
    assert_eq!(cost(&schema(part, Some(limit)), rule), limited, "{part}: {rule}, at most {limit}");
}

#[test]
fn of_lists() {
    let all = "self.all(x, true)";
    check(list, "number", all, 4_718_591, (10, 32));
    check(list, "string", all, 3_145_727, (20, 62));
    check(list, "boolean", all, 1_887_437, (5, 17));
    check(list, "int-or-string", all, 4_718_591, (10, 32));
    check(list, "duration", all, 2_359_295, (5, 17));
    check(list, "date", all, 725_936, (15, 47));
    check(list, "date-time", all, 428_963, (25, 77));
    check(list_of_lists, "number", all, 3_145_727, (100, 302));
    check(list, "number", "self[1] == 0.0", 2, (5000, 2));
    check(list, "number", "self[3] == 0.0", 2, (0, 2));
    check(list, "string", "self[1] == self[1]", 314_577, (8, 314_577));
    check(list, "int-or-string", "self[0] == 5", 3, (10, 3));
    check(list, "boolean", "self[0] == false", 2, (25, 2));
    check(list, "duration", "self[0].getHours() == 2", 4, (525, 4));
    check(list, "date", "self[2].getDayOfMonth() == 13", 4, (42, 4));
    check(list, "date-time", "self[2].getMinutes() == 45", 4, (99, 4));
    check(list_of_lists, "number", "self[0][0] == -1.0", 3, (51, 3));
    check(list_of_maps, "number", "self.all(x, x.y == 25.2)", 6_291_452, (12, 74));
    check(list_of_maps, "number", "self[0].x > 2.0", 4, (3000, 4));
    check(list, "number", "self.all(x, x == 0.0)", 6_291_454, (3 * 1024 * 2048, 25_165_826));
    let nested = "self.all(x, self.all(y, true))";
    assert!(cost(&list("number", None), nested) > 10_000_000);
    assert_eq!(cost(&list("number", Some(10)), nested), 352);
    assert_eq!(cost(&list("number", Some(10)), "self.all(x, self.all(y, self.all(z, true)))"), 3552);
}

#[test]
fn of_maps() {
    let all = "self.all(x, true)";
    for part in ["number", "string", "boolean", "int-or-string", "duration", "date", "date-time"] {
        check(map, part, "has(self.x)", 1, (100, 1));
    }
    check(map, "number", all, 1_348_169, (10, 32));
    check(map, "string", all, 1_179_647, (3, 11));
    check(map, "boolean", all, 943_718, (100, 302));
    check(map, "int-or-string", all, 1_348_169, (15, 47));
    check(map, "duration", all, 1_048_577, (5, 17));
    check(map, "date", all, 524_288, (10, 32));
    check(map, "date-time", all, 349_526, (25, 77));
    check(map_of_lists, "number", all, 1_179_647, (25, 77));
    check(map_of_lists, "number", "has(self.x)", 1, (40_000, 1));
    check(map, "number", "self['x'] == 0.0", 2, (0, 2));
    check(map, "integer", "oldSelf.size() == self.size()", 5, (10, 5));
    check(map, "date-time", "self['a'] == self['b']", 8, (7, 8));
    check(map, "duration", "self['c'] == self['d']", 8, (42, 8));
}

#[test]
fn of_texts() {
    check(text, "", "self.contains('test')", 314_574, (10, 5));
    check(text, "", "self.startsWith('test')", 2, (15, 2));
    check(text, "", "self.endsWith('test')", 2, (30, 2));
    check(text, "", "size(self + 'hello') > size('hello')", 314_578, (4, 7));
    check(text, "", "self.matches('x')", 314_574, (50, 22));
    check(text, "", "''.matches('(((((((((())))))))))[0-9]')", 7, (10, 7));
    check(text, "", "self.matches('')", 1, (100, 1));
    check(text, "", "self == 'x'", 2, (0, 1));
    check(text, "", "self.find('[0-9]+') == ''", 629_147, (10, 11));
    check(text, "", "self.lowerAscii() == 'lower!'", 314_575, (10, 6));
    check(texts, "", "self.join(' ') == 'aa bb'", 329_853_068_905, (10, 43));
    check(texts, "", "self.isSorted() == true", 329_854_432_052, (10, 52));
    let bytes: Schema = |_, limit| with(of("byte"), "maxLength", limit);
    check(bytes, "", "self == b'x'", 2, (0, 1));
    let allowed: Schema =
        |_, limit| with(json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]}), "maxLength", limit);
    check(allowed, "", "self.contains('A')", 2, (1000, 401));
    let quantity: Schema = |_, limit| with(of("int-or-string"), "maxLength", limit);
    check(quantity, "", "isQuantity(self)", 314_574, (20, 9));
}

#[test]
fn of_objects() {
    let list_of_objects: Schema = |_, limit| {
        let items = json!({"type": "object", "required": ["required"],
            "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}});
        with(json!({"type": "array", "items": items}), "maxItems", limit)
    };
    check(list_of_objects, "", "self.all(x, true)", 555_128, (50, 152));
    check(list_of_objects, "", "self[0] == null", 2, (422, 2));
    let replaced: Schema = |_, limit| {
        json!({"type": "object", "properties": {"str": text("", limit), "before": text("", Some(2)),
            "after": text("", Some(4))}})
    };
    check(replaced, "", "self.str.replace(self.before, self.after) == 'does not matter'", 629_154, (4, 12));
    let split: Schema =
        |_, limit| json!({"type": "object", "properties": {"str": text("", limit), "separator": text("", limit)}});
    check(split, "", "self.str.split(self.separator) == []", 629_160, (10, 22));
    let texts: Schema = |_, limit| {
        let values = with(of("string"), "maxLength", limit);
        with(json!({"type": "object", "additionalProperties": values}), "maxProperties", limit)
    };
    check(texts, "", "self.all(x, x.contains(self[x]))", 2_752_507, (10, 72));
}

/// A limit of the inner map makes the list no shorter.
#[test]
fn of_nested_maps() {
    fn maps(inner: Option<i64>, outer: Option<i64>) -> Value {
        let object = json!({"type": "object", "required": ["required"],
            "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}});
        let map = with(json!({"type": "object", "additionalProperties": object}), "maxProperties", inner);
        with(json!({"type": "array", "items": map}), "maxItems", outer)
    }
    let rule = "self.all(x, x['y'].required == 'z')";
    check(|_, limit| maps(limit, limit), "", rule, 7_340_027, (10, 72));
    check(|_, limit| maps(limit, None), "", rule, 7_340_027, (10, 7_340_027));
}
