//! Objects that expressions make: of types with declared fields, and of types with any.

use super::{check, run};

#[test]
fn objects_have_the_fields_that_they_are_given() {
    check("test.Patch{op: 'add', value: [1]}", "test.Patch{op: \"add\", value: [1]}");
    check("Thing{a: 1, b: Thing.b{c: {'x': x}},}", "Thing{a: 1, b: Thing.b{c: {\"x\": 1}}}");
    check("Thing{}", "Thing{}");
    check("Thing{?a: optional.of(1), ?b: optional.none()}", "Thing{a: 1}");
    check("Thing{a: 1}.a + 1", "2");
    check("Thing{}.a", "null");
    check("has(Thing{a: 1}.a) && !has(Thing{}.a)", "true");
    check("Thing{}.?a.orValue(3)", "3");
    check("list.map(i, Thing.list{i: i})[2].i", "3");
    check("type(Thing.a{}) == type(Thing.b{})", "false");
}

#[test]
fn objects_are_equal_by_type_and_fields() {
    check("Thing{a: 1, b: 'b'} == Thing{b: 'b', a: 1}", "true");
    check("Thing{a: 1} == Thing{a: 2}", "false");
    check("Thing{a: 1} == Thing{b: 1}", "false");
    check("dyn(Thing.a{}) == dyn(Thing.b{})", "false");
    check("test.Patch{value: '1'} == test.Patch{value: 1}", "false");
}

#[test]
fn what_an_object_cannot_have_is_refused() {
    let undeclared = |name: &str| format!("refused: undeclared reference to '{name}' (in container '')");
    check("test.Device{driver: 'a'}", &undeclared("test.Device"));
    check("test.Patch.more{}", &undeclared("test.Patch.more"));
    check("Things{}", &undeclared("Things"));
    check("test.Patch{missing: 1}", "refused: undefined field 'missing'");
    check("test.Patch{op: 1}", "refused: expected type of field 'op' is 'string' but provided type is 'int'");
    check("test.Patch{op: dyn(1)}", "error: unexpected type int for test.PatchType 'op' field");
    check("[Thing.a{}, Thing.b{}]", "refused: expected type 'Thing.a' but found 'Thing.b'");
    check("Thing{a: missing}", &undeclared("missing"));
}

#[test]
fn making_an_object_costs_what_it_does_upstream() {
    let check = |text: &str, expected: u64| assert_eq!(run(text).1, expected, "{text}");
    check("Thing{}", 40);
    check("Thing{a: x, b: Thing.b{}}", 81);
}
