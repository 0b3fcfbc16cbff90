//! The one body type of requests and responses: whole, streamed, or straight from the connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use api::status::StatusError;
use bytes::{Buf, Bytes, BytesMut};
use clock::Duration;
use futures::{Stream, StreamExt, stream::BoxStream};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Semaphore};

use crate::http::large;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub type Response = http::Response<Body>;

/// Bytes of a request or a response.
pub enum Body {
    Whole(Option<Bytes>),
    /// Behind a lock that is never taken (only `get_mut`): it makes the body shareable, as futures of handlers demand.
    Stream(Mutex<BoxStream<'static, Result<Bytes, BoxError>>>),
    Network(Incoming),
    /// That of a request.
    Arriving(Arriving),
    /// Another body, with something that goes along until it is sent or given up.
    With(Box<(Body, Box<dyn Along>)>),
}

/// The body of a request that comes over a connection; only its end has none.
pub struct Arriving(Option<Incoming>);

impl From<Incoming> for Arriving {
    fn from(body: Incoming) -> Self {
        Arriving(Some(body))
    }
}

/// The bytes of a body that nobody reads which are still taken, and the time for it. Go's server does as much: a client that is told to
/// stop while it sends may not see the answer (curl 7.88 over HTTP/2 loses it when the stream's reset comes in the same moment).
const LINGER: (usize, Duration) = (256 << 10, Duration::from_millis(500));
/// As many bodies are taken so at once; others end at once.
const LINGERING: usize = 64;
static LINGER_PLACES: Semaphore = Semaphore::const_new(LINGERING);

impl Drop for Arriving {
    fn drop(&mut self) {
        let Some(body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let (Ok(runtime), Ok(place)) = (Handle::try_current(), LINGER_PLACES.try_acquire()) else { return };
        let mut body = Body::Network(body);
        runtime.spawn(async move {
            let _ = clock::timeout(LINGER.1, body.pass_over(LINGER.0)).await;
            drop(place);
        });
    }
}

/// A companion of a body. It is dropped with it.
pub trait Along: Send + Sync {
    /// A piece of this size is sent next.
    fn piece(&mut self, bytes: usize);
}

impl Body {
    pub fn empty() -> Self {
        Body::Whole(None)
    }

    pub fn stream(stream: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Self {
        Body::Stream(Mutex::new(stream.boxed()))
    }

    #[must_use]
    pub fn along(self, with: impl Along + 'static) -> Self {
        Body::With(Box::new((self, Box::new(with))))
    }

    /// Takes any other body, such as the one of an in-process client.
    pub fn wrap<B>(body: B) -> Self
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let frames = http_body_util::BodyStream::new(body);
        Body::stream(frames.filter_map(|frame| {
            let chunk = match frame {
                Ok(frame) => frame.into_data().ok().map(|mut data| Ok(data.copy_to_bytes(data.remaining()))),
                Err(error) => Some(Err(error.into())),
            };
            std::future::ready(chunk)
        }))
    }

    /// Reads the whole body, at most `limit` bytes. A request with a large one goes on when its turn comes.
    pub async fn collect(self, limit: usize) -> Result<Bytes, StatusError> {
        let whole = self.read(limit, |_| Ok(())).await?;
        large::enter(whole.len()).await?;
        Ok(whole)
    }

    /// Reads the whole body, at most `limit` bytes; `more` is asked about each piece before it is kept.
    pub async fn read(
        mut self,
        limit: usize,
        mut more: impl FnMut(usize) -> Result<(), StatusError>,
    ) -> Result<Bytes, StatusError> {
        let too_large = || StatusError::too_large(format!("limit is {limit}"));
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        while let Some(chunk) = std::future::poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await {
            let chunk = chunk.map_err(|e| StatusError::bad_request(format!("unable to read the request body: {e}")))?;
            let Ok(data) = chunk.into_data() else { continue };
            if data.len() + rest.len() + first.as_ref().map_or(0, Bytes::len) > limit {
                self.pass_over(limit).await;
                return Err(too_large());
            }
            more(data.len())?;
            match (&first, rest.is_empty()) {
                (None, true) => first = Some(data),
                _ => {
                    if let Some(first) = first.take() {
                        rest.extend_from_slice(&first);
                    }
                    rest.extend_from_slice(&data);
                }
            }
        }
        Ok(first.unwrap_or_else(|| rest.freeze()))
    }
}

impl Body {
    /// Reads on a while without keeping anything: a client that is still sending would not see the answer.
    async fn pass_over(&mut self, most: usize) {
        let mut passed = 0;
        while passed < most
            && let Some(Ok(chunk)) = std::future::poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await
        {
            passed += chunk.data_ref().map_or(0, Bytes::len);
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

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Body::Stream(stream) => {
                let next = ready!(stream.get_mut().poll_next_unpin(cx));
                Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
            }
            Body::Network(incoming) | Body::Arriving(Arriving(Some(incoming))) => {
                let next = ready!(Pin::new(incoming).poll_frame(cx));
                Poll::Ready(next.map(|frame| frame.map_err(Into::into)))
            }
            Body::Arriving(Arriving(None)) => Poll::Ready(None),
            Body::With(both) => {
                let (body, along) = &mut **both;
                let next = ready!(Pin::new(body).poll_frame(cx));
                if let Some(data) = next.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                    along.piece(data.len());
                }
                Poll::Ready(next)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Whole(bytes) => bytes.is_none(),
            Body::Stream(_) => false,
            Body::Network(incoming) | Body::Arriving(Arriving(Some(incoming))) => incoming.is_end_stream(),
            Body::Arriving(Arriving(None)) => true,
            Body::With(both) => both.0.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Body::Stream(_) => SizeHint::default(),
            Body::Network(incoming) | Body::Arriving(Arriving(Some(incoming))) => incoming.size_hint(),
            Body::Arriving(Arriving(None)) => SizeHint::with_exact(0),
            Body::With(both) => both.0.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// Says at its end whether it was sent to its end.
    struct Sent(Option<oneshot::Sender<bool>>, bool);

    impl Drop for Sent {
        fn drop(&mut self) {
            let _ = self.0.take().map(|end| end.send(self.1));
        }
    }

    #[tokio::test]
    async fn a_client_may_end_what_it_sends_though_nobody_reads_it() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let refuse = service_fn(|request: http::Request<Incoming>| {
            drop(Body::Arriving(request.into_body().into()));
            std::future::ready(Ok::<_, Infallible>(http::Response::new(Body::from("no"))))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(near), refuse));
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut sender, connection) = builder.handshake(TokioIo::new(far)).await.unwrap();
        tokio::spawn(connection);

        let (pieces, come) = mpsc::unbounded_channel::<&'static str>();
        let (end, ended) = oneshot::channel();
        let body = futures::stream::unfold((come, Sent(Some(end), false)), |(mut come, mut sent)| async move {
            let piece = come.recv().await;
            sent.1 = piece.is_none();
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece?.as_bytes()))), (come, sent)))
        });
        pieces.send("a").unwrap();
        let body = http_body_util::StreamBody::new(Box::pin(body));
        let answer = sender.send_request(http::Request::post("http://a/").body(body).unwrap()).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "no");
        pieces.send("b").unwrap();
        drop(pieces);
        assert!(ended.await.unwrap(), "its stream was reset");
    }
}
