//! The `Accept` header: the media types that a client takes, with their parameters, the ones it prefers first.

use std::cmp::Reverse;

use http::{HeaderMap, header};

/// One alternative of an `Accept` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clause<'h> {
    kind: &'h str,
    subtype: &'h str,
    parameters: &'h str,
}

impl<'h> Clause<'h> {
    /// Whether it takes this media type.
    pub fn takes(&self, media_type: &str) -> bool {
        let (kind, subtype) = media_type.split_once('/').unwrap_or((media_type, ""));
        match (self.kind, self.subtype) {
            ("*", "*") => true,
            (own, "*") => own == kind,
            (own, sub) => own == kind && sub == subtype,
        }
    }

    pub fn parameters(&self) -> impl Iterator<Item = (&'h str, &'h str)> {
        let split = |parameter: &'h str| parameter.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        self.parameters.split(';').filter_map(split)
    }

    /// In thousandths.
    fn quality(&self) -> u32 {
        let given = self.parameters().find(|(name, _)| *name == "q");
        given.map_or(1000, |(_, text)| (text.parse::<f32>().unwrap_or(0.0).clamp(0.0, 1.0) * 1000.0) as u32)
    }

    fn read(text: &'h str) -> Option<Self> {
        let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
        let (kind, subtype) = match media_type.trim() {
            "*" => ("*", "*"),
            other => other.split_once('/')?,
        };
        Some(Clause { kind: kind.trim(), subtype: subtype.trim(), parameters })
    }
}

/// Whether any JSON will do, as most clients say.
pub fn is_usual(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).is_none_or(|accept| accept == "application/json" || accept == "*/*")
}

/// The alternatives, the best first: by quality, what is named before what is any, then in the order given. No header is
/// like any.
pub fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let accept = if accept.is_empty() { "*/*" } else { accept };
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::read).collect();
    clauses.sort_by_key(|clause| (Reverse(clause.quality()), clause.kind == "*", clause.subtype == "*"));
    clauses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(accept: &str, expected: &[&str]) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().expect("a header"));
        let found: Vec<String> = clauses(&headers).iter().map(|c| format!("{}/{}", c.kind, c.subtype)).collect();
        assert_eq!(found, expected, "{accept}");
    }

    #[test]
    fn the_best_comes_first() {
        check("", &["*/*"]);
        check("a/b, c/d", &["a/b", "c/d"]);
        check("a/b;q=0.5, c/d;q=0.9,e/f", &["e/f", "c/d", "a/b"]);
        check("*/*, a/*, a/b", &["a/b", "a/*", "*/*"]);
        check("*, a/b;q=x", &["*/*", "a/b"]);
        check("nothing,,a/b", &["a/b"]);
    }

    #[test]
    fn a_clause_takes_what_it_names() {
        let clause = Clause::read("application/json; as=Table;v=v1 ;g=meta.k8s.io").expect("a clause");
        assert!(clause.takes("application/json") && !clause.takes("application/yaml"));
        let parameters: Vec<_> = clause.parameters().collect();
        assert_eq!(parameters, [("as", "Table"), ("v", "v1"), ("g", "meta.k8s.io")]);
        let takes = |clause: &str, media_type| Clause::read(clause).is_some_and(|c| c.takes(media_type));
        assert!(
            takes("application/*", "application/yaml") && takes("*/*", "a/b") && !takes("text/*", "application/yaml")
        );
    }
}
