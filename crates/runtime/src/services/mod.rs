//! Calls of containerd's own services, on the socket of its CRI and about what that made. Other engines have none of them.

pub mod content;
pub(crate) mod tasks;

use tonic::{Request, metadata::MetadataValue};

/// Where CRI keeps what it pulls and runs.
const NAMESPACE: &str = "k8s.io";

/// A question about what is in that namespace.
fn request<Q>(question: Q) -> Request<Q> {
    let mut request = Request::new(question);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}
