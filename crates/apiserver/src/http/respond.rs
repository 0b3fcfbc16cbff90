//! Making responses: objects, errors as `Status`, the headers that every response has, and compression.

use std::{collections::HashSet, io::Write as _};

use api::{codec::encode, status::StatusError, validation::field::quote};
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::PathAndQuery};

use crate::http::body::{Body, Response};

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Bodies above this are compressed for those who ask for it, as upstream does.
const COMPRESS_FROM: usize = 128 * 1024;

/// A JSON response from bytes that are JSON already.
pub fn json(code: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A page for people.
pub fn text(text: String) -> Response {
    let mut response = Response::new(text.into());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A JSON response from a value.
pub fn value(code: StatusCode, value: &api::Value) -> Response {
    json(code, encode::described(value))
}

/// Puts the bytes that `rewrite` makes of it in the place of an answer's text, if that is JSON which nobody has compressed.
pub fn rewritten(
    mut response: Response,
    media_type: HeaderValue,
    mut rewrite: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static,
) -> Response {
    let headers = response.headers_mut();
    let json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(JSON.as_bytes()));
    if !json || headers.contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, media_type);
    response.map(|body| match body {
        Body::Whole(bytes) => Body::from(rewrite(&bytes.unwrap_or_default())),
        Body::Stream(stream) => {
            Body::stream(stream.into_inner().map(move |chunk| chunk.map(|bytes| rewrite(&bytes).into())))
        }
        network => network,
    })
}

/// A page of metrics.
pub fn metrics(page: String) -> Response {
    let mut response = Response::new(page.into());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// An error as a response: a `Status`.
pub fn error(error: &StatusError) -> Response {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, status_text(error));
    let retry = error.details.as_ref().and_then(|d| d.retry_after_seconds).filter(|s| *s > 0);
    if let Some(seconds) = retry {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    warn(&mut response, &error.warnings);
    response
}

/// A failure of the server's own on the way of a request, as upstream's filters tell of it: in words, whatever form is asked for.
pub fn failure(uri: &Uri, why: &str) -> Response {
    let uri = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut response =
        plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Server Error: {}: {why}", quote(uri)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// The answer to a request for which there was no room, in words as well.
pub fn too_many(error: &StatusError) -> Response {
    let mut response = plain(StatusCode::TOO_MANY_REQUESTS, format!("{}\n", error.message));
    let seconds = error.details.as_ref().and_then(|details| details.retry_after_seconds).unwrap_or(1);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// An error in words.
fn plain(code: StatusCode, words: String) -> Response {
    let mut response = text(words);
    *response.status_mut() = code;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A `Status` in text.
fn status_text(error: &StatusError) -> Vec<u8> {
    let mut text = encode::described(&json::json!(error.to_status()));
    text.push(b'\n');
    text
}

/// Together warnings have at most this many characters; when they would have more, each is cut to `WARNING_MAX`. Clients refuse
/// answers whose headers are very long.
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;

/// Adds a `Warning: 299 - "text"` header for each different text. One with control characters has no place in a header.
pub fn warn(response: &mut Response, warnings: &[String]) {
    let mut seen = HashSet::new();
    let texts: Vec<&String> = warnings.iter().filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let whole = texts.iter().filter(|text| !text.chars().any(char::is_control));
    let long = whole.map(|text| text.chars().count()).sum::<usize>() > WARNINGS_MAX;
    let longest = if long { WARNING_MAX } else { WARNINGS_MAX };
    let mut written = 0;
    for text in texts {
        if written >= WARNINGS_MAX {
            break;
        }
        let shown: String = text.chars().take(longest).collect();
        if shown.chars().any(char::is_control) {
            continue;
        }
        written += shown.chars().count();
        let quoted = shown.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Adds warnings in front of those that the response has: they were earned earlier.
pub fn warn_first(response: &mut Response, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    let later: Vec<HeaderValue> = response.headers().get_all(header::WARNING).iter().cloned().collect();
    response.headers_mut().remove(header::WARNING);
    warn(response, warnings);
    for value in later {
        if !response.headers().get_all(header::WARNING).iter().any(|earlier| *earlier == value) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// The headers that upstream puts on every response.
pub fn common_headers(headers: &mut HeaderMap) {
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
}

/// The answer to HEAD: the headers of the same GET, its length among them, and no body. On HTTP/2 nobody else drops the
/// body, and a client that is sent one takes the connection for broken.
pub fn head(mut response: Response) -> Response {
    if let Some(length) = http_body::Body::size_hint(response.body()).exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    *response.body_mut() = Body::empty();
    response
}

/// Compresses a large whole body for a caller that asks for gzip. Streamed bodies are left alone.
pub fn compress(mut response: Response, accept_encoding: Option<&HeaderValue>) -> Response {
    let wanted = accept_encoding.and_then(|v| v.to_str().ok()).is_some_and(|v| {
        v.split(',').any(|e| {
            let mut parts = e.trim().split(';');
            parts.next() == Some("gzip") && !parts.any(|p| p.trim() == "q=0")
        })
    });
    let Body::Whole(Some(bytes)) = response.body() else { return response };
    if !wanted || bytes.len() <= COMPRESS_FROM || response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 4), flate2::Compression::fast());
    let Ok(compressed) = encoder.write_all(bytes).and_then(|()| encoder.finish()) else { return response };
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(compressed);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(texts: &[&str]) -> Vec<String> {
        let mut response = json(StatusCode::OK, "{}");
        warn(&mut response, &texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>());
        let all = response.headers().get_all(header::WARNING).iter();
        all.map(|v| String::from_utf8(v.as_bytes().to_vec()).unwrap()).collect()
    }

    #[test]
    fn warnings_are_told_once_and_in_any_language() {
        assert_eq!(warned(&["a", "b", "a", ""]), [r#"299 - "a""#, r#"299 - "b""#]);
        assert_eq!(warned(&["say \"é\" \\ X: y", "a\r\nX: y"]), [r#"299 - "say \"é\" \\ X: y""#]);
    }

    #[test]
    fn many_warnings_are_cut() {
        let fits = "x".repeat(WARNINGS_MAX);
        assert_eq!(warned(&[&fits])[0].len(), WARNINGS_MAX + 8);
        assert_eq!(warned(&[&fits, "y"]), [format!("299 - \"{}\"", &fits[..WARNING_MAX]), "299 - \"y\"".to_owned()]);
        let many: Vec<String> = (0..1000).map(|at| format!("{at:0300}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(warned(&many).len(), WARNINGS_MAX / WARNING_MAX);
    }
}
