//! Prometheus' text form: how a value stands between the quotes of a label.

use std::borrow::Cow;

/// A label's value as it is written; without this, one with a quote or a line break in it would end its line.
pub fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_between_their_quotes() {
        let check = |value: &str, expected: &str| assert_eq!(escaped(value), expected);
        check("pods", "pods");
        check("", "");
        check("a\"} 1\nforged 1", "a\\\"} 1\\nforged 1");
        check("\\", "\\\\");
        check("\\\"", "\\\\\\\"");
    }
}
