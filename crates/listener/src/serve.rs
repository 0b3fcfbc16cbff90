//! HTTP over TLS on accepted connections: HTTP/2 and HTTP/1.1 by ALPN, each within the bounds of its conversation.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use clock::{Duration, Seldom};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulConnection},
};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    accept::{Accepted, Figures, Listener},
    coalesce::{Coalesced, Turns},
    pace::{Answering, Pace, Piece, Verdict},
    places::Place,
};

/// A connection that has not finished its TLS handshake by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection that is asked to end may take for it when nothing is open.
const GOODBYE: Duration = Duration::from_secs(5);
/// An HTTP/1 request's head takes no longer, as upstream has it.
const HEAD: Duration = Duration::from_secs(32);
/// A connection over which nothing goes, such as a terminal that is left open, is ended after this to twice this time; as
/// upstream's `streamingConnectionIdleTimeout`.
const SILENCE: Duration = Duration::from_secs(4 * 3600);
/// A request's head is not larger over HTTP/2; one that is gets 431. Selectors of a thousand names have to fit.
const HEAD_BYTES: u32 = 64 * 1024;
/// A request over HTTP/1 has no more headers, or gets 431. A proxy that acts for a user names each of his groups in one.
const HEADERS: usize = 1000;
/// The bytes that one HTTP/1 connection buffers in each direction. A request's head has to fit, or gets 431.
const BUFFER: usize = 64 * 1024;
/// The bytes of one HTTP/2 answer that wait beside the piece in hand.
const STREAM_BUFFER: usize = 256 * 1024;
/// Streams that a client opened and reset at once, and that no handler has seen: more end the connection.
const RESETS: usize = 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The facts about the other side of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    pub address: SocketAddr,
    /// The client's certificates, its own first. Nobody has verified them yet.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

impl Listener {
    /// Answers requests until `stop`, then waits, up to a bound, until those that are open are done, and breaks the others off.
    /// For each connection `service` makes what answers its requests.
    pub async fn serve<M, H, F, B>(mut self, tls: TlsAcceptor, stop: CancellationToken, service: M)
    where
        M: Fn(Peer) -> H,
        H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
        M: Clone + Send + 'static,
    {
        let (mut connections, drain, streams) = (JoinSet::new(), self.drain, self.streams);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = self.accept() => {
                    let talk = Talk { figures: self.figures(), stop: stop.clone(), streams };
                    connections.spawn(talk.over_tls(accepted, tls.clone(), service.clone()));
                }
            }
        }
        drop(self);
        let _ = clock::timeout(drain, async { while connections.join_next().await.is_some() {} }).await;
        connections.shutdown().await;
    }
}

/// The state that all connections of a listener share.
struct Talk {
    figures: Arc<Figures>,
    stop: CancellationToken,
    /// Of one HTTP/2 connection.
    streams: u32,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// By its client, or by an error of the protocol.
    ByItself(Option<String>),
    Idle,
    Stalled,
}

impl Ended {
    fn why(&self) -> &str {
        match self {
            Ended::ByItself(None) => "its client ended it",
            Ended::ByItself(Some(error)) => error,
            Ended::Idle => "nothing was asked on it",
            Ended::Stalled => "its client did not read its answers",
        }
    }
}

impl Talk {
    async fn over_tls<M, H, F, B>(self, accepted: Accepted, tls: TlsAcceptor, service: M)
    where
        M: Fn(Peer) -> H,
        H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let Accepted { socket, address, place } = accepted;
        let stream = match clock::timeout(HANDSHAKE, tls.accept(socket)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.figures.handshakes.fetch_add(1, Ordering::Relaxed);
                return tracing::debug!(%address, %error, "TLS handshake failed");
            }
            Err(_) => {
                self.figures.handshakes.fetch_add(1, Ordering::Relaxed);
                return tracing::debug!(%address, "TLS handshake timed out");
            }
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = Peer { address, certificates: certificates.iter().map(|c| c.clone().into_owned()).collect() };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        match self.converse(Kept::new(stream, place), http2, service(peer)).await {
            Ended::Stalled => self.cut(address),
            ended => tracing::debug!(%address, why = ended.why(), "connection ended"),
        }
    }

    fn cut(&self, address: SocketAddr) {
        static SELDOM: Seldom = Seldom::new();
        self.figures.cut.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = SELDOM.turn() {
            tracing::warn!(%address, more, "a client did not read its answers for half a minute and was cut off");
        }
    }

    /// Answers the requests of one connection until it ends, or until those that are open are done once the listener
    /// stops.
    async fn converse<S, H, F, B>(&self, stream: Kept<S>, http2: bool, handle: H) -> Ended
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        H: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let (pace, keeper) = (stream.pace.clone(), stream.keeper.clone());
        let service = service_fn({
            let pace = pace.clone();
            move |mut request: Request<Incoming>| {
                let answering = Answering::new(&pace);
                request.extensions_mut().insert(answering.clone());
                let (answer, keeper) = (handle(request), keeper.clone());
                // hyper moves it about ten times, from its call to its end, and what answers a request is thousands of bytes.
                Box::pin(async move {
                    let answer = answer.await;
                    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                        // From here on the connection is all there is of the answer.
                        *keeper.lock() = Some(answering.clone());
                    }
                    Ok::<_, Infallible>(answer.map(|body| Paced { body, answering }))
                })
            }
        });
        let turns = Turns::default();
        // Upgraded connections are HTTP/1.1, and a handler that writes to one expects its bytes to leave at once.
        if http2 {
            let builder = over_http2(self.streams);
            let stream = TokioIo::new(Coalesced::new(stream, turns.clone()));
            self.guide(builder.serve_connection(stream, service), &turns, &pace).await
        } else {
            let builder = over_http1();
            self.guide(builder.serve_connection_with_upgrades(TokioIo::new(stream), service), &turns, &pace).await
        }
    }

    async fn guide<C>(&self, connection: C, turns: &Turns, pace: &Pace) -> Ended
    where
        C: GracefulConnection<Error = BoxError>,
    {
        let mut connection = pin!(connection);
        let poll = |connection: Pin<&mut C>, cx: &mut Context<'_>| {
            turns.next();
            connection.poll(cx).map(|ended| Ended::ByItself(ended.err().map(|error| error.to_string())))
        };
        let mut watch = pin!(pace.watch());
        tokio::select! {
            biased;
            ended = poll_fn(|cx| poll(connection.as_mut(), cx)) => return ended,
            verdict = watch.as_mut() => if verdict == Verdict::Stalled { return Ended::Stalled },
            () = self.stop.cancelled() => {}
            () = pace.is_left() => {}
        }
        connection.as_mut().graceful_shutdown();
        let mut watch = pin!(pace.watch());
        loop {
            tokio::select! {
                biased;
                ended = poll_fn(|cx| poll(connection.as_mut(), cx)) => return ended,
                verdict = watch.as_mut() => return match verdict {
                    Verdict::Stalled => Ended::Stalled,
                    Verdict::Idle => Ended::Idle,
                },
                // A request that was on its way is still answered.
                () = clock::sleep(GOODBYE) => if !pace.is_busy() { return Ended::Idle },
            }
        }
    }
}

fn over_http1() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER).max_headers(HEADERS);
    builder
}

/// Against floods of frames that cost the sender nothing, such as pings, settings, empty data and continuations, the
/// implementation has bounds of its own; what can be set is set here.
fn over_http2(streams: u32) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_pending_accept_reset_streams(RESETS)
        .max_header_list_size(HEAD_BYTES)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(4 * 1024 * 1024)
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(15));
    builder
}

/// An answer's body whose pieces are noticed as they are sent.
struct Paced<B> {
    body: B,
    answering: Answering,
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, B::Error>>> {
        // Nobody asks for a body before the head has gone.
        self.answering.begins();
        let next = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(next.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.answering.piece(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The request whose upgrade the connection has become.
type Keeper = Arc<Mutex<Option<Answering>>>;

/// A stream with what goes when it goes: the connection's place, and what its upgrade holds. Its bytes leave behind its barrier.
struct Kept<S> {
    stream: S,
    keeper: Keeper,
    pace: Arc<Pace>,
    _place: Place,
    silence: Pin<Box<tokio::time::Sleep>>,
    /// Something was read or written since the silence was last looked at.
    moved: bool,
}

impl<S> Kept<S> {
    fn new(stream: S, place: Place) -> Self {
        let silence = Box::pin(clock::sleep(SILENCE));
        Kept { stream, keeper: Keeper::default(), pace: Arc::default(), _place: place, silence, moved: false }
    }
}

impl<S> Drop for Kept<S> {
    fn drop(&mut self) {
        self.keeper.lock().take();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Kept<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            self.moved = true;
            return Poll::Ready(read);
        }
        loop {
            ready!(self.silence.as_mut().poll(cx));
            if !std::mem::take(&mut self.moved) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.silence.as_mut().reset(clock::Instant::now() + SILENCE);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Kept<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.moved = true;
        ready!(self.pace.barrier.pass(cx));
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.moved = true;
        ready!(self.pace.barrier.pass(cx));
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use http_body_util::{Empty, Full};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::places::Places;

    /// A connection whose every answer is many bytes and holds a place of its own; `/up` becomes a raw connection.
    struct Server {
        connections: Arc<Places>,
        requests: Arc<Places>,
        talk: tokio::task::JoinHandle<Ended>,
    }

    fn server(http2: bool) -> (Server, DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        let (connections, requests) = (Places::new(1, 1), Places::new(10, 10));
        let place = connections.take("").expect("the first");
        let taken = requests.clone();
        let handle = move |mut request: Request<Incoming>| {
            let answering = request.extensions().get::<Answering>().expect("there is one").clone();
            answering.hold(taken.take("").expect("few are asked for"));
            if request.uri().path() == "/leave" {
                answering.end_connection();
            }
            async move {
                let mut answer = Response::new(Full::new(Bytes::from(vec![b'x'; 1 << 20])));
                if request.uri().path() == "/up" {
                    tokio::spawn(async move {
                        let raw = hyper::upgrade::on(&mut request).await.expect("it was asked for");
                        TokioIo::new(raw).read_u8().await
                    });
                    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                    *answer.body_mut() = Full::default();
                }
                answer
            }
        };
        let talk = tokio::spawn(async move {
            let talk = Talk { figures: Arc::default(), stop: CancellationToken::new(), streams: 2 };
            talk.converse(Kept::new(near, place), http2, handle).await
        });
        (Server { connections, requests, talk }, far)
    }

    async fn check(http2: bool, beginning: &[u8], stalled: bool, seconds: RangeInclusive<u64>) {
        let (server, mut client) = server(http2);
        let begun = clock::Instant::now();
        client.write_all(beginning).await.expect("it is open");
        let ended = server.talk.await.expect("no panic");
        assert_eq!(ended == Ended::Stalled, stalled, "{ended:?}");
        assert!(seconds.contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!((server.connections.taken(), server.requests.taken()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_get_on_ends() {
        check(true, b"", false, 10..=15).await;
        check(true, b"PRI * HTTP/2.0\r\n", false, 10..=15).await;
        check(true, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", false, 10..=15).await;
        check(false, b"", false, 10..=15).await;
        check(false, b"GET / HTTP/1.1\r\nhost: a\r\n", false, 10..=15).await;
        check(false, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", true, 35..=35).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_behind_a_closed_window_ends_its_connection() {
        let (server, client) = server(true);
        let begun = clock::Instant::now();
        let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1000)
            .handshake(TokioIo::new(client))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        let request = Request::get("https://a/").body(Empty::<Bytes>::new()).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(server.requests.taken(), 1);
        assert_eq!(server.talk.await.expect("no panic"), Ended::Stalled);
        assert_eq!(begun.elapsed().as_secs(), 35);
        drop(answer);
        tokio::task::yield_now().await;
        assert_eq!((server.connections.taken(), server.requests.taken()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_can_end_its_connection_once_everything_is_answered() {
        let (server, client) = server(true);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let request = |path: &str| Request::get(path).body(Empty::<Bytes>::new()).expect("a request");
        let before = sender.send_request(request("https://a/")).await.expect("an answer");
        let last = sender.send_request(request("https://a/leave")).await.expect("an answer");
        for answer in [before, last] {
            let whole = http_body_util::BodyExt::collect(answer.into_body()).await.expect("it is sent to its end");
            assert_eq!(whole.to_bytes().len(), 1 << 20);
        }
        assert_eq!(server.talk.await.expect("no panic"), Ended::ByItself(None));
        assert!(connection.await.expect("no panic").is_ok());
        assert!(sender.send_request(request("https://a/")).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_no_more_requests_open_than_it_may() {
        let (server, client) = server(true);
        // An answer is open until its client reads it.
        let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1000)
            .handshake(TokioIo::new(client))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        // Nobody knows the bound before the server has told it, with its first answer at the latest.
        let request = || Request::get("https://a/").body(Empty::<Bytes>::new()).expect("a request");
        let whole = |answer: Response<Incoming>| http_body_util::BodyExt::collect(answer.into_body());
        whole(sender.send_request(request()).await.expect("an answer")).await.expect("it is sent to its end");
        let open = [
            sender.send_request(request()).await.expect("an answer"),
            sender.send_request(request()).await.expect("an answer"),
        ];
        let mut third = Box::pin(sender.send_request(request()));
        assert!(clock::timeout(Duration::from_secs(1), &mut third).await.is_err(), "two are open");
        assert_eq!(server.requests.taken(), 2);
        for answer in open {
            whole(answer).await.expect("it is sent to its end");
        }
        whole(third.await.expect("an answer")).await.expect("it is sent to its end");
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgrade_keeps_its_places_until_it_is_silent_for_long() {
        let (server, mut client) = server(false);
        let up = b"GET /up HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n";
        client.write_all(up).await.expect("it is open");
        let mut head = [0; 12];
        client.read_exact(&mut head).await.expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 101");
        assert_eq!(server.talk.await.expect("no panic"), Ended::ByItself(None));
        clock::sleep(SILENCE).await;
        assert_eq!((server.connections.taken(), server.requests.taken()), (1, 1));
        clock::sleep(SILENCE + Duration::from_secs(1)).await;
        assert_eq!((server.connections.taken(), server.requests.taken()), (0, 0));
    }
}
