//! deletecollection: every object that a list with the same selectors finds is deleted, many at once so that the store
//! groups their commits.

use api::status::StatusError;
use futures::StreamExt;
use http::header;

use super::{delete::Deletion, list::respond_list, request::Request};
use crate::http::{
    body::Response,
    options::{DeleteOptions, ListOptions},
    respond,
};

/// Deletes in flight at once.
const WORKERS: usize = 256;

/// Different warnings about a collection that its client is told.
const WARNINGS: usize = 64;

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::delete(request.waypoint_name());
    let view = request.view_of_list()?;
    let list = ListOptions::of_list(request.query())?;
    let body = request.body().await?;
    let media_type = request.header(header::CONTENT_TYPE);
    let options = DeleteOptions::read(request.query(), &body, media_type, &request.call.trail)?;
    let found = request.find(&list).await?;
    let deletion = Deletion::asked(&request, &options);
    let deletion = &deletion;
    let mut deletes = futures::stream::iter(found.entries.iter().cloned())
        .map(|entry| async move { deletion.run(entry).await })
        .buffer_unordered(WORKERS);
    let mut warnings: Vec<String> = Vec::new();
    while let Some(deleted) = deletes.next().await {
        match deleted {
            Ok((_, told)) => {
                for warning in told {
                    if warnings.len() < WARNINGS && !warnings.contains(&warning) {
                        warnings.push(warning);
                    }
                }
            }
            // Somebody else was faster.
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    drop(deletes);
    let mut response = respond_list(&request, view, found).await?;
    respond::warn(&mut response, &warnings);
    Ok(response)
}
