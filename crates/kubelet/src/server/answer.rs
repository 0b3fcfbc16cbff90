//! The form of every answer of this server.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

pub type Answer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

pub fn text(code: StatusCode, message: String) -> Answer {
    reply(code, "text/plain; charset=utf-8", message.into_bytes())
}

pub fn html(page: String) -> Answer {
    reply(StatusCode::OK, "text/html; charset=utf-8", page.into_bytes())
}

pub fn document(value: &json::Value) -> Answer {
    reply(StatusCode::OK, "application/json", value.to_string().into_bytes())
}

/// Metrics in Prometheus' text form.
pub fn exposition(body: String) -> Answer {
    reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body.into_bytes())
}

pub fn reply(code: StatusCode, content_type: &'static str, bytes: Vec<u8>) -> Answer {
    let body = Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    answer
}
