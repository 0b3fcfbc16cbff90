//! The whole of a node's enforcement, between an API server that the test plays and the real kernel, in a network namespace
//! of its own: when Pods may begin, and what the kernel holds by then.

use std::{convert::Infallible, fs::File, net::IpAddr, process::Command};

use bytes::Bytes;
use client::{Body, Client};
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use nix::sched::{CloneFlags, setns};
use policy::{Config, Gate};
use tokio::{sync::watch, task::JoinHandle};

/// Works in a namespace that goes afterwards.
fn in_namespace<F: Future<Output = ()>>(purpose: &str, work: impl FnOnce() -> F + Send) {
    let name = format!("skiff-gate-{purpose}-{}", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).output();
    if !made.is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: network namespaces need root and iproute2");
        return;
    }
    let path = format!("/run/netns/{name}");
    let done = std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            setns(File::open(path).expect("the namespace's file"), CloneFlags::CLONE_NEWNET).expect("entering it");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(work());
        });
        inside.join()
    });
    let _ = Command::new("ip").args(["netns", "del", &name]).status();
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// An API server with no objects but those that its watches tell of, as the kind's plural and the event.
#[derive(Clone)]
struct Server {
    told: watch::Sender<Vec<(&'static str, Value)>>,
    /// The kind that nobody may read.
    forbidden: &'static str,
}

type Answer = UnsyncBoxBody<Bytes, Infallible>;

impl Server {
    fn new(forbidden: &'static str) -> Self {
        Server { told: watch::Sender::default(), forbidden }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        client::in_process(tower::service_fn(move |request: Request<Body>| {
            let answer = server.answer(request.uri());
            async move { Ok::<_, Infallible>(answer) }
        }))
    }

    fn answer(&self, uri: &http::Uri) -> Response<Answer> {
        let plural = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let whole = |code: u16, body: Value| {
            let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
            Response::builder().status(code).body(body).expect("a plain answer")
        };
        if plural == self.forbidden {
            return whole(403, json!({"kind": "Status", "apiVersion": "v1", "code": 403, "reason": "Forbidden"}));
        }
        if !uri.query().is_some_and(|query| query.contains("watch=")) {
            return whole(
                200,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}),
            );
        }
        let events = stream::unfold((self.told.subscribe(), 0), |(mut told, at)| async move {
            let event = told.wait_for(|told| told.len() > at).await.ok()?[at].clone();
            Some((event, (told, at + 1)))
        });
        let events = events.filter_map(move |(kind, event)| {
            let frame = (kind == plural).then(|| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            std::future::ready(frame)
        });
        Response::new(StreamBody::new(events).boxed_unsync())
    }

    /// Tells who watches now or later.
    fn tell(&self, kind: &'static str, word: &str, object: &Value) {
        self.told.send_modify(|told| told.push((kind, json!({"type": word, "object": object}))));
    }

    fn enforce(&self) -> (Gate, JoinHandle<()>) {
        let (gate, arrivals) = policy::gate();
        let config = Config { node_name: "n1".to_owned(), pod_links: "skf" };
        (gate, tokio::spawn(policy::run(self.client(), config, arrivals)))
    }
}

fn metadata(namespace: &str, name: &str, revision: u64) -> Value {
    json!({"namespace": namespace, "name": name, "uid": name, "resourceVersion": revision.to_string()})
}

fn pod(name: &str) -> Pod {
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c"}]});
    json::from_value(json!({"metadata": metadata("x", name, 5), "spec": spec})).expect("a Pod")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The kernel's listing of a table, or nothing.
fn kernel() -> String {
    let out = Command::new("nft").args(["list", "table", "inet", "skiff-policy"]).output().expect("nft");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether connections to this address are decided by policies.
fn isolates(address: &str) -> bool {
    let table = kernel();
    let map = table.split("map ingress-4").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    map.contains(&format!("{address} : goto "))
}

async fn until(_what: &str, is_so: impl Fn() -> bool) {
    // The test's own end is the bound.
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_pod_that_passes_is_isolated_before_anybody_else_knows_its_address() {
    in_namespace("order", async || {
        nft::transaction("add table inet skiff-policy\n").await.expect("what an earlier life left");
        let server = Server::new("");
        let (gate, work) = server.enforce();
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("without a policy nobody waits");
        assert_eq!(kernel(), "", "no policy, no table");

        let deny = json!({"metadata": metadata("x", "deny", 6), "spec": {"podSelector": {}}});
        server.tell("networkpolicies", "ADDED", &deny);
        until("the one that runs already is isolated", || isolates("10.77.1.1")).await;
        gate.pass(&pod("b"), vec![address("10.77.1.2")]).await.expect("the kernel knows it");
        assert!(isolates("10.77.1.2"), "by the time that it may begin");

        // The API server learns of the Pod before it learns of the address.
        let known =
            json!({"metadata": metadata("x", "b", 7), "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}});
        server.tell("pods", "ADDED", &known);
        let moved = json!({"metadata": metadata("x", "c", 8), "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
            "status": {"podIP": "10.77.1.3"}});
        server.tell("pods", "ADDED", &moved);
        until("a Pod by its status", || isolates("10.77.1.3")).await;
        assert!(isolates("10.77.1.2"), "what the kubelet said counts still");

        gate.pass(&pod("b"), vec![address("10.77.1.4")]).await.expect("a new sandbox");
        assert!(isolates("10.77.1.4") && !isolates("10.77.1.2"), "at its new address alone");
        server.tell("pods", "DELETED", &known);
        until("a Pod that is gone is forgotten", || !isolates("10.77.1.4")).await;

        work.abort();
        assert!(work.await.is_err_and(|ended| ended.is_cancelled()));
        assert!(isolates("10.77.1.3"), "the kernel goes on without the process");
        server.told.send_modify(Vec::clear);
        let (_gate, work) = server.enforce();
        until("the next life finds no policy", || kernel().is_empty()).await;
        server.tell("networkpolicies", "ADDED", &deny);
        until("one comes", || kernel().contains("chain ingress")).await;
        server.tell("networkpolicies", "DELETED", &deny);
        until("the last one goes", || kernel().is_empty()).await;
        work.abort();
    });
}

#[test]
fn where_a_node_may_not_read_what_policies_need_nobody_waits() {
    in_namespace("rights", async || {
        let server = Server::new("pods");
        let (gate, work) = server.enforce();
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("policies are somebody else's");
        assert_eq!(kernel(), "");
        work.abort();
    });
}
