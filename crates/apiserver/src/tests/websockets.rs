//! Watches over WebSocket, as browsers and some clients have them: over TLS, message by message.

use api::Value;
use http::Request;
use hyper_util::rt::TokioIo;
use json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::aggregated::{Scene, dial};
use crate::{http::body::Body, server::Limits};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;

/// One message of a server: its head and what it says.
async fn message(io: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let (head, length) = (io.read_u8().await.unwrap(), io.read_u8().await.unwrap());
    let length = match length {
        126 => usize::from(io.read_u16().await.unwrap()),
        127 => usize::try_from(io.read_u64().await.unwrap()).unwrap(),
        short => usize::from(short),
    };
    let mut text = vec![0; length];
    io.read_exact(&mut text).await.unwrap();
    (head, text)
}

fn event((head, text): (u8, Vec<u8>)) -> String {
    assert_eq!(head, TEXT);
    assert!(text.ends_with(b"\n"), "an event is a line");
    let event: Value = serde_json::from_slice(&text).unwrap();
    format!("{} {}", event["type"], event["object"]["metadata"]["name"]).replace('"', "")
}

async fn scene() -> Scene {
    let scene = Scene::start(Limits::default()).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}]);
    scene.ok(&format!("POST {rbac}/clusterroles"), json!({"metadata": {"name": "a"}, "rules": rules})).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "a"}, "subjects": [{"kind": "User", "name": "jane", "apiGroup": group}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "a"}});
    scene.ok(&format!("POST {rbac}/clusterrolebindings"), binding).await;
    scene.server.objects().caught_up().await.unwrap();
    scene
}

/// Asks for a watch as jane; returns the answer's code, and the connection if it was upgraded.
async fn ask(
    scene: &Scene,
    path: &str,
    more: &[(&str, &str)],
) -> (u16, Option<TokioIo<hyper::upgrade::Upgraded>>, crate::Listening) {
    let (listening, io) = dial(scene).await;
    // "secret" in Base64, as browsers show a token: they cannot set its header.
    let protocols = "base64url.bearer.authorization.k8s.io.c2VjcmV0, base64.binary.k8s.io";
    let usual = [
        ("host", "us"),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", protocols),
    ];
    let all = usual.iter().chain(more);
    let request = all.fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    let mut answer = stream::upgrade::send(request.body(Body::empty()).unwrap(), io).await.unwrap();
    let code = answer.status().as_u16();
    if code != 101 {
        return (code, None, listening);
    }
    assert_eq!(answer.headers()["sec-websocket-protocol"], "base64.binary.k8s.io", "the token is not told back");
    let upgraded = hyper::upgrade::on(&mut answer).await.unwrap();
    (code, Some(TokioIo::new(upgraded)), listening)
}

const ORIGIN: (&str, &str) = ("origin", "https://a.example");

#[tokio::test]
async fn each_event_is_a_message() {
    let scene = scene().await;
    scene.ok(&format!("POST {MAPS}"), json!({"metadata": {"name": "before"}})).await;
    let (_, io, _listening) = ask(&scene, &format!("{MAPS}?watch=1&fieldSelector=metadata.name!=x"), &[ORIGIN]).await;
    let mut io = io.unwrap();
    assert_eq!(event(message(&mut io).await), "ADDED before");
    for name in ["a", "b"] {
        scene.ok(&format!("POST {MAPS}"), json!({"metadata": {"name": name}, "data": {"k": "two\nlines"}})).await;
    }
    scene.ok(&format!("DELETE {MAPS}/a"), json!(null)).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(event(message(&mut io).await));
    }
    assert_eq!(seen, ["ADDED a", "ADDED b", "DELETED a"]);
    // The client closes, and the server does.
    io.write_all(&[CLOSE, 0x80, 0, 0, 0, 0]).await.unwrap();
    let mut rest = Vec::new();
    let _ = io.read_to_end(&mut rest).await;
    assert!(rest.is_empty() || rest[0] == CLOSE, "{rest:?}");
}

#[tokio::test]
async fn a_watch_that_is_over_is_closed_and_protobuf_comes_in_bytes() {
    let scene = scene().await;
    scene.ok(&format!("POST {MAPS}"), json!({"metadata": {"name": "a"}})).await;
    let accept = ("accept", "application/cbor, application/vnd.kubernetes.protobuf;stream=watch");
    let (_, io, _listening) = ask(&scene, &format!("{MAPS}?watch=1&timeoutSeconds=1"), &[ORIGIN, accept]).await;
    let mut io = io.unwrap();
    let (head, bytes) = message(&mut io).await;
    assert_eq!(head, BINARY);
    assert!(bytes.windows(5).any(|part| part == b"ADDED"), "the length stands in the message's own head");
    assert_eq!(message(&mut io).await, (CLOSE, 1000_u16.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn rights_and_handshakes_are_looked_at_first() {
    let scene = scene().await;
    let maps = format!("{MAPS}?watch=1");
    assert_eq!(ask(&scene, &maps, &[]).await.0, 403, "no origin");
    assert_eq!(ask(&scene, "/api/v1/secrets?watch=1", &[ORIGIN]).await.0, 403, "no right");
    assert_eq!(ask(&scene, &format!("{maps}&resourceVersion=x"), &[ORIGIN]).await.0, 400, "no watch");
}
