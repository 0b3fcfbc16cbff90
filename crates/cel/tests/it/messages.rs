//! The messages for users who typed something wrong: cel-go's words, with the place.

use super::{check, environment};
use cel::Type;

#[test]
fn wrong_grammar() {
    let starts = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, \
                  IDENTIFIER}";
    check("x +", &format!("refused: Syntax error: mismatched input '<EOF>' expecting {starts}"));
    check("1 2", "refused: Syntax error: extraneous input '2' expecting <EOF>");
    check("x @ 1", "refused: Syntax error: token recognition error at: '@'");
    check("[1", "refused: Syntax error: mismatched input '<EOF>' expecting ']'");
    check("for", "refused: reserved identifier: for");
    check("has(x)", "refused: invalid argument to has() macro");
    check("list.all(1, true)", "refused: argument must be a simple name");
    check("list.map(x.y, 1)", "refused: argument is not an identifier");
}

#[test]
fn wrong_types() {
    check("missing", "refused: undeclared reference to 'missing' (in container '')");
    check("missing(1)", "refused: undeclared reference to 'missing' (in container '')");
    check("x.missing", "refused: type 'int' does not support field selection");
    check("device.missing", "refused: undefined field 'missing'");
    check("1 + 'a'", "refused: found no matching overload for '_+_' applied to '(int, string)'");
    check("text.startsWith(1)", "refused: found no matching overload for 'startsWith' applied to 'string.(int)'");
    check("size(1)", "refused: found no matching overload for 'size' applied to '(int)'");
    check("true && 1", "refused: found no matching overload for '_&&_' applied to '(bool, int)'");
    check("x ? 1 : 2", "refused: found no matching overload for '_?_:_' applied to '(int, int, int)'");
    check("list['a']", "refused: found no matching overload for '_[_]' applied to '(list(int), string)'");
    check("[1, 'a']", "refused: expected type 'int' but found 'string'");
    check("[1, dyn(2)]", "refused: expected type 'int' but found 'dyn'");
    check("{'a': 1, 'b': 'c'}", "refused: expected type 'int' but found 'string'");
    check("[[], [1], [[2][0]]]", "[[], [1], [2]]");
    check("'%s has %d: %s'.format(['a', 1, [[2, true], [x, {'k': 3, 4: 'v'}]][0]])", "\"a has 1: [2, true]\"");
    check("'%d'.format([1]).size() + [1, 'a'].size()", "refused: expected type 'int' but found 'string'");
    check(
        "x.all(i, true)",
        "refused: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
    );
    check("text.matches('(')", "refused: invalid matches argument");
    check("test.Device{driver: 'a'}", "refused: undeclared reference to 'test.Device' (in container '')");
}

/// The columns of all findings, counted from one.
fn columns(text: &str) -> Vec<usize> {
    let shown = environment().compile_any(text).expect_err("it is wrong").to_string();
    let column = |line: &str| line.strip_prefix("ERROR: <input>:1:")?.split(':').next()?.parse().ok();
    shown.lines().filter_map(column).collect()
}

#[test]
fn constants_that_mean_nothing_are_pointed_at() {
    assert_eq!(columns("duration( 'a')"), [11]);
    assert_eq!(columns("timestamp('a') > timestamp( 'b')"), [11, 29]);
    assert_eq!(columns("text.matches('(')"), [14]);
    assert_eq!(columns("[1, 'a', 'b'] == [2, true]"), [5, 22]);
    assert_eq!(columns("{'a': 1, 'b': 'c', 'd': 'e'}"), [15, 25]);
    assert_eq!(columns("duration('a') == missing"), [18], "the types come first");
    let error = environment().compile_any("text.find(')') == ''").expect_err("no pattern");
    assert_eq!(error.to_string(), "error parsing regexp: unexpected ): `)`");
    assert!(error.is_instantiation() && !environment().compile_any("x +").expect_err("no text").is_instantiation());
}

#[test]
fn the_place_is_shown() {
    let error = environment().compile_any("x == 1 &&\n  missing.a").expect_err("an unknown name");
    let expected = "ERROR: <input>:2:3: undeclared reference to 'missing' (in container '')\n |   missing.a\n | ..^";
    assert_eq!(error.to_string(), expected);
    let error = environment().compile("x", &Type::Bool).expect_err("no bool");
    assert_eq!(error.to_string(), "must evaluate to bool");
    assert!(environment().compile("object.spec", &Type::Bool).is_ok());
}
