//! The server's end: what is asked before is answered, watches end and are audited, and whoever asks meanwhile is told.

use std::{collections::HashMap, sync::Arc};

use api::Value;
use clock::Duration;
use http_body_util::BodyExt;
use json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    assembled::{Talk, options},
    listening::{Reached, answer, get},
};
use crate::{
    Options,
    audit::{
        Settings,
        log::{self, Format, Log},
        policy::Policy,
        sink::Mode,
    },
    http::ending::end_watches,
};

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";
const LONG: Duration = Duration::from_secs(20);

/// A server that the token `secret` may ask for everything.
fn open() -> Options {
    Options { token_file: Some(("tokens".into(), "secret,root,1,system:masters\n".into())), ..options() }
}

/// The stages of each request, by its identity, in the order of the log.
pub fn stages(text: &str) -> HashMap<String, Vec<String>> {
    let mut all = HashMap::<String, Vec<String>>::new();
    for line in text.lines() {
        let event: Value = json::parse(line).unwrap();
        let of = |field: &str| event[field].as_str().unwrap().to_owned();
        all.entry(of("auditID")).or_default().push(of("stage"));
    }
    all
}

/// Everything, in a file that requests wait for.
pub fn audited(path: &std::path::Path) -> Settings {
    let policy = Policy::parse("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").unwrap();
    let log =
        log::Settings { path: path.to_owned(), format: Format::Json, days: 0, files: 0, megabytes: 0, compress: false };
    Settings { policy, log: Some((Log::open(&log).unwrap(), Mode::Blocking, None)), webhook: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_end_with_the_server_and_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let (reached, listening) = Reached::start(Options { audit: Some(audited(&path)), ..open() }).await;
    let mut over_http2 = reached.over_http2().await;
    let io = hyper_util::rt::TokioIo::new(reached.dial("http/1.1", None).await);
    let (mut over_http1, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let watches = [
        over_http2.send_request(get(&format!("https://us{WATCH}"))).await.unwrap(),
        over_http2.send_request(get(&format!("https://us{WATCH}"))).await.unwrap(),
        over_http1.send_request(get(WATCH)).await.unwrap(),
    ];
    let ids = watches.each_ref().map(|watch| watch.headers()["audit-id"].to_str().unwrap().to_owned());
    let ended = clock::timeout(LONG, reached.server.end(listening, false, LONG)).await;
    assert_eq!(ended, Ok(true));
    let all = stages(&std::fs::read_to_string(&path).unwrap());
    for id in ids {
        assert_eq!(all[&id], ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    }
    for watch in watches {
        assert_eq!(watch.status(), 200);
        watch.into_body().collect().await.expect("its client sees an end, and no error");
    }
    let (code, _) = Talk(reached.server.clone()).say("+root", "GET /api/v1/namespaces", json!(null)).await;
    assert_eq!(code, 429, "nothing is asked behind the end of the log, from inside the process either");
}

#[tokio::test(start_paused = true)]
async fn watches_end_little_by_little() {
    let talk = Talk::start().await;
    let watches = &talk.0.objects().watches;
    let before = watches.watchers();
    let mut open = Vec::new();
    for _ in 0..600 {
        open.push(talk.send("+root", &format!("GET {WATCH}"), json!(null)).await);
    }
    assert_eq!(watches.watchers(), before + 600);
    let mut ending = Box::pin(end_watches(watches, Duration::from_secs(10)));
    // Two hundred in a second: there is more time than that takes.
    assert!(clock::timeout(Duration::from_millis(990), &mut ending).await.is_err());
    assert_eq!(watches.watchers(), before + 400);
    ending.await;
    assert_eq!(watches.watchers(), 0);
    for watch in open {
        watch.into_body().collect(1 << 20).await.unwrap();
    }
    let _late = talk.send("+root", &format!("GET {WATCH}"), json!(null)).await;
    end_watches(watches, Duration::ZERO).await;
    assert_eq!(watches.watchers(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_asks_a_server_that_ends_is_told_to_come_again() {
    let (reached, listening) = Reached::start(open()).await;
    let reached = Arc::new(reached);
    let mut over_http2 = reached.over_http2().await;
    let version = "https://us/version";
    assert_eq!(answer(over_http2.send_request(get(version)).await.unwrap()).await.code, 200);
    // A request is open: its handler reads the body.
    let mut slow = reached.dial("http/1.1", None).await;
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: us\r\nauthorization: Bearer secret\r\n\
                content-type: application/json\r\ncontent-length: 28\r\nexpect: 100-continue\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 12];
    slow.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100");
    let ending = tokio::spawn({
        let reached = reached.clone();
        async move { reached.server.end(listening, true, LONG).await }
    });
    let refused = loop {
        let answer = reached.ask(None, get("/version")).await;
        if answer.code != 200 {
            break answer;
        }
    };
    assert_eq!(
        (refused.code, refused.text.as_str()),
        (429, "The apiserver is shutting down, please try again later.\n")
    );
    let told = ["retry-after", "connection"].map(|name| refused.headers[name].to_str().unwrap());
    assert_eq!(told, ["5", "close"]);
    let over = answer(over_http2.send_request(get(version)).await.unwrap()).await;
    assert_eq!((over.code, &over.headers["retry-after"]), (429, &"5".parse().unwrap()));
    let gone = clock::timeout(LONG, async {
        while over_http2.ready().await.is_ok() {
            tokio::task::yield_now().await
        }
    });
    gone.await.expect("the connection is ended");
    for (path, agent, code) in
        [("/readyz", "", 200), ("/metrics", "", 200), ("/version", "kube-apiserver/v1", 200), (WATCH, "", 429)]
    {
        let mut request = get(path);
        request.headers_mut().insert("user-agent", agent.parse().unwrap());
        assert_eq!(reached.ask(None, request).await.code, code, "{path} {agent}");
    }
    assert!(!ending.is_finished(), "a request is open");
    slow.write_all(br#"{"metadata":{"name":"last"}}"#).await.unwrap();
    let mut last = Vec::new();
    slow.read_to_end(&mut last).await.unwrap();
    let last = String::from_utf8_lossy(&last).into_owned();
    assert!(last.contains("HTTP/1.1 201"), "{last}");
    assert!(clock::timeout(LONG, ending).await.unwrap().unwrap());
    assert!(tokio::net::TcpStream::connect(reached.address).await.is_err(), "nobody listens any more");
}
