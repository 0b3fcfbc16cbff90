//! The errors that a client reads when the store refuses.

use api::{
    k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails},
    status::StatusError,
};
use store::{Revision, StoreError};

const TOO_LARGE: &str = "etcdserver: request is too large";

/// Whether the store has refused an object for its size.
pub fn is_too_large(error: &StatusError) -> bool {
    error.code == 413 && error.message.contains(TOO_LARGE)
}

pub fn store_error(error: StoreError) -> StatusError {
    match error {
        StoreError::Compacted { .. } => StatusError::expired("The resourceVersion for the provided list is too old."),
        StoreError::Future { requested, newest } => too_large_version(requested, newest),
        StoreError::TooLarge { bytes, limit } => {
            // The first words are those of upstream's store, which people look for.
            StatusError::too_large(format!("{TOO_LARGE}: the object has {bytes} bytes, at most {limit} are stored"))
        }
        StoreError::Conflict { .. } => StatusError::internal("a write met an unexpected state"),
        closed @ (StoreError::Unreadable { .. } | StoreError::Unencrypted(_)) => {
            StatusError::internal(closed.to_string())
        }
        full @ StoreError::Full(_) => StatusError::insufficient_storage(full.to_string()),
        other => StatusError::unavailable(other.to_string()),
    }
}

/// Of a single object upstream does not say which one cannot be read.
pub fn object_error(error: StoreError) -> StatusError {
    match error {
        StoreError::Unreadable { why, .. } => StatusError::internal(why),
        other => store_error(other),
    }
}

/// A revision that the server has not reached.
pub fn too_large_version(requested: Revision, newest: Revision) -> StatusError {
    let mut error =
        StatusError::timeout(format!("Timeout: Too large resource version: {requested}, current: {newest}"));
    let cause = StatusCause {
        message: Some("Too large resource version".to_owned()),
        reason: Some("ResourceVersionTooLarge".to_owned()),
        ..Default::default()
    };
    error.details =
        Some(Box::new(StatusDetails { causes: Some(vec![cause]), retry_after_seconds: Some(1), ..Default::default() }));
    error
}
