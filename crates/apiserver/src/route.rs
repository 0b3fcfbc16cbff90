//! From a request to what serves it: a special handler, a verb of the pipeline, or a page about the server itself.

use api::status::StatusError;

use crate::special::{Call, Response};

pub async fn route(call: Call) -> Result<Response, StatusError> {
    if call.info.resource_request {
        return resource(call).await;
    }
    page(call)
}

async fn resource(call: Call) -> Result<Response, StatusError> {
    let info = &call.info;
    let special = call.server.shared.specials.get(&info.group, &info.resource, &info.subresource).cloned();
    match special {
        Some(special) => special.call(call).await,
        None => Err(StatusError::no_route()),
    }
}

fn page(call: Call) -> Result<Response, StatusError> {
    let shared = &call.server.shared;
    let query = call.parts.uri.query().unwrap_or("");
    shared.checks.answer(&call.info.path, query).ok_or_else(StatusError::no_route)
}
