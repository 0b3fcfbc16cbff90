//! Whole Corefiles at work, over a server of the test's own that stands for the world outside.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use client::Key;
use dns::{
    cluster::{self, Cluster},
    corefile,
    plugins::{Around, Chains, Learner},
    question::{Answer, Packet, Question},
};
use hickory_proto::{
    op::{Message, OpCode, ResponseCode},
    rr::{Name, RData, Record, RecordType as T, rdata::A},
};
use parking_lot::{Mutex, RwLock};
use tokio::{net::UdpSocket, sync::Semaphore};

/// A server outside: each name below `nx.` is missing, names below `fail.` are SERVFAIL, all others are 192.0.2.1. It
/// answers once per permit.
struct Outside {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    names: Arc<Mutex<Vec<String>>>,
    permits: Arc<Semaphore>,
}

impl Outside {
    async fn start(permits: usize) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let outside = Outside {
            address: socket.local_addr().unwrap(),
            asked: Arc::default(),
            names: Arc::default(),
            permits: Arc::new(Semaphore::new(permits)),
        };
        let (asked, names, permits) = (outside.asked.clone(), outside.names.clone(), outside.permits.clone());
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let question = Message::from_vec(&buffer[..length]).unwrap();
                asked.fetch_add(1, SeqCst);
                let name = question.queries[0].name().clone();
                names.lock().push(name.to_ascii());
                permits.acquire().await.unwrap().forget();
                let mut answer = Message::response(question.metadata.id, OpCode::Query);
                answer.add_queries(question.queries.clone());
                let text = name.to_ascii();
                if text.ends_with("nx.") {
                    answer.metadata.response_code = ResponseCode::NXDomain;
                } else if text.ends_with("fail.") {
                    answer.metadata.response_code = ResponseCode::ServFail;
                } else if question.queries[0].query_type() == T::A {
                    answer.add_answer(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(192, 0, 2, 1)))));
                }
                socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
            }
        });
        outside
    }

    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

fn chains(text: &str) -> Arc<Chains> {
    taught(text, None)
}

/// Chains that tell somebody of addresses.
fn taught(text: &str, learner: Option<Arc<dyn Learner>>) -> Arc<Chains> {
    let mut cluster = Cluster::new();
    let mut add = |name: &str, spec: json::Value| {
        let service = json::json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
        cluster.set_service(&Key::new("default", name), cluster::entry(&json::from_value(service).unwrap(), &[]));
    };
    add("web", json::json!({"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]}));
    add("out", json::json!({"type": "ExternalName", "externalName": "example.org"}));
    add("nowhere", json::json!({"type": "ExternalName", "externalName": "a.nx"}));
    add("missing", json::json!({"type": "ExternalName", "externalName": "nothing.default.svc.cluster.local"}));
    add("circle", json::json!({"type": "ExternalName", "externalName": "circle.default.svc.cluster.local"}));
    cluster.set_namespaces(["default".to_owned()].into());
    cluster.synced_services();
    cluster.move_pod(&Key::new("default", "pod"), &[], &["10.244.0.9".parse().unwrap()]);
    let around = Around { cluster: Arc::new(RwLock::new(cluster)), own: Vec::new(), figures: Arc::default(), learner };
    let near = corefile::Around {
        resolv_conf: "search corp.example\n".to_owned(),
        files: [("NodeHosts".to_owned(), "10.0.0.5 node-a # here\n".to_owned())].into(),
    };
    Chains::new(corefile::parse(text, &near).unwrap(), around)
}

fn question(name: &str, kind: T) -> Question {
    let packet = Packet { id: 1, size: 1, payload: 512, from: "10.244.0.9:999".parse().unwrap() };
    Question::new(&Name::from_str(name).unwrap(), kind, packet)
}

async fn ask(chains: &Arc<Chains>, name: &str, kind: T) -> String {
    let answer: Answer = chains.answer(question(name, kind)).await;
    let shown: Vec<String> = answer.answers.iter().map(|r| format!("{} {} {}", r.name, r.ttl, r.data)).collect();
    if shown.is_empty() { format!("{:?}", answer.code) } else { shown.join(", ") }
}

const KUBERNETES: &str =
    "kubernetes cluster.local in-addr.arpa {\n pods verified\n fallthrough in-addr.arpa\n ttl 30\n }";

/// Somebody who waits for the names below `org` and `corp.example`, and takes time.
#[derive(Debug, Default)]
struct Waits(Mutex<Vec<String>>);

impl Learner for Waits {
    fn wants(&self, name: &str) -> bool {
        name.ends_with(".org") || name.ends_with(".corp.example")
    }

    fn learn(&self, name: String, addresses: Vec<(IpAddr, Duration)>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let shown: Vec<String> = addresses.iter().map(|(a, time)| format!(" {a} {}", time.as_secs())).collect();
            self.0.lock().push(name + &shown.concat());
        })
    }
}

#[tokio::test]
async fn who_waits_for_addresses_has_them_before_they_are_told() {
    let outside = Outside::start(100).await;
    let waits = Arc::new(Waits::default());
    let text = format!(
        ". {{\n autopath @kubernetes\n cache 30\n rewrite name old.example.org new.example.org\n {KUBERNETES}\n forward . {}\n}}",
        outside.address
    );
    let chains = taught(&text, Some(waits.clone()));
    let check = async |name: &str, kind: T, expected: &[&str]| {
        ask(&chains, name, kind).await;
        assert_eq!(std::mem::take(&mut *waits.0.lock()), expected, "{name}");
    };
    check("example.com.", T::A, &[]).await;
    check("Example.ORG.", T::AAAA, &[]).await;
    check("a.nx.", T::A, &[]).await;
    check("Example.ORG.", T::A, &["example.org 192.0.2.1 60"]).await;
    check("old.example.org.", T::A, &["old.example.org 192.0.2.1 60"]).await;
    // An alias of this server's making leads to a question of its own.
    check("out.default.svc.cluster.local.", T::A, &["example.org 192.0.2.1 30"]).await;
    // The question that a Pod's resolver would end with is asked here.
    check("b.default.svc.cluster.local.", T::A, &["b.corp.example 192.0.2.1 60"]).await;
}

#[tokio::test]
async fn equal_questions_are_one() {
    let outside = Outside::start(0).await;
    let chains = chains(&format!(". {{\n forward . {}\n}}", outside.address));
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let chains = chains.clone();
            tokio::spawn(async move { ask(&chains, "example.org.", T::A).await })
        })
        .collect();
    while outside.asked() == 0 {
        tokio::task::yield_now().await;
    }
    outside.permits.add_permits(1);
    for task in tasks {
        assert_eq!(task.await.unwrap(), "example.org. 60 192.0.2.1");
    }
    assert_eq!(outside.asked(), 1);
    // A question that is over is asked again: there is no cache.
    outside.permits.add_permits(1);
    ask(&chains, "example.org.", T::A).await;
    assert_eq!(outside.asked(), 2);
}

#[tokio::test]
async fn the_cache_answers_again_but_not_for_the_cluster() {
    let outside = Outside::start(99).await;
    let text = format!(
        ". {{\n {KUBERNETES}\n forward . {}\n cache 30 {{\n disable success cluster.local\n disable denial cluster.local\n }}\n}}",
        outside.address
    );
    let chains = chains(&text);
    for _ in 0..3 {
        assert!(ask(&chains, "example.org.", T::A).await.ends_with("192.0.2.1"));
        assert_eq!(
            ask(&chains, "web.default.svc.cluster.local.", T::A).await,
            "web.default.svc.cluster.local. 30 10.96.0.7"
        );
        assert_eq!(ask(&chains, "nothing.default.svc.cluster.local.", T::A).await, "NXDomain");
        assert_eq!(ask(&chains, "broken.fail.", T::A).await, "ServFail");
    }
    assert_eq!((outside.asked(), chains.kept()), (2, (1, 1)));
    // Without a SOA nobody says how long a name is missing.
    ask(&chains, "a.nx.", T::A).await;
    ask(&chains, "a.nx.", T::A).await;
    assert_eq!(outside.asked(), 4);
}

#[tokio::test]
async fn names_go_to_the_block_of_their_zone() {
    let (world, stub) = (Outside::start(99).await, Outside::start(99).await);
    let text = format!(
        ".:53 {{\n {KUBERNETES}\n forward . {} {{\n except secret.example\n }}\n}}\ncorp.example:53 {{\n forward . {}\n}}",
        world.address, stub.address
    );
    let chains = chains(&text);
    ask(&chains, "db.corp.example.", T::A).await;
    ask(&chains, "corp.example.", T::A).await;
    assert_eq!((world.asked(), stub.asked()), (0, 2));
    ask(&chains, "notcorp.example.", T::A).await;
    ask(&chains, "9.0.0.10.in-addr.arpa.", T::PTR).await;
    assert_eq!((world.asked(), stub.asked()), (2, 2));
    assert_eq!(ask(&chains, "a.secret.example.", T::A).await, "ServFail");
    let expected = "out.default.svc.cluster.local. 30 example.org., example.org. 60 192.0.2.1";
    assert_eq!(ask(&chains, "out.default.svc.cluster.local.", T::A).await, expected);
    let nowhere = chains.answer(question("nowhere.default.svc.cluster.local.", T::A)).await;
    let parts = |answer: &Answer| (answer.code, answer.answers.len(), answer.authorities.len());
    assert_eq!(parts(&nowhere), (ResponseCode::NoError, 1, 0), "the alias alone");
    for name in ["missing", "circle"] {
        let nothing = chains.answer(question(&format!("{name}.default.svc.cluster.local."), T::A)).await;
        assert_eq!(parts(&nothing), (ResponseCode::NoError, 0, 1), "{name}: the zone's own record");
    }
    let only = crate::chains("cluster.local {\n kubernetes\n}");
    assert_eq!(ask(&only, "example.org.", T::A).await, "Refused");
}

#[tokio::test]
async fn a_server_that_fails_is_passed_over() {
    let outside = Outside::start(99).await;
    // Nobody listens there any more, which the kernel says at once.
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let chains = chains(&format!(". {{\n forward . {gone} {} {{\n policy sequential\n }}\n}}", outside.address));
    for n in 0..4 {
        assert!(ask(&chains, &format!("a{n}.example."), T::A).await.ends_with("192.0.2.1"));
    }
    assert_eq!(outside.asked(), 4);
    let none = crate::chains(&format!(". {{\n forward . {gone}\n}}"));
    assert_eq!(ask(&none, "example.org.", T::A).await, "ServFail");
    let other = Outside::start(99).await;
    let text = format!(
        ". {{\n forward . {} {} {{\n policy sequential\n failover SERVFAIL\n }}\n}}",
        other.address, outside.address
    );
    assert_eq!(ask(&crate::chains(&text), "x.fail.", T::A).await, "ServFail");
    assert_eq!((other.asked(), outside.asked()), (1, 5), "both were asked");
}

#[tokio::test]
async fn hosts_rewrites_and_templates() {
    let outside = Outside::start(99).await;
    let text = format!(
        ". {{
    rewrite name exact old.example web.default.svc.cluster.local
    rewrite continue ttl suffix .short.example 5-10
    rewrite name suffix .internal .default.svc.cluster.local answer auto
    rewrite name regex ^(.*)\\.of\\.(.*)\\.pods\\.$ {{1}}.{{2}}.svc.cluster.local answer name ^(.*)\\.default\\.svc\\.cluster\\.local\\.$ {{1}}.of.default.pods
    rewrite type HINFO A
    hosts /etc/coredns/NodeHosts {{
        10.1.2.3 Printer.example scanner.example
        ttl 60
        fallthrough
    }}
    template IN A patterns.example {{
        match ^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)\\.patterns\\.example\\.$
        answer \"{{{{ .Name }}}} 60 IN A 10.0.{{{{ .Group.a }}}}.{{{{ .Group.b }}}}\"
    }}
    {KUBERNETES}
    forward . {}
}}",
        outside.address
    );
    let chains = chains(&text);
    for (name, kind, expected) in [
        ("old.example.", T::A, "old.example. 30 10.96.0.7"),
        ("web.internal.", T::A, "web.internal. 30 10.96.0.7"),
        ("web.of.default.pods.", T::A, "web.of.default.pods. 30 10.96.0.7"),
        ("a.short.example.", T::A, "a.short.example. 10 192.0.2.1"),
        ("a.long.example.", T::HINFO, "a.long.example. 60 192.0.2.1"),
        ("printer.example.", T::A, "printer.example. 60 10.1.2.3"),
        ("node-a.", T::A, "node-a. 60 10.0.0.5"),
        (
            "3.2.1.10.in-addr.arpa.",
            T::PTR,
            "3.2.1.10.in-addr.arpa. 60 printer.example., 3.2.1.10.in-addr.arpa. 60 scanner.example.",
        ),
        ("printer.example.", T::TXT, "NoError"),
        ("ip-1-2.patterns.example.", T::A, "ip-1-2.patterns.example. 60 10.0.1.2"),
        ("other.patterns.example.", T::A, "ServFail"),
        ("ip-1-300.patterns.example.", T::A, "ServFail"),
    ] {
        assert_eq!(ask(&chains, name, kind).await, expected, "{name} {kind}");
    }
}

#[tokio::test]
async fn the_search_domains_of_a_pod_are_tried_here() {
    let outside = Outside::start(99).await;
    let chains = chains(&format!(". {{\n autopath @kubernetes\n {KUBERNETES}\n forward . {}\n}}", outside.address));
    let expected =
        "example.org.default.svc.cluster.local. 60 example.org.corp.example., example.org.corp.example. 60 192.0.2.1";
    assert_eq!(ask(&chains, "example.org.default.svc.cluster.local.", T::A).await, expected);
    assert_eq!(*outside.names.lock(), ["example.org.corp.example."]);
    assert_eq!(
        ask(&chains, "web.default.svc.cluster.local.", T::A).await,
        "web.default.svc.cluster.local. 30 10.96.0.7"
    );
    // Others than Pods get what they ask for.
    let mut stranger = question("example.org.default.svc.cluster.local.", T::A);
    stranger.packet.from = "10.244.0.10:999".parse().unwrap();
    assert_eq!(chains.answer(stranger).await.code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn a_question_of_ours_that_comes_back_stops_the_circle() {
    let outside = Outside::start(99).await;
    let chains = chains(&format!(". {{\n loop\n forward . {}\n}}", outside.address));
    while outside.asked() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(ask(&chains, "example.org.", T::A).await.ends_with("192.0.2.1"));
    let probe = outside.names.lock()[0].clone();
    assert_eq!(ask(&chains, &probe, T::HINFO).await, "ServFail");
    let asked = outside.asked();
    assert_eq!(ask(&chains, "example.net.", T::A).await, "ServFail");
    assert_eq!(outside.asked(), asked);
}

#[tokio::test]
async fn too_many_questions_under_way_are_refused() {
    let outside = Outside::start(0).await;
    let chains = chains(&format!(". {{\n forward . {} {{\n max_concurrent 2\n }}\n}}", outside.address));
    let held: Vec<_> = (0..2)
        .map(|n| {
            let chains = chains.clone();
            tokio::spawn(async move { ask(&chains, &format!("a{n}.example."), T::A).await })
        })
        .collect();
    while outside.asked() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&chains, "a2.example.", T::A).await, "Refused");
    outside.permits.add_permits(9);
    for task in held {
        assert!(task.await.unwrap().ends_with("192.0.2.1"));
    }
    assert!(ask(&chains, "a2.example.", T::A).await.ends_with("192.0.2.1"));
}

/// Questions that are right but for a few bytes: nothing may panic, and what comes back must be a packet that fits.
#[tokio::test]
async fn no_packet_does_harm() {
    use dns::reply;
    use hickory_proto::op::{Edns, MessageType, Query};
    let chains = chains(&format!(
        ". {{\n autopath @kubernetes\n cache\n {KUBERNETES}\n rewrite name suffix .x .y answer auto\n}}"
    ));
    let seed = |name: &str, kind: T, edns: bool| {
        let mut message = Message::new(1, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
        message.edns = edns.then(Edns::new);
        message.to_vec().unwrap()
    };
    let seeds = [
        seed("web.default.svc.cluster.local.", T::A, false),
        seed("7.0.96.10.in-addr.arpa.", T::PTR, false),
        seed("_http._tcp.web.default.svc.cluster.local.", T::SRV, true),
        seed("10-244-0-9.default.pod.cluster.local.", T::A, true),
    ];
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    for round in 0..20_000 {
        let mut packet = seeds[round % seeds.len()].clone();
        for _ in 0..=random(6) {
            let at = random(packet.len());
            match random(4) {
                0 => packet[at] = u8::try_from(random(256)).unwrap(),
                1 => packet[at] = 0xc0,
                2 => packet.truncate(at.max(1)),
                _ => packet.insert(at, u8::try_from(random(256)).unwrap()),
            }
        }
        let (answer, limit) = match reply::parse(&packet) {
            Ok(asked) => {
                let question = reply::question(&asked, packet.len(), "10.244.0.9:9".parse().unwrap(), false);
                let answer = match question {
                    Ok(question) => reply::message(&asked, chains.answer(question).await),
                    Err(response) => *response,
                };
                (answer, reply::udp_limit(&asked))
            }
            Err(Some(error)) => (*error, 512),
            Err(None) => continue,
        };
        let bytes = reply::encode(answer, limit).unwrap_or_else(|| panic!("round {round}: {packet:?}"));
        assert!(bytes.len() <= limit && Message::from_vec(&bytes).is_ok(), "round {round}");
    }
}
