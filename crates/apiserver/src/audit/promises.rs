//! The promises of a log that requests wait for, tried over real connections: whoever has an answer, its events are written;
//! nothing changes before the event that says it is asked for; a slow log holds answers back, and none of its events is lost
//! or out of order; one that takes nothing costs no answer unless that is wanted.

use std::{
    collections::HashMap,
    io::{PipeReader, PipeWriter, Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::Value;
use bytes::Bytes;
use clock::Duration;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pki::{Authority, Serving, Subject};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    Auditor, Begun, Settings,
    log::{self, Format, Log},
    policy::Policy,
    sink::Mode,
};
use crate::{Listening, Server, User, http::request::Info, tests::assembled};

/// The last line of a log that is read to its end.
const END: &str = "end\n";

fn settings(path: &Path, mode: Mode) -> Settings {
    let policy = Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let (path, format) = (path.to_owned(), Format::Json);
    let log = log::Settings { path, format, days: 0, files: 0, megabytes: 0, compress: false };
    Settings { policy, log: Some((Log::open(&log).unwrap(), mode, None)), webhook: None }
}

/// A server that listens, and those who trust it.
struct Scene {
    server: Server,
    listening: Listening,
    authority: Authority,
}

impl Scene {
    async fn start(path: &Path, mode: Mode) -> Scene {
        let options = crate::Options { audit: Some(settings(path, mode)), ..assembled::options() };
        let server = crate::assemble(options).await.unwrap();
        let authority = Authority::create("us").unwrap();
        let issued = authority.issue(&Subject::server("us", vec!["127.0.0.1".into()])).unwrap();
        let tls = pki::server_config(Serving::new(&issued).unwrap(), None, &["h2", "http/1.1"]).unwrap();
        let listening = server.listen("127.0.0.1:0".parse().unwrap(), Arc::new(tls)).await.unwrap();
        Scene { server, listening, authority }
    }

    async fn dial(&self, protocol: &str) -> TokioIo<TlsStream<TcpStream>> {
        let client = pki::client_config(self.authority.certificate(), None, &[protocol]).unwrap();
        let tcp = TcpStream::connect(self.listening.address).await.unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        TokioIo::new(TlsConnector::from(Arc::new(client)).connect(name, tcp).await.unwrap())
    }

    /// Asks this often over each of two connections, of HTTP/1.1 and HTTP/2, on the second one for everything at once. Each
    /// answer's code and identity are told as they come.
    async fn ask(&self, times: usize, answered: impl Fn(u16, &str)) {
        let (mut one, connection) = http1::handshake(self.dial("http/1.1").await).await.unwrap();
        tokio::spawn(connection);
        let (many, connection) = http2::handshake(TokioExecutor::new(), self.dial("h2").await).await.unwrap();
        tokio::spawn(connection);
        let tell = |head: http::response::Parts| {
            answered(head.status.as_u16(), head.headers["audit-id"].to_str().unwrap());
        };
        let in_turn = async {
            for _ in 0..times {
                one.ready().await.unwrap();
                let (head, body) = one.send_request(request("/version")).await.unwrap().into_parts();
                body.collect().await.unwrap();
                tell(head);
            }
        };
        let at_once = futures::future::join_all((0..times).map(|_| {
            let mut sender = many.clone();
            async move {
                let (head, body) = sender.send_request(request("https://us/version")).await.unwrap().into_parts();
                body.collect().await.unwrap();
                tell(head);
            }
        }));
        tokio::join!(in_turn, at_once);
    }
}

fn request(uri: &str) -> Request<Empty<Bytes>> {
    Request::get(uri).header("host", "us").header("authorization", "Bearer secret").body(Empty::new()).unwrap()
}

/// The stages of each request, by its identity, in the order of the log.
fn stages(text: &str) -> HashMap<String, Vec<String>> {
    let mut all = HashMap::<String, Vec<String>>::new();
    for line in text.lines() {
        let event: Value = json::parse(line).unwrap();
        let of = |field: &str| event[field].as_str().unwrap().to_owned();
        all.entry(of("auditID")).or_default().push(of("stage"));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_has_an_answer_its_events_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    for mode in [Mode::Blocking, Mode::BlockingStrict] {
        let scene = Scene::start(&path, mode).await;
        let whole = ["RequestReceived", "ResponseComplete"];
        let written = |code: u16, id: &str| {
            assert_eq!(code, 200);
            let text = std::fs::read_to_string(&path).unwrap();
            // Another one may be at writing the last line.
            let lines = &text[..=text.rfind('\n').unwrap()];
            assert_eq!(stages(lines).get(id).map(Vec::as_slice), Some(&whole.map(str::to_owned)[..]));
        };
        scene.ask(100, written).await;
    }
}

#[tokio::test]
async fn nothing_is_done_before_the_event_that_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let auditor = Auditor::new(settings(&path, Mode::Blocking), &mut Default::default());
    let user = Arc::new(User::new("jane", ["dev"]));
    for (method, verb) in [(Method::POST, "create"), (Method::DELETE, "delete"), (Method::PATCH, "patch")] {
        let (parts, ()) = Request::builder().method(method).uri("/x").body(()).unwrap().into_parts();
        let info = Arc::new(Info { verb, ..Info::default() });
        let trail = auditor.receive(&parts, &info, &user, &Begun::of(&parts, true)).await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(stages(&text)[trail.id().unwrap()], ["RequestReceived"], "{verb}");
    }
}

/// A pipe as a log: its reader, and the path at which it is opened for writing.
fn pipe() -> (PipeReader, PipeWriter, PathBuf) {
    let (reader, writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd()).into();
    (reader, writer, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_log_holds_answers_back_and_loses_nothing() {
    let (mut reader, mut writer, path) = pipe();
    let scene = Scene::start(&path, Mode::Blocking).await;
    // The log takes less than what a few requests say, and that slowly.
    let slow = std::thread::spawn(move || {
        let (mut text, mut piece) = (Vec::new(), [0; 8192]);
        while !text.ends_with(END.as_bytes()) {
            let read = reader.read(&mut piece).unwrap();
            text.extend_from_slice(&piece[..read]);
            std::thread::sleep(Duration::from_millis(2));
        }
        String::from_utf8(text).unwrap()
    });
    let ids = parking_lot::Mutex::new(Vec::new());
    // There are fewer places than that, and refusals are audited as well.
    scene.ask(300, |_, id| ids.lock().push(id.to_owned())).await;
    scene.server.flush_audit().await;
    writer.write_all(END.as_bytes()).unwrap();
    let text = tokio::task::spawn_blocking(|| slow.join().unwrap()).await.unwrap();
    let all = stages(text.strip_suffix(END).unwrap());
    for id in ids.into_inner() {
        assert_eq!(all[&id], ["RequestReceived", "ResponseComplete"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_log_that_takes_nothing_costs_answers_only_where_that_is_wanted() {
    for (mode, expected) in [(Mode::Blocking, 200), (Mode::BlockingStrict, 500)] {
        let (reader, _writer, path) = pipe();
        let scene = Scene::start(&path, mode).await;
        drop(reader);
        scene.ask(5, |code, _| assert_eq!(code, expected)).await;
    }
}
