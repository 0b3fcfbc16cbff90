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
    schema::Type,
    status::StatusError,
};
use http::{StatusCode, header};
use store::Entry;

use crate::{
    respond,
    special::{Call, Response},
    view::{self, View},
};

/// Serves a request for a resource that is not special.
pub async fn run(call: Call, definition: Arc<Definition>) -> Result<Response, StatusError> {
    let info = &call.info;
    if definition.namespaced() && info.namespace.is_empty() && info.names_object() && !info.name.is_empty() {
        return Err(StatusError::no_route());
    }
    // A namespace's own path names it twice; nothing else without a namespace lives in one.
    if !definition.namespaced() && !info.namespace.is_empty() && info.namespace != info.name {
        return Err(StatusError::no_route());
    }
    let Some(target) = target(&definition, &info.subresource) else { return Err(StatusError::no_route()) };
    let request = Request { call, definition, target };
    request.check_path()?;
    if !request.serves() {
        return Err(request.not_supported());
    }
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
        _ => Err(request.not_supported()),
    }
}

/// The part of the object that a subresource stands for.
fn target(definition: &Definition, subresource: &str) -> Option<Target> {
    match subresource {
        "" => Some(Target::Object),
        "status" => definition.status.then_some(Target::Status),
        "scale" => definition.scale.is_some().then_some(Target::Other("scale")),
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
    /// Names become parts of storage keys: none may reach into another's.
    fn check_path(&self) -> Result<(), StatusError> {
        let info = &self.call.info;
        for (what, value) in [("Namespace", &info.namespace), ("Name", &info.name)] {
            if value.contains('/') || value == "." || value == ".." {
                let why = format!("{what} parameter invalid: {value:?}: may not contain '/' or be '.' or '..'");
                return Err(StatusError::bad_request(why));
            }
        }
        Ok(())
    }

    fn serves(&self) -> bool {
        let info = &self.call.info;
        let verb = info.verb;
        let nameless = matches!(verb, "update" | "patch") && info.name.is_empty();
        // All namespaces together can only be read.
        let everywhere = self.definition.namespaced() && info.namespace.is_empty() && !matches!(verb, "list" | "watch");
        if nameless || everywhere {
            return false;
        }
        match self.target {
            Target::Object => self.definition.verbs.iter().any(|v| v == verb),
            Target::Status | Target::Other("scale") => matches!(verb, "get" | "update" | "patch"),
            Target::Other(name) => {
                self.definition.subresources.iter().any(|s| s.name == name && s.verbs.contains(&verb))
            }
        }
    }

    fn not_supported(&self) -> StatusError {
        let mut error = StatusError::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        error.details = Some(Box::default());
        error
    }

    pub fn ty(&self) -> &'static Type {
        static UNTYPED: Type = Type::Any;
        api::schema::of(&self.definition.schema).unwrap_or(&UNTYPED)
    }

    pub fn query(&self) -> &str {
        self.call.parts.uri.query().unwrap_or("")
    }

    pub fn header(&self, name: header::HeaderName) -> &str {
        self.call.parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    /// `namespace/name`, as waypoints name what passes.
    pub fn waypoint_name(&self) -> &str {
        &self.call.info.path
    }

    pub fn view(&self) -> Result<View, StatusError> {
        View::negotiate(&self.call.parts.headers, "")
    }

    pub async fn body(&mut self) -> Result<bytes::Bytes, StatusError> {
        let limit = self.call.server.limits().body_bytes;
        std::mem::replace(&mut self.call.body, crate::body::Body::empty()).collect(limit).await
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
