//! The forms of names: DNS labels and subdomains, label keys and values, config keys, port names; the messages are
//! upstream's (apimachinery's `util/validation`). Each check returns what is wrong; nothing means valid.

use crate::validation::field::{Errors, FieldError, Path};

/// How the name of a kind's objects is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain: most kinds.
    Subdomain,
    /// DNS-1123 label: namespaces.
    Label,
    /// DNS-1035 label: Services.
    Label1035,
    /// Anything that can be one segment of a URL path: RBAC.
    PathSegment,
    /// Checked by the kind itself.
    Own,
}

impl NameRule {
    /// `prefix` is for `generateName`, whose last character may be a dash.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        let masked = (prefix && self != NameRule::PathSegment).then(|| mask_trailing_dash(name));
        let name = masked.as_deref().unwrap_or(name);
        match self {
            NameRule::Subdomain => dns1123_subdomain(name),
            NameRule::Label => dns1123_label(name),
            NameRule::Label1035 => dns1035_label(name),
            NameRule::PathSegment => path_segment(name, prefix),
            NameRule::Own => Vec::new(),
        }
    }
}

/// A generated name continues after the dash, so the dash counts as a letter.
fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(start) if !start.is_empty() => format!("{start}a"),
        _ => name.to_owned(),
    }
}

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const LABEL_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_REGEX: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn by_regex(what: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{what} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

fn lower_alphanumeric(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Starts and ends with `edge`, and has only `edge` or `inner` characters between.
fn shaped(text: &str, edge: fn(u8) -> bool, inner: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => edge(first) && edge(last) && bytes.iter().all(|&c| edge(c) || inner(c)),
        _ => false,
    }
}

fn is_label(text: &str) -> bool {
    shaped(text, lower_alphanumeric, |c| c == b'-')
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_name_part(text: &str) -> bool {
    shaped(text, |c| c.is_ascii_alphanumeric(), |c| matches!(c, b'-' | b'_' | b'.'))
}

pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !is_label(value) {
        if is_subdomain(value) {
            wrong.push("must not contain dots".to_owned());
        } else {
            let what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                        and end with an alphanumeric character";
            wrong.push(by_regex(what, LABEL_REGEX, &["my-name", "123-abc"]));
        }
    }
    wrong
}

pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    if !is_subdomain(value) {
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
                    start and end with an alphanumeric character";
        wrong.push(by_regex(what, SUBDOMAIN_REGEX, &["example.com"]));
    }
    wrong
}

/// A domain of two segments or more, also with a dot at its end.
pub fn fully_qualified_domain_name(path: &Path, name: &str) -> Errors {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let wrong = dns1123_subdomain(name);
    if !wrong.is_empty() {
        return vec![FieldError::invalid(path, name, &wrong.join(","))];
    }
    if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        return vec![FieldError::invalid(path, name, detail)];
    }
    let labels = name.split('.').map(|label| (label, dns1123_label(label)));
    let wrong = labels.filter(|(_, wrong)| !wrong.is_empty());
    wrong.map(|(label, wrong)| FieldError::invalid(path, label, &wrong.join(","))).collect()
}

pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !(is_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        let what = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                    character, and end with an alphanumeric character";
        wrong.push(by_regex(what, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    wrong
}

pub fn path_segment(value: &str, prefix: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if !prefix && (value == "." || value == "..") {
        return vec![format!("may not be '{value}'")];
    }
    for c in ["/", "%"] {
        if value.contains(c) {
            wrong.push(format!("may not contain '{c}'"));
        }
    }
    wrong
}

/// `name` or `example.com/name`: label and annotation keys, finalizers, resource names.
pub fn qualified_name(value: &str) -> Vec<String> {
    const REGEX: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
    let what = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    let shape = || by_regex(what, REGEX, &["MyName", "my.name", "123-abc"]);
    let mut wrong = Vec::new();
    let name = match value.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(dns1123_subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            let hint = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a qualified name {} {hint}", shape())];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if !is_name_part(name) {
        wrong.push(format!("name part {}", shape()));
    }
    wrong
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !value.is_empty() && !is_name_part(value) {
        let what = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
                    start and end with an alphanumeric character";
        let regex = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
        wrong.push(by_regex(what, regex, &["MyValue", "my_value", "12345"]));
    }
    wrong
}

/// A key of a ConfigMap or Secret, and so a file name.
pub fn config_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if value.is_empty() || !value.bytes().all(allowed) {
        let what = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        wrong.push(by_regex(what, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." | ".." => wrong.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// The name of an environment variable.
pub fn env_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// The name of a port (IANA service name).
pub fn port_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 15 {
        wrong.push(too_long(15));
    }
    if value.is_empty() || !value.bytes().all(|c| lower_alphanumeric(c) || c == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// A name as C has them.
pub fn c_identifier(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let starts = bytes.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    if starts && bytes.all(|c| c.is_ascii_alphanumeric() || c == b'_') {
        return Vec::new();
    }
    let what = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
                characters or '_'";
    vec![by_regex(what, "[A-Za-z_][A-Za-z0-9_]*", &["my_name", "MY_NAME", "MyName"])]
}

/// The reason of a condition that is not empty.
pub fn condition_reason(value: &str) -> Vec<String> {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b',' | b':');
    let ends = value.bytes().last().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_');
    if value.bytes().next().is_some_and(|c| c.is_ascii_alphabetic()) && value.bytes().all(inner) && ends {
        return Vec::new();
    }
    let what = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
                characters or '_,:', and must end with an alphanumeric character or '_'";
    vec![by_regex(
        what,
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

/// The name of an HTTP header.
pub fn http_header(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    vec![by_regex(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A subdomain whose parts may begin with an underscore and contain some, as in the search lists of DNS.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    let part =
        |part: &str| shaped(part.strip_prefix('_').unwrap_or(part), lower_alphanumeric, |c| matches!(c, b'-' | b'_'));
    if !value.split('.').all(part) {
        const LABEL: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
                    must start and end with an alphanumeric character";
        wrong.push(by_regex(what, &format!("{LABEL}(\\.{LABEL})*"), &["example.com"]));
    }
    wrong
}

/// A subdomain whose first part is `*`.
pub(crate) fn wildcard_subdomain(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        let what = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist \
                    of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        wrong.push(by_regex(what, &format!("\\*\\.{SUBDOMAIN_REGEX}"), &["*.example.com"]));
    }
    wrong
}

/// A domain and a path below it, such as `example.com/controller`.
pub fn domain_prefixed_path(text: &str, path: &Path) -> Errors {
    let (domain, below) = match text.split_once('/') {
        Some((domain, below)) if !domain.is_empty() && !below.is_empty() => (domain, below),
        _ if text.is_empty() => return vec![FieldError::required(path, "")],
        _ => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            return vec![FieldError::invalid(path, text, detail)];
        }
    };
    let wrong = dns1123_subdomain(domain);
    let mut errors: Errors = wrong.iter().map(|wrong| FieldError::invalid(path, domain, wrong)).collect();
    let in_path = |c: u8| c.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&c);
    if !below.bytes().all(in_path) {
        let detail = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(FieldError::invalid(path, below, detail));
    }
    errors
}

pub fn port_number(port: i32) -> Vec<String> {
    if (1..=65_535).contains(&port) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".to_owned()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: fn(&str) -> Vec<String>, good: &[&str], bad: &[&str]) {
        for name in good {
            assert_eq!(rule(name), Vec::<String>::new(), "{name:?}");
        }
        for name in bad {
            assert!(!rule(name).is_empty(), "{name:?}");
        }
    }

    #[test]
    fn names() {
        let long = "a".repeat(64);
        check(dns1123_label, &["a", "a-b", "1a"], &["", "A", "-a", "a-", "a.b", "a_b", &long]);
        check(dns1123_subdomain, &["a", "a.b-c.1"], &["", "a..b", ".a", "A", "a_b"]);
        check(dns1035_label, &["a", "a-1"], &["", "1a", "a-", "A"]);
        check(qualified_name, &["a", "A_b.c", "x.io/A"], &["", "/a", "x/", "X/a", "a/b/c", "-a", &long]);
        check(label_value, &["", "A_b.1"], &["-", "a b", &long]);
        check(config_key, &["a", ".a", "A_-."], &["", ".", "..", "..a", "a b", "a/b"]);
        check(env_name, &["A", "a b", "1-."], &["", "a=b", "\u{7f}", "é"]);
        check(dns1123_subdomain_with_underscore, &["_a._b_c", "a.b"], &["", "a_", "A", "__a"]);
        check(http_header, &["X-A"], &["", "a b"]);
        check(port_name, &["http", "a-1"], &["", "1", "A", "a--b", "-a", "sixteen-letters1"]);
    }

    #[test]
    fn messages_are_upstreams() {
        assert_eq!(
            dns1123_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
              with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
    }

    #[test]
    fn a_prefix_may_end_in_a_dash() {
        assert!(NameRule::Subdomain.check("web-", true).is_empty());
        assert!(!NameRule::Subdomain.check("web-", false).is_empty());
    }
}
