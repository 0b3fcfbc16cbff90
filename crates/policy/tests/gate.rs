//! The whole of a node's enforcement, between an API server that the test plays and the real kernel, in a network namespace
//! of its own: when Pods may begin, and what the kernel holds by then.

use std::{convert::Infallible, fs::File, net::IpAddr, process::Command, time::Duration};

use bytes::Bytes;
use client::{Body, Client};
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use nix::sched::{CloneFlags, setns};
use policy::{Config, Gate, Names};
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

/// An API server that holds what it was told, as the kind's plural and the event.
#[derive(Clone)]
struct Server {
    told: watch::Sender<Vec<(&'static str, Value)>>,
    /// The paths and queries that it was asked for, and the objects that it was sent.
    asked: watch::Sender<Vec<String>>,
    sent: watch::Sender<Vec<Value>>,
    /// The kind that nobody may read.
    forbidden: &'static str,
}

type Answer = UnsyncBoxBody<Bytes, Infallible>;

fn whole(code: u16, body: &Value) -> Response<Answer> {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).expect("a plain answer")
}

fn status(code: u16) -> Response<Answer> {
    whole(code, &json!({"kind": "Status", "apiVersion": "v1", "code": code, "reason": "None"}))
}

/// The value of a query's parameter.
fn parameter<'a>(uri: &'a http::Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

impl Server {
    fn new(forbidden: &'static str) -> Self {
        Server {
            told: watch::Sender::default(),
            asked: watch::Sender::default(),
            sent: watch::Sender::default(),
            forbidden,
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        client::in_process(tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                if head.method == http::Method::POST {
                    let sent = body.collect_bytes().await.expect("a body");
                    let sent = json::parse(std::str::from_utf8(&sent).expect("text")).expect("an object");
                    server.sent.send_modify(|all| all.push(sent.clone()));
                    return Ok::<_, Infallible>(whole(201, &sent));
                }
                Ok(server.answer(&head.uri))
            }
        }))
    }

    /// The objects of a kind after the first events.
    fn objects(&self, plural: &str, events: usize) -> Vec<Value> {
        let mut objects = std::collections::BTreeMap::new();
        for (_, event) in self.told.borrow()[..events].iter().filter(|(kind, _)| *kind == plural) {
            let object = event["object"].clone();
            let name = (object["metadata"]["namespace"].to_string(), object["metadata"]["name"].to_string());
            match event["type"].as_str() {
                Some("DELETED") => drop(objects.remove(&name)),
                _ => drop(objects.insert(name, object)),
            }
        }
        objects.into_values().collect()
    }

    fn is_defined(&self, plural: &str) -> bool {
        let name = format!("{plural}.policy.networking.k8s.io");
        let definitions = self.objects("customresourcedefinitions", self.told.borrow().len());
        definitions.iter().any(|definition| definition["metadata"]["name"].as_str() == Some(&*name))
    }

    fn answer(&self, uri: &http::Uri) -> Response<Answer> {
        self.asked.send_modify(|asked| asked.push(uri.to_string()));
        let plural = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        if plural == self.forbidden {
            return status(403);
        }
        if uri.path().contains("policy.networking.k8s.io") && !self.is_defined(&plural) {
            return status(404);
        }
        let wanted = parameter(uri, "fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name%3D"));
        let wanted = wanted.map(str::to_owned);
        let is_wanted = move |object: &Value| {
            wanted.as_deref().is_none_or(|name| object["metadata"]["name"].as_str() == Some(name))
        };
        if parameter(uri, "watch").is_none() {
            let now = self.told.borrow().len();
            let items: Vec<Value> = self.objects(&plural, now).into_iter().filter(is_wanted).collect();
            let metadata = json!({"resourceVersion": (now + 1).to_string()});
            return whole(200, &json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}));
        }
        let from: usize = parameter(uri, "resourceVersion").and_then(|from| from.parse().ok()).unwrap_or(1);
        let events = stream::unfold((self.told.subscribe(), from - 1), |(mut told, at)| async move {
            let event = told.wait_for(|told| told.len() > at).await.ok()?[at].clone();
            Some((event, (told, at + 1)))
        });
        let events = events.filter_map(move |(kind, event)| {
            let is_wanted = kind == plural && is_wanted(&event["object"]);
            let frame = is_wanted.then(|| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            std::future::ready(frame)
        });
        Response::new(StreamBody::new(events).boxed_unsync())
    }

    /// Tells who watches now or later. An object's revision is the place of its event.
    fn tell(&self, kind: &'static str, word: &str, object: &Value) {
        self.told.send_modify(|told| {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = (told.len() + 2).to_string().into();
            told.push((kind, json!({"type": word, "object": object})));
        });
    }

    fn was_asked_for(&self, path: &str) -> bool {
        self.asked.borrow().iter().any(|asked| asked.starts_with(path))
    }

    fn enforce(&self) -> (Gate, JoinHandle<()>) {
        let (gate, arrivals) = policy::gate();
        (gate, tokio::spawn(policy::run(self.client(), Self::config(), arrivals, None)))
    }

    /// The same on a node whose cluster DNS tells what it answers.
    fn enforce_beside_dns(&self) -> (Gate, Names, JoinHandle<()>) {
        let ((gate, arrivals), (names, heard)) = (policy::gate(), policy::names());
        (gate, names, tokio::spawn(policy::run(self.client(), Self::config(), arrivals, Some(heard))))
    }

    fn config() -> Config {
        Config { node_name: "n1".to_owned(), pod_links: "skf" }
    }
}

fn metadata(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "uid": name})
}

fn pod(name: &str) -> Pod {
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c"}]});
    json::from_value(json!({"metadata": metadata("x", name), "spec": spec})).expect("a Pod")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The kernel's listing of a table, or nothing.
fn kernel() -> String {
    let out = Command::new("nft").args(["list", "table", "inet", "skiff-policy"]).output().expect("nft");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether connections to this address are decided by NetworkPolicies.
fn isolates(address: &str) -> bool {
    asks("map ingress-4", &format!("{address} : goto "))
}

/// Whether a map of the kernel's has this entry.
fn asks(map: &str, entry: &str) -> bool {
    let table = kernel();
    let map = table.split(map).nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default();
    map.contains(entry)
}

/// Whether connections to this address are decided by administrators first.
fn is_administered(address: &str) -> bool {
    asks("map admin-ingress-4", &format!("{address} : jump "))
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

        let deny = json!({"metadata": metadata("x", "deny"), "spec": {"podSelector": {}}});
        server.tell("networkpolicies", "ADDED", &deny);
        until("the one that runs already is isolated", || isolates("10.77.1.1")).await;
        gate.pass(&pod("b"), vec![address("10.77.1.2")]).await.expect("the kernel knows it");
        assert!(isolates("10.77.1.2"), "by the time that it may begin");

        // The API server learns of the Pod before it learns of the address.
        let known = json!({"metadata": metadata("x", "b"), "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}});
        server.tell("pods", "ADDED", &known);
        let moved = json!({"metadata": metadata("x", "c"), "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
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

const DEFINITIONS: &str = "customresourcedefinitions";
const OBJECTS: &str = "/apis/policy.networking.k8s.io/";

fn definition(is_served: bool) -> Value {
    let metadata = json!({"name": "adminnetworkpolicies.policy.networking.k8s.io", "uid": "d"});
    let versions = json!([{"name": "v1alpha1", "served": is_served}, {"name": "v1alpha9", "served": true}]);
    let status = json!({"conditions": [{"type": "Established", "status": "True"}]});
    json!({"metadata": metadata, "spec": {"versions": versions}, "status": status})
}

/// The namespace of all the Pods.
fn tell_namespace(server: &Server) {
    server.tell("namespaces", "ADDED", &json!({"metadata": {"name": "x", "uid": "x", "labels": {"ns": "x"}}}));
}

/// An AdminNetworkPolicy about all Pods, with one rule of each direction.
fn administrators(to: &Value) -> Value {
    let everyone = json!({"namespaces": {}});
    json!({"metadata": {"name": "admin", "uid": "a"}, "spec": {"priority": 1, "subject": everyone,
        "ingress": [{"action": "Deny", "from": [everyone]}], "egress": [{"action": "Allow", "to": [to]}]}})
}

#[test]
fn kinds_of_administrators_count_while_they_are_defined() {
    in_namespace("defined", async || {
        let server = Server::new("");
        tell_namespace(&server);
        let (gate, work) = server.enforce();
        let policy = administrators(&json!({"namespaces": {}}));
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("without a policy nobody waits");
        server.tell("adminnetworkpolicies", "ADDED", &policy);
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("still none");
        assert_eq!(kernel(), "", "no policy, no table");
        assert!(!server.was_asked_for(OBJECTS), "nobody asks for what is not defined");
        let another = json!({"metadata": {"name": "others.policy.networking.k8s.io", "uid": "o"}});
        server.tell(DEFINITIONS, "ADDED", &another);

        for _ in 0..2 {
            server.tell(DEFINITIONS, "ADDED", &definition(true));
            until("one that runs is found", || is_administered("10.77.1.1")).await;
            gate.pass(&pod("b"), vec![address("10.77.1.2")]).await.expect("the kernel knows it");
            assert!(is_administered("10.77.1.2") && !isolates("10.77.1.2"), "by the time that it may begin");
            server.tell(DEFINITIONS, "MODIFIED", &definition(false));
            until("the version is served no more", || kernel().is_empty()).await;
            server.tell(DEFINITIONS, "MODIFIED", &definition(true));
            until("and again", || is_administered("10.77.1.1")).await;
            server.tell("adminnetworkpolicies", "DELETED", &policy);
            until("the last one goes", || kernel().is_empty()).await;
            server.tell("adminnetworkpolicies", "ADDED", &policy);
            until("another comes", || is_administered("10.77.1.1")).await;
            server.tell(DEFINITIONS, "DELETED", &definition(true));
            until("the kind is gone", || kernel().is_empty()).await;
        }
        work.abort();
    });
}

#[test]
fn a_restart_leaves_no_gap_in_what_administrators_say() {
    in_namespace("restart", async || {
        let server = Server::new("");
        tell_namespace(&server);
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        server.tell("adminnetworkpolicies", "ADDED", &administrators(&json!({"namespaces": {}})));
        let known = json!({"metadata": metadata("x", "a"), "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
            "status": {"podIP": "10.77.1.1"}});
        server.tell("pods", "ADDED", &known);
        let (_gate, work) = server.enforce();
        until("the first life", || is_administered("10.77.1.1")).await;
        work.abort();
        assert!(work.await.is_err_and(|ended| ended.is_cancelled()));
        let (gate, work) = server.enforce();
        let next = pod("b");
        let mut passed = std::pin::pin!(gate.pass(&next, vec![address("10.77.1.2")]));
        while futures::poll!(passed.as_mut()).is_pending() {
            assert!(is_administered("10.77.1.1"), "there is always a table with it");
            tokio::task::yield_now().await;
        }
        assert!(is_administered("10.77.1.1") && is_administered("10.77.1.2"));
        work.abort();
    });
}

#[test]
fn nodes_are_followed_where_a_rule_asks_for_them() {
    in_namespace("nodes", async || {
        let server = Server::new("");
        tell_namespace(&server);
        let node = json!({"metadata": {"name": "n1", "uid": "n", "labels": {"a": "b"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.1"}]}});
        server.tell("nodes", "ADDED", &node);
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        let without = administrators(&json!({"namespaces": {}}));
        server.tell("adminnetworkpolicies", "ADDED", &without);
        let (gate, work) = server.enforce();
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("the kernel knows it");
        assert!(is_administered("10.77.1.1") && !server.was_asked_for("/api/v1/nodes"));
        let with = administrators(&json!({"nodes": {"matchLabels": {"a": "b"}}}));
        server.tell("adminnetworkpolicies", "MODIFIED", &with);
        until("the node is known", || kernel().contains("198.51.100.1")).await;
        let mut moved = node.clone();
        moved["status"]["addresses"][0]["address"] = json!("198.51.100.2");
        server.tell("nodes", "MODIFIED", &moved);
        until("it moves", || kernel().contains("198.51.100.2") && !kernel().contains("198.51.100.1")).await;
        server.tell("nodes", "DELETED", &moved);
        until("it goes", || !kernel().contains("198.51.100.2")).await;
        work.abort();
    });
}

#[test]
fn the_kernel_knows_the_addresses_of_a_domain_before_its_pod_does() {
    in_namespace("names", async || {
        let server = Server::new("");
        tell_namespace(&server);
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        let about = |names: &[&str]| administrators(&json!({"domainNames": names}));
        server.tell("adminnetworkpolicies", "ADDED", &about(&["kubernetes.io"]));
        let (gate, names, work) = server.enforce_beside_dns();
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("the kernel knows it");
        assert!(names.wants("kubernetes.io") && !names.wants("www.kubernetes.io"));
        let good = |text: &str| [(address(text), Duration::from_secs(600))];
        names.learned("kubernetes.io", &good("198.51.100.7")).await;
        assert!(kernel().contains("198.51.100.7"));
        names.learned("www.kubernetes.io", &good("198.51.100.8")).await;
        names.learned("kubernetes.io", &good("198.51.100.9")).await;
        assert!(kernel().contains("198.51.100.9") && !kernel().contains("198.51.100.8"));
        assert!(server.sent.borrow().is_empty(), "nothing is amiss");
        // A rule of which a name stays knows its addresses on.
        server.tell("adminnetworkpolicies", "MODIFIED", &about(&["kubernetes.io", "*.kubernetes.io"]));
        until("the other name is wanted", || names.wants("www.kubernetes.io")).await;
        names.learned("www.kubernetes.io", &good("198.51.100.8")).await;
        assert!(["198.51.100.7", "198.51.100.8"].iter().all(|address| kernel().contains(address)));
        server.tell("adminnetworkpolicies", "DELETED", &about(&["kubernetes.io"]));
        until("nothing is wanted", || !names.wants("kubernetes.io")).await;
        work.abort();
    });
}

#[test]
fn a_rule_that_cannot_be_enforced_is_told() {
    in_namespace("told", async || {
        let server = Server::new("");
        tell_namespace(&server);
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        server.tell("adminnetworkpolicies", "ADDED", &administrators(&json!({"domainNames": ["kubernetes.io"]})));
        let (gate, work) = server.enforce();
        gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.expect("the rest is in the kernel");
        assert!(is_administered("10.77.1.1"));
        let sent = server.sent.subscribe().wait_for(|sent| !sent.is_empty()).await.expect("the server").clone();
        let (event, message) = (&sent[0], sent[0]["message"].as_str().unwrap_or_default());
        assert_eq!((event["reason"].as_str(), event["type"].as_str()), (Some("NotEnforced"), Some("Warning")));
        assert!(
            message.contains("egress[0]: to[0]: `domainNames` cannot be enforced without cluster DNS of skiff's own; it is about nothing"),
            "{message}"
        );
        let about = &event["involvedObject"];
        assert_eq!((about["kind"].as_str(), about["name"].as_str()), (Some("AdminNetworkPolicy"), Some("admin")));
        work.abort();
    });
}

/// Owners' policies count where nobody lets this node read those of administrators.
fn forbidden(purpose: &str, kind: &'static str) {
    in_namespace(purpose, async move || {
        let server = Server::new(kind);
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        server.tell("adminnetworkpolicies", "ADDED", &administrators(&json!({"namespaces": {}})));
        server.tell(
            "networkpolicies",
            "ADDED",
            &json!({"metadata": metadata("x", "deny"), "spec": {"podSelector": {}}}),
        );
        let (gate, work) = server.enforce();
        while gate.pass(&pod("a"), vec![address("10.77.1.1")]).await.is_err() {}
        assert!(isolates("10.77.1.1") && !is_administered("10.77.1.1"));
        work.abort();
    });
}

#[test]
fn without_a_right_to_definitions_there_are_no_policies_of_administrators() {
    forbidden("definitions", DEFINITIONS);
}

#[test]
fn without_a_right_to_their_objects_there_are_no_policies_of_administrators() {
    forbidden("objects", "adminnetworkpolicies");
}

#[test]
fn a_pod_waits_for_the_labels_of_its_namespace() {
    in_namespace("labels", async || {
        let server = Server::new("");
        server.tell(DEFINITIONS, "ADDED", &definition(true));
        let mut policy = administrators(&json!({"namespaces": {}}));
        policy["spec"]["subject"] = json!({"namespaces": {"matchLabels": {"ns": "x"}}});
        server.tell("adminnetworkpolicies", "ADDED", &policy);
        let (gate, work) = server.enforce();
        let (first, second) = (pod("a"), pod("b"));
        let mut passed = std::pin::pin!(gate.pass(&first, vec![address("10.77.1.1")]));
        assert!(futures::poll!(passed.as_mut()).is_pending());
        until("there is a table", || !kernel().is_empty()).await;
        let mut later = std::pin::pin!(gate.pass(&second, vec![address("10.77.1.2")]));
        assert!(futures::poll!(later.as_mut()).is_pending() && futures::poll!(passed.as_mut()).is_pending());
        tell_namespace(&server);
        passed.await.expect("the namespace is known");
        assert!(is_administered("10.77.1.1"));
        later.await.expect("the other one too");
        assert!(is_administered("10.77.1.2"));
        work.abort();
    });
}
