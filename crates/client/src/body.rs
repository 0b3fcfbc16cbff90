//! The body of a request, or of an answer that is still to come.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use crate::error::{BoxError, Error};

/// Whole, straight from the connection, or of some other sort.
#[derive(Debug)]
pub enum Body {
    Whole(Option<Bytes>),
    Network(Incoming),
    Other(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    pub fn empty() -> Self {
        Body::Whole(None)
    }

    /// Takes any other body, such as that of a server in this process.
    pub fn wrap<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Body::Other(body.map_err(Into::into).boxed_unsync())
    }

    /// All of it.
    pub async fn collect_bytes(self) -> Result<Bytes, Error> {
        match self {
            Body::Whole(bytes) => Ok(bytes.unwrap_or_default()),
            body => Ok(body.collect().await?.to_bytes()),
        }
    }

    /// A second body with this one's content, if it can be had twice.
    pub fn copy(&self) -> Option<Self> {
        match self {
            Body::Whole(bytes) => Some(Body::Whole(bytes.clone())),
            Body::Network(_) | Body::Other(_) => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Network(incoming) => {
                let next = ready!(Pin::new(incoming).poll_frame(cx));
                Poll::Ready(next.map(|frame| frame.map_err(Error::transport)))
            }
            Body::Other(body) => {
                let next = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(next.map(|frame| frame.map_err(Error::transport)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.is_none(),
            Body::Network(incoming) => incoming.is_end_stream(),
            Body::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Network(incoming) => incoming.size_hint(),
            Body::Other(body) => body.size_hint(),
        }
    }
}
