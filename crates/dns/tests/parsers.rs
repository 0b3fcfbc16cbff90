//! Packets that clients send to cluster DNS, and Corefiles of users, nearly right: no panic, no work without a bound, and a mistake
//! is told with its line.

use std::{collections::BTreeMap, path::Path};

use dns::{
    corefile::{Around, parse, standard},
    question::Answer,
    reply,
};
use fuzz::Target;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RecordType},
};

fn found() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/found"))
}

#[test]
fn corefile() {
    let seeds = [
        standard("cluster.local"),
        ".:53 {\n errors\n health {\n lameduck 5s\n }\n ready\n prometheus :9153\n forward . 10.0.0.1 tls://9.9.9.9\n cache 30\n loop\n reload\n}".into(),
        "a.b c.d:1053 {\n log . {\n class denial error\n }\n hosts /etc/coredns/more a.b {\n 10.0.0.1 x.a.b\n ttl 60\n no_reverse\n fallthrough\n }\n}".into(),
        "10.0.0.0/8 {\n rewrite stop {\n name regex (.*)\\.old\\.b {1}.new.b\n answer auto\n }\n rewrite name exact a.b c.d\n}".into(),
        "(snip) {\n errors\n}\na {\n import snip\n template IN A a {\n match \"^ip-(?P<a>[0-9]*)\\.a\\.$\"\n answer \"{{ .Name }} 60 IN A 10.0.0.{{ .Group.a }}\"\n rcode NXDOMAIN\n }\n autopath @kubernetes\n kubernetes a {\n pods verified\n endpoint_pod_names\n }\n}".into(),
    ];
    let words = [
        " {\n",
        "\n}\n",
        "\n",
        ".:53",
        "forward . ",
        "rewrite name regex ",
        "template ",
        "match ",
        "answer ",
        "kubernetes ",
        "pods ",
        "fallthrough",
        "cache ",
        "hosts ",
        "log ",
        "class ",
        "import ",
        "{$HOME}",
        "{{ .Name }}",
        "\"",
        "\\",
        "#",
        "10.0.0.0/8",
        "::1",
        "(a+)+",
        "$1",
        "{1}",
        "5s",
        "max_concurrent 1000",
    ];
    let around = Around {
        resolv_conf: "nameserver 10.0.0.1\nsearch a.b\noptions ndots:5\n".to_owned(),
        files: BTreeMap::from([("more".to_owned(), "10.0.0.2 y.a.b\n".to_owned())]),
    };
    let seeds = seeds.map(String::into_bytes).into();
    fuzz::run(&Target { name: "corefile", seeds, words: &words, found: found() }, |input| {
        let text = String::from_utf8_lossy(input);
        match parse(&text, &around) {
            Ok(blocks) => {
                let zones: Vec<&String> = blocks.iter().flat_map(|block| &block.zones).collect();
                for (at, zone) in zones.iter().enumerate() {
                    assert!(!zones[..at].contains(zone), "two blocks serve {zone:?}");
                }
                format!("{} blocks", "x".repeat(blocks.len().min(9)))
            }
            Err(error) => {
                let said = error.to_string();
                let line =
                    said.strip_prefix("Corefile:").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
                assert!(line.is_some_and(|line| (1..=text.lines().count().max(1) + 1).contains(&line)), "{said}");
                said
            }
        }
    });
}

#[test]
fn packets() {
    let asked = |name: &str, kind: RecordType| {
        let mut asked = Message::new(7, MessageType::Query, OpCode::Query);
        asked.metadata.recursion_desired = true;
        asked.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        asked
    };
    let mut extended = asked("wEb.default.svc.cluster.local.", RecordType::AAAA);
    extended.edns = Some(hickory_proto::op::Edns::new());
    let plain =
        [asked("a.b.", RecordType::A), asked(".", RecordType::NS), asked("_http._tcp.a.b.", RecordType::SRV), extended];
    let seeds = plain.map(|message| message.to_vec().unwrap()).into();
    // A pointer to a name, one to itself, and the head of an extension.
    let words = ["\u{0}\u{c}", "\u{3}www\u{0}", "\0\0)\u{4}\0"];
    fuzz::run(&Target { name: "packets", seeds, words: &words, found: found() }, |input| {
        let asked = match reply::parse(input) {
            Ok(asked) => asked,
            Err(None) => return "no answer".to_owned(),
            Err(Some(error)) => {
                assert!(error.to_vec().unwrap().len() <= 12, "a broken packet brings back no more than a head");
                return "an error".to_owned();
            }
        };
        let limit = reply::udp_limit(&asked);
        assert!((512..=1232).contains(&limit), "{limit}");
        let from = "10.0.0.1:5353".parse().unwrap();
        let answer = match reply::question(&asked, input.len(), from, false) {
            Ok(question) => reply::message(&asked, Answer::own(question_records(&question.text))),
            Err(refusal) => *refusal,
        };
        match reply::encode(answer, limit) {
            Some(bytes) => {
                assert!(bytes.len() <= limit, "{} bytes of {limit}", bytes.len());
                let read = Message::from_vec(&bytes).expect("an answer can be read");
                assert_eq!(read.metadata.id, asked.metadata.id);
                format!("{:?}, {} answers", read.metadata.response_code, read.answers.len())
            }
            None => "too long a question".to_owned(),
        }
    });
}

/// A hundred records of the name that was asked for, if it is one.
fn question_records(name: &str) -> Vec<hickory_proto::rr::Record> {
    use hickory_proto::rr::{RData, Record, rdata::A};
    let Ok(name) = Name::from_ascii(format!("{name}.")) else { return Vec::new() };
    (0..100).map(|n| Record::from_rdata(name.clone(), 5, RData::A(A::new(10, 0, 0, n)))).collect()
}
