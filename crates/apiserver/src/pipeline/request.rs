//! One request for one kind, and what all verbs do with it.

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, Target},
    status::StatusError,
    write::versions::Versions,
};
use bytes::Bytes;
use http::{StatusCode, header};
use spans::Span;
use store::Entry;

use crate::{
    call::Call,
    http::{
        body::Response,
        options, respond,
        view::{self, View},
    },
    storage::object_store::ObjectStore,
};

/// One request for one kind.
pub struct Request {
    pub call: Call,
    pub definition: Arc<Definition>,
    pub target: Target,
    /// The views of the object in the kind's other versions, where a webhook converts.
    pub versions: Option<Versions>,
}

impl Request {
    pub fn objects(&self) -> &ObjectStore {
        &self.call.state.objects
    }

    pub fn query(&self) -> &str {
        &self.call.query
    }

    pub fn header(&self, name: header::HeaderName) -> &str {
        self.call.header(name)
    }

    /// `namespace/name`, as waypoints name what passes.
    pub fn waypoint_name(&self) -> &str {
        &self.call.info.path
    }

    pub fn view(&self) -> Result<View, StatusError> {
        let include = options::include_object(self.query());
        View::negotiate_one(self.call.state.encodings, &self.call.headers, &include, &self.definition)
    }

    pub fn view_of_list(&self) -> Result<View, StatusError> {
        let include = options::include_object(self.query());
        View::negotiate_list(self.call.state.encodings, &self.call.headers, &include, &self.definition)
    }

    pub async fn body(&mut self) -> Result<Bytes, StatusError> {
        self.call.read_body().await
    }

    /// The object that the request names, as it is stored.
    pub async fn entry(&self) -> Result<Entry, StatusError> {
        self.objects().entry(&self.definition, &self.call.info.namespace, &self.call.info.name).await
    }

    /// A stored object as the version of the request shows it.
    pub async fn shown(&self, entry: Entry) -> Result<Entry, StatusError> {
        self.objects().conversions.shown_one(&self.definition, entry).await
    }

    /// A stored object as the response.
    pub async fn respond(&self, code: StatusCode, entry: Entry, warnings: &[String]) -> Result<Response, StatusError> {
        spans::event("About to write a response");
        let view = self.view()?;
        let entry = self.shown(entry).await?;
        let _span = self.serializing(view);
        let mut out = Vec::with_capacity(entry.value.len() + 64);
        view::write(&mut out, &self.definition, view, &entry, false);
        out.push(b'\n');
        let mut response = respond::json(code, out);
        respond::warn(&mut response, warnings);
        Ok(response)
    }

    /// The span of the answer's making.
    pub fn serializing(&self, view: View) -> Option<Span> {
        let mut span = spans::part("SerializeObject")?;
        span.set("url", &*self.call.info.path);
        span.set("mediaType", view.encoding.media_type());
        Some(span)
    }

    /// An object that is not (yet) stored as the response.
    pub fn respond_value(&self, code: StatusCode, value: Value, warnings: &[String]) -> Result<Response, StatusError> {
        spans::event("About to write a response");
        let view = self.view()?;
        let _span = self.serializing(view);
        let value = view::value(&self.definition, view, value);
        let mut response = respond::value(code, &value);
        respond::warn(&mut response, warnings);
        Ok(response)
    }
}
