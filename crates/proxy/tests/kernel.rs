//! The rules in the real kernel, with real connections, in a network namespace that the test makes itself.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    sync::Arc,
    time::Duration,
};

use client::Key;
use json::{Value, json};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use nft::Census;
use nix::sched::{CloneFlags, setns};
use proxy::{
    apply,
    health::HealthChecks,
    node::Node,
    script,
    service_rules::{self, HealthCheck, ServiceRules},
    table::Table,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// A namespace of the test's own; it goes with the value.
struct Namespace(String);

impl Namespace {
    fn make(purpose: &str) -> Option<Self> {
        let name = format!("skiff-proxy-{purpose}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        }
        Some(Namespace(name))
    }

    /// Runs a future inside: a thread's children and sockets are where the thread is.
    fn run<F: Future<Output = ()>>(&self, work: impl FnOnce() -> F + Send) {
        let path = format!("/run/netns/{}", self.0);
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(File::open(path).expect("the namespace's file"), CloneFlags::CLONE_NEWNET).expect("entering it");
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(work());
            });
            if let Err(panic) = inside.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {args}");
}

fn render(endpoints: &[&str], spec: Value, status: Value) -> ServiceRules {
    let mut full = json!({
        "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let service = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": full, "status": status});
    let service: Service = json::from_value(service).unwrap();
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|ip| json!({"addresses": [ip], "nodeName": "n1", "conditions": {"ready": true}}))
        .collect();
    let slice: EndpointSlice = json::from_value(json!({
        "metadata": {"name": "web-1"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    }))
    .unwrap();
    let node = Node { name: "n1".into(), ip: None, zone: String::new(), pods: Some("10.244.0.0/16".parse().unwrap()) };
    service_rules::render(&service, &[Arc::new(slice)], &node)
}

/// The table as the kernel of this namespace has it.
struct Rules {
    table: Table,
}

impl Rules {
    async fn fresh() -> Self {
        apply::transaction(&script::fresh_table(Some("10.244.0.0/16".parse().unwrap()))).await.expect("the fixed part");
        Rules { table: Table::default() }
    }

    /// The script that makes all of it.
    fn everything(&mut self) -> String {
        let fixed = script::fresh_table(Some("10.244.0.0/16".parse().unwrap()));
        format!("{fixed}{}", self.table.everything().text())
    }

    fn census(&mut self) -> Census {
        Census::of_script(&self.everything())
    }

    async fn in_kernel(&self) -> Census {
        Census::of_kernel(script::TABLE).await.unwrap().expect("the table")
    }

    async fn set(&mut self, rules: ServiceRules) {
        self.table.set(&Key::new("default", "web"), rules);
        let text = self.table.changes().text();
        apply::transaction(&text).await.unwrap_or_else(|e| panic!("{e}\n{text}"));
        apply::conntrack::forget(&self.table.changed_flows()).await.expect("connection tracking");
    }
}

#[test]
fn the_kernel_takes_every_transition_between_rules() {
    let Some(namespace) = Namespace::make("states") else { return };
    namespace.run(async || {
        let sticky = |seconds: i32| {
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
        };
        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}});
        let ranges = json!({"externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["8.8.8.0/24"]});
        let (two, one) = (["10.244.0.2", "10.244.0.3"], ["10.244.0.3"]);
        let states = [
            render(&[], json!({}), json!({})),
            render(&one, json!({}), json!({})),
            render(&two, json!({}), json!({})),
            render(&two, sticky(10), json!({})),
            render(&two, sticky(20), json!({})),
            render(&one, sticky(20), json!({})),
            render(&one, ranges.clone(), balancer.clone()),
            render(&[], ranges, balancer),
            render(&two, json!({"internalTrafficPolicy": "Local", "externalIPs": ["1.2.3.4"]}), json!({})),
            ServiceRules::default(),
        ];
        let mut rules = Rules::fresh().await;
        for from in &states {
            for to in &states {
                rules.set(from.clone()).await;
                rules.set(to.clone()).await;
            }
            assert_eq!(rules.census(), rules.in_kernel().await, "what is counted is what is there");
        }
        let out = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        let left = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(!left.contains("10.96.0.7") && !left.contains("default/web"), "nothing of the Service is left: {left}");
        assert!(left.contains("chain nat-output"), "{left}");
        // Another start takes the table over, whatever is in it.
        rules.set(states[2].clone()).await;
        let mut rules = Rules::fresh().await;
        rules.set(states[2].clone()).await;
    });
}

/// Answers each connection and each datagram with its own address.
async fn endpoint(address: &'static str) {
    let tcp = TcpListener::bind((address, 8080)).await.unwrap();
    let udp = UdpSocket::bind((address, 53)).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            stream.write_all(address.as_bytes()).await.unwrap();
        }
    });
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        loop {
            let (_, from) = udp.recv_from(&mut buffer).await.unwrap();
            udp.send_to(address.as_bytes(), from).await.unwrap();
        }
    });
}

/// The endpoint that answers, `refused`, or `silence`.
async fn call(to: (&str, u16)) -> String {
    let to = SocketAddr::from((to.0.parse::<Ipv4Addr>().unwrap(), to.1));
    match tokio::time::timeout(Duration::from_millis(700), TcpStream::connect(to)).await {
        Err(_) => "silence".to_owned(),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(mut stream)) => {
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        }
    }
}

/// The answer to a plain HTTP request.
async fn get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

async fn callers(to: (&str, u16), count: usize) -> Vec<String> {
    let mut answers = Vec::new();
    for _ in 0..count {
        answers.push(call(to).await);
    }
    answers.sort();
    answers.dedup();
    answers
}

async fn ask(socket: &UdpSocket) -> String {
    socket.send(b"who").await.unwrap();
    let mut buffer = [0; 64];
    match tokio::time::timeout(Duration::from_secs(2), socket.recv(&mut buffer)).await {
        Ok(Ok(length)) => String::from_utf8_lossy(&buffer[..length]).into_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "silence".to_owned(),
    }
}

#[test]
fn connections_go_where_the_rules_say() {
    const A: &str = "10.244.0.2";
    const B: &str = "10.244.0.3";
    let Some(namespace) = Namespace::make("traffic") else { return };
    namespace.run(async || {
        ip("link set lo up");
        for address in [A, B, "192.168.7.1"] {
            ip(&format!("address add {address}/32 dev lo"));
        }
        // The way out: a loopback route would swallow refusals.
        ip("link add out type veth peer name far");
        ip("link set out up");
        ip("link set far up");
        ip("address add 10.1.0.1/24 dev out");
        ip("route add default via 10.1.0.2 src 192.168.7.1");
        endpoint(A).await;
        endpoint(B).await;
        let (service, node) = (("10.96.0.7", 80), ("192.168.7.1", 30080));
        let mut rules = Rules::fresh().await;
        let plain = |endpoints: &[&str]| render(endpoints, json!({}), json!({}));

        rules.set(plain(&[])).await;
        assert_eq!(call(service).await, "refused", "no endpoint");
        assert_eq!(call(node).await, "refused", "no endpoint, by the node's port");

        rules.set(plain(&[A, B])).await;
        assert_eq!(callers(service, 40).await, [A, B]);
        assert_eq!(callers(node, 40).await, [A, B]);
        assert_eq!(call(("10.96.0.7", 81)).await, "refused", "a port that the Service does not have");

        rules.set(render(&[A, B], json!({"sessionAffinity": "ClientIP"}), json!({}))).await;
        assert_eq!(callers(service, 20).await.len(), 1, "a client stays with its endpoint");

        let udp = UdpSocket::bind("192.168.7.1:5353").await.unwrap();
        udp.connect("10.96.0.7:53").await.unwrap();
        rules.set(plain(&[A])).await;
        assert_eq!(ask(&udp).await, A);
        rules.set(plain(&[B])).await;
        assert_eq!(ask(&udp).await, B, "the flow to the endpoint that is gone is forgotten");

        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}});
        let from = |ranges: &str| render(&[A], json!({"loadBalancerSourceRanges": [ranges]}), balancer.clone());
        rules.set(from("8.8.8.0/24")).await;
        assert_eq!(call(("5.6.7.8", 80)).await, "silence", "the load balancer's firewall");
        assert_eq!(call(service).await, A, "which is not the Service's");
        rules.set(from("192.168.0.0/16")).await;
        assert_eq!(call(("5.6.7.8", 80)).await, A);

        let mut checks = HealthChecks::default();
        let key = Key::new("default", "web");
        for (local_endpoints, expected) in [(2, "HTTP/1.1 200 OK"), (0, "HTTP/1.1 503 Service Unavailable")] {
            checks.set(&key, Some(HealthCheck { port: 31000, local_endpoints }));
            let answer = loop {
                // The listener needs a moment; it must not need two.
                match get("192.168.7.1:31000").await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert!(answer.starts_with(expected), "{answer}");
            assert!(answer.contains(&format!("\"localEndpoints\":{local_endpoints}")), "{answer}");
        }
        checks.set(&key, None);
        tokio::task::yield_now().await;
        assert!(get("192.168.7.1:31000").await.is_err(), "a Service without a check is not listened for");

        let local = json!({"externalTrafficPolicy": "Local"});
        rules.set(render(&[B], local.clone(), json!({}))).await;
        assert_eq!(call(node).await, B);
        rules.set(render(&[], local, json!({}))).await;
        assert_eq!(call(node).await, "refused");
    });
}
