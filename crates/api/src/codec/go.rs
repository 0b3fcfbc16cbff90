//! Values as Go's `fmt` prints them, for messages that upstream formats with `%T`, `%v` or `%#v`.

use std::fmt::Write;

use json::{Key, Map, Value};

use super::numbers::digits;

/// The name that Go has for the type of a value (`%T`).
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The value as `%v` prints it: strings without quotes, the keys of maps in order.
pub fn plain(value: &Value) -> String {
    let mut out = String::new();
    write_plain(value, &mut out);
    out
}

fn write_plain(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { " " } else { "" });
                write_plain(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (at, (name, child)) in ordered(map).into_iter().enumerate() {
                out.push_str(if at > 0 { " " } else { "" });
                let _ = write!(out, "{}:", &**name);
                write_plain(child, out);
            }
            out.push(']');
        }
        Value::Number(number) => out.push_str(&digits(number)),
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// The value as `%#v` prints it where an interface holds it: as the Go source that makes it.
pub fn source(value: &Value) -> String {
    let mut out = String::new();
    write_source(value, &mut out);
    out
}

fn write_source(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("interface {}(nil)"),
        Value::Array(items) => {
            out.push_str("[]interface {}{");
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_source(item, out);
            }
            out.push('}');
        }
        Value::Object(map) => {
            out.push_str("map[string]interface {}{");
            for (at, (name, child)) in ordered(map).into_iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                let _ = write!(out, "{}:", crate::validation::field::quote(name));
                write_source(child, out);
            }
            out.push('}');
        }
        Value::String(text) => out.push_str(&crate::validation::field::quote(text)),
        Value::Number(number) => out.push_str(&digits(number)),
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// Go prints the entries of a map in the order of their keys.
fn ordered(map: &Map) -> Vec<(&Key, &Value)> {
    let mut entries: Vec<(&Key, &Value)> = map.iter().collect();
    entries.sort_by_key(|entry| &**entry.0);
    entries
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn values_read_as_go_prints_them() {
        let value = json!({"b": [1, "x y", null], "a": {"c": true}});
        assert_eq!(plain(&value), "map[a:map[c:true] b:[1 x y <nil>]]");
        assert_eq!(
            source(&value),
            "map[string]interface {}{\"a\":map[string]interface {}{\"c\":true}, \"b\":[]interface {}{1, \"x y\", \
             interface {}(nil)}}"
        );
        let check = |text: &str, expected: &str| assert_eq!(plain(&text.parse().expect("JSON")), expected);
        check(r#"{"metadata":{"labels":"invalid"}}"#, "map[metadata:map[labels:invalid]]");
        check(r#"{"b":[1,"x y",{}],"a":null}"#, "map[a:<nil> b:[1 x y map[]]]");
        check(r#"[true,1.5,-2,1e30,1e-7,100000000.5]"#, "[true 1.5 -2 1e+30 1e-07 1.000000005e+08]");
        assert_eq!(source(&json!(1e10)), "1e+10");
        assert_eq!((type_name(&json!(1.5)), type_name(&json!(1))), ("float64", "int64"));
    }
}
