//! The encodings in which a client can have an answer. Handlers write JSON; what another encoding makes of it is said here,
//! once, for objects, lists, tables and errors alike.

use api::status::StatusError;
use http::{HeaderMap, HeaderValue, header};

use crate::http::{body::Response, respond, yaml::Transcoder};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    #[default]
    Json,
    Yaml,
}

const ALL: &[Encoding] = &[Encoding::Json, Encoding::Yaml];

impl Encoding {
    /// The encoding that a media type of `Accept` allows.
    fn of(media_type: &str) -> Option<Encoding> {
        match media_type {
            "*/*" | "application/*" => Some(Encoding::default()),
            _ => ALL.iter().copied().find(|encoding| encoding.media_type() == media_type),
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
        }
    }

    /// Whether a watch can be in it: its events follow each other without a frame around them.
    pub fn is_streamed(self) -> bool {
        self == Encoding::Json
    }
}

/// What `Accept` asks for: each alternative that the server knows the encoding of, with its parameters.
pub fn accepted(headers: &HeaderMap) -> impl Iterator<Item = (Encoding, &str)> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let accept = if accept.is_empty() { "*/*" } else { accept };
    accept.split(',').filter_map(|clause| {
        let (media_type, parameters) = clause.split_once(';').unwrap_or((clause, ""));
        Some((Encoding::of(media_type.trim())?, parameters))
    })
}

/// The error for a client that accepts none of the encodings, or none that a watch can be in.
pub fn not_acceptable(watch: bool) -> StatusError {
    let known: Vec<String> = match watch {
        false => ALL.iter().map(|encoding| encoding.media_type().to_owned()).collect(),
        true => {
            let streamed = ALL.iter().filter(|encoding| encoding.is_streamed());
            streamed.map(|encoding| format!("{};stream=watch", encoding.media_type())).collect()
        }
    };
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
    }
}
