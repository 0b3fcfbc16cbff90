//! A machine of the tests' own: a network namespace with addresses, endpoints that answer, and callers.

use std::{
    fs::File,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
    time::Duration,
};

use api::object::Object;
use json::{Value, json};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use nft::Family;
use nix::sched::{CloneFlags, setns};
use proxy::node::{FromPods, Node};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// A namespace of the test's own; it goes with the value.
pub struct Namespace(String);

impl Namespace {
    pub fn make(purpose: &str) -> Option<Self> {
        let name = format!("skiff-proxy-{purpose}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        }
        Some(Namespace(name))
    }

    /// Runs a future inside: a thread's children and sockets are where the thread is.
    pub fn run<F: Future<Output = ()>>(&self, work: impl FnOnce() -> F + Send) {
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

/// A text with the addresses of the other family in the places of those of IPv4.
pub fn text(family: Family, text: &str) -> String {
    let sixes = [
        ("10.244.0.0/16", "fd00:244::/64"),
        ("10.244.0.", "fd00:244::"),
        ("10.96.0.", "fd00:96::"),
        ("192.168.0.0/16", "fd00:7::/64"),
        ("192.168.7.", "fd00:7::"),
        ("10.1.0.", "fd00:1::"),
        ("5.6.7.", "2001:db8:5::"),
        ("8.8.8.0/24", "2001:db8:8::/64"),
        ("1.2.3.", "2001:db8:1::"),
        ("IPv4", "IPv6"),
    ];
    let replace = |text: String, (four, six): (&str, &str)| text.replace(four, six);
    if family == Family::V4 { text.to_owned() } else { sixes.into_iter().fold(text.to_owned(), replace) }
}

pub fn node(family: Family) -> Node {
    let pods = FromPods::Range(text(family, "10.244.0.0/16").parse().unwrap());
    Node { name: "n1".into(), family, pods: Some(pods), ..Node::default() }
}

/// A Service and its slice, with the endpoints on this node.
pub fn objects(family: Family, endpoints: &[&str], spec: Value, status: Value) -> (Service, Vec<Arc<EndpointSlice>>) {
    let mut full = json!({
        "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let service = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": full, "status": status});
    let service: Service = Service::from_json(&text(family, &service.to_string())).unwrap();
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|ip| json!({"addresses": [ip], "nodeName": "n1", "conditions": {"ready": true}}))
        .collect();
    let slice = json!({
        "metadata": {"name": "web-1"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    });
    let slice: EndpointSlice = EndpointSlice::from_json(&text(family, &slice.to_string())).unwrap();
    (service, vec![Arc::new(slice)])
}

/// Gives this namespace the addresses, and a way out: a loopback route would swallow refusals.
pub fn wire(family: Family, addresses: &[&str]) {
    ip("link set lo up");
    for address in addresses {
        ip(&format!("address add {address} dev lo"));
    }
    ip("link add out type veth peer name far");
    ip("link set out up");
    ip("link set far up");
    // A check for others with the address would keep it from being used for a second.
    let flag = if family == Family::V6 { " nodad" } else { "" };
    ip(&text(family, &format!("address add 10.1.0.1/24 dev out{flag}")));
    let version = if family == Family::V6 { "-6 " } else { "" };
    ip(&text(family, &format!("{version}route add default via 10.1.0.2 src 192.168.7.1")));
}

/// Answers each connection and each datagram with its own address.
pub async fn endpoint(address: &str) {
    let address: &'static str = address.to_owned().leak();
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
pub async fn call(to: (&str, u16)) -> String {
    let to = SocketAddr::from((to.0.parse::<IpAddr>().unwrap(), to.1));
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

pub async fn callers(to: (&str, u16), count: usize) -> Vec<String> {
    let mut answers = Vec::new();
    for _ in 0..count {
        answers.push(call(to).await);
    }
    answers.sort();
    answers.dedup();
    answers
}
