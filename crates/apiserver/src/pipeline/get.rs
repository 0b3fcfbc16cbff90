//! get: one object, always the newest.

use api::status::StatusError;
use http::StatusCode;

use super::Request;
use crate::{http::view::View, special::Response};

pub async fn run(request: Request) -> Result<Response, StatusError> {
    let info = &request.call.info;
    waypoint::apiserver::get(request.waypoint_name());
    // Before anything is read: an unacceptable view is refused whether the object exists or not.
    let _: View = request.view()?;
    let entry = request.call.server.core().entry(&request.definition, &info.namespace, &info.name).await?;
    request.respond(StatusCode::OK, &entry, &[])
}
