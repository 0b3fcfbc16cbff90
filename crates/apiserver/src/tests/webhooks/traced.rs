//! The traces of requests, and of the questions to webhooks within them.

use spans::{Attribute, Side, Tracer};

use super::*;
use crate::{User, assemble::Options, http::body::Body, tests::assembled::options};

const CAME_WITH: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;

/// A request that came with a trace; by a user of this group.
async fn ask(talk: &Talk, group: &str, head: &str, traces: &[&str], body: Value) -> u16 {
    let (method, uri) = head.split_once(' ').unwrap();
    let user = Arc::new(User::new("jane", [group]).authenticated());
    let mut request = http::Request::builder().method(method).uri(uri).header("content-type", "application/json");
    for trace in traces {
        request = request.header("traceparent", *trace);
    }
    let body = Body::from(bytes::Bytes::from(body.to_string()));
    talk.0.handle(request.extension(user).body(body).unwrap()).await.status().as_u16()
}

#[tokio::test]
async fn a_trusted_trace_goes_through_the_server_to_webhooks() {
    let (tracer, mut spans) = Tracer::new(0);
    let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
    let connector = Some(Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]));
    let talk = Talk::over(Options { connector, tracer: Some(tracer), ..options() }).await;
    let scene = Scene { talk, hook: Hook::start().await };
    scene.one("validating", json!({})).await;
    let code = ask(&scene.talk, "system:masters", &format!("POST {MAPS}"), &[CAME_WITH], map("a")).await;
    assert_eq!(code, 201);
    let (asked, served) = (spans.recv().await.unwrap(), spans.recv().await.unwrap());
    assert_eq!((&*asked.name, asked.side), ("HTTP POST", Side::Client));
    assert_eq!((asked.context.trace, asked.parent), (TRACE, Some(served.context.span)));
    assert_eq!(&*served.name, "POST /api/v1/namespaces/{:namespace}/configmaps");
    assert_eq!((served.context.trace, served.parent, served.failed), (TRACE, Some(0xb7ad6b7169203331), false));
    let status = served.attributes.iter().find(|(name, _)| *name == "http.response.status_code");
    assert_eq!(status.map(|(_, value)| value), Some(&Attribute::Number(201)));
    let questions = scene.hook.questions();
    assert_eq!(questions[0].1["traceparent"], asked.context.header());
}

#[tokio::test]
async fn a_stranger_neither_fills_the_collector_nor_chooses_a_trace() {
    let (tracer, mut spans) = Tracer::new(0);
    let talk = Talk::over(Options { tracer: Some(tracer), ..options() }).await;
    let path = "GET /api/v1/nodes/n";
    for group in ["system:nodes", "system:authenticated", "system:serviceaccounts"] {
        ask(&talk, group, path, &[CAME_WITH], json!({})).await;
        assert!(spans.try_recv().is_err(), "{group}");
    }
    ask(&talk, "system:masters", path, &[CAME_WITH, CAME_WITH], json!({})).await;
    ask(&talk, "system:masters", path, &["00-zz"], json!({})).await;
    assert!(spans.try_recv().is_err(), "two contexts, or a broken one, are none");
    assert_eq!(talk.hear("", "GET /api", json!(null)).await.0, 403);
    let (tracer, mut spans) = Tracer::new(1_000_000);
    let talk = Talk::over(Options { tracer: Some(tracer), ..options() }).await;
    ask(&talk, "system:nodes", path, &[CAME_WITH], json!({})).await;
    let served = spans.recv().await.unwrap();
    assert_eq!(&*served.name, "GET /api/v1/nodes/{:name}");
    assert_ne!(served.context.trace, TRACE);
    assert_eq!(served.link.map(|link| link.trace), Some(TRACE));
    assert_eq!(talk.say("wrong", path, json!(null)).await.0, 401);
    assert!(spans.try_recv().is_err(), "no span begins before it is known who asks");
}
