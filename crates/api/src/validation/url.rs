//! URLs that an administrator or a user gives, told apart as Go's parser does (net/url).

use super::field::quote;

/// The parts of a URL as Go's parser tells them apart: only what follows `//` behind the scheme is a host.
pub struct Url<'u> {
    pub scheme: String,
    pub user: Option<&'u str>,
    pub host: &'u str,
    pub query: &'u str,
    pub fragment: &'u str,
}

impl<'u> Url<'u> {
    /// The error is in Go's words.
    pub fn parse(given: &'u str) -> Result<Self, String> {
        Self::split(given).map_err(|why| format!("parse {}: {why}", quote(given)))
    }

    fn split(given: &'u str) -> Result<Self, String> {
        if given.chars().any(|letter| letter.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (rest, fragment) = given.split_once('#').unwrap_or((given, ""));
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
        let (scheme, rest) = match rest.split_once(|letter| !plain(letter)) {
            Some(("", _)) if rest.starts_with(':') => return Err("missing protocol scheme".to_owned()),
            Some((scheme, behind)) if rest[scheme.len()..].starts_with(':') && begins_with_letter(scheme) => {
                (scheme.to_ascii_lowercase(), behind)
            }
            _ => (String::new(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if scheme.is_empty() && rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
        let behind = rest.strip_prefix("//").filter(|behind| !(scheme.is_empty() && behind.starts_with('/')));
        let authority = behind.and_then(|behind| behind.split('/').next()).unwrap_or_default();
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let port = host.rfind(':').map(|at| &host[at..]).filter(|port| !port.contains(']'));
        if let Some(port) = port.filter(|port| !port[1..].bytes().all(|digit| digit.is_ascii_digit())) {
            return Err(format!("invalid port {} after host", quote(port)));
        }
        if let Some(letter) = host.chars().find(|letter| " <>\"\\^`{|}".contains(*letter)) {
            return Err(format!("invalid character {} in host name", quote(&letter.to_string())));
        }
        Ok(Url { scheme, user, host, query, fragment })
    }
}

fn begins_with_letter(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
}
