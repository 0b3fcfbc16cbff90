//! get: one object, read from the store itself.

use api::{rules::url::query_pairs, status::StatusError};
use http::StatusCode;

use super::request::Request;
use crate::http::{body::Response, request::is_true, view::View};

pub async fn run(request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::get(request.waypoint_name());
    // Before anything is read: an unacceptable view is refused whether the object exists or not.
    let _: View = request.view()?;
    refuse_export(request.query())?;
    spans::event("About to Get from storage");
    let entry = request.entry().await?;
    request.respond(StatusCode::OK, entry, &[]).await
}

/// Objects without what clusters add to them were once to be had; clients that still ask are told, not given the whole.
fn refuse_export(query: &str) -> Result<(), StatusError> {
    let asked = query_pairs(query).find(|(key, _)| key == "export");
    match asked {
        Some((_, value)) if is_true(&value) => {
            let gone = "the export parameter, deprecated since v1.14, is no longer supported";
            Err(StatusError::bad_request(gone))
        }
        _ => Ok(()),
    }
}
