//! get: one object, read from the store itself.

use api::status::StatusError;
use http::StatusCode;

use super::request::Request;
use crate::{http::body::Response, http::view::View};

pub async fn run(request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::get(request.waypoint_name());
    // Before anything is read: an unacceptable view is refused whether the object exists or not.
    let _: View = request.view()?;
    spans::event("About to Get from storage");
    let entry = request.entry().await?;
    request.respond(StatusCode::OK, entry, &[]).await
}
