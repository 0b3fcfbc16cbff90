//! YAML as Go's library reads it: one document, numbers of version 1.1, and its words about what cannot be read.

use serde_saphyr::DuplicateKeyPolicy;

use crate::codec::bounds::YAML_DEPTH_MAX;

/// Of several documents the first one, as Go's library reads no further: many files end with a line `---`. At the beginning of a
/// line its three dashes end a document wherever they stand.
pub(super) fn first_document(bytes: &[u8]) -> &[u8] {
    let marks = |line: &[u8], mark: &[u8]| {
        line.strip_prefix(mark).is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
    };
    let (mut begun, mut at) = (false, 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if begun && (marks(line, b"---") || marks(line, b"...")) {
            return &bytes[..at];
        }
        // Comments and directives are before the document, even before the dashes with which it begins.
        let text = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line).trim_ascii();
        begun |= !(text.is_empty() || text.starts_with(b"#") || line.starts_with(b"%"));
        at += line.len();
    }
    bytes
}

/// As Go's library tells of a document that cannot be read: with the line, and no piece of the document.
pub(super) fn broken(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    if text.starts_with("budget breached") {
        // Anchors are the way to that many values in a body.
        return "yaml: document contains excessive aliasing".to_owned();
    }
    if text.starts_with("recursion limit exceeded") {
        return format!("yaml: exceeded max depth of {YAML_DEPTH_MAX}");
    }
    let Some(place) = error.location() else { return format!("yaml: {text}") };
    let text = text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text);
    format!("yaml: line {}: {text}", place.line())
}

/// The library's own limits hold for the number of values, with those that anchors stand for. As in YAML 1.1, `0644` is octal.
pub(super) fn options(duplicate_keys: DuplicateKeyPolicy) -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! { max_depth: YAML_DEPTH_MAX };
    serde_saphyr::options! { duplicate_keys: duplicate_keys, budget: budget, legacy_octal_numbers: true }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::super::{Format, raw};

    #[test]
    fn of_yaml_the_first_document_is_read() {
        let check = |text: &str, expected: Value| {
            let (value, _) = raw(text.as_bytes(), Format::Yaml).unwrap_or_else(|why| panic!("{text}: {why:?}"));
            assert_eq!(value, expected, "{text}");
        };
        for before in ["", "---\n", "# c\n\n---\n", "%YAML 1.1\n---\n", "\u{feff}", "--- # c\r\n"] {
            for after in ["", "---\n", "\n---\n# c\n", "...\n", "--- \nb: 2\n", "---\r\nb: [\n", "...\nb: 2", "---"] {
                check(&format!("{before}a: 1\n{after}"), json!({"a": 1}));
            }
        }
        check("---\n---\na: 1\n", Value::Null);
        check("a: |\n  ---\n  b\nc: ---d\n", json!({"a": "---\nb\n", "c": "---d"}));
        check("---x: 1\n", json!({"---x": 1}));
        check("--- {a: 1}\n---\n", json!({"a": 1}));
    }

    #[test]
    fn numbers_in_yaml_are_those_of_version_1_1() {
        for (text, expected) in [
            ("0400", json!(256)),
            ("0755", json!(493)),
            ("-010", json!(-8)),
            ("+010", json!(8)),
            ("0o17", json!(15)),
            ("00", json!(0)),
            ("0", json!(0)),
            ("09", json!(9)),
            ("0.5", json!(0.5)),
            ("0x1F", json!(31)),
            ("\"0400\"", json!("0400")),
            ("0400a", json!("0400a")),
        ] {
            assert_eq!(raw(text.as_bytes(), Format::Yaml).map(|(value, _)| value), Ok(expected), "{text}");
        }
    }
}
