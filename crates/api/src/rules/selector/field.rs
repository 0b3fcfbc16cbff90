//! Field selectors: their text and what they match.

use std::fmt::{self, Display};

use super::requirement::SelectorError;

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    pub value: String,
    /// `=` or `!=`.
    pub equal: bool,
}

/// Written as a selector has it, with one `=`.
impl Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.field, if self.equal { "=" } else { "!=" }, escape(&self.value))
    }
}

/// Conditions on fields that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector(pub Vec<FieldRequirement>);

impl FieldSelector {
    /// Parses `metadata.name=a,status.phase!=Running`; `\,`, `\=` and `\\` stand for themselves in values. The order of the
    /// requirements is that of their texts, so that an authorizer sees one selector however it is written.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut list = Vec::new();
        for term in split_unescaped(text).into_iter().filter(|t| !t.is_empty()) {
            let broken = || SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'"));
            let at = term.find(['=', '!']).ok_or_else(broken)?;
            let (field, rest) = term.split_at(at);
            let (equal, raw) = if let Some(value) = rest.strip_prefix("!=") {
                (false, value)
            } else if let Some(value) = rest.strip_prefix("==") {
                (true, value)
            } else {
                (true, rest.strip_prefix('=').ok_or_else(broken)?)
            };
            list.push(FieldRequirement { field: field.to_owned(), value: unescape(raw)?, equal });
        }
        list.sort_by_cached_key(FieldRequirement::to_string);
        Ok(FieldSelector(list))
    }

    /// `value` gives the value of a field, empty when it has none.
    pub fn matches<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|r| (value(&r.field) == r.value) == r.equal)
    }

    /// The value that this field must have, when the selector demands one: for indexes.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.equal && r.field == field).map(|r| r.value.as_str())
    }

    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut list, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                list.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    list.push(&text[start..]);
    list
}

/// A value as it is written in a field selector.
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn unescape(raw: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                next => {
                    let sequence = format!("\\{}", next.map(String::from).unwrap_or_default());
                    return Err(SelectorError(format!("invalid field selector: invalid escape sequence: {sequence}")));
                }
            },
            ',' | '=' => {
                let message = format!("invalid field selector: unescaped character in value: {c}");
                return Err(SelectorError(message));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors() {
        let parse = |s: &str| FieldSelector::parse(s).unwrap();
        let of = |f: &str| if f == "a" { "1" } else { "" };
        assert!(parse("a=1").matches(of) && parse("a==1,b=").matches(of) && parse("a!=2").matches(of));
        assert!(!parse("a!=1").matches(of) && !parse("b=1").matches(of));
        let order = |text| parse(text).0.iter().map(FieldRequirement::to_string).collect::<Vec<_>>();
        assert_eq!(order("c=2,a!=b,a==1,a!=a,a.b=3"), ["a!=a", "a!=b", "a.b=3", "a=1", "c=2"]);
        assert_eq!(parse(r"a=x\,y\=z\\").exact("a"), Some(r"x,y=z\"));
        assert!(FieldSelector::parse("a").is_err() && FieldSelector::parse(r"a=\x").is_err());
    }
}
