//! deletecollection: every object that a list with the same selectors finds is deleted, many at once so that the store
//! groups their commits.

use api::status::StatusError;
use futures::StreamExt;
use http::header;

use super::{
    delete::Deletion,
    list::{Found, respond_list},
    request::Request,
};
use crate::{
    http::body::Response,
    http::options::{DeleteOptions, ListOptions},
};

/// Deletes in flight at once.
const WORKERS: usize = 256;

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::delete(request.waypoint_name());
    let view = request.view()?;
    let body = request.body().await?;
    let options = DeleteOptions::parse(request.query(), &body, request.header(header::CONTENT_TYPE))?;
    let list = ListOptions::of_list(request.query())?;
    let found = request.find(&list).await?;
    let deletion = Deletion::asked(&request, &options);
    let deletion = &deletion;
    let mut deletes = futures::stream::iter(found.entries.iter().cloned())
        .map(|entry| async move { deletion.run(entry).await })
        .buffer_unordered(WORKERS);
    while let Some(deleted) = deletes.next().await {
        match deleted {
            Ok(_) => {}
            // Somebody else was faster.
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    drop(deletes);
    let gzip = request.header(header::ACCEPT_ENCODING).split(',').any(|e| e.trim() == "gzip");
    let found = Found::whole(found.entries, found.revision);
    Ok(respond_list(request.definition.clone(), view, found, gzip))
}
