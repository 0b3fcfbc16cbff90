//! `url('https://example.com:80/a?b=c')` and its parts, read as Go's `net/url` reads them.

use std::any::Any;

use super::cost;
use crate::cost_rule::rules as estimate;
use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::typing::Type;
use crate::value::{Map, Opaque, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

const NAME: &str = "kubernetes.URL";

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("url(string): kubernetes.URL", url).costs(cost::first).estimated(estimate::as_large),
        function("isURL(string): bool", is_url),
        function("kubernetes.URL::getScheme(): string", scheme),
        function("kubernetes.URL::getHost(): string", host),
        function("kubernetes.URL::getHostname(): string", hostname),
        function("kubernetes.URL::getPort(): string", port),
        function("kubernetes.URL::getEscapedPath(): string", escaped_path),
        function("kubernetes.URL::getQuery(): map<string, list<string>>", query),
    ],
    types: &[(NAME, Type::Opaque(NAME))],
};

/// An absolute URL or path.
#[derive(Debug, PartialEq, Eq)]
struct Url {
    scheme: String,
    user: String,
    host: String,
    path: String,
    query: String,
    fragment: String,
}

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        NAME
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Url>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether a request may name this; the error is Go's.
pub fn check_uri(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// Reads what a request may name: something absolute.
fn parse(text: &str) -> Result<Url, String> {
    let failed = |why: &str| Err(format!("parse {text:?}: {why}"));
    if text.is_empty() {
        return failed("empty url");
    }
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return failed("net/url: invalid control character in URL");
    }
    let (whole, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = match scheme_of(whole) {
        Ok(split) => split,
        Err(why) => return failed(why),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') && scheme.is_empty() {
        return failed("invalid URI for request");
    }
    let mut url = Url {
        scheme: scheme.to_ascii_lowercase(),
        user: String::new(),
        host: String::new(),
        path: rest.to_owned(),
        query: query.to_owned(),
        fragment: fragment.to_owned(),
    };
    if !rest.starts_with('/') {
        // Opaque, such as `mailto:a@b`.
        url.path = String::new();
        return Ok(url);
    }
    if let Some(authority) = rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        let end = authority.find('/').unwrap_or(authority.len());
        let (user, host) = authority[..end].rsplit_once('@').unwrap_or(("", &authority[..end]));
        if let Err(why) = check_host(host) {
            return failed(&why);
        }
        (url.user, url.host, url.path) = (user.to_owned(), host.to_owned(), authority[end..].to_owned());
    }
    match bad_escape(&url.path) {
        Some(bad) => failed(&format!("invalid URL escape {bad:?}")),
        None => Ok(url),
    }
}

fn scheme_of(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |at| &host[at..])
    };
    let digits = port.strip_prefix(':').map(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    if !port.is_empty() && digits != Some(true) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    match host.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(format!("invalid character {:?} in host name", c.to_string())),
        None => Ok(()),
    }
}

/// The first `%` that is no escape, with what follows it.
fn bad_escape(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let wrong = |at: &usize| {
        bytes[*at] == b'%' && !bytes.get(at + 1..at + 3).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit))
    };
    let at = (0..bytes.len()).find(wrong)?;
    Some(text[at..].chars().take(3).collect())
}

fn unescaped(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    if bad_escape(&text).is_some() {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|d| std::str::from_utf8(d).ok());
        match hex.and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(value: &Value<'_>) -> Result<Url, EvaluationError> {
    let text = value.as_str().ok_or_else(EvaluationError::no_such_overload)?;
    parse(text).map_err(|why| EvaluationError::new(format!("URL parse error during conversion from string: {why}")))
}

fn url<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    read(&given[0]).map(Value::opaque)
}

fn is_url<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    Ok(Value::Bool(read(&given[0]).is_ok()))
}

fn of<'v>(given: &'v [Value<'_>]) -> Result<&'v Url, EvaluationError> {
    given[0].downcast::<Url>().ok_or_else(EvaluationError::no_such_overload)
}

fn scheme<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.scheme.as_str()))
}

fn host<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(u.host.as_str()))
}

/// The name or address, without brackets, and the port.
fn split_host(host: &str) -> (&str, &str) {
    let inside = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match inside {
        Some((address, port)) => (address, port.strip_prefix(':').unwrap_or("")),
        None => host.rsplit_once(':').unwrap_or((host, "")),
    }
}

fn hostname<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(split_host(&u.host).0))
}

fn port<'a>(_: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    of(given).map(|u| Value::string(split_host(&u.host).1))
}

/// The path as it was written where that is a valid form of it, and else escaped.
fn escaped_path<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let path = &of(given)?.path;
    call.making(path.len() * 3)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@/[]%".contains(&b);
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if plain(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(Value::string(escaped))
}

/// All values of each key. Pairs with a `;` or a broken escape are left out.
fn query<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    let query = &of(given)?.query;
    call.making(query.len().saturating_mul(8))?;
    let mut found: Vec<(String, Vec<Value<'a>>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(key), Some(value)) = (unescaped(key), unescaped(value)) else { continue };
        let place = *places.entry(key.clone()).or_insert_with(|| {
            found.push((key, Vec::new()));
            found.len() - 1
        });
        found[place].1.push(Value::string(value));
    }
    let mut map = Map::empty();
    for (key, values) in found {
        map = map.insert(Value::string(key), Value::list(values))?;
    }
    Ok(Value::Map(map))
}
