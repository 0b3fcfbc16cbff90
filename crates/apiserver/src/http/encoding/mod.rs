//! The encodings in which a client can have an answer. Handlers write JSON; what another encoding makes of it is said here,
//! once, for objects, lists, tables and errors alike.

pub mod accept;
pub mod binary;
pub mod cbor;
pub mod pretty;
mod yaml;
mod yaml_text;

use api::{
    codec::{self, protobuf},
    status::StatusError,
};
use http::{HeaderMap, HeaderValue, header};

use crate::http::{
    body::{Body, Response},
    respond,
};
use yaml::Transcoder;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    #[default]
    Json,
    Yaml,
    Protobuf,
    Cbor,
}

impl Encoding {
    /// In the order in which a client has them that takes any.
    pub const USUAL: &[Encoding] = &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf];
    pub const WITH_CBOR: &[Encoding] = &[Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];

    pub fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => protobuf::MEDIA_TYPE,
            Encoding::Cbor => codec::cbor::MEDIA_TYPE,
        }
    }

    /// Whether a watch can be in it: its events follow each other.
    pub fn is_streamed(self) -> bool {
        self != Encoding::Yaml
    }

    /// The type of a watch.
    pub fn stream_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            Encoding::Cbor => codec::cbor::SEQUENCE,
            other => other.media_type(),
        })
    }

    /// The encoding of errors, of those that the server has: of the alternatives those that ask for no other form than the
    /// error's own.
    pub fn of_errors(known: &[Encoding], headers: &HeaderMap) -> Encoding {
        if accept::is_usual(headers) {
            return Encoding::default();
        }
        let clauses = accept::clauses(headers);
        let plain = clauses.iter().filter(|c| !c.parameters().any(|(name, _)| matches!(name, "as" | "g" | "v")));
        let takes = |clause: &accept::Clause<'_>| known.iter().copied().find(|e| clause.takes(e.media_type()));
        plain.filter_map(takes).next().unwrap_or_default()
    }
}

/// The error for a client that accepts none of the encodings, or none that a watch can be in.
pub fn not_acceptable(known: &[Encoding], watch: bool) -> StatusError {
    let known = known.iter().filter(|encoding| !watch || encoding.is_streamed());
    let known = known.map(|encoding| match encoding {
        Encoding::Cbor if watch => codec::cbor::SEQUENCE.to_owned(),
        other => format!("{}{}", other.media_type(), if watch { ";stream=watch" } else { "" }),
    });
    let known: Vec<String> = known.collect();
    StatusError::not_acceptable(format!("only the following media types are accepted: {}", known.join(", ")))
}

/// An answer in JSON, in the encoding that was asked for.
pub fn encoded(response: Response, encoding: Encoding) -> Response {
    match encoding {
        Encoding::Json => response,
        Encoding::Yaml => {
            let mut yaml = Transcoder::default();
            respond::rewritten(response, HeaderValue::from_static("application/yaml"), move |json| yaml.push(json))
        }
        Encoding::Protobuf => in_protobuf(response),
        Encoding::Cbor => in_cbor(response),
    }
}

/// An object begins with the number of its fields: like a message it is made of the whole text.
fn in_cbor(response: Response) -> Response {
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let parameters = media_type.and_then(|kind| kind.strip_prefix("application/json")).map(str::to_owned);
    let (Some(parameters), Body::Whole(_)) = (parameters, response.body()) else { return response };
    let media_type = format!("{}{parameters}", codec::cbor::MEDIA_TYPE);
    let media_type = HeaderValue::from_str(&media_type).unwrap_or(HeaderValue::from_static(codec::cbor::MEDIA_TYPE));
    respond::rewritten(response, media_type, cbor::object)
}

/// A message begins with its length, so that no part of it can be sent before all is there. Answers that are made piece by
/// piece (lists, watches) come in their encoding already.
fn in_protobuf(response: Response) -> Response {
    let headers = response.headers();
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let Some(parameters) = media_type.strip_prefix("application/json") else { return response };
    let (Ok(media_type), Body::Whole(Some(json))) =
        (HeaderValue::from_str(&format!("{}{parameters}", protobuf::MEDIA_TYPE)), response.body())
    else {
        return response;
    };
    match binary::object(json) {
        Ok(bytes) => respond::rewritten(response, media_type, move |_| bytes.clone()),
        Err(error) => {
            let status = respond::error(&error);
            let bytes = match status.body() {
                Body::Whole(Some(json)) => binary::object(json).unwrap_or_default(),
                _ => Vec::new(),
            };
            respond::rewritten(status, HeaderValue::from_static(protobuf::MEDIA_TYPE), move |_| bytes.clone())
        }
    }
}
