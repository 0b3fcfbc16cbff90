//! The settings about browsers and load balancers: whose pages may read the server's answers (CORS), that it is never spoken
//! to without TLS (HSTS), and how often a connection is ended so that its client may come to another server (GOAWAY).
//!
//! Upstream counterpart: apiserver/pkg/server/filters/{cors,hsts,goaway}.go, and of strangers endpoints/filters/authentication.go.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use listener::Answering;
use regex::{Regex, RegexBuilder};

use crate::http::body::{Body, Response};

/// Chances are counted in millionths.
const WHOLE: u64 = 1_000_000;
/// A pattern whose program is larger is refused.
const PATTERN_BYTES: usize = 1 << 20;

/// The headers of an answer to an allowed origin beside its name.
const TO_ORIGIN: [(HeaderName, &str); 4] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

#[derive(Debug, Clone, Default)]
pub struct Web {
    /// Pages of these origins may read answers.
    origins: Vec<Regex>,
    transport_security: Option<HeaderValue>,
    /// How many of a million requests end their connection.
    goaway: u64,
    /// Requests of nobody end theirs.
    goaway_of_strangers: bool,
}

impl Web {
    /// Pages of the origins that one of these patterns is found in may read answers.
    pub fn origins(mut self, patterns: &[String]) -> Result<Self, String> {
        let pattern = |text: &String| {
            RegexBuilder::new(text)
                .size_limit(PATTERN_BYTES)
                .build()
                .map_err(|error| format!("{text:?} is no regular expression: {error}"))
        };
        self.origins = patterns.iter().map(pattern).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// The directives of the header `Strict-Transport-Security`; without any there is none.
    pub fn transport_security(mut self, directives: &[String]) -> Result<Self, String> {
        if !directives.is_empty() {
            let value = HeaderValue::try_from(directives.join("; "));
            self.transport_security = Some(value.map_err(|_| "directives must be printable text".to_owned())?);
        }
        Ok(self)
    }

    /// The part of all requests over HTTP/2 that end their connection, from 0 to 1.
    #[must_use]
    pub fn goaway(mut self, chance: f64) -> Self {
        self.goaway = (chance.clamp(0.0, 1.0) * WHOLE as f64) as u64;
        self
    }

    /// Whether a request over HTTP/2 that nobody known has sent ends its connection.
    #[must_use]
    pub fn goaway_of_strangers(mut self, ends: bool) -> Self {
        self.goaway_of_strangers = ends;
        self
    }

    /// The origin of the page that sends a request, when that may read the answer.
    pub fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.origins.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok().filter(|text| !text.is_empty())?;
        self.origins.iter().any(|pattern| pattern.is_match(text)).then(|| origin.clone())
    }

    /// The answer to a browser that asks beforehand what its page may do.
    pub fn preflight(method: &Method, origin: Option<&HeaderValue>) -> Option<Response> {
        (method == Method::OPTIONS && origin.is_some()).then(|| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        })
    }

    /// Adds the headers to an answer.
    pub fn headers(&self, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            // An answer that is kept for one origin is not for another.
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
            headers.extend(TO_ORIGIN.map(|(name, value)| (name, HeaderValue::from_static(value))));
        }
        if let Some(directives) = &self.transport_security {
            headers.entry(header::STRICT_TRANSPORT_SECURITY).or_insert_with(|| directives.clone());
        }
    }

    /// Ends the connection of a share of the requests, once what is open there is answered.
    pub fn leave(&self, parts: &Parts) {
        if self.goaway > 0 && clock::random_range(0..WHOLE) < self.goaway {
            end_http2(parts);
        }
    }

    /// Ends the connection of a request that nobody known has sent, once what is open there is answered: whoever shows no
    /// credentials gets no more out of HTTP/2 than out of HTTP/1 with a connection for each request (CVE-2023-44487).
    pub fn leave_stranger(&self, parts: &Parts) {
        if self.goaway_of_strangers {
            end_http2(parts);
        }
    }
}

/// Over HTTP/2 a client is told that its connection ends, and loses no request by that.
fn end_http2(parts: &Parts) {
    if parts.version == Version::HTTP_2
        && let Some(answering) = parts.extensions.get::<Answering>()
    {
        answering.end_connection();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(patterns: &[&str]) -> Web {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        Web::default().origins(&patterns).unwrap()
    }

    #[test]
    fn only_pages_of_allowed_origins_read_answers() {
        let check = |web: &Web, origin: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
            assert_eq!(web.origin(&headers).is_some(), expected, "{origin}");
        };
        let some = web(&[r"^https://a\.example$", r"//b\.example(:|$)"]);
        check(&some, "https://a.example", true);
        check(&some, "https://a.example.evil", false);
        check(&some, "http://b.example:8080", true);
        check(&some, "", false);
        check(&web(&[]), "https://a.example", false);
        assert!(some.origin(&HeaderMap::new()).is_none());
        let wrong = Web::default().origins(&["(".to_owned()]).unwrap_err();
        assert!(wrong.starts_with("\"(\" is no regular expression"), "{wrong}");
        let large = Web::default().origins(&["(a{1000}){1000}".to_owned()]).unwrap_err();
        assert!(large.contains("size limit"), "{large}");
    }

    #[test]
    fn answers_carry_what_was_asked_for() {
        let mut headers = HeaderMap::new();
        Web::default().headers(None, &mut headers);
        assert!(headers.is_empty());
        let directives = ["max-age=31536000".to_owned(), "preload".to_owned()];
        let web = Web::default().transport_security(&directives).unwrap();
        let origin = HeaderValue::from_static("https://a.example");
        web.headers(Some(origin.clone()), &mut headers);
        assert_eq!(headers[header::STRICT_TRANSPORT_SECURITY], "max-age=31536000; preload");
        assert_eq!(headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], origin);
        assert_eq!(headers[header::ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert!(Web::default().transport_security(&["a\nb".to_owned()]).is_err());
    }
}
