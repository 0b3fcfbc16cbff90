//! Patterns of users. Matching takes time in proportion to the text; what a compiled pattern may take of memory is bounded.
//! It is compiled when it is first needed, and in Go's dialect: its classes are those of ASCII.

use std::fmt::{self, Debug};
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// The memory that one compiled pattern may take.
const SIZE_MAX: usize = 1 << 20;

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
        self.compiled.get_or_init(|| compile(&self.text).ok()).as_ref().is_some_and(|regex| regex.is_match(text))
    }

    /// Why the pattern is none, if that is so.
    pub fn check(text: &str) -> Result<(), String> {
        compile(text).map(drop)
    }
}

impl Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(&in_ascii(text)).size_limit(SIZE_MAX).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
        // The library's text draws the place over several lines; its last line says what is wrong.
        other => {
            let shown = other.to_string();
            let last = shown.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("error parsing regexp: {last}")
        }
    })
}

/// The pattern with Go's meaning of classes, and with what only Rust's dialect treats as special escaped.
fn in_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    // Whether a class is open, and whether its next character is the first.
    let (mut class, mut first) = (false, false);
    while let Some(c) = chars.next() {
        let was_first = std::mem::take(&mut first);
        match c {
            '\\' => match chars.next() {
                Some(escaped) => escape(escaped, class, &mut out),
                None => out.push('\\'),
            },
            '[' if !class => {
                (class, first) = (true, true);
                out.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
            }
            '[' if chars.peek() == Some(&':') => {
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' => out.push_str("\\["),
            ']' if class && was_first => out.push_str("\\]"),
            ']' if class => {
                class = false;
                out.push(']');
            }
            '&' | '~' if class => out.extend(['\\', c]),
            // `--` is a difference of classes; in Go the second is the mark itself.
            '-' if class && was_first => out.push_str("\\-"),
            '-' if class && chars.next_if_eq(&'-').is_some() => out.push_str("-\\-"),
            c => out.push(c),
        }
    }
    out
}

fn escape(c: char, class: bool, out: &mut String) {
    match (c, class) {
        ('d', false) => out.push_str("[0-9]"),
        ('w', false) => out.push_str("[0-9A-Za-z_]"),
        ('s', false) => out.push_str("[\\t\\n\\f\\r ]"),
        ('d', true) => out.push_str("0-9"),
        ('w', true) => out.push_str("0-9A-Za-z_"),
        ('s', true) => out.push_str("\\t\\n\\f\\r "),
        ('D', _) => out.push_str("[^0-9]"),
        ('W', _) => out.push_str("[^0-9A-Za-z_]"),
        ('S', _) => out.push_str("[^\\t\\n\\f\\r ]"),
        ('b' | 'B', false) => out.push_str(&format!("(?-u:\\{c})")),
        // Go takes a backslash before any mark.
        (c, _) => out.extend(['\\', c]),
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
        check(r"^[\w.-]+$", "a_b.c-1", true);
        check(r"^[^\s]+$", "a b", false);
        check("^[[]$", "[", true);
        check("^[]a]+$", "]a", true);
        check("^[a&&b]+$", "&", true);
        check("^[[:alpha:]]+$", "ab", true);
        check(r"^[+--]+$", ",", true);
        check(r"\bfoo\b", "a foo b", true);
        check("^a$", "a\n", false);
        check("^(", "(", false);
        assert!(Pattern::check("^(").is_err());
        assert_eq!(Pattern::check("((a{100}){100}){100}"), Err("expression too large".to_owned()));
    }
}
