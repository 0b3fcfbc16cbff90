//! A real kubectl, whose SPDY and WebSocket come from Go, against this crate: `kubectl exec` with input, output and an
//! exit code, once over SPDY and once over a WebSocket that is translated.

use std::{convert::Infallible, process::Stdio, time::Duration};

use bytes::Bytes;
use http_body_util::{Empty, Full};
use hyper::{Request, Response, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use stream::{
    spdy::{Connection, Side},
    upgrade,
    websocket::{self, Streams},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, duplex},
    net::TcpListener,
};

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},
    "spec":{"containers":[{"name":"c","image":"i"}]},"status":{"phase":"Running"}}"#;
const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
    {"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"]}]}"#;
const VERDICT: &str = r#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","message":"exit 3",
    "details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;

/// A container engine's streaming server: echoes the input, then ends with exit code 3.
async fn engine(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
    response = response.header("x-stream-protocol-version", "v4.channel.k8s.io");
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        let (_connection, mut opened) = Connection::start(TokioIo::new(upgraded), Side::Server);
        let mut streams = std::collections::HashMap::new();
        for _ in 0..4 {
            let stream = opened.recv().await.unwrap();
            streams.insert(stream.header("streamtype").unwrap().to_owned(), stream);
        }
        while let Some(piece) = streams.get_mut("stdin").unwrap().read().await {
            streams["stdout"].writer().write(&piece).await.unwrap();
        }
        streams["error"].writer().write(VERDICT.as_bytes()).await.unwrap();
        for stream in streams.values() {
            stream.writer().finish().await.unwrap();
        }
        while opened.recv().await.is_some() {}
    });
    Ok(response.body(Full::default()).unwrap())
}

/// An API server that knows one pod.
async fn api(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if !request.uri().path().ends_with("/exec") {
        let answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
        let body = match request.uri().path() {
            "/api" => r#"{"kind":"APIVersions","versions":["v1"]}"#,
            "/apis" => r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
            "/api/v1" => RESOURCES,
            _ => POD,
        };
        return Ok(answer.body(Full::from(body)).unwrap());
    }
    let Some(protocol) = websocket::offered(request.headers(), &websocket::REMOTE_COMMAND) else {
        return engine(request).await;
    };
    let accepted = websocket::accept(request.headers(), protocol).unwrap();
    let (client, server) = duplex(1 << 16);
    serve(server);
    let spdy = Request::post("/").header("connection", "Upgrade").header("upgrade", "SPDY/3.1").header("host", "x");
    let answer = upgrade::send(spdy.body(Empty::<Bytes>::new()).unwrap(), client).await.unwrap();
    let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
    let (near, far) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(answer));
    tokio::spawn(websocket::remote_command(near, far, streams));
    Ok(accepted.map(|()| Full::default()))
}

fn serve(io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(io), service_fn(engine)).with_upgrades());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_exec() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(api));
            tokio::spawn(connection.with_upgrades());
        }
    });
    let home = tempfile::tempdir().unwrap();
    for websockets in ["false", "true"] {
        let kubectl = std::env::var_os("KUBECTL").unwrap_or("kubectl".into());
        let started = tokio::process::Command::new(kubectl)
            .args(["--server", &format!("http://{address}"), "--kubeconfig=/dev/null"])
            .args(["exec", "-i", "p", "--", "cat"])
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
            .env("HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut child) = started else {
            eprintln!("SKIPPED: no kubectl on the path");
            return;
        };
        let input = "line\n".repeat(20_000);
        let mut stdin = child.stdin.take().unwrap();
        let bytes = input.clone();
        tokio::spawn(async move { stdin.write_all(bytes.as_bytes()).await });
        let done = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
        let output = done.expect("kubectl ends").unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.stdout.len(), input.len(), "websockets={websockets}: {said}");
        assert_eq!(output.status.code(), Some(3), "websockets={websockets}: {said}");
    }
}
