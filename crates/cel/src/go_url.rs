//! URLs as Go reads them. Upstream counterpart: net/url of Go 1.25.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The parts of a URL. Two are equal when Go writes them as the same text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub scheme: String,
    /// The rest of a URL such as `mailto:a@b`.
    opaque: String,
    user: Option<String>,
    /// With the port, and without escapes.
    pub host: String,
    /// The path as it was written where that is a valid form of it, and else escaped.
    pub path: String,
    pub query: Option<String>,
    fragment: String,
}

/// Whether a request may name this: something absolute. The error is Go's.
pub fn check_uri(text: &str) -> Result<(), String> {
    parse(text, true).map(drop).map_err(|why| format!("parse {text:?}: {why}"))
}

/// Reads an absolute URL or path. As in upstream, it is also one if its fragment counts as part of the rest.
pub(crate) fn read(text: &str) -> Result<Url, String> {
    check_uri(text)?;
    let (whole, fragment) = text.split_once('#').unwrap_or((text, ""));
    let url = parse(whole, false).map_err(|why| format!("parse {whole:?}: {why}"))?;
    let fragment = escaped(fragment, b"/?").map_err(|why| format!("parse {text:?}: {why}"))?;
    Ok(Url { fragment, ..url })
}

/// Reads what has no fragment. A request names something absolute only, and always a path behind `//`.
fn parse(text: &str, request: bool) -> Result<Url, String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() && request {
        return Err("empty url".to_owned());
    }
    let (scheme, rest) = if text == "*" { ("", text) } else { scheme_of(text)? };
    let (mut rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query.to_owned())));
    let mut url = Url {
        scheme: scheme.to_ascii_lowercase(),
        opaque: String::new(),
        user: None,
        host: String::new(),
        path: String::new(),
        query,
        fragment: String::new(),
    };
    if text == "*" {
        return Ok(Url { path: "*".to_owned(), ..url });
    }
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Ok(Url { opaque: rest.to_owned(), ..url });
        }
        if request {
            return Err("invalid URI for request".to_owned());
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let has_authority = !scheme.is_empty() || (!request && !rest.starts_with("///"));
    if let Some(authority) = rest.strip_prefix("//").filter(|_| has_authority) {
        let (authority, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        url.host = host_of(host)?;
        url.user = user.map(user_of).transpose()?;
        rest = path;
    }
    url.path = escaped(rest, b"/")?;
    Ok(url)
}

fn scheme_of(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Marks that stand for themselves everywhere.
const UNRESERVED: &[u8] = b"-_.~";
const HOST: &[u8] = b"!$&'()*+,;=:[]<>\"";

/// A name and a password, escaped as Go writes them.
fn user_of(text: &str) -> Result<String, String> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&b);
    if !text.bytes().all(valid) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    let part = |text: &str| Ok::<_, String>(escape(&unescape(text, Part::Other)?, b"$&+,;="));
    Ok(match text.split_once(':') {
        Some((name, password)) => format!("{}:{}", part(name)?, part(password)?),
        None => part(text)?,
    })
}

/// A name or an address in brackets, and a port.
fn host_of(text: &str) -> Result<String, String> {
    let Some(inside) = text.strip_prefix('[') else {
        if text.contains('[') {
            return Err("invalid IP-literal".to_owned());
        }
        check_port(text.rfind(':').map_or("", |at| &text[at..]))?;
        return Ok(lossy(&unescape(text, Part::Host)?));
    };
    let (address, port) = inside.rsplit_once(']').ok_or("missing ']' in host")?;
    check_port(port)?;
    let zone = address.find("%25").unwrap_or(address.len());
    let mut plain = lossy(&unescape(&address[..zone], Part::Host)?);
    plain.push_str(&lossy(&unescape(&address[zone..], Part::Zone)?));
    if plain.parse::<Ipv4Addr>().is_ok() {
        return Err("invalid IP-literal".to_owned());
    }
    let (number, zone) = plain.split_once('%').map_or((&*plain, None), |(number, zone)| (number, Some(zone)));
    if number.parse::<Ipv6Addr>().is_err() || zone == Some("") {
        return Err(format!("invalid host: ParseAddr({plain:?}): unable to parse IP"));
    }
    Ok(format!("[{plain}]{port}"))
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}

fn check_port(text: &str) -> Result<(), String> {
    if is_port(text) { Ok(()) } else { Err(format!("invalid port {text:?} after host")) }
}

impl Url {
    /// The name or address, without brackets, and the port.
    pub fn name_and_port(&self) -> (&str, &str) {
        let (name, port) = match self.host.rfind(':') {
            Some(at) if is_port(&self.host[at..]) => (&self.host[..at], &self.host[at + 1..]),
            _ => (&*self.host, ""),
        };
        (name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port)
    }
}

/// Parts of a URL that differ in what an escape may stand for.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Host,
    Zone,
    Query,
    Other,
}

/// The text of a query's key or value.
pub(crate) fn query_text(text: &str) -> Option<String> {
    unescape(text, Part::Query).ok().map(|bytes| lossy(&bytes))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn unescape(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let digits = tail.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
                let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
                let Some(value) = value.filter(|value| allowed(*value, digits == Some(b"25"), part)) else {
                    let shown = lossy(&tail[..tail.len().min(2)]);
                    return Err(format!("invalid URL escape {:?}", format!("%{shown}")));
                };
                bytes.push(value);
                rest = &tail[2..];
            }
            b'+' if part == Part::Query => bytes.push(b' '),
            b if matches!(part, Part::Host | Part::Zone) && b.is_ascii() && !in_host(*b) => {
                return Err(format!("invalid character {:?} in host name", char::from(*b).to_string()));
            }
            b => bytes.push(*b),
        }
    }
    Ok(bytes)
}

/// Whether an escape may stand for a byte. `%` itself may be escaped everywhere, since it begins the zone of an address.
fn allowed(value: u8, percent: bool, part: Part) -> bool {
    match part {
        Part::Host => !value.is_ascii() || percent,
        Part::Zone => percent || value == b' ' || in_host(value),
        Part::Query | Part::Other => true,
    }
}

fn in_host(b: u8) -> bool {
    b.is_ascii_alphanumeric() || UNRESERVED.contains(&b) || HOST.contains(&b)
}

fn escape(bytes: &[u8], plain: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for b in bytes {
        if b.is_ascii_alphanumeric() || UNRESERVED.contains(b) || plain.contains(b) {
            out.push(char::from(*b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// A path or fragment as it was written if that is a valid form of it, and else in the form that Go gives it.
/// `separators` are the marks that are plain in this part and not in the other.
fn escaped(text: &str, separators: &[u8]) -> Result<String, String> {
    let bytes = unescape(text, Part::Other)?;
    let valid = |b: u8| {
        b.is_ascii_alphanumeric()
            || UNRESERVED.contains(&b)
            || b"!$&'()*+,;=:@[]%".contains(&b)
            || separators.contains(&b)
    };
    if text.bytes().all(valid) {
        return Ok(text.to_owned());
    }
    let marks: &[u8] = if separators.contains(&b'?') { b"$&+,/:;=?@!()*" } else { b"$&+,/:;=@" };
    Ok(escape(&bytes, marks))
}
