//! Policies in the real kernel: upstream's truth tables with real packets between nine Pods, each in a network namespace
//! of its own behind a node in another one, and real connections on their ways. All namespaces go with the test.

mod cases;

use std::{
    collections::BTreeSet,
    fs::File,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    process::Command,
    time::Duration,
};

use cases::{NAMES, Name, Probe, Written, administrators::ADMIN, network, numbers, v4, v6};
use json::json;
use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrStorage, connect, sendto, socket},
};
use policy::{
    node::NodeFacts,
    rule::Action,
    tables::Tables,
    text,
    traffic::{Direction, Protocol},
    world::World,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A namespace of the test's own; it goes with the value.
struct Namespace(String);

fn ip(args: &str) {
    let done = Command::new("ip").args(args.split(' ')).output().expect("iproute2");
    assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Namespace {
    fn make(name: String) -> Option<Self> {
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        }
        let namespace = Namespace(name);
        ip(&format!("-n {} link set lo up", namespace.0));
        Some(namespace)
    }

    /// Works inside: a thread's children and sockets are where the thread is.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.0);
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(File::open(path).expect("the namespace's file"), CloneFlags::CLONE_NEWNET).expect("entering it");
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn run<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(work())
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A node that routes between nine Pods, as the Pod network does.
struct Cluster {
    node: Namespace,
    pods: Vec<(Name, Namespace)>,
    world: World,
    kernel: Tables,
}

const LINKS: &str = "skf";

impl Cluster {
    fn make(purpose: &str) -> Option<Self> {
        let prefix = format!("skiff-policy-{purpose}-{}", std::process::id());
        let node = Namespace::make(format!("{prefix}-node"))?;
        node.enter(|| {
            for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{forwarding}"), "1").expect("forwarding");
            }
        });
        let mut pods = Vec::new();
        for name in NAMES {
            let link = format!("{LINKS}{}{}", name.0, name.1);
            let pod = Namespace::make(format!("{prefix}-{}-{}", name.0, name.1))?;
            let ((a, b), of_node) = (numbers(name), &node.0);
            ip(&format!("-n {of_node} link add {link} type veth peer name eth0 netns {}", pod.0));
            ip(&format!("-n {of_node} link set {link} up"));
            ip(&format!("-n {} link set eth0 up", pod.0));
            ip(&format!("-n {of_node} address add 10.77.0.1/32 dev {link}"));
            ip(&format!("-n {of_node} address add fd77::1/128 dev {link} nodad"));
            ip(&format!("-n {} address add 10.77.{a}.{b}/32 dev eth0", pod.0));
            ip(&format!("-n {} address add fd77::{a}:{b}/128 dev eth0 nodad", pod.0));
            for (family, prefix, gateway) in
                [("-4", format!("10.77.{a}.{b}/32"), "10.77.0.1"), ("-6", format!("fd77::{a}:{b}/128"), "fd77::1")]
            {
                ip(&format!("{family} -n {of_node} route add {prefix} dev {link}"));
                ip(&format!("{family} -n {} route add {gateway} dev eth0", pod.0));
                ip(&format!("{family} -n {} route add default via {gateway} dev eth0", pod.0));
            }
            pods.push((name, pod));
        }
        let cluster = Cluster { node, pods, world: cases::world(&[]), kernel: Tables::default() };
        cluster.node.run(async || {
            nft::transaction(&text::fresh_table(LINKS)).await.expect("the fixed part");
            nft::transaction(WITNESS).await.expect("the test's own table");
        });
        Some(cluster)
    }

    fn pod(&self, name: Name) -> &Namespace {
        &self.pods.iter().find(|(other, _)| *other == name).expect("one of the nine").1
    }

    /// Brings the kernel to what follows from the world.
    fn sync(&mut self) {
        let plan = self.world.plan();
        let script = self.kernel.changes(&plan).text();
        self.node.run(async || {
            nft::transaction(&script).await.unwrap_or_else(|e| panic!("{e}\n{script}"));
            let everything = format!("{}{}", text::fresh_table(LINKS), Tables::default().changes(&plan).text());
            let there = nft::Census::of_kernel(text::TABLE).await.unwrap();
            assert_eq!(there, Some(nft::Census::of_script(&everything)), "what is counted is what is there");
        });
        self.kernel = plan;
    }

    fn set(&mut self, policies: &[Written]) {
        for known in self.world.policies() {
            if !policies.iter().any(|(name, _)| known == *name) {
                self.world.set_policy(&known, None);
            }
        }
        for (name, spec) in policies {
            self.world.set_policy(name, Some(cases::read(name, spec)));
        }
        self.sync();
    }
}

/// Remembers the packets that come to the node, and those that policies let through.
const WITNESS: &str = "
table inet witness {
  set seen-4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags dynamic; size 65535; }
  set passed-4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags dynamic; size 65535; }
  set seen-6 { type ipv6_addr . ipv6_addr . inet_proto . inet_service; flags dynamic; size 65535; }
  set passed-6 { type ipv6_addr . ipv6_addr . inet_proto . inet_service; flags dynamic; size 65535; }
  chain first {
    type filter hook prerouting priority -400;
    meta l4proto { tcp, udp, sctp } update @seen-4 { ip saddr . ip daddr . meta l4proto . th dport }
    meta l4proto { tcp, udp, sctp } update @seen-6 { ip6 saddr . ip6 daddr . meta l4proto . th dport }
  }
  chain last {
    type filter hook forward priority 400;
    meta l4proto { tcp, udp, sctp } update @passed-4 { ip saddr . ip daddr . meta l4proto . th dport }
    meta l4proto { tcp, udp, sctp } update @passed-6 { ip6 saddr . ip6 daddr . meta l4proto . th dport }
  }
  chain taken {
    type filter hook input priority 400;
    meta l4proto { tcp, udp, sctp } update @passed-4 { ip saddr . ip daddr . meta l4proto . th dport }
  }
}
";

/// The elements of one of the witness's sets. Runs in the node.
fn witnessed(set: &str) -> BTreeSet<String> {
    let out = Command::new("nft").args(["list", "set", "inet", "witness", set]).output().expect("nft");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let list = text.split_once("elements = {").and_then(|(_, rest)| rest.split_once('}')).map_or("", |(list, _)| list);
    list.split(',').map(|element| element.split_whitespace().collect::<String>()).filter(|e| !e.is_empty()).collect()
}

/// Forgets the packets over IPv4. Runs in the node.
fn flush_witness() {
    for set in ["seen-4", "passed-4"] {
        let flushed = Command::new("nft").args(["flush", "set", "inet", "witness", set]).status();
        assert!(flushed.expect("nft").success());
    }
}

/// A connection as the witness writes it.
fn written(probe: &Probe, address: fn(Name) -> IpAddr) -> String {
    let protocol = match probe.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    format!("{}.{}.{protocol}.{}", address(probe.from), address(probe.to), probe.port)
}

/// The first packet of a connection. Runs in its source.
fn send(probe: &Probe, address: fn(Name) -> IpAddr) {
    let to = SocketAddr::new(address(probe.to), probe.port);
    match probe.protocol {
        Protocol::Udp => {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            UdpSocket::bind(any).and_then(|udp| udp.send_to(b"hello", to)).map(drop).expect("a datagram");
        }
        Protocol::Tcp => {
            let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let tcp = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).expect("a socket");
            // The first packet is on its way; nobody waits for the answer.
            let _ = connect(tcp.as_raw_fd(), &SockaddrStorage::from(to));
        }
        Protocol::Sctp => raw_sctp(address(probe.from), to),
    }
}

/// An INIT chunk in a packet made by hand, since the kernel need not have SCTP itself. IPv4 only.
fn raw_sctp(from: IpAddr, to: SocketAddr) {
    let (IpAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    // The kernel fills in length, identification and checksum.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 132, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.ip().octets());
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), nix::sys::socket::SockProtocol::Raw);
    let sent = sendto(raw.expect("a raw socket").as_raw_fd(), &packet, &SockaddrIn::from(to), MsgFlags::empty());
    sent.expect("a packet");
}

/// Sends the first packet of each connection, and says which pass.
fn try_all(cluster: &Cluster, probes: &[Probe], address: fn(Name) -> IpAddr) -> BTreeSet<String> {
    let family = if address(("x", "a")).is_ipv4() { 4 } else { 6 };
    let (seen, passed) = (format!("seen-{family}"), format!("passed-{family}"));
    cluster.node.enter(|| {
        for set in [&seen, &passed] {
            let status = Command::new("nft").args(["flush", "set", "inet", "witness", set]).status();
            assert!(status.expect("nft").success());
        }
    });
    for (name, pod) in &cluster.pods {
        pod.enter(|| probes.iter().filter(|p| p.from == *name).for_each(|p| send(p, address)));
    }
    let all: BTreeSet<String> = probes.iter().map(|p| written(p, address)).collect();
    cluster.node.enter(|| {
        // Every packet comes to the node; those that wait for a neighbour to be found come a moment later.
        while !all.is_subset(&witnessed(&seen)) {
            std::thread::yield_now();
        }
        witnessed(&passed).intersection(&all).cloned().collect()
    })
}

#[test]
fn packets_pass_as_the_truth_tables_say() {
    let Some(mut cluster) = Cluster::make("truth") else { return };
    let all = cases::probes();
    let without_sctp: Vec<Probe> = all.iter().copied().filter(|p| p.protocol != Protocol::Sctp).collect();
    for case in cases::cases() {
        cluster.set(&case.policies);
        check(&cluster, &case, &all, v4);
        if !case.only_v4 {
            check(&cluster, &case, &without_sctp, v6);
        }
    }
}

fn check(cluster: &Cluster, case: &cases::Case, probes: &[Probe], address: fn(Name) -> IpAddr) {
    let passed = try_all(cluster, probes, address);
    let expected = probes.iter().filter(|p| (case.passes)(p)).map(|p| written(p, address)).collect();
    let wrong: Vec<&String> = passed.symmetric_difference(&expected).collect();
    assert!(wrong.is_empty(), "{}: wrong for {} connections, such as {}", case.name, wrong.len(), wrong[0]);
}

#[test]
fn nobody_escapes_or_enters_under_another_address() {
    let Some(mut cluster) = Cluster::make("spoof") else { return };
    cluster.set(&[network(
        "x",
        "b",
        json!({"podSelector": {"matchLabels": {"pod": "a"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "b"}}}]}]}),
    )]);
    let (liar, honest, to) = (("y", "c"), ("x", "b"), ("x", "a"));
    let probe = Probe { from: honest, to, protocol: Protocol::Sctp, port: 80 };
    assert_eq!(try_all(&cluster, &[probe], v4).len(), 1, "who it says it is");
    cluster.node.enter(flush_witness);
    cluster.pod(liar).enter(|| raw_sctp(v4(honest), SocketAddr::new(v4(to), 81)));
    let packet = written(&Probe { port: 81, ..probe }, v4);
    cluster.node.enter(|| {
        while !witnessed("seen-4").contains(&packet) {
            std::thread::yield_now();
        }
        assert!(!witnessed("passed-4").contains(&packet), "a Pod of another namespace under this one's address");
    });
}

/// Answers each connection with what it says.
async fn echo(at: SocketAddr) {
    let listener = TcpListener::bind(at).await.expect("a free port");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
}

/// The answer, or `silence`.
async fn call(to: &str) -> String {
    let said = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.map(|_| text)
    };
    match tokio::time::timeout(Duration::from_millis(900), said).await {
        Err(_) => "silence".to_owned(),
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => "refused".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(text)) => text,
    }
}

/// A server in a Pod, on port 8080 of both families. It ends with the value.
struct Serving(Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Serving {
    fn begin(cluster: &Cluster, name: Name) -> Self {
        let (ready, started) = std::sync::mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let path = format!("/run/netns/{}", cluster.pod(name).0);
        let thread = std::thread::spawn(move || {
            setns(File::open(path).expect("the namespace's file"), CloneFlags::CLONE_NEWNET).expect("entering it");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                echo("[::]:8080".parse().expect("an address")).await;
                ready.send(()).expect("the test waits");
                // Dropped at the test's end.
                let _ = ended.await;
            });
        });
        started.recv().expect("it listens");
        Serving(Some((end, thread)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a server that ends");
        }
    }
}

/// A Service of x/a, as the proxy would write it.
fn add_service(cluster: &Cluster) {
    cluster.node.run(async || {
        let service = "table ip service {
            chain to { type nat hook prerouting priority dstnat; ip daddr 10.96.0.7 tcp dport 80 dnat to 10.77.1.1:8080; }
            chain from { type nat hook postrouting priority srcnat; ct status dnat ip saddr 10.77.1.1 ip daddr 10.77.1.1 masquerade; }
        }";
        nft::transaction(service).await.expect("a Service");
    });
}

#[test]
fn answers_the_node_and_a_pod_itself_always_pass() {
    let Some(mut cluster) = Cluster::make("ways") else { return };
    add_service(&cluster);
    // Pod a takes connections from b of its namespace and opens none.
    cluster.set(&[network(
        "x",
        "in",
        json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "b"}}}], "ports": [{"port": 8080}]}]}),
    )]);
    let _servers = [("x", "a"), ("y", "a")].map(|name| Serving::begin(&cluster, name));
    let (a, service, elsewhere) = ("10.77.1.1:8080", "10.96.0.7:80", "10.77.2.1:8080");
    let check = |from: Name, to: &str, expected: &str| {
        assert_eq!(cluster.pod(from).run(async || call(to).await), expected, "{from:?} to {to}");
    };
    check(("x", "b"), a, "hello");
    check(("x", "b"), service, "hello");
    check(("x", "c"), a, "silence");
    check(("x", "c"), service, "silence");
    check(("y", "b"), elsewhere, "hello");
    check(("x", "a"), elsewhere, "silence");
    check(("x", "a"), a, "hello");
    check(("x", "a"), service, "hello");
    // The node: a probe of the kubelet, and what listens on it.
    assert_eq!(cluster.node.run(async || call(a).await), "hello", "the node reaches its Pods");
    check(("x", "a"), "10.77.0.1:9", "refused");
}

#[test]
fn administrators_close_the_ways_of_a_pod_and_none_of_its_node() {
    let Some(mut cluster) = Cluster::make("admin") else { return };
    add_service(&cluster);
    let _servers = [("x", "a"), ("y", "a")].map(|name| Serving::begin(&cluster, name));
    let everyone = [json!({"networks": ["0.0.0.0/0", "::/0"]})];
    let closed = |peers: &[json::Value]| {
        let rules = [
            (Direction::Egress, ADMIN.rule(Direction::Egress, Action::Deny, peers, &[])),
            (Direction::Ingress, ADMIN.rule(Direction::Ingress, Action::Deny, &[json!({"namespaces": {}})], &[])),
        ];
        ADMIN.policy("closed", 1, cases::administrators::pod(("x", "a")), &rules)
    };
    let (a, a6, node, service) = ("10.77.1.1:8080", "[fd77::1:1]:8080", "10.77.0.1:9", "10.96.0.7:80");
    let check = |cluster: &Cluster, from: Name, to: &str, expected: &str| {
        assert_eq!(cluster.pod(from).run(async || call(to).await), expected, "{from:?} to {to}");
    };
    cluster.set(&[closed(&everyone)]);
    // The kubelet asks how a Pod is over both families. For the second, the Pod looks for its neighbour first.
    for to in [a, a6] {
        assert_eq!(cluster.node.run(async || call(to).await), "hello", "the node reaches its Pods: {to}");
    }
    check(&cluster, ("x", "b"), a, "silence");
    check(&cluster, ("x", "a"), "10.77.2.1:8080", "silence");
    check(&cluster, ("x", "a"), node, "silence");
    check(&cluster, ("x", "a"), "[fd77::1]:9", "silence");
    check(&cluster, ("x", "a"), a, "hello");
    check(&cluster, ("x", "a"), service, "silence");
    check(&cluster, ("x", "b"), node, "refused");
    // Under another address the node is no nearer.
    let passed = |cluster: &Cluster, from: Name, port: u16| {
        let packet = format!("10.77.1.2.10.77.0.1.sctp.{port}");
        cluster.node.enter(flush_witness);
        let to_node = SocketAddr::new("10.77.0.1".parse().expect("an address"), port);
        cluster.pod(from).enter(|| raw_sctp(v4(("x", "b")), to_node));
        cluster.node.enter(|| {
            while !witnessed("seen-4").contains(&packet) {
                std::thread::yield_now();
            }
            witnessed("passed-4").contains(&packet)
        })
    };
    assert!(passed(&cluster, ("x", "b"), 7) && !passed(&cluster, ("x", "a"), 8));

    // Nodes by their labels, of which the Pod's own is one.
    cluster.set(&[closed(&[json!({"nodes": {"matchLabels": {"role": "server"}}})])]);
    check(&cluster, ("x", "a"), node, "refused");
    let labels = [("role".to_owned(), "server".to_owned())].into();
    cluster.world.set_node("n", Some(NodeFacts { labels, addresses: vec!["10.77.0.1".parse().expect("an address")] }));
    cluster.sync();
    check(&cluster, ("x", "a"), node, "silence");
    check(&cluster, ("x", "a"), "10.77.2.1:8080", "hello");
    cluster.set(&[]);
    check(&cluster, ("x", "a"), node, "refused");
    check(&cluster, ("x", "b"), service, "hello");
}

#[test]
fn everything_is_gone_when_it_is_removed() {
    let Some(mut cluster) = Cluster::make("gone") else { return };
    cluster.set(&[network("x", "deny", json!({"podSelector": {}}))]);
    cluster.node.run(async || {
        let tables = || {
            let out = Command::new("nft").args(["list", "tables"]).output().expect("nft");
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        assert!(tables().contains("skiff-policy"));
        policy::remove().await.expect("removing");
        policy::remove().await.expect("removing what is gone");
        assert!(!tables().contains("skiff-policy"));
    });
}
