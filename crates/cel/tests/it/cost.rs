//! The costs of expressions: upstream's tables (cel-go's `runtimecost_test.go`, Kubernetes's `library/cost_test.go`).
//! They are measured there without the folding of constants that API servers use, so the price of constant lists and
//! maps is taken off.

use cel::{Budget, Environment, EvaluationError, Type, Value, Variables};
use json::json;

use super::run;

/// The cost upstream states, and what in it is the making of constant lists and maps or the conversion of constants.
fn check(text: &str, stated: u64, folded: u64) {
    let (shown, cost) = run(text);
    assert!(!shown.starts_with("refused") && !shown.starts_with("error"), "{text}: {shown}");
    assert_eq!(cost, stated - folded, "{text}");
}

#[test]
fn of_the_language() {
    check("'Hello World!'", 0, 0);
    check("list", 1, 0);
    check("object['spec']", 2, 0);
    check("list[0]", 2, 0);
    check("object.spec", 2, 0);
    check("object['sp' + 'ec']", 3, 0);
    check("list[3 - 3]", 3, 0);
    check("has(object.spec)", 1, 0);
    check("has(object.spec.replicas)", 2, 0);
    check("[1, 2, 3]", 10, 10);
    check("{'a': 1, 'b': 2, 'c': 3}", 30, 30);
    check("[x]", 11, 0);
    check("[1, 2, 3].all(x, true)", 20, 10);
    check("false || false", 0, 0);
    check("true && false", 0, 0);
    check("1 < 2", 1, 0);
    check("1 == 2", 1, 0);
    check("2 in [1, 2, 3]", 13, 13);
    check("x in list", 5, 0);
    check("1 + 1", 1, 0);
    check("true ? 1 : 2", 0, 0);
    check("size('123')", 1, 0);
    check("'12345678901234567890' == '123456789012345678901234567890'", 2, 0);
    check("string(x)", 2, 0);
    check("text.contains(text)", 3, 0);
    check("'123'.matches('[0-9]')", 2, 0);
    check("'idc'.startsWith(text)", 2, 0);
    check("text.size()", 2, 0);
    check("(x > 2 ? list : list).all(y, true)", 12, 0);
    check("true ? false : 1 > 3", 0, 0);
    check("false ? false : 1 > 3", 1, 0);
    check("object.all(k, object[k].size() > 0)", 2 * 7 + 2, 0);
    check("'abcdefg'.contains('val1' + 'val2222222')", 4, 0);
    check("(1 > 2 ? 5 : 3) > 1", 2, 0);
    check("(1 > 2 || 2 > 1) == true", 3, 0);
}

#[test]
fn of_folds() {
    check("[{'k1': 1}, {'k2': 2}].all(x, true)", 77, 70);
    check("[1,2,3,4,5].filter(x, x % 2 == 0)", 62, 20);
    check("[1,2,3,4,5].map(x, x)", 86, 20);
    check("[1,2,3,4,5].map(x, x).filter(x, x % 2 == 0)", 138, 30);
    check("[1,2,3,4,5].map(x, x).exists(x, x == 5) == true", 118, 20);
    check("[1,2,3,4,5].map(x, x).map(x, x)", 162, 30);
    check("[1,2,3,4,5].map(x, [x, x]).filter(z, z.size() == 2)", 232, 30);
    check("[1,2,3,4,5].map(x, [x, x]).all(y, y.all(y, y == 1))", 171, 20);
    check("[1,2,3,4,5].map(x, x).map(x, x) + [1]", 173, 40);
    check("[1,2,3].all(i, i in [1,2,3].map(j, j + j))", 86, 10 + 20);
    check("{'a': 1, 'b': 2}.all(k, v, v > 0)", 41, 30);
    check("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 40, 30);
    check("{'a': 1, 'b': 2}.existsOne(k, v, v > 5)", 36, 30);
    check("{'a': 1, 'b': 2}.transformMap(k, v, v + 1)", 71, 60);
    check("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1)", 75, 60);
    check("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1})", 131, 60);
    check("[1, 2].all(i, v, v > 0)", 21, 10);
    check("[1, 2].transformList(i, v, v + 1)", 49, 20);
    check("[1, 2].transformList(i, v, v < 5, v + 1)", 53, 20);
}

#[test]
fn of_libraries() {
    check("sets.contains([1], [1])", 22, 20);
    check("sets.contains([1, 2, 3, 4], [2, 3])", 29, 20);
    check("sets.equivalent([1], [1, 1])", 25, 20);
    check("!sets.intersects([1], [2])", 23, 20);
    check("semver('1.0.0')", 1, 0);
    check("semver('1234.56789012345.67890123456789')", 4, 0);
    check("semver('1.2.3').major()", 2, 0);
    check("semver('1.0.0').isLessThan(semver('1.1.0'))", 3, 0);
    check("[1, 2, 3, 4, 5].sum()", 15, 10);
    check("['a', 'b', 'c', 'd', 'e'].max()", 10, 10);
    check("'abcdefghijklmnopqrst'.indexOf('a')", 2, 0);
    check("'ABCDEFGHIJ abcdefghij'.lowerAscii()", 3, 0);
    check("'abc 123 def 123'.replace('123', '456')", 3, 0);
    check("'abc 123 def 123'.split(' ')", 3, 0);
    check("['aa', 'bb', 'cc', 'd', 'e', 'f', 'g', 'h', 'i', 'j'].join(' ')", 15, 10);
    check("'abc 123 def 123'.find('123')", 2, 0);
    check("'abc 123 def 123'.matches('123')", 2, 0);
}

#[test]
fn a_limit_ends_the_evaluation_and_nothing_absorbs_that() {
    let environment = Environment::builder().variable("list", Type::list(Type::Int)).build();
    let input = json!((0..100).collect::<Vec<i32>>());
    for text in ["list.all(i, i >= 0)", "list.map(i, i).size() > 0 || true", "list.exists(i, list.all(j, j > i))"] {
        let program = environment.compile(text, &Type::Bool).expect(text);
        let mut budget = Budget::new(50);
        let result = program.evaluate(&Variables::new().with("list", Value::json(&input)), &mut budget);
        assert_eq!(result.map(|v| v.to_string()), Err(EvaluationError::CostLimitExceeded), "{text}");
    }
}
