//! Files that configure the server, as upstream's decoder reads them: YAML or JSON, and of several documents the first one.

use api::{
    Value,
    codec::decode::{self, Format},
};

/// Reads a file. The error says what is wrong, also of a field that stands there twice.
pub fn read(text: &str) -> Result<Value, String> {
    match read_leniently(text)? {
        (value, faults) if faults.is_empty() => Ok(value),
        (_, faults) => Err(format!("it is not valid YAML: {}", faults.join(", "))),
    }
}

/// Reads a file in which fields may stand twice: the last one counts, and the second part names them.
pub fn read_leniently(text: &str) -> Result<(Value, Vec<String>), String> {
    let read = decode::raw(text.as_bytes(), Format::Yaml).map_err(|problem| {
        let why = problem.to_string();
        format!("it is not valid YAML: {}", why.strip_prefix("yaml: ").unwrap_or(&why))
    });
    read.map(|(value, faults)| (value, decode::warnings(faults)))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn the_first_document_counts() {
        let check = |text: &str, expected: Value| assert_eq!(read(text), Ok(expected), "{text}");
        check("a: 1\n---\nb: 2\n", json!({"a": 1}));
        check("---\na: 0644\n---\n", json!({"a": 0o644}));
        check("{\"a\": 1}\n", json!({"a": 1}));
        let check = |text: &str, expected: &str| assert_eq!(read(text).unwrap_err(), expected, "{text}");
        check("a: 1\na: 2\n---\nb: [\n", "it is not valid YAML: line 2: key \"a\" already set in map");
        assert!(read("a: [").unwrap_err().starts_with("it is not valid YAML: "));
    }
}
