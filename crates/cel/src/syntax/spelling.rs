//! The names of fields that are no names of the language, spelled so that expressions can select them: `a.b` is `a__dot__b`.
//! Upstream counterpart: apiserver/pkg/cel/escaping.go.

use std::sync::LazyLock;

use regex::Regex;

use super::parser::is_identifier;

static MARK: LazyLock<Regex> = LazyLock::new(|| Regex::new("__([^_]+)__").expect("a valid pattern"));

/// The name by which expressions reach a field: words of the grammar and marks are spelled out. Others cannot be reached.
pub fn escaped(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let known = |c: char| plain(c) || matches!(c, '.' | '-' | '/');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(known) {
        return None;
    }
    if is_word(name) {
        return Some(format!("__{name}__"));
    }
    let spelled = name.replace("__", "__underscores__").replace('.', "__dot__");
    Some(spelled.replace('-', "__dash__").replace('/', "__slash__"))
}

/// The name that is spelled so; `None` when it is no spelling of any.
pub fn unescaped(spelled: &str) -> Option<String> {
    let mut name = String::with_capacity(spelled.len());
    let mut rest = 0;
    for found in MARK.captures_iter(spelled) {
        let (whole, word) = (found.get(0)?, found.get(1)?.as_str());
        name.push_str(&spelled[rest..whole.start()]);
        name.push_str(match word {
            "underscores" => "__",
            "dot" => ".",
            "dash" => "-",
            "slash" => "/",
            word if is_word(word) && whole.len() == spelled.len() => word,
            _ => return None,
        });
        rest = whole.end();
    }
    name.push_str(&spelled[rest..]);
    Some(name)
}

/// Whether it is a word of the grammar, which looks like a name and is none.
fn is_word(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase()) && !is_identifier(name)
}
