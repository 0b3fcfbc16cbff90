//! The answers to the cluster's names: the cases of CoreDNS' kubernetes plugin, and those that it leaves open.

use std::{net::IpAddr, str::FromStr, sync::Arc};

use client::Key;
use dns::{
    cluster::{self, Cluster},
    corefile::{self, Around},
    plugins::kubernetes::{self, Found},
    question::{Answer, Packet, Question},
};
use hickory_proto::rr::{Name, RecordType as T};
use json::{Value, json};

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    let mut add = |name: &str, spec: Value, slices: Vec<Value>| {
        let service = json!({"metadata": {"namespace": "testns", "name": name}, "spec": spec});
        let slices: Vec<_> = slices.into_iter().map(|s| Arc::new(json::from_value(s).unwrap())).collect();
        let entry = cluster::entry(&json::from_value(service).unwrap(), &slices);
        cluster.set_service(&Key::new("testns", name), entry);
    };
    let http = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let slice = |ports: &Value, endpoints: Value| json!({"metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
    let with_ip = |ip: &str| json!({"clusterIP": ip, "clusterIPs": [ip], "ports": http});
    add("svc1", with_ip("10.0.0.1"), vec![slice(&http, json!([{"addresses": ["172.0.0.1"], "hostname": "ep1a"}]))]);
    add("svcempty", with_ip("10.0.0.9"), vec![]);
    add("svc6", with_ip("1234:abcd::1"), vec![]);
    add("svc-dual-stack", json!({"clusterIPs": ["10.0.0.3", "10::3"], "ports": http}), vec![]);
    let endpoints = json!([
        {"addresses": ["172.0.0.2"], "targetRef": {"kind": "Pod", "name": "pod-2"}}, {"addresses": ["172.0.0.3"]},
        {"addresses": ["172.0.0.4"], "hostname": "dup-name"}, {"addresses": ["172.0.0.5"], "hostname": "dup-name"},
        {"addresses": ["5678:abcd::1"]}, {"addresses": ["5678:abcd::2"]},
        {"addresses": ["172.0.0.6"], "conditions": {"ready": false}}]);
    add("hdls1", json!({"clusterIP": "None"}), vec![slice(&http, endpoints)]);
    add("hdlsprtls", json!({"clusterIP": "None"}), vec![slice(&json!([]), json!([{"addresses": ["172.0.0.20"]}]))]);
    add("hdlsempty", json!({"clusterIP": "None", "ports": http}), vec![]);
    let external = |target: &str| json!({"type": "ExternalName", "externalName": target, "ports": http});
    add("external", external("ext.interwebs.test"), vec![]);
    add("external-to-service", external("svc1.testns.svc.cluster.local."), vec![]);
    add("external-address", external("10.0.0.1"), vec![]);
    add("svc2", with_ip("10.0.0.2"), vec![slice(&http, json!([{"addresses": ["172.0.0.2"], "hostname": "twice"}]))]);
    cluster.set_namespaces(["testns", "podns", "hidden"].map(str::to_owned).into());
    cluster.synced_services();
    cluster.move_pod(&Key::new("podns", "foo"), &[], &["10.240.0.1".parse().unwrap()]);
    cluster
}

/// An answer in short: the code where there is nothing, the records and what came with them otherwise.
fn ask(cluster: &Cluster, options: &str, name: &str, kind: T) -> String {
    let text = format!(". {{\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n {options}\n }}\n}}");
    let blocks = corefile::parse(&text, &Around::default()).unwrap();
    let settings = blocks[0].settings.kubernetes.as_ref().unwrap();
    let packet = Packet { id: 1, size: 1, payload: 512, from: "10.240.0.1:999".parse().unwrap() };
    let question = Question::new(&Name::from_str(name).unwrap(), kind, packet);
    let own: [IpAddr; 1] = ["10.0.0.10".parse().unwrap()];
    let show = |answer: Answer| {
        let sections = [&answer.answers, &answer.additionals];
        let shown = sections.map(|s| s.iter().map(|r| r.data.to_string()).collect::<Vec<_>>().join(", "));
        match shown {
            [records, extra] if records.is_empty() && extra.is_empty() => {
                assert_eq!(answer.authorities.len(), 1, "{name}: how long nothing may be remembered");
                format!("{:?}", answer.code)
            }
            [records, extra] if extra.is_empty() => records,
            [records, extra] => format!("{records} + {extra}"),
        }
    };
    match kubernetes::answer(&question, settings, cluster, &own) {
        Found::Answer(answer) => show(answer),
        Found::Missing { answer, through } => show(answer) + if through { " through" } else { "" },
        Found::Alias { record, target, .. } => format!("{} then {target}", record.data),
        Found::Elsewhere => "elsewhere".to_owned(),
    }
}

fn check(options: &str, cases: &[(&str, T, &str)]) {
    let cluster = cluster();
    for (name, kind, expected) in cases {
        assert_eq!(ask(&cluster, options, name, *kind), *expected, "{options:?}: {name} {kind}");
    }
}

#[test]
fn services() {
    let srv = "0 100 80 svc1.testns.svc.cluster.local. + 10.0.0.1";
    check(
        "pods insecure",
        &[
            ("svc1.testns.svc.cluster.local.", T::A, "10.0.0.1"),
            ("SVC1.testns.svc.CLUSTER.local.", T::A, "10.0.0.1"),
            ("svcempty.testns.svc.cluster.local.", T::A, "10.0.0.9"),
            ("svc1.testns.svc.cluster.local.", T::SRV, srv),
            ("_http._tcp.svc1.testns.svc.cluster.local.", T::SRV, srv),
            ("_http._tcp.svc1.testns.svc.cluster.local.", T::A, "10.0.0.1"),
            ("_dns._tcp.svc1.testns.svc.cluster.local.", T::SRV, "NXDomain"),
            ("_http._udp.svc1.testns.svc.cluster.local.", T::SRV, "NXDomain"),
            ("_tcp.svc1.testns.svc.cluster.local.", T::A, "NoError"),
            ("svc6.testns.svc.cluster.local.", T::AAAA, "1234:abcd::1"),
            ("svc6.testns.svc.cluster.local.", T::SRV, "0 100 80 svc6.testns.svc.cluster.local. + 1234:abcd::1"),
            ("svc-dual-stack.testns.svc.cluster.local.", T::A, "10.0.0.3"),
            ("svc-dual-stack.testns.svc.cluster.local.", T::AAAA, "10::3"),
            (
                "svc-dual-stack.testns.svc.cluster.local.",
                T::SRV,
                "0 50 80 svc-dual-stack.testns.svc.cluster.local. + 10.0.0.3, 10::3",
            ),
            ("svc1.testns.svc.cluster.local.", T::AAAA, "NoError"),
            ("svc1.testns.svc.cluster.local.", T::TXT, "NoError"),
            ("svc1.testns.svc.cluster.local.", T::SOA, "NoError"),
            ("svc1.testns.svc.cluster.local.", T::PTR, "NoError"),
            ("svc0.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("svc0.testns.svc.cluster.local.", T::TXT, "NXDomain"),
            ("svc0.svc-nons.svc.cluster.local.", T::A, "NXDomain"),
            ("bogusendpoint.svc0.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("x.y.z.svc1.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("svc1.testns.svc.cluster.local.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("svc1.testns.svc.cluster.local.example.org.", T::A, "elsewhere"),
        ],
    );
}

#[test]
fn endpoints() {
    let srv = "0 16 80 172-0-0-2.hdls1.testns.svc.cluster.local., 0 16 80 172-0-0-3.hdls1.testns.svc.cluster.local., \
               0 16 80 dup-name.hdls1.testns.svc.cluster.local., 0 16 80 5678-abcd--1.hdls1.testns.svc.cluster.local., \
               0 16 80 5678-abcd--2.hdls1.testns.svc.cluster.local. + 172.0.0.2, 172.0.0.3, 172.0.0.4, 172.0.0.5, \
               5678:abcd::1, 5678:abcd::2";
    check(
        "pods insecure",
        &[
            ("hdls1.testns.svc.cluster.local.", T::A, "172.0.0.2, 172.0.0.3, 172.0.0.4, 172.0.0.5"),
            ("hdls1.testns.svc.cluster.local.", T::AAAA, "5678:abcd::1, 5678:abcd::2"),
            ("hdls1.testns.svc.cluster.local.", T::SRV, srv),
            ("_http._tcp.hdls1.testns.svc.cluster.local.", T::SRV, srv),
            ("5678-abcd--2.hdls1.testns.svc.cluster.local.", T::AAAA, "5678:abcd::2"),
            ("172-0-0-2.hdls1.testns.svc.cluster.local.", T::A, "172.0.0.2"),
            ("172-0-0-2.hdls1.testns.svc.cluster.local.", T::AAAA, "NoError"),
            ("172-0-0-6.hdls1.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("dup-name.hdls1.testns.svc.cluster.local.", T::A, "172.0.0.4, 172.0.0.5"),
            ("bogusendpoint.hdls1.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("hdlsprtls.testns.svc.cluster.local.", T::A, "172.0.0.20"),
            ("172-0-0-20.hdlsprtls.testns.svc.cluster.local.", T::A, "172.0.0.20"),
            ("hdlsprtls.testns.svc.cluster.local.", T::SRV, "NoError"),
            ("hdlsempty.testns.svc.cluster.local.", T::A, "NXDomain"),
            // Endpoints of Services with an address have names too.
            ("ep1a.svc1.testns.svc.cluster.local.", T::A, "172.0.0.1"),
            ("172-0-0-1.svc1.testns.svc.cluster.local.", T::A, "NXDomain"),
        ],
    );
    check(
        "endpoint_pod_names",
        &[
            ("pod-2.hdls1.testns.svc.cluster.local.", T::A, "172.0.0.2"),
            ("172-0-0-2.hdls1.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("172-0-0-3.hdls1.testns.svc.cluster.local.", T::A, "172.0.0.3"),
        ],
    );
    check(
        "noendpoints",
        &[("hdls1.testns.svc.cluster.local.", T::A, "NXDomain"), ("svc1.testns.svc.cluster.local.", T::A, "10.0.0.1")],
    );
    check(
        "ignore empty_service",
        &[
            ("svcempty.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("svc1.testns.svc.cluster.local.", T::A, "10.0.0.1"),
            ("external.testns.svc.cluster.local.", T::CNAME, "ext.interwebs.test."),
        ],
    );
}

#[test]
fn external_names() {
    check(
        "pods insecure",
        &[
            ("external.testns.svc.cluster.local.", T::CNAME, "ext.interwebs.test."),
            ("external.testns.svc.cluster.local.", T::A, "ext.interwebs.test. then ext.interwebs.test"),
            ("external.testns.svc.cluster.local.", T::SRV, "NoError"),
            (
                "external-to-service.testns.svc.cluster.local.",
                T::A,
                "svc1.testns.svc.cluster.local. then svc1.testns.svc.cluster.local",
            ),
            ("endpoint.external.testns.svc.cluster.local.", T::CNAME, "NXDomain"),
            ("a.b.external.testns.svc.cluster.local.", T::CNAME, "NXDomain"),
            ("_http._tcp.external.testns.svc.cluster.local.", T::SRV, "NXDomain"),
            ("external-address.testns.svc.cluster.local.", T::A, "NXDomain"),
        ],
    );
}

#[test]
fn pods() {
    check(
        "pods insecure",
        &[
            ("10-240-0-1.podns.pod.cluster.local.", T::A, "10.240.0.1"),
            ("172-0-0-2.podns.pod.cluster.local.", T::A, "172.0.0.2"),
            ("fd00--9.podns.pod.cluster.local.", T::AAAA, "fd00::9"),
            ("fd00--9.podns.pod.cluster.local.", T::A, "NoError"),
            ("blah.podns.pod.cluster.local.", T::A, "NXDomain"),
            ("blah.podns.pod.cluster.local.", T::HINFO, "NXDomain"),
            ("10-240-0-1.pod-nons.pod.cluster.local.", T::A, "NXDomain"),
            ("x.10-240-0-1.podns.pod.cluster.local.", T::A, "NXDomain"),
            ("podns.pod.cluster.local.", T::A, "NoError"),
            ("pod-nons.pod.cluster.local.", T::A, "NXDomain"),
        ],
    );
    check(
        "pods verified",
        &[
            ("10-240-0-1.podns.pod.cluster.local.", T::A, "10.240.0.1"),
            ("10-240-0-1.testns.pod.cluster.local.", T::A, "NXDomain"),
            ("172-0-0-2.podns.pod.cluster.local.", T::A, "NXDomain"),
            ("podns.pod.cluster.local.", T::A, "NoError"),
        ],
    );
    for options in ["pods disabled", ""] {
        check(options, &[("10-240-0-1.podns.pod.cluster.local.", T::A, "NXDomain")]);
    }
}

#[test]
fn the_zone_itself() {
    check(
        "ttl 30",
        &[
            ("cluster.local.", T::NS, "ns.dns.cluster.local. + 10.0.0.10"),
            ("cluster.local.", T::A, "NoError"),
            ("cluster.local.", T::HINFO, "NoError"),
            ("ns.dns.cluster.local.", T::A, "10.0.0.10"),
            ("ns.dns.cluster.local.", T::AAAA, "NoError"),
            ("dns.cluster.local.", T::A, "NoError"),
            ("dns-version.cluster.local.", T::TXT, "1.1.0"),
            ("dns-version.cluster.local.", T::A, "NoError"),
            ("svc.cluster.local.", T::NS, "NoError"),
            ("pod.cluster.local.", T::A, "NoError"),
            ("testns.svc.cluster.local.", T::A, "NoError"),
            ("foo.cluster.local.", T::NS, "NXDomain"),
            ("foo.svc.cluster.local.", T::NS, "NXDomain"),
            ("example.org.cluster.local.", T::PTR, "NXDomain"),
        ],
    );
}

#[test]
fn reverse_names() {
    let fallthrough = "fallthrough in-addr.arpa ip6.arpa";
    check(
        fallthrough,
        &[
            ("1.0.0.10.in-addr.arpa.", T::PTR, "svc1.testns.svc.cluster.local."),
            ("3.0.0.172.in-addr.arpa.", T::PTR, "172-0-0-3.hdls1.testns.svc.cluster.local."),
            (
                "2.0.0.172.in-addr.arpa.",
                T::PTR,
                "172-0-0-2.hdls1.testns.svc.cluster.local., twice.svc2.testns.svc.cluster.local.",
            ),
            (
                "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa.",
                T::PTR,
                "5678-abcd--1.hdls1.testns.svc.cluster.local.",
            ),
            ("1.0.0.10.in-addr.arpa.", T::A, "NoError"),
            ("1.0.0.127.in-addr.arpa.", T::PTR, "NXDomain through"),
            ("0.10.in-addr.arpa.", T::PTR, "NXDomain through"),
            ("svc1.testns.svc.0.10.in-addr.arpa.", T::A, "NXDomain through"),
            ("svc0.testns.svc.cluster.local.", T::A, "NXDomain"),
        ],
    );
    check("", &[("1.0.0.127.in-addr.arpa.", T::PTR, "NXDomain")]);
}

#[test]
fn only_listed_namespaces_have_names() {
    check(
        "namespaces podns",
        &[
            ("svc1.testns.svc.cluster.local.", T::A, "NXDomain"),
            ("testns.svc.cluster.local.", T::A, "NXDomain"),
            ("1.0.0.10.in-addr.arpa.", T::PTR, "NXDomain"),
            ("podns.svc.cluster.local.", T::A, "NoError"),
        ],
    );
}

#[test]
fn before_everything_is_known_nothing_is_missing() {
    let cluster = Cluster::new();
    assert_eq!(ask(&cluster, "", "svc0.testns.svc.cluster.local.", T::A), "ServFail");
}
