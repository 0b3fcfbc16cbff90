//! Gives another node what this one has pulled.

use bytes::Bytes;
use futures::{StreamExt, future::ready};
use http::{HeaderValue, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use runtime::services::content::Content;

use super::{MANIFEST_BYTES, wanted::Wanted};
use crate::server::answer::{Answer, reply};

/// A blob without its content is asked for by its head alone.
pub async fn find(content: &Content, wanted: &Wanted, only_head: bool) -> Option<Answer> {
    let found = content.find(&wanted.digest).await;
    let blob = found.inspect_err(|error| tracing::debug!(%error, "the engine does not tell what it has")).ok()??;
    if !blob.is_from(&wanted.registry, &wanted.repository) || wanted.is_manifest && blob.size > MANIFEST_BYTES {
        return None;
    }
    let mut answer = reply(http::StatusCode::OK, "application/octet-stream", Vec::new());
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(blob.size));
    answer.headers_mut().insert("docker-content-digest", HeaderValue::from_str(&wanted.digest).ok()?);
    if only_head {
        return Some(answer);
    }
    let parts = content.read(&wanted.digest).await.ok()?;
    // An answer that ends before its length breaks off, and the other side sees that.
    let parts = parts.take_while(|part| ready(part.is_ok())).filter_map(|part| ready(part.ok()));
    let frames = parts.map(|bytes: Bytes| Ok::<_, hyper::Error>(Frame::data(bytes)));
    *answer.body_mut() = StreamBody::new(frames).boxed_unsync();
    Some(answer)
}
