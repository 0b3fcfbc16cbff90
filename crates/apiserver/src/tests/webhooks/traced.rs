//! The traces of requests, of the steps within them, and of the questions to webhooks.

use spans::{Attribute, Facts, Side, Tracer};
use tokio::sync::mpsc::Receiver;

use super::*;
use crate::{User, assemble::Options, http::body::Body, tests::assembled::options};

const CAME_WITH: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;

/// A request that came with a trace; by a user of this group.
async fn ask(talk: &Talk, group: &str, head: &str, traces: &[&str], body: Value) -> u16 {
    let mut lines = head.lines();
    let (method, uri) = lines.next().unwrap().split_once(' ').unwrap();
    let user = Arc::new(User::new("jane", [group]).authenticated());
    let media_type = lines.next().unwrap_or("application/json");
    let mut request = http::Request::builder().method(method).uri(uri).header("content-type", media_type);
    for trace in traces {
        request = request.header("traceparent", *trace);
    }
    let body = Body::from(bytes::Bytes::from(body.to_string()));
    talk.0.handle(request.extension(user).body(body).unwrap()).await.status().as_u16()
}

async fn scene(per_million: u32) -> (Scene, Receiver<Facts>) {
    let (tracer, spans) = Tracer::new(per_million);
    let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
    let connector = Some(Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]));
    let talk = Talk::over(Options { connector, tracer: Some(tracer), ..options() }).await;
    (Scene { talk, hook: Hook::start().await }, spans)
}

/// The spans of one request; its own comes last.
async fn served(spans: &mut Receiver<Facts>) -> Vec<Facts> {
    let mut all = Vec::new();
    while all.last().is_none_or(|facts: &Facts| facts.side != Side::Server) {
        all.push(spans.recv().await.unwrap());
    }
    all
}

/// The names of a span and of those around it, but for the request's own.
fn place(facts: &Facts, all: &[Facts]) -> String {
    let above = all.iter().find(|other| Some(other.context.span) == facts.parent);
    match above.filter(|above| above.side != Side::Server) {
        Some(above) => format!("{} > {}", place(above, all), facts.name),
        None => facts.name.to_string(),
    }
}

fn events(facts: &Facts) -> Vec<&'static str> {
    facts.events.iter().map(|event| event.name).collect()
}

fn attribute<'f>(facts: &'f Facts, name: &str) -> Option<&'f Attribute> {
    facts.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[tokio::test]
async fn a_trusted_trace_goes_through_the_server_to_webhooks() {
    let (scene, mut spans) = scene(0).await;
    scene.one("validating", json!({})).await;
    let code = ask(&scene.talk, "system:masters", &format!("POST {MAPS}"), &[CAME_WITH], map("a")).await;
    assert_eq!(code, 201);
    let all = served(&mut spans).await;
    let served = all.last().unwrap();
    let asked = all.iter().find(|facts| facts.name == "HTTP POST").unwrap();
    assert_eq!(place(asked, &all), "Create > Call validating webhook > HTTP POST");
    assert_eq!((asked.context.trace, asked.side), (TRACE, Side::Client));
    let questions = scene.hook.questions();
    assert_eq!(questions[0].1["traceparent"], asked.context.header());
    let around = all.iter().find(|facts| Some(facts.context.span) == asked.parent).unwrap();
    assert_eq!(events(around), ["Request completed"]);
    for (name, value) in
        [("configuration", "one"), ("webhook", "one.example.com"), ("resource", "/v1, Resource=configmaps")]
    {
        assert_eq!(attribute(around, name), Some(&value.into()));
    }
    assert_eq!(attribute(around, "UID"), questions[0].2["request"]["uid"].as_str().map(Attribute::from).as_ref());
    assert_eq!(&*served.name, "POST /api/v1/namespaces/{:namespace}/configmaps");
    assert_eq!((served.context.trace, served.parent, served.failed), (TRACE, Some(0xb7ad6b7169203331), false));
    assert_eq!(attribute(served, "http.response.status_code"), Some(&Attribute::Number(201)));
}

#[tokio::test]
async fn each_verb_has_its_span_and_those_of_its_steps() {
    let (scene, mut spans) = scene(1_000_000).await;
    let mut check = async |head: &str, body: Value, expected: &[&str], told: &[&str]| {
        ask(&scene.talk, "system:masters", head, &[], body).await;
        let all = served(&mut spans).await;
        let (root, parts) = all.split_last().unwrap();
        let places: Vec<String> = parts.iter().map(|facts| place(facts, &all)).collect();
        assert_eq!(places[..2], ["authentication", "authorization"], "{head}");
        assert_eq!(places[2..], *expected, "{head}");
        assert!(parts.iter().all(|part| root.began <= part.began && part.ended <= root.ended));
        let handler = parts.iter().find(|part| attribute(part, "verb").is_some());
        assert_eq!(handler.map(events).unwrap_or_default(), told, "{head}");
    };
    let written = "About to write a response";
    let read = ["limitedReadBody succeeded", "About to convert to expected version", "Conversion done"];
    let stored = ["About to store object in database", "Write to database call succeeded", written];
    let created = ["Create > Create etcd3", "Create > SerializeObject", "Create"];
    check(&format!("POST {MAPS}"), map("a"), &created, &[&read[..], &stored[..]].concat()).await;
    let failed = ["About to store object in database", "Write to database call failed"];
    check(&format!("POST {MAPS}"), map("a"), &["Create > Create etcd3", "Create"], &[&read[..], &failed[..]].concat())
        .await;
    let one = format!("{MAPS}/a");
    let got = ["About to Get from storage", written];
    check(&format!("GET {one}"), json!(null), &["Get > SerializeObject", "Get"], &got).await;
    let mut changed = map("a");
    changed["data"]["a"] = json!("2");
    let updated = ["Update > GuaranteedUpdate etcd3", "Update > SerializeObject", "Update"];
    check(&format!("PUT {one}"), changed, &updated, &[&read[..], &stored[..]].concat()).await;
    let patched = ["Patch > GuaranteedUpdate etcd3", "Patch > SerializeObject", "Patch"];
    let patch = ["About to apply patch", "About to check admission control", "Object stored in database", written];
    let told = [&read[..1], &patch[..]].concat();
    check(&format!("PATCH {one}\n{MERGE}"), json!({"data": {"a": "3"}}), &patched, &told).await;
    let listed = ["List > List(recursive=true) etcd3", "List > SerializeObject", "List"];
    check(&format!("GET {MAPS}"), json!(null), &listed, &["About to List from storage", "Listing from storage done"])
        .await;
    let body = ["limitedReadBody succeeded", "Decoded delete options", "Recorded the audit event"];
    let deleted = ["About to delete object from database", "Object deleted from database"];
    check(&format!("DELETE {one}"), json!({}), &["Delete"], &[&body[..], &deleted[..]].concat()).await;
    check("GET /version", json!(null), &[], &[]).await;
}

#[tokio::test]
async fn the_audit_finds_the_span_of_a_request() {
    let (scene, mut spans) = scene(0).await;
    let user = Arc::new(User::new("jane", ["system:masters"]).authenticated());
    let from = "10.0.0.1:1".parse().unwrap();
    for (given, shown) in [("abc".to_owned(), "abc".to_owned()), ("d".repeat(100), "d".repeat(64))] {
        let request = http::Request::get("/version").header("traceparent", CAME_WITH).header("audit-id", given);
        let peer = crate::http::access::Peer { address: from, certificates: Vec::new().into() };
        scene.talk.0.handle(request.extension(user.clone()).extension(peer).body(Body::empty()).unwrap()).await;
        let all = served(&mut spans).await;
        assert_eq!(attribute(all.last().unwrap(), "audit-id"), Some(&Attribute::from(&*shown)));
    }
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
    let all = served(&mut spans).await;
    let served = all.last().unwrap();
    assert_eq!(&*served.name, "GET /api/v1/nodes/{:name}");
    assert!(all.iter().all(|facts| facts.context.trace == served.context.trace && facts.context.trace != TRACE));
    assert_eq!(served.link.map(|link| link.trace), Some(TRACE));
    assert_eq!(talk.say("wrong", path, json!(null)).await.0, 401);
    assert!(spans.try_recv().is_err(), "no span begins before it is known who asks");
}

/// The trace of a request belongs to who asks, whoever that acts as.
#[tokio::test]
async fn who_acts_as_another_stays_who_is_trusted() {
    let (scene, mut spans) = scene(0).await;
    let user = Arc::new(User::new("jane", ["system:masters"]).authenticated());
    let request = http::Request::get("/api/v1/nodes/n").header("traceparent", CAME_WITH);
    let request = request.header("impersonate-user", "bob").extension(user).body(Body::empty()).unwrap();
    assert_eq!(scene.talk.0.handle(request).await.status().as_u16(), 403);
    let all = served(&mut spans).await;
    let places: Vec<String> = all.iter().map(|facts| place(facts, &all)).collect();
    assert_eq!(places[..3], ["authentication", "impersonation", "authorization"]);
}
