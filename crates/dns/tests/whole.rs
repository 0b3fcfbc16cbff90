//! Cluster DNS over its sockets and an API server in memory: it follows what the API has, the Corefile too, and a wrong one
//! is told while the last good one stays.

use std::{convert::Infallible, net::SocketAddr, str::FromStr, sync::Arc};

use bytes::Bytes;
use client::{Caches, EventRecorder};
use futures::{StreamExt, stream};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RecordType as T},
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::watch,
};

type Body = UnsyncBoxBody<Bytes, Infallible>;
/// The plural of a kind, the word of its watch event, and the object afterwards.
type Change = (String, &'static str, Value);

/// An API server that lists and watches, and takes events.
#[derive(Clone)]
struct Api {
    changes: Arc<Mutex<Vec<Change>>>,
    events: watch::Sender<Vec<String>>,
    revision: watch::Sender<usize>,
}

impl Api {
    fn new() -> Self {
        Api { changes: Arc::default(), events: watch::Sender::default(), revision: watch::Sender::new(0) }
    }

    /// Says that an object of a kind is there, has changed or is gone.
    fn say(&self, plural: &str, what: &'static str, mut object: Value) {
        let mut changes = self.changes.lock();
        object["metadata"]["resourceVersion"] = (changes.len() + 1).to_string().into();
        changes.push((plural.to_owned(), what, object));
        self.revision.send_replace(changes.len());
    }

    fn corefile(&self, what: &'static str, text: &str) {
        let metadata = json!({"name": "coredns", "namespace": "kube-system", "uid": "u"});
        self.say("configmaps", what, json!({"metadata": metadata, "data": {"Corefile": text}}));
    }

    fn client(&self) -> client::Client {
        let api = self.clone();
        client::in_process(tower::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.respond(request).await) }
        }))
    }

    async fn respond(&self, request: Request<client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let plural = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        let whole = |value: Value| Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
        if plural == "events" {
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
            self.events.send_modify(|all| all.push(format!("{} {}", body["reason"], body["message"])));
            return whole(body);
        }
        if plural == "configmaps" {
            assert_eq!(parts.uri.path(), "/api/v1/namespaces/kube-system/configmaps", "no other namespace's");
            assert!(query.contains("metadata.name%3Dcoredns"), "no other ConfigMap: {query}");
        }
        if !query.contains("watch=true") {
            let changes = self.changes.lock();
            let items: Vec<Value> = changes.iter().filter(|c| c.0 == plural).map(|c| c.2.clone()).collect();
            let metadata = json!({"resourceVersion": changes.len().to_string()});
            return whole(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}));
        }
        let from = query.split('&').find_map(|q| q.strip_prefix("resourceVersion=")?.parse().ok()).unwrap_or(0);
        let changes = self.changes.clone();
        let lines = stream::unfold((from, self.revision.subscribe()), move |(at, mut revision): (usize, _)| {
            let (changes, plural) = (changes.clone(), plural.clone());
            async move {
                revision.wait_for(|now| *now > at).await.ok()?;
                let (of, what, object) = changes.lock()[at].clone();
                let line = (of == plural).then(|| format!("{}\n", json!({"type": what, "object": object})));
                Some((line, (at + 1, revision)))
            }
        });
        let frames = lines.filter_map(|line| std::future::ready(line.map(|l| Ok(Frame::data(Bytes::from(l))))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn packet(name: &str) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_str(name).unwrap(), T::A));
    message.to_vec().unwrap()
}

fn show(answer: &[u8]) -> String {
    let answer = Message::from_vec(answer).unwrap();
    let shown: Vec<String> = answer.answers.iter().map(|r| r.data.to_string()).collect();
    if shown.is_empty() { format!("{:?}", answer.metadata.response_code) } else { shown.join(", ") }
}

async fn ask(server: SocketAddr, name: &str) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&packet(name), server).await.unwrap();
    let mut buffer = vec![0; 4096];
    let length = socket.recv(&mut buffer).await.unwrap();
    show(&buffer[..length])
}

/// Asks until the answer is this one.
async fn until(server: SocketAddr, name: &str, expected: &str) {
    while ask(server, name).await != expected {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_the_api_has_is_answered() {
    let api = Api::new();
    let web = |ip: &str| json!({"metadata": {"namespace": "d", "name": "web"}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
    api.say("namespaces", "ADDED", json!({"metadata": {"name": "d"}}));
    api.say("services", "ADDED", web("10.96.0.7"));
    let resolv_conf = tempfile::NamedTempFile::new().unwrap();
    let config = dns::Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        domain: "Cluster.Local.".to_owned(),
        clients: Vec::new(),
        resolv_conf: resolv_conf.path().to_owned(),
        own_addresses: vec!["10.96.0.10".parse().unwrap()],
        learner: None,
    };
    let server = dns::bind(&config, EventRecorder::new(api.client(), "coredns", None)).await.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.run(Caches::new(api.client())));

    until(address, "web.d.svc.cluster.local.", "10.96.0.7").await;
    api.say("services", "MODIFIED", web("10.96.0.8"));
    until(address, "web.d.svc.cluster.local.", "10.96.0.8").await;
    assert_eq!(ask(address, "ns.dns.cluster.local.").await, "10.96.0.10");
    assert_eq!(ask(address, "10-0-0-1.d.pod.cluster.local.").await, "10.0.0.1");
    assert_eq!(ask(address, "10-0-0-1.e.pod.cluster.local.").await, "NXDomain");
    api.say("namespaces", "ADDED", json!({"metadata": {"name": "e"}}));
    until(address, "10-0-0-1.e.pod.cluster.local.", "10.0.0.1").await;
    assert_eq!(ask(address, "example.org.").await, "ServFail", "there is no resolver");

    // Over TCP, question after question on one connection.
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..2 {
        let question = packet("web.d.svc.cluster.local.");
        stream.write_u16(u16::try_from(question.len()).unwrap()).await.unwrap();
        stream.write_all(&question).await.unwrap();
        let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(show(&answer), "10.96.0.8");
    }

    // A Corefile that verifies Pods.
    api.say("pods", "ADDED", json!({"metadata": {"namespace": "d", "name": "p"}, "status": {"podIP": "10.0.0.1"}}));
    api.corefile(
        "ADDED",
        ". {\n hosts {\n 10.9.9.9 printer\n fallthrough\n }\n kubernetes cluster.local {\n pods verified\n }\n}",
    );
    until(address, "printer.", "10.9.9.9").await;
    until(address, "10-0-0-1.d.pod.cluster.local.", "10.0.0.1").await;
    assert_eq!(ask(address, "10-0-0-2.d.pod.cluster.local.").await, "NXDomain");
    api.say("pods", "DELETED", json!({"metadata": {"namespace": "d", "name": "p"}, "status": {"podIP": "10.0.0.1"}}));
    until(address, "10-0-0-1.d.pod.cluster.local.", "NXDomain").await;

    // A wrong one is told, and changes nothing.
    let mut events = api.events.subscribe();
    api.corefile("MODIFIED", ". {\n etcd\n}");
    let told = events.wait_for(|all| !all.is_empty()).await.unwrap()[0].clone();
    assert!(
        told.contains("InvalidCorefile") && told.contains("Corefile:2") && told.contains("Unknown directive 'etcd'"),
        "{told}"
    );
    assert_eq!(ask(address, "printer.").await, "10.9.9.9");

    // Without any, it is as it was.
    api.corefile("DELETED", "");
    until(address, "10-0-0-2.d.pod.cluster.local.", "10.0.0.2").await;
    assert_eq!(ask(address, "printer.").await, "ServFail");
}

#[tokio::test]
async fn what_listens_there_already_is_in_the_way() {
    let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let config = dns::Config {
        listen: taken.local_addr().unwrap(),
        domain: "cluster.local".to_owned(),
        clients: Vec::new(),
        resolv_conf: "/nowhere".into(),
        own_addresses: Vec::new(),
        learner: None,
    };
    assert!(matches!(dns::bind(&config, EventRecorder::discard()).await, Err(dns::DnsError::Listen { .. })));
    let nameless = dns::Config { domain: "a..b".to_owned(), ..config };
    assert!(matches!(dns::bind(&nameless, EventRecorder::discard()).await, Err(dns::DnsError::Domain(_))));
}
