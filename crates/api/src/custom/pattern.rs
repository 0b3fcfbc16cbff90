//! Patterns of schemas, in Go's dialect as those of expressions. Each is compiled when it is first needed.

use std::fmt::{self, Debug};
use std::sync::OnceLock;

use cel::compile_pattern;
use regex::Regex;

#[derive(Clone)]
pub struct Pattern {
    pub text: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Pattern { text: text.into(), compiled: OnceLock::new() }
    }

    /// Whether the text contains a match. A pattern that is none matches nothing.
    pub fn matches(&self, text: &str) -> bool {
        self.compiled
            .get_or_init(|| compile_pattern(&self.text).ok())
            .as_ref()
            .is_some_and(|regex| regex.is_match(text))
    }

    /// Why the pattern is none, if that is so.
    pub fn check(text: &str) -> Result<(), String> {
        compile_pattern(text).map(drop)
    }
}

impl Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} on {text}");
        };
        check(r"^\d+$", "12", true);
        check(r"^\d+$", "١٢", false);
        check("^a$", "a\n", false);
        check("^(", "(", false);
    }

    #[test]
    fn faults_are_told_in_gos_words() {
        let check = |pattern: &str, why: &str| assert_eq!(Pattern::check(pattern), Err(why.to_owned()));
        check("^(", "error parsing regexp: missing closing ): `^(`");
        check("((a{100}){100}){100}", "error parsing regexp: invalid repeat count: `{100}`");
        assert_eq!(Pattern::check("^a$"), Ok(()));
    }
}
