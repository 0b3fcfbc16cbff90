//! CEL of users: whatever the text, it is compiled or refused, and evaluated within its budget.

use api::rules::cel::admission::{OptionalVariables, environment};
use cel::{Budget, Value, Variables};
use fuzz::Target;
use json::json;

use crate::found;

#[test]
fn cel() {
    let seeds = [
        "object.spec.replicas > 1 && object.metadata.name.startsWith('a')",
        "object.spec.list.all(x, x < 10) ? 'yes' : \"no\"",
        "has(object.spec.none) || !(oldObject == null)",
        "quantity('1Gi').isGreaterThan(quantity('500M')) && ip('10.0.0.1').family() == 4",
        "[1, 2, 3].map(i, i * 2).filter(i, i > 2).exists_one(i, i == 4)",
        "{'a': 1u, 'b': 2.5e3}.transformMap(k, v, string(v)) == {}",
        "cel.bind(t, object.metadata.name, t.matches('^[a-z]+$') && t.split('-').size() > 0)",
        "optional.of(object.?spec.?replicas).orValue(0) in [0, 1]",
        "timestamp('2020-01-01T00:00:00Z') + duration('1h') > timestamp('2019-01-01T00:00:00Z')",
        "b'\\xff\\x00' + b\"\"\"x\"\"\" == r'\\n'.find('n')",
        "semver('1.2.3').major() == 1 || url('https://a/b?c=d').getHost() == 'a' || format.dns1123Label().value().validate('a').hasValue()",
    ];
    let words = &[
        "object",
        ".spec",
        ".all(x, ",
        ".map(x, ",
        ".exists(",
        "has(",
        "cel.bind(x, ",
        "optional.none()",
        ".orValue(",
        "size(",
        "string(",
        "int(",
        "bytes(",
        "duration('",
        "timestamp('",
        ".matches('(a+)+$')",
        ".replace('', 'a')",
        "lists.range(100000)",
        " ? ",
        " : ",
        " in ",
        "&&",
        "||",
        "==",
        "0x7fffffffffffffff",
        "1u",
        "1e308",
        "'''",
        "r'",
        "b'",
        "\\u00e9",
        "\\377",
        "//",
        "quantity('1')",
        "[?",
        ".?a",
    ];
    let environment = environment(OptionalVariables { params: false, authorizer: false });
    let object = json!({"metadata": {"name": "web-1"}, "spec": {"replicas": 3, "list": [1, 2, 3], "none": null}});
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    let target = Target { name: "cel", seeds, words, found: found() };
    fuzz::run(&target, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return "no text".to_owned() };
        let program = match environment.compile_any(text) {
            Ok(program) => program,
            Err(error) => return error.issues()[0].message.clone(),
        };
        let variables = Variables::new().with("object", Value::json(&object)).with("oldObject", Value::Null);
        let mut budget = Budget::default();
        let outcome = program.evaluate(&variables, &mut budget);
        outcome.map_or_else(|error| error.to_string(), |value| value.to_string())
    });
}
