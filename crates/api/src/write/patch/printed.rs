//! Values as Go prints them: `map[a:1 b:[x y]]`.

use ::json::{Number, Value};

/// The fields stand in the order of their names.
pub(super) fn map(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(yes) => out.push_str(if *yes { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&digits(number)),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                separate(at, out);
                print(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value)).collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            out.push_str("map[");
            for (at, (name, value)) in fields.into_iter().enumerate() {
                separate(at, out);
                out.push_str(name);
                out.push(':');
                print(value, out);
            }
            out.push(']');
        }
    }
}

fn separate(at: usize, out: &mut String) {
    if at > 0 {
        out.push(' ');
    }
}

/// A double is written with an exponent where it is very large or small, which has two digits at least.
fn digits(number: &Number) -> String {
    let Some(double) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    if double == 0.0 || (1e-4..1e6).contains(&double.abs()) {
        return double.to_string();
    }
    let text = format!("{double:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(map(&text.parse().expect("JSON")), expected);
    }

    #[test]
    fn values_are_printed_as_go_does() {
        check(r#"{"metadata":{"labels":"invalid"}}"#, "map[metadata:map[labels:invalid]]");
        check(r#"{"b":[1,"x y",{}],"a":null}"#, "map[a:<nil> b:[1 x y map[]]]");
        check(r#"[true,1.5,-2,1e30,1e-7,100000000.5]"#, "[true 1.5 -2 1e+30 1e-07 1.000000005e+08]");
    }
}
