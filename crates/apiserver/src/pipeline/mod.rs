//! The verbs, one file each, the same for every kind.

mod create;
pub(crate) mod delete;
mod deletecollection;
mod get;
mod list;
mod patch;
mod scale;
mod update;
mod upsert;
mod watch;
mod write;

use std::sync::Arc;

use api::{
    Value,
    kind::{Definition, Target},
    status::StatusError,
};
use http::{StatusCode, header};
use store::Entry;

use crate::{
    http::{
        respond,
        view::{self, View},
    },
    special::{Call, Response},
};

/// Serves a request for a resource that is not special.
pub async fn run(call: Call, definition: Arc<Definition>) -> Result<Response, StatusError> {
    let Some(target) = target(&definition, call.info.subresource) else { return Err(StatusError::no_route()) };
    let request = Request { call, definition, target };
    if matches!(target, Target::Other("scale")) {
        return scale::run(request).await;
    }
    match request.call.info.verb {
        "create" => create::run(request).await,
        "update" => update::run(request).await,
        "patch" => patch::run(request).await,
        "delete" => delete::run(request).await,
        "deletecollection" => deletecollection::run(request).await,
        "get" => get::run(request).await,
        "list" => list::run(request).await,
        "watch" => watch::run(request).await,
        other => Err(StatusError::internal(format!("no handler for the verb {other:?}"))),
    }
}

/// The part of the object that a subresource stands for.
fn target(definition: &Definition, subresource: &str) -> Option<Target> {
    match subresource {
        "" => Some(Target::Object),
        "status" => Some(Target::Status),
        "scale" => Some(Target::Other("scale")),
        other => {
            // Subresources that write a part of the object itself.
            let own = |s: &&api::kind::Subresource| {
                s.name == other && s.object.2 == definition.kind && s.verbs.contains(&"update")
            };
            definition.subresources.iter().find(own).map(|s| Target::Other(s.name))
        }
    }
}

/// One request for one kind.
pub(crate) struct Request {
    pub call: Call,
    pub definition: Arc<Definition>,
    pub target: Target,
}

impl Request {
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
        View::negotiate(&self.call.headers, "")
    }

    pub async fn body(&mut self) -> Result<bytes::Bytes, StatusError> {
        let limit = self.call.server.limits().body_bytes;
        std::mem::replace(&mut self.call.body, crate::http::body::Body::empty()).collect(limit).await
    }

    /// A stored object as the response.
    pub fn respond(&self, code: StatusCode, entry: &Entry, warnings: &[String]) -> Result<Response, StatusError> {
        let view = self.view()?;
        let mut out = Vec::with_capacity(entry.value.len() + 64);
        view::write(&mut out, &self.definition, view, entry, false);
        out.push(b'\n');
        let mut response = respond::json(code, out);
        respond::warn(&mut response, warnings);
        Ok(response)
    }

    /// An object that is not (yet) stored as the response.
    pub fn respond_value(&self, code: StatusCode, value: Value, warnings: &[String]) -> Result<Response, StatusError> {
        let value = view::value(&self.definition, self.view()?, value);
        let mut response = respond::value(code, &value);
        respond::warn(&mut response, warnings);
        Ok(response)
    }
}
