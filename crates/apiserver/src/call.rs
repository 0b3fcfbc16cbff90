//! A request as handlers get it.

use std::sync::Arc;

use api::status::StatusError;
use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::{
    audit::Trail,
    auth::User,
    http::{
        body::{Body, Response},
        request::Info,
        respond,
    },
    state::State,
};

/// A request that reached its handler: resolved, authenticated and authorized, without the caller's credentials.
pub struct Call {
    pub state: Arc<State>,
    pub info: Arc<Info>,
    pub user: Arc<User>,
    /// The trail tells whoever audits the request how it goes on.
    pub trail: Trail,
    /// Raw.
    pub query: String,
    pub headers: HeaderMap,
    /// The connection's upgrade, for those who join it with another.
    pub extensions: Extensions,
    pub body: Body,
    /// The warnings for the client that a request earns before its verb is carried out, and all those of a special request, however it
    /// ends.
    pub warnings: Warnings,
}

/// Texts that are told to a client beside the outcome of its request. A clone is of the same texts.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    pub fn add(&self, texts: impl IntoIterator<Item = String>) {
        self.0.lock().extend(texts);
    }

    /// Puts a text in front of those that are there.
    pub fn begin_with(&self, text: String) {
        self.0.lock().insert(0, text);
    }

    /// The outcome with the texts beside it, in front of its own.
    pub fn beside(&self, outcome: Result<Response, StatusError>) -> Result<Response, StatusError> {
        let texts = std::mem::take(&mut *self.0.lock());
        match outcome {
            Ok(mut response) => {
                respond::warn_first(&mut response, &texts);
                Ok(response)
            }
            Err(refused) => Err(refused.beside(texts)),
        }
    }
}

impl Call {
    /// A header that programs set: text, or empty.
    pub fn header(&self, name: HeaderName) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    /// Reads the whole body, within the server's limit.
    pub async fn read_body(&mut self) -> Result<Bytes, StatusError> {
        let body = std::mem::replace(&mut self.body, Body::empty()).collect(self.state.limits.body_bytes).await;
        match &body {
            Ok(bytes) => spans::event_with("limitedReadBody succeeded", || [("len", bytes.len().into())]),
            Err(error) => spans::event_with("limitedReadBody failed", || [("err", (&*error.message).into())]),
        }
        body
    }
}
