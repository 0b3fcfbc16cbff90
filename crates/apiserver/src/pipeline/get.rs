//! get: one object, read from the store itself.

use api::{
    rules::url::{is_true, query_pairs},
    status::StatusError,
};
use http::StatusCode;
use store::Entry;

use super::request::Request;
use crate::{
    http::{body::Response, options::revision, view::View},
    storage::error::{store_error, too_large_version},
};

pub async fn run(request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::get(request.waypoint_name());
    // Before anything is read: an unacceptable view is refused whether the object exists or not.
    let _: View = request.view()?;
    refuse_export(request.query())?;
    spans::event("About to Get from storage");
    let entry = request.entry_new_enough().await?;
    request.respond(StatusCode::OK, entry, &[]).await
}

impl Request {
    /// The object that the request names, as of no earlier moment than the client asks for. What is known here is enough for those
    /// whom it is new enough for: they are answered while etcd is away.
    pub(super) async fn entry_new_enough(&self) -> Result<Entry, StatusError> {
        let asked = query_pairs(self.query()).find(|(key, _)| key == "resourceVersion");
        if let Some(wanted) = asked.map(|(_, version)| revision(&version)).transpose()?.flatten() {
            let objects = self.objects();
            if objects.store.at_hand_up_to().is_some_and(|known| wanted <= known) {
                return objects.entry_at_hand(&self.definition, &self.call.info.namespace, &self.call.info.name).await;
            }
            let newest = objects.store.revision().await.map_err(store_error)?;
            if wanted > newest && !objects.watches.reached(wanted, &*objects.store).await {
                let newest = objects.store.revision().await.map_err(store_error)?;
                return Err(too_large_version(wanted, newest));
            }
        }
        self.entry().await
    }
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
