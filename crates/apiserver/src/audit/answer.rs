//! The answer to a request as its trail sees it go by.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::Stream;
use http::{StatusCode, header};
use http_body::Body as _;
use listener::Answering;

use super::Trail;
use crate::http::{
    body::{Body, BoxError, Response},
    request::Info,
    respond,
};

/// Tells the trail of an answer that is in JSON yet, if it ever will be. An answer that is there as a whole is complete with
/// that; of others the trail goes along until they end, or their connection does that became another one.
pub async fn observed(trail: Trail, response: Response, info: &Info, answering: Option<&Answering>) -> Response {
    if !trail.is_on() {
        return response;
    }
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(respond::JSON.as_bytes()));
    let whole = match response.body() {
        Body::Whole(bytes) if is_json => Some(bytes.as_deref().unwrap_or_default()),
        _ => None,
    };
    // Discovery is told of, too, and why there is no watch.
    let is_object = |text: &[u8]| info.is_resource() && !info.long_running() || text.starts_with(b"{\"kind\":");
    let object = whole.is_some_and(is_object);
    trail.answered(response.status().as_u16(), whole, object);
    trail.started().await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if let Some(answering) = answering {
            answering.keep(Box::new(trail));
        }
        return response;
    }
    if matches!(response.body(), Body::Whole(_)) {
        trail.complete().await;
        return response;
    }
    response.map(|body| Body::stream(Observed { body: Some(body), trail: Some(trail) }))
}

/// An answer that is sent piece by piece. With it goes the trail, which ends before the client sees the end.
struct Observed {
    body: Option<Body>,
    trail: Option<Trail>,
}

impl Stream for Observed {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => (self.body, self.trail) = (None, None),
            }
        }
    }
}
