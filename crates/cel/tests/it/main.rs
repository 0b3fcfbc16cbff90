//! The language as its users see it: texts in, values, costs and complaints out.

mod cost;
mod estimate;
mod language;
mod library;
mod limits;
mod messages;
mod numbers;
mod objects;
mod patterns;
mod times;
mod urls;

use cel::{Budget, Environment, Type, Value, Variables};
use json::{Value as Json, json};

/// An environment with variables for all tests.
fn environment() -> Environment {
    Environment::builder()
        .variable("object", Type::Dyn)
        .variable("text", Type::String)
        .variable("list", Type::list(Type::Int))
        .variable("x", Type::Int)
        .variable("unset", Type::Int)
        .variable("device", Type::object("test.Device"))
        .object(
            "test.Device",
            [
                ("driver".to_owned(), Type::String),
                ("__namespace__".to_owned(), Type::String),
                ("attributes".to_owned(), Type::map(Type::String, Type::map(Type::String, Type::Dyn))),
            ],
        )
        .made("test.Patch", [("op".to_owned(), Type::String), ("value".to_owned(), Type::Dyn)])
        .made_openly("Thing")
        .build()
}

fn input() -> Json {
    json!({
        "object": {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"replicas": 3, "list": [1, 2, 3],
            "share": 0.5, "none": null}},
        "text": "hello",
        "list": [1, 2, 3],
        "x": 1,
        "device": {"driver": "gpu.example.com", "__namespace__": "n",
            "attributes": {"gpu.example.com": {"model": "A", "cores": 8}}},
    })
}

fn variables(input: &Json) -> Variables<'_> {
    let fields = input.as_object().expect("an object");
    fields.iter().fold(Variables::new(), |all, (name, value)| all.with(name, Value::json(value)))
}

/// The result as text, or the complaint: `error: …` of the evaluation, `refused: …` of the compiler.
fn run(text: &str) -> (String, u64) {
    let program = match environment().compile_any(text) {
        Ok(program) => program,
        Err(error) => return (format!("refused: {}", error.issues()[0].message), 0),
    };
    let input = input();
    let mut budget = Budget::default();
    let shown = match program.evaluate(&variables(&input), &mut budget) {
        Ok(value) => show(&value),
        Err(error) => format!("error: {error}"),
    };
    (shown, budget.used())
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => format!("{:?}", &**text),
        Value::Uint(u) => format!("{u}u"),
        Value::Double(d) => format!("{d:?}"),
        Value::List(list) => format!("[{}]", list.iter().map(|v| show(&v)).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let entry = |key: &Value<'_>| show(&map.get(key).expect("no lookup").expect("a key of the map"));
            let entries: Vec<String> = map.keys().iter().map(|k| format!("{}: {}", show(k), entry(k))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(None) => "none".to_owned(),
        Value::Optional(Some(inner)) => format!("some({})", show(inner)),
        Value::Object(made) => {
            let fields: Vec<String> =
                made.fields.iter().map(|(name, value)| format!("{name}: {}", show(value))).collect();
            format!("{}{{{}}}", made.name, fields.join(", "))
        }
        Value::Bytes(bytes) => format!("b{bytes:?}"),
        other => other.to_string(),
    }
}

fn check(text: &str, expected: &str) {
    assert_eq!(run(text).0, expected, "{text}");
}
