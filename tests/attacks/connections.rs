//! Connections, requests and answers without an end: each takes what one may have and nothing of the others, and all of
//! it comes back.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use json::json;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::client::TlsStream;

use crate::{caller::Caller, passing::own_address, server::Server};

/// The growth of a server's memory that an attack may cause.
const GROWTH: u64 = 160 << 20;
/// Longer than anything here may last.
const DEADLINE: Duration = Duration::from_secs(120);

/// A body of which the second half never comes.
struct Half(bool);

impl Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{\"apiVersion\": "))))),
            true => Poll::Pending,
        }
    }
}

type Sent = Either<Full<Bytes>, Half>;

/// A stream from which nothing is read once `deaf` is set.
struct Ear {
    stream: TlsStream<TcpStream>,
    deaf: Arc<AtomicBool>,
}

impl AsyncRead for Ear {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.deaf.load(Ordering::Relaxed) { Poll::Pending } else { Pin::new(&mut self.stream).poll_read(cx, buf) }
    }
}

impl AsyncWrite for Ear {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// One HTTP/2 connection, on which many requests are open.
struct Connection {
    sender: SendRequest<Sent>,
    port: u16,
    token: &'static str,
    deaf: Arc<AtomicBool>,
}

impl Connection {
    /// With windows of that size.
    async fn open(caller: &Caller, port: u16, token: &'static str, window: u32) -> Self {
        let deaf = Arc::new(AtomicBool::new(false));
        let ear = Ear { stream: caller.connect("h2").await.expect("a connection"), deaf: deaf.clone() };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window.max(65_535))
            .handshake(TokioIo::new(ear))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        Connection { sender, port, token, deaf }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        body: Sent,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        let uri = format!("https://127.0.0.1:{}{path}", self.port);
        let mut request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        let mut sender = self.sender.clone();
        let request = request.body(body).expect("a request");
        async move {
            sender.ready().await?;
            sender.send_request(request).await
        }
    }

    fn get(&self, path: &str) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        self.send("GET", path, nothing())
    }
}

fn nothing() -> Sent {
    Either::Left(Full::default())
}

/// Waits until something holds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what} does not come about");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn metric(admin: &Caller, name: &str) -> u64 {
    let page = admin.get("/metrics").await.expect(200).text();
    let series = page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
    let values: Vec<f64> = series.map(|line| value(line).expect("a number")).collect();
    assert!(!values.is_empty(), "no {name}");
    values.iter().sum::<f64>() as u64
}

/// Methods and paths that nobody serves, each another one.
fn strange(n: usize) -> (String, String) {
    let paths = [
        format!("/api/v1/a{n}"),
        format!("/apis/g{n}/v1/pods"),
        format!("/api/v{n}/pods"),
        format!("/api/v1/namespaces/n/pods/p/s{n}"),
        format!("/api/v1/x%22%7D%201%0Aforged{n}%20"),
        format!("/p{n}/%22%7D"),
    ];
    let method = ["GET", "POST", "M1", "PUT", "DELETE"][n % 5].replace("M1", &format!("M{n}"));
    (method, paths[n % paths.len()].clone())
}

/// The status of an answer that is read to its end.
async fn whole(answer: Response<Incoming>) -> hyper::Result<StatusCode> {
    let status = answer.status();
    answer.into_body().collect().await?;
    Ok(status)
}

#[tokio::test]
async fn strangers_make_no_metrics() {
    let server = Server::start().await;
    let (admin, mallory) = (server.admin(), server.user("mallory"));
    server.allow("mallory", "", &["*"], &["pods"]).await;
    let before = server.memory("VmRSS");
    let connection = Connection::open(&mallory, server.port, "mallory-token", 1 << 20).await;
    let mut asked = JoinSet::new();
    for n in 0..3000 {
        let (method, path) = strange(n);
        let answer = connection.send(&method, &path, nothing());
        // A client that gives up what is on its way too often ends its connection itself.
        asked.spawn(async { whole(answer.await?).await });
        if asked.len() > 100 {
            asked.join_next().await;
        }
    }
    while let Some(answer) = asked.join_next().await {
        assert!(answer.unwrap().is_ok_and(|status| status.is_client_error()));
    }
    // Each request of nobody ends its connection.
    let nobody = server.nobody();
    for n in 3000..3300 {
        let (method, path) = strange(n);
        let connection = Connection::open(&nobody, server.port, "", 1 << 20).await;
        assert!(connection.send(&method, &path, nothing()).await.is_ok_and(|answer| answer.status().is_client_error()));
    }
    let page = admin.get("/metrics").await.expect(200).text();
    let series = page.lines().filter(|l| l.starts_with("apiserver_request_total{"));
    let unserved: Vec<_> = series.filter(|l| l.contains(",resource=\"\"")).collect();
    assert!(unserved.len() < 40, "{unserved:#?}");
    assert!(!page.contains("forged"), "{page}");
    let ours = [
        "# ",
        "apiserver_",
        "aggregator_",
        "authenticated_user_requests",
        "authentication_",
        "authorization_",
        "etcd_request",
        "go_",
        "kubernetes_",
        "leader_election_",
        "node_authorizer_",
        "pod_security_",
        "process_",
        "rest_client_",
        "root_ca_cert_publisher_",
        "scheduler_",
        "workqueue_",
    ];
    assert!(page.lines().all(|l| ours.iter().any(|prefix| l.starts_with(prefix))), "{page}");
    let grown = server.memory("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
}

#[tokio::test]
async fn bodies_that_do_not_come_take_nobodys_place() {
    let server = Server::start().await;
    server.namespace("x").await;
    server.allow("mallory", "x", &["create"], &["configmaps"]).await;
    server.allow("bob", "x", &["create"], &["configmaps"]).await;
    let (admin, node, bob) = (server.admin(), server.node("n").await, server.user("bob"));
    let maps = "/api/v1/namespaces/x/configmaps";
    let before = server.memory("VmRSS");
    let mut stalled = JoinSet::new();
    for _ in 0..5 {
        let connection = Connection::open(&server.user("mallory"), server.port, "mallory-token", 1 << 20).await;
        for _ in 0..100 {
            stalled.spawn(connection.send("POST", maps, Either::Right(Half(false))));
        }
    }
    // A request beyond a user's part is answered at once, with the time to come back.
    let mut turned_away = 0;
    while turned_away < 372 {
        let answer = stalled.join_next().await.unwrap().unwrap().expect("an answer");
        assert_eq!(answer.status(), 429);
        assert!(answer.headers().contains_key("retry-after"));
        turned_away += 1;
    }
    for (n, caller) in [&admin, &bob].into_iter().enumerate() {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}")}});
        caller.create(maps, &map).await.expect(201);
    }
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    node.patch("merge", "/api/v1/nodes/n/status", status.to_string()).await.expect(200);
    assert_eq!(stalled.len(), 128, "a part is held, the places are not");
    let grown = server.memory("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
    while let Some(answer) = stalled.join_next().await {
        assert_eq!(answer.unwrap().expect("an answer").status(), 408);
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}});
    server.user("mallory").create(maps, &map).await.expect(201);
}

/// Twenty megabytes that mallory may read.
async fn much_to_read(server: &Server) {
    server.namespace("big").await;
    let admin = server.admin();
    for n in 0..42 {
        let data = "x".repeat(500_000);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("b{n}")}, "data": {"k": data}});
        admin.create("/api/v1/namespaces/big/configmaps", &map).await.expect(201);
    }
    for user in ["mallory", "bob"] {
        server.allow(user, "big", &["get", "list", "watch"], &["configmaps"]).await;
    }
}

/// Requests of which nobody reads the answers.
#[derive(Default)]
struct Unread {
    answers: Vec<Response<Incoming>>,
    refused: usize,
    connections: Vec<Connection>,
    /// The connections to whose later answers nobody listens any more.
    unheard: Vec<JoinSet<hyper::Result<Response<Incoming>>>>,
}

impl Unread {
    /// Opens the given numbers of requests, each over a connection. Of every second one nothing is read from the socket
    /// behind the first answer; of the others the windows stay closed.
    async fn open(server: &Server, path: &str, counts: [usize; 4]) -> Self {
        let mut all = Unread::default();
        for (n, count) in counts.into_iter().enumerate() {
            let deaf = n % 2 == 0;
            let window = if deaf { 1 << 30 } else { 65_535 };
            let connection = Connection::open(&server.user("mallory"), server.port, "mallory-token", window).await;
            let mut asked = JoinSet::new();
            for _ in 0..count {
                asked.spawn(connection.get(path));
            }
            while let Some(answer) = asked.join_next().await {
                let answer = answer.unwrap().expect("an answer");
                match answer.status().as_u16() {
                    200 => all.answers.push(answer),
                    429 => all.refused += 1,
                    other => panic!("{other}"),
                }
                if deaf {
                    connection.deaf.store(true, Ordering::Relaxed);
                    break;
                }
            }
            all.unheard.push(asked);
            all.connections.push(connection);
        }
        all
    }
}

async fn nobody_reads(query: &str, counts: [usize; 4]) {
    const MAPS: &str = "/api/v1/namespaces/big/configmaps";
    const ONE: &str = "/api/v1/namespaces/big/configmaps/b1";
    let server = Server::start().await;
    much_to_read(&server).await;
    let (admin, bob, mallory) = (server.admin(), server.user("bob"), server.user("mallory"));
    bob.get(MAPS).await.expect(200);
    let before = server.memory("VmRSS");
    let unread = Unread::open(&server, &format!("{MAPS}{query}"), counts).await;
    // One user has no more than one user's part.
    assert!((1..=200).contains(&unread.answers.len()), "{}", unread.answers.len());
    assert_eq!(unread.answers.len() + unread.refused, 2 + counts[1] + counts[3]);
    let long_running = metric(&admin, "apiserver_longrunning_requests").await;
    bob.get(ONE).await.expect(200);
    assert!(bob.get(MAPS).await.expect(200).body.len() > 20_000_000);
    bob.send_h2("GET", ONE, &[], "").await.expect(200);
    server.nobody().get("/readyz").await.expect(200);
    let grown = server.memory("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
    until("the end of those who do not read", || async {
        metric(&admin, "apiserver_connections_cut_total").await >= 4
    })
    .await;
    let released = if query.is_empty() { 0 } else { unread.answers.len() as u64 };
    until("the release of what they held", || async {
        metric(&admin, "apiserver_longrunning_requests").await <= long_running - released
            && mallory.get(MAPS).await.code == 200
    })
    .await;
    let said = server.log().lines().filter(|l| l.contains("did not read its answers")).count();
    assert!((1..=4).contains(&said), "{said} lines\n{}", server.log());
}

#[tokio::test]
async fn watches_that_nobody_reads_cost_little_and_end() {
    nobody_reads("?watch=true", [25; 4]).await;
}

#[tokio::test]
async fn lists_that_nobody_reads_cost_little_and_end() {
    nobody_reads("", [60, 60, 60, 900]).await;
}

/// The first read of a connection that the server ends.
async fn ended(mut stream: impl AsyncRead + Unpin) -> bool {
    let mut bytes = [0; 1024];
    let mut read = async || while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {};
    tokio::time::timeout(DEADLINE, read()).await.is_ok()
}

#[tokio::test]
async fn connections_that_say_nothing_end_and_leave_room() {
    // So few descriptors leave 12 connections to a source.
    let server = Server::with_descriptors(192).await;
    let caller = server.nobody();
    let before = server.memory("VmRSS");
    let mut silent = JoinSet::new();
    for n in 0..12 {
        // Those of the server's start may not all be gone.
        let mut stream = loop {
            match caller.connect(if n % 2 == 0 { "h2" } else { "http/1.1" }).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        silent.spawn(async move {
            let beginning: &[u8] = match n % 4 {
                0 => b"PRI * HTTP/2.0\r\n",
                1 => b"GET /healthz HTTP/1.1\r\nhost: a\r\n",
                _ => b"",
            };
            stream.write_all(beginning).await.expect("it is open");
            ended(stream).await
        });
    }
    // One more is closed at once, as are those that only connect.
    for _ in 0..50 {
        assert!(caller.connect("h2").await.is_err());
        let plain = TcpStream::connect(("127.0.0.1", server.port)).await.expect("the kernel accepts");
        assert!(ended(plain).await);
    }
    while let Some(ended) = silent.join_next().await {
        assert!(ended.unwrap(), "a silent connection stays");
    }
    caller.get("/healthz").await.expect(200);
    assert!(metric(&server.admin(), "apiserver_connections_refused_total").await >= 100);
    let said = server.log().lines().filter(|l| l.contains("a connection was closed at once")).count();
    assert!((1..=20).contains(&said), "{said} lines");
    let grown = server.memory("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more");
}

/// One machine opens as many as it can and keeps them, each with a request behind it.
#[tokio::test]
async fn ten_thousand_idle_connections_are_one_sources_part() {
    const ATTEMPTS: usize = 10_000;
    let Some(address) = own_address() else {
        eprintln!("SKIPPED: this machine has no address but loopback, so that there is no second source");
        return;
    };
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let server = Server::with(&["--bind-address=0.0.0.0", &format!("--tls-san={address}")]).await;
    let (mallory, bystander) = (server.nobody(), server.nobody().at(address));
    bystander.get("/healthz").await.expect(200);
    let before = server.memory("VmRSS");
    let (mut kept, mut refused) = (Vec::new(), 0);
    for attempt in 0..ATTEMPTS {
        let opened = async {
            let mut stream = mallory.connect("http/1.1").await?;
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await?;
            let mut beginning = [0; 12];
            stream.read_exact(&mut beginning).await?;
            assert_eq!(&beginning, b"HTTP/1.1 200");
            io::Result::Ok(stream)
        };
        match opened.await {
            Ok(stream) => kept.push(stream),
            Err(_) => refused += 1,
        }
        if attempt % 1000 == 0 {
            bystander.get("/healthz").await.expect(200);
        }
    }
    assert!(kept.len() >= 8 && refused > ATTEMPTS / 2, "{} kept, {refused} refused", kept.len());
    bystander.get("/healthz").await.expect(200);
    let grown = server.memory("VmRSS").saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes more for {} connections", kept.len());
    // A place that is given back is another's.
    drop(kept);
    until("room again", || async { mallory.connect("http/1.1").await.is_ok() }).await;
}

#[tokio::test]
async fn half_a_handshake_ends_too() {
    let server = Server::with_descriptors(192).await;
    let mut silent = JoinSet::new();
    for n in 0..12 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        // The beginning of a TLS record of a ClientHello.
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01][..n % 7]).await.unwrap();
        silent.spawn(ended(stream));
    }
    while let Some(ended) = silent.join_next().await {
        assert!(ended.unwrap(), "half a handshake stays");
    }
    server.nobody().get("/healthz").await.expect(200);
}

#[tokio::test]
async fn a_head_without_end_gets_431() {
    let server = Server::start().await;
    let many: Vec<(String, String)> = (0..2000).map(|n| (format!("h{n}"), "x".repeat(20))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, &**value)).collect();
    server.nobody().send("GET", "/healthz", &many[..1100], "").await.expect(431);
    // A user of hundreds of groups, for whom a proxy acts, is none of these.
    server.nobody().send("GET", "/healthz", &many[..600], "").await.expect(200);
    server.nobody().send_h2("GET", "/healthz", &many[..600], "").await.expect(200);
    let value = "x".repeat(100_000);
    // The answer may be lost with what the server did not read.
    let long = server.nobody().try_send("GET", "/healthz", &[("a", &value)], "").await;
    assert!(long.map_or(true, |answer| answer.code == 431));
    server.nobody().send_h2("GET", "/healthz", &many, "").await.expect(431);
    server.nobody().get("/healthz").await.expect(200);
}

/// Frames that cost their sender nothing.
#[tokio::test]
async fn floods_of_frames_end_their_connection() {
    let server = Server::start().await;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let before = server.memory("VmRSS");
    let frame = |length: usize, kind: u8, flags: u8, stream: u32| {
        let mut frame = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.resize(frame.len() + length, 0);
        frame
    };
    // :method GET, :scheme https, :path /, :authority a
    let head = |stream: u32, flags: u8| {
        let block = [0x82, 0x87, 0x84, 0x41, 0x01, b'a'];
        let mut frame = frame(block.len(), 1, flags, stream);
        let at = frame.len() - block.len();
        frame[at..].copy_from_slice(&block);
        frame
    };
    let resets = (0..20_000_u32).flat_map(|n| [head(2 * n + 1, 5), frame(4, 3, 0, 2 * n + 1)].concat()).collect();
    let continuations: Vec<u8> = head(1, 0).into_iter().chain((0..20_000).flat_map(|_| frame(16, 9, 0, 1))).collect();
    let empty: Vec<u8> = head(1, 4).into_iter().chain((0..200_000).flat_map(|_| frame(0, 0, 0, 1))).collect();
    for (what, flood) in [("resets", resets), ("continuations", continuations), ("empty data", empty)] {
        let mut stream = server.nobody().connect("h2").await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        let (read, mut write) = tokio::io::split(stream);
        // The server may close before everything is sent.
        let flooding = tokio::spawn(async move {
            let _ = write.write_all(&flood).await;
            write
        });
        assert!(ended(read).await, "{what} go on");
        flooding.abort();
    }
    for (what, flood) in [("pings", frame(8, 6, 0, 0)), ("settings", frame(0, 4, 0, 0))] {
        let mut stream = server.nobody().connect("h2").await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        // Nothing of what is answered is read.
        let flood = flood.repeat(200_000);
        let _ = tokio::time::timeout(Duration::from_secs(5), stream.write_all(&flood)).await;
        let grown = server.memory("VmRSS").saturating_sub(before);
        assert!(grown < GROWTH, "{grown} bytes more by {what}");
    }
    server.nobody().get("/healthz").await.expect(200);
}

#[tokio::test]
async fn a_slow_reader_is_not_cut() {
    let server = Server::start().await;
    much_to_read(&server).await;
    let connection = Connection::open(&server.user("mallory"), server.port, "mallory-token", 65_535).await;
    let mut body = connection.get("/api/v1/namespaces/big/configmaps").await.unwrap().into_body();
    let (mut read, begun) = (0, Instant::now());
    while let Some(frame) = body.frame().await {
        read += frame.expect("the list goes on").data_ref().map_or(0, Bytes::len);
        // For longer than an answer that stands still lasts.
        if begun.elapsed() < Duration::from_secs(40) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    assert!(read > 20_000_000, "{read}");
}
