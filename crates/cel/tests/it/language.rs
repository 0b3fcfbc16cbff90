//! The language itself: the topics of cel-spec's conformance tests.

use super::check;

#[test]
fn literals() {
    check("-0x1F", "-31");
    check("9223372036854775807", "9223372036854775807");
    check("-9223372036854775808", "-9223372036854775808");
    check("9223372036854775808", "refused: invalid int literal");
    check("18446744073709551615u", "18446744073709551615u");
    check("1.5e3", "1500.0");
    check(".5", "0.5");
    check(r#""a\n\x41\u00e9\U0001F600\101""#, "\"a\\nAé😀A\"");
    check(r#"r"a\n""#, r#""a\\n""#);
    check("'''a\n'b'''", "\"a\\n'b\"");
    check(r#"b"\xff\101é""#, "b[255, 65, 195, 169]");
    check("// a remark\n1 // one more", "1");
    check("[1, 2,]", "[1, 2]");
    check("{'a': 1, 'b': 2,}", "{\"a\": 1, \"b\": 2}");
}

#[test]
fn operators_bind_as_in_other_languages() {
    check("1 + 2 * 3 - 4 / 2", "5");
    check("-(1) + 2", "1");
    check("!true || true && false", "false");
    check("1 < 2 == true", "true");
    check("true ? 1 : false ? 2 : 3", "1");
    check("!!true", "true");
    check("2 - -2", "4");
    check("-x", "-1");
    check("- -x", "1");
    check("7 % -4", "3");
    check("-7 / 2", "-3");
}

#[test]
fn numbers_never_wrap_around() {
    check("9223372036854775807 + 1", "error: integer overflow");
    check("-9223372036854775808 - 1", "error: integer overflow");
    check("-(-9223372036854775808)", "error: integer overflow");
    check("-9223372036854775808 / -1", "error: integer overflow");
    check("-9223372036854775808 % -1", "error: integer overflow");
    check("5000000000 * 5000000000", "error: integer overflow");
    check("0u - 1u", "error: unsigned integer overflow");
    check("18446744073709551615u + 1u", "error: unsigned integer overflow");
    check("1 / 0", "error: division by zero");
    check("1u % 0u", "error: modulus by zero");
    check("1.0 / 0.0", "inf");
    check("duration('2562047h') + duration('1h')", "error: duration overflow");
}

#[test]
fn conversions_keep_the_value_or_fail() {
    check("int('-12')", "-12");
    check("int(3.9)", "3");
    check("int(1e19)", "refused: integer overflow");
    check("uint(-1)", "refused: unsigned integer overflow");
    check("uint(x)", "1u");
    check("int(text)", "error: type conversion error from 'string' to 'int'");
    check("double('1.5')", "1.5");
    check("string(1.0)", "\"1\"");
    check("string(1e21)", "\"1e+21\"");
    check("string(b'abc')", "\"abc\"");
    check("string(true)", "\"true\"");
    check("bool('True')", "true");
    check("bytes('é')", "b[195, 169]");
    check("string(duration('90m1.5s'))", "\"5401.5s\"");
    check("string(timestamp('2024-02-29T12:30:00.5+02:00'))", "\"2024-02-29T12:30:00.5+02:00\"");
    check("type(1) == int", "true");
    check("type([1]) == type([''])", "true");
    check("type(x) == string", "false");
}

#[test]
fn equality_across_number_types() {
    check("dyn(1) == 1.0", "true");
    check("dyn(1) == 1u", "true");
    check("dyn(1u) == 1.5", "false");
    check("dyn(9007199254740993) == 9007199254740992.0", "false");
    check("dyn(1) == 'a'", "false");
    check("1 == 'a'", "refused: found no matching overload for '_==_' applied to '(int, string)'");
    check("1 < 1.5", "true");
    check("2u > 1.5", "true");
    check("-1 < 0u", "true");
    check("dyn([1, 2]) == [1.0, 2.0]", "true");
    check("{'a': 1} == {'a': 1}", "true");
    check("{'a': 1} != {'b': 1}", "true");
    check("0.0 / 0.0 == 0.0 / 0.0", "false");
    check("object.spec.none == null", "true");
}

#[test]
fn logic_passes_over_errors_of_the_other_side() {
    check("true || 1 / 0 > 0", "true");
    check("1 / 0 > 0 || true", "true");
    check("1 / 0 > 0 && false", "false");
    check("1 / 0 > 0 && true", "error: division by zero");
    check("1 / 0 > 0 || false", "error: division by zero");
    check("dyn(1) || true", "true");
    check("dyn(1) || false", "error: no such overload");
    check("[0, 1].exists(i, 1 / i == 1)", "true");
    check("[0, 1].all(i, 1 / i == 2)", "false");
    check("[0, 1].all(i, 1 / i == 1)", "error: division by zero");
}

#[test]
fn fields_and_elements() {
    check("object.metadata.name", "\"web\"");
    check("object.metadata['name']", "\"web\"");
    check("object.spec.list[1]", "2");
    check("object.spec.list[3]", "error: index out of bounds: 3");
    check("object.spec.list[-1]", "error: index out of bounds: -1");
    check("object.spec.missing", "error: no such key: missing");
    check("object.spec.missing.deep", "error: no such key: missing");
    check("object.spec.none.deep", "error: no such key: deep");
    check("has(object.spec.replicas)", "true");
    check("has(object.spec.missing)", "false");
    check("has(object.spec.missing.deep)", "error: no such key: missing");
    check("has(object.spec.none)", "true");
    check("'name' in object.metadata", "true");
    check("unset", "error: no such attribute(s): unset");
    check("device.driver", "\"gpu.example.com\"");
    check("device.namespace + device.__namespace__ + device.?namespace.value()", "\"nnn\"");
    check("has(device.namespace)", "true");
    check("device.import", "refused: undefined field 'import'");
    check("device.attributes['gpu.example.com'].cores > 4", "true");
    check("{1: 'a', 2: 'b'}[dyn(1.0)]", "\"a\"");
    check("{true: 1}[true]", "1");
    // The last of a key counts.
    check("{'a': 1, 'a': 2}['a'] + {'a': 1, 'a': 2}.size()", "3");
}

#[test]
fn macros() {
    check("list.map(i, i * 2)", "[2, 4, 6]");
    check("list.map(i, i > 1, i * 2)", "[4, 6]");
    check("list.filter(i, i % 2 == 1)", "[1, 3]");
    check("list.exists_one(i, i > 2)", "true");
    check("list.existsOne(i, i > 1)", "false");
    check("object.metadata.labels.all(k, k == 'app')", "true");
    check("object.metadata.labels.map(k, object.metadata.labels[k])", "[\"web\"]");
    check("[[1], [2, 3]].map(l, l.map(i, i + x))", "[[2], [3, 4]]");
    check("list.map(i, 1)", "[1, 1, 1]");
    check("cel.bind(y, x + 1, y * y)", "4");
    check("cel.bind(x, 5, cel.bind(y, x, x + y))", "10");
    check("list.filter(x, x > 1).size()", "2");
}

#[test]
fn macros_of_two_variables() {
    check("list.all(i, v, v == i + 1)", "true");
    check("object.metadata.labels.exists(k, v, k == 'app' && v == 'web')", "true");
    check("list.existsOne(i, v, i == 0 && v == 1)", "true");
    check("list.transformList(i, v, i * v)", "[0, 2, 6]");
    check("list.transformList(i, v, v > 1, i * v)", "[2, 6]");
    check("{'a': 1, 'b': 2}.transformMap(k, v, v + 1)", "{\"a\": 2, \"b\": 3}");
    check("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, k)", "{\"b\": \"b\"}");
    check("{'a': 'x'}.transformMapEntry(k, v, {v: k})", "{\"x\": \"a\"}");
    check("{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k})", "error: insert failed: key x already exists");
    check("list.all(i, i, true)", "refused: duplicate variable name: i");
}

#[test]
fn optionals() {
    check("object.?metadata.?name", "some(\"web\")");
    check("object.?missing.?name", "none");
    check("object.?missing.name", "none");
    check("object.?metadata.name.orValue('a')", "\"web\"");
    check("object.metadata.?missing.orValue('a')", "\"a\"");
    check("object.metadata[?'missing'].or(optional.of('b')).value()", "\"b\"");
    check("list[?7].hasValue()", "false");
    check("list[?0].optMap(v, v + 1)", "some(2)");
    check("list[?7].optMap(v, v + 1)", "none");
    check("list[?0].optFlatMap(v, list[?v])", "some(2)");
    check("optional.none().value()", "error: optional.none() dereference");
    check("optional.ofNonZeroValue('')", "none");
    check("[1, ?list[?7], ?optional.of(2)]", "[1, 2]");
    check("{?'a': list[?7], 'b': 1}", "{\"b\": 1}");
    check("has(object.?missing.name)", "false");
    check("optional.of(1) == optional.of(1)", "true");
    check("[1].first().value() + [2, 3].last().value()", "4");
    check("optional.unwrap([optional.of(1), optional.none()])", "[1]");
}

#[test]
fn times() {
    check("timestamp('2024-02-29T12:30:15.123Z').getFullYear()", "2024");
    check("timestamp('2024-02-29T12:30:15.123Z').getMonth()", "1");
    check("timestamp('2024-02-29T12:30:15.123Z').getDate()", "29");
    check("timestamp('2024-02-29T12:30:15.123Z').getDayOfMonth()", "28");
    check("timestamp('2024-02-29T12:30:15.123Z').getDayOfWeek()", "4");
    check("timestamp('2024-02-29T12:30:15.123Z').getDayOfYear()", "59");
    check("timestamp('2024-02-29T12:30:15.123Z').getHours('Europe/Berlin')", "13");
    check("timestamp('2024-02-29T12:30:15.123Z').getMinutes('-02:45')", "45");
    check("timestamp('2024-02-29T12:30:15.123Z').getMilliseconds()", "123");
    check("timestamp('2024-02-29T12:30:15Z').getHours('Nowhere')", "error: unknown time zone Nowhere");
    check("duration('1h30m').getMinutes()", "90");
    check("timestamp('2024-01-01T00:00:00Z') + duration('24h') == timestamp('2024-01-02T00:00:00Z')", "true");
    check("timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')", "true");
    check("timestamp('9999-12-30T21:59:59Z') + duration('27h')", "error: timestamp overflow");
    check("timestamp('2024-13-01T00:00:00Z')", "refused: invalid timestamp argument");
    check("timestamp('2024-01-01 00:00:00Z')", "refused: invalid timestamp argument");
    check("duration('1 h')", "refused: invalid duration argument");
    check("duration(text)", "error: type conversion error from 'string' to 'google.protobuf.Duration'");
    check("timestamp(0)", "1970-01-01T00:00:00Z");
    check("timestamp('2011-08-18T19:03:37.01+01:00') == timestamp('2011-08-18T18:03:37.01Z')", "true");
    check("timestamp('2011-08-18T19:03:37+01:00') < timestamp('2011-08-18T18:03:38Z')", "true");
    check("string(timestamp('2011-08-18T19:03:37+01:00') + duration('1h'))", "\"2011-08-18T20:03:37+01:00\"");
    check("timestamp('2011-08-18T19:03:37+01:00').getHours()", "18");
    check("optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00Z'))", "none");
}

#[test]
fn composed_variables_are_evaluated_when_they_are_asked_for() {
    use cel::{Budget, Composition, Environment, Type, Value, Variables};
    let mut environment = Environment::builder().variable("x", Type::Int).build();
    let mut programs = Vec::new();
    for (name, text) in [("twice", "x * 2"), ("broken", "x / 0"), ("sum", "variables.twice + variables.twice")] {
        let program = environment.compile_any(text).expect(text);
        environment.compose("variables", name, program.result_type().clone());
        programs.push((name.to_owned(), Ok(program)));
    }
    assert!(environment.compile_any("variables.twice == 'a'").is_err(), "the type is known");
    let check = |text: &str, expected: &str, cost: (u64, u64)| {
        let composition = Composition::new(&programs, Variables::new().with("x", Value::Int(4)));
        let mut budget = Budget::default();
        let result = environment.compile_any(text).expect(text).evaluate_with(&composition, &mut budget);
        let shown = result.map_or_else(|e| format!("error: {e}"), |v| v.to_string());
        assert_eq!((shown.as_str(), (budget.used(), composition.take_cost())), (expected, cost), "{text}");
    };
    check("variables.twice + variables.twice", "16", (5, 2));
    check("variables.sum == 16", "true", (3, 2 + 5));
    check("true || variables.broken == 1", "true", (0, 0));
    check("variables.broken", "error: composited variable \"broken\" fails to evaluate: division by zero", (2, 2));
    check("has(variables.sum)", "true", (0, 0));
}

#[test]
fn composed_variables_do_not_use_up_the_stack() {
    use cel::{Budget, Composition, Environment, Variables};
    let mut environment = Environment::builder().build();
    let mut programs = Vec::new();
    for number in 0..5000 {
        let text = if number == 0 { "1".to_owned() } else { format!("variables.v{} + 1", number - 1) };
        let program = environment.compile_any(&text).expect("an expression");
        environment.compose("variables", &format!("v{number}"), program.result_type().clone());
        programs.push((format!("v{number}"), Ok(program)));
    }
    let composition = Composition::new(&programs, Variables::new());
    let run = |text: &str| {
        let program = environment.compile_any(text).expect(text);
        program.evaluate_with(&composition, &mut Budget::default()).map(|v| v.to_string())
    };
    assert!(run("variables.v4999").expect_err("too deep").to_string().contains("nested too deeply"));
    assert_eq!(run("variables.v100"), Ok("101".to_owned()));
}
