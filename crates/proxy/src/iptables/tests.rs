//! The rules' text: what a Service and its endpoints become, and the input of iptables-restore.

use std::sync::Arc;

use client::Key;
use json::{Value, json};

use super::{Settings, rules, text};
use crate::{
    item::Item,
    node::{FromPods, Node},
    ports::ServiceRules,
    table::Table,
};

const BOTH: [&str; 2] = ["10.244.0.2@n1", "10.244.1.3@n2"];

fn node() -> Node {
    let pods = FromPods::Range("10.244.0.0/16".parse().unwrap());
    Node { name: "n1".into(), ip: Some("192.168.0.1".parse().unwrap()), pods: Some(pods), ..Node::default() }
}

fn render(endpoints: &[&str], more: Value, status: Value) -> ServiceRules {
    let mut spec = json!({
        "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"name": "http", "port": 80}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let service = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec, "status": status});
    let endpoint = |text: &&str| {
        let (ip, node) = text.split_once('@').unwrap();
        json!({"addresses": [ip], "nodeName": node, "conditions": {"ready": true}})
    };
    let slice = json!({
        "metadata": {"name": "web-1"}, "addressType": "IPv4", "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080}],
    });
    rules::render(&json::from_value(service).unwrap(), &[Arc::new(json::from_value(slice).unwrap())], &node())
}

#[test]
fn terse_lines_keep_their_conditions() {
    let check = |chain: &str, line: &str, expected: &str| assert_eq!(rules::terse(chain, line), expected);
    let comment = "-m comment --comment \"d/a:x\" ";
    check("KUBE-SEP-A", &format!("{comment}-s 10.0.0.1 -j KUBE-MARK-MASQ"), "-s 10.0.0.1 -j KUBE-MARK-MASQ");
    check("KUBE-SEP-A", &format!("{comment}-m udp -p udp -j DNAT --to x"), "-p udp -j DNAT --to x");
    let recent = "-m recent --name KUBE-SEP-A --set -m tcp -p tcp -j DNAT --to x";
    check("KUBE-SEP-A", &format!("{comment}{recent}"), recent);
    let to = "-m comment --comment \"d/a:x -> 10.0.0.1:8080\" -m statistic --mode random -j KUBE-SEP-A";
    check("KUBE-SVC-A", to, "-m statistic --mode random -j KUBE-SEP-A");
    for whole in ["-m comment --comment \"d/a:x cluster IP\" -m tcp -p tcp -d 10.0.0.1 --dport 80 -j X", "-j X"] {
        check("KUBE-SVC-A", whole, whole);
    }
}

/// The lines of a Service, each with its chain.
fn show(rules: &ServiceRules) -> Vec<String> {
    let of = |(item, value): (&Item, &String)| match item {
        Item::Chain(name) => value.lines().map(|line| format!("{name}: {line}")).collect(),
        Item::Line(shared, _) => vec![format!("{shared:?}: {value}")],
        Item::Set(_) | Item::Element(..) => panic!("iptables has no sets and maps"),
    };
    rules.items.iter().flat_map(of).collect()
}

fn check(endpoints: &[&str], spec: Value, status: Value, expected: &[&str]) {
    // The order of lines within a chain counts, that of the chains does not.
    let by_chain = |mut lines: Vec<String>| {
        lines.sort_by_key(|line| line.split(':').next().map(str::to_owned));
        lines
    };
    let got = by_chain(show(&render(endpoints, spec, status)));
    let expected = by_chain(expected.iter().map(|line| (*line).to_owned()).collect());
    assert_eq!(got, expected, "got\n{}\nexpected\n{}", got.join("\n"), expected.join("\n"));
}

#[test]
fn a_service_has_upstreams_chains() {
    check(
        &BOTH,
        json!({}),
        json!({}),
        &[
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -s 10.244.0.2 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.0.2:8080"#,
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -s 10.244.1.3 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.1.3:8080"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http cluster IP" ! -s 10.244.0.0/16 -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.1.3:8080" -j KUBE-SEP-2AZ33KU3V5PGPQZH"#,
            r#"Services: -m comment --comment "default/web:http cluster IP" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
        ],
    );
}

#[test]
fn a_client_comes_to_its_endpoint_again() {
    check(
        &BOTH[..1],
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}),
        json!({}),
        &[
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -s 10.244.0.2 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -m recent --name KUBE-SEP-QA4PSDNF5R2OJOPA --set -m tcp -p tcp -j DNAT --to-destination 10.244.0.2:8080"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http cluster IP" ! -s 10.244.0.0/16 -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -m recent --name KUBE-SEP-QA4PSDNF5R2OJOPA --rcheck --seconds 60 --reap -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"Services: -m comment --comment "default/web:http cluster IP" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
        ],
    );
}

#[test]
fn callers_from_outside_get_the_node_as_their_source() {
    check(
        &BOTH[..1],
        json!({"externalIPs": ["1.2.3.4"], "ports": [{"name": "http", "port": 80, "nodePort": 30080}]}),
        json!({}),
        &[
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -s 10.244.0.2 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.0.2:8080"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http cluster IP" ! -s 10.244.0.0/16 -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"Services: -m comment --comment "default/web:http external IP" -m tcp -p tcp -d 1.2.3.4 --dport 80 -j KUBE-EXT-CDGGSHYLG3RE2FKL"#,
            r#"Services: -m comment --comment "default/web:http cluster IP" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"NodePorts: -m comment --comment "default/web:http" -m tcp -p tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL"#,
        ],
    );
}

#[test]
fn a_load_balancer_keeps_the_source_and_takes_from_its_ranges() {
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 31000, "loadBalancerSourceRanges": ["8.8.8.0/24"]});
    check(
        &BOTH,
        spec,
        json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}}),
        &[
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -s 10.244.0.2 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-QA4PSDNF5R2OJOPA: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.0.2:8080"#,
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -s 10.244.1.3 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.1.3:8080"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "pod traffic for default/web:http external destinations" -s 10.244.0.0/16 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -j KUBE-SVL-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-FW-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http loadbalancer IP" -s 8.8.8.0/24 -j KUBE-EXT-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-FW-CDGGSHYLG3RE2FKL: -m comment --comment "other traffic to default/web:http will be dropped by KUBE-PROXY-FIREWALL""#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http cluster IP" ! -s 10.244.0.0/16 -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.1.3:8080" -j KUBE-SEP-2AZ33KU3V5PGPQZH"#,
            r#"KUBE-SVL-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.0.2:8080" -j KUBE-SEP-QA4PSDNF5R2OJOPA"#,
            r#"Services: -m comment --comment "default/web:http cluster IP" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"Services: -m comment --comment "default/web:http loadbalancer IP" -m tcp -p tcp -d 5.6.7.8 --dport 80 -j KUBE-FW-CDGGSHYLG3RE2FKL"#,
            r#"Firewall: -m comment --comment "default/web:http traffic not accepted by KUBE-FW-CDGGSHYLG3RE2FKL" -m tcp -p tcp -d 5.6.7.8 --dport 80 -j DROP"#,
            r#"HealthPorts: -m comment --comment "default/web health check node port" -m tcp -p tcp --dport 31000 -j ACCEPT"#,
        ],
    );
}

#[test]
fn without_endpoints_callers_are_refused() {
    let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    check(
        &[],
        json!({"ports": ports}),
        json!({}),
        &[
            r#"Refused: -m comment --comment "default/web:http has no endpoints" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j REJECT --reject-with tcp-reset"#,
            r#"RefusedOutside: -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp -p tcp --dport 30080 -j REJECT --reject-with tcp-reset"#,
        ],
    );
    check(
        &BOTH[1..],
        json!({"ports": ports, "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}),
        json!({}),
        &[
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -s 10.244.1.3 -j KUBE-MARK-MASQ"#,
            r#"KUBE-SEP-2AZ33KU3V5PGPQZH: -m comment --comment "default/web:http" -m tcp -p tcp -j DNAT --to-destination 10.244.1.3:8080"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "pod traffic for default/web:http external destinations" -s 10.244.0.0/16 -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"#,
            r#"KUBE-EXT-CDGGSHYLG3RE2FKL: -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL"#,
            r#"KUBE-SVC-CDGGSHYLG3RE2FKL: -m comment --comment "default/web:http -> 10.244.1.3:8080" -j KUBE-SEP-2AZ33KU3V5PGPQZH"#,
            r#"NodePorts: -m comment --comment "default/web:http" -m tcp -p tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL"#,
            r#"Refused: -m comment --comment "default/web:http has no local endpoints" -m tcp -p tcp -d 10.96.0.7 --dport 80 -j DROP"#,
            r#"RefusedOutside: -m comment --comment "default/web:http has no local endpoints" -m addrtype --dst-type LOCAL -m tcp -p tcp --dport 30080 -j DROP"#,
        ],
    );
}

#[test]
fn a_change_rewrites_its_chains_and_the_shared_ones_with_a_changed_line() {
    let (mut table, node, key) = (Table::default(), node(), Key::new("default", "web"));
    let mut write = |rules: ServiceRules| {
        table.set(&key, rules);
        let changes = table.changed();
        text::partial(&changes, &table, &node, Settings::default())
    };
    let first = write(render(&BOTH[..1], json!({}), json!({})));
    assert!(first.starts_with("*nat\n:KUBE-SEP-QA4PSDNF5R2OJOPA - [0:0]\n:KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]\n:KUBE-SERVICES - [0:0]\n-A KUBE-"), "{first}");
    let last = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n";
    assert!(first.ends_with(last), "{first}");
    let second = write(render(&BOTH, json!({}), json!({})));
    assert!(
        second.contains(":KUBE-SEP-2AZ33KU3V5PGPQZH - [0:0]") && second.contains(":KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]"),
        "{second}"
    );
    assert!(!second.contains("KUBE-SERVICES") && !second.contains(":KUBE-SEP-QA4PSDNF5R2OJOPA"), "{second}");
    assert_eq!(write(render(&BOTH, json!({}), json!({}))), "", "nothing changed");
    let third = write(ServiceRules::default());
    let left = "-X KUBE-SEP-2AZ33KU3V5PGPQZH\n-X KUBE-SEP-QA4PSDNF5R2OJOPA\n-X KUBE-SVC-CDGGSHYLG3RE2FKL\nCOMMIT\n";
    assert!(third.contains(":KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]") && third.ends_with(left), "{third}");
}

#[test]
fn with_many_endpoints_their_lines_say_no_more_than_they_must() {
    let write = |count: usize| {
        let endpoints: Vec<String> = (1..=count).map(|n| format!("10.244.{}.{}@n2", n / 250, n % 250)).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let mut table = Table::default();
        table.set(&Key::new("default", "web"), render(&endpoints, json!({"externalIPs": ["1.2.3.4"]}), json!({})));
        let all = table.all();
        let everything = text::everything("", &all, &table, &node(), Settings::default());
        let partial = text::partial(&all, &table, &node(), Settings::default());
        [everything, partial].map(|text| {
            let lines = |beginning: &'static str| text.lines().filter(move |line| line.starts_with(beginning));
            let commented = |beginning| lines(beginning).filter(|line| line.contains("--comment")).count();
            assert_eq!(lines("-A KUBE-SEP-").count(), 2 * count);
            let matched = lines("-A KUBE-SEP-").filter(|line| line.contains(" -m tcp -p tcp -j DNAT ")).count();
            let plain = lines("-A KUBE-SEP-").filter(|line| line.contains(" -p tcp -j DNAT ")).count();
            assert_eq!((plain, matched), (count, if count > 1000 { 0 } else { count }));
            let last = lines("-A KUBE-SVC-").next_back().unwrap();
            assert!(last.starts_with("-A KUBE-SVC-CDGGSHYLG3RE2FKL -"), "{last}");
            [
                commented("-A KUBE-SEP-"),
                commented("-A KUBE-SVC-"),
                commented("-A KUBE-EXT-"),
                commented("-A KUBE-SERVICES "),
            ]
        })
    };
    assert_eq!(write(1000), [[2000, 1001, 1, 3]; 2]);
    assert_eq!(write(1001), [[0, 1, 1, 3]; 2], "the lines that there is one of for each Service keep theirs");
}

#[test]
fn many_services_are_several_transactions_of_which_the_last_leads_to_them() {
    let mut table = Table::default();
    let set = |table: &mut Table, number: usize| {
        let ip = format!("10.97.{}.{}", number / 250, number % 250);
        let service = json!({"metadata": {"namespace": "default", "name": format!("s{number}")},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "nodePort": 30000 + number}]}});
        let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [{"port": 8080}],
            "endpoints": [{"addresses": ["10.244.0.2"]}, {"addresses": ["10.244.1.3"]}]});
        let slices = [Arc::new(json::from_value(slice).unwrap())];
        let rules = rules::render(&json::from_value(service).unwrap(), &slices, &node());
        table.set(&Key::new("default", format!("s{number}")), rules);
    };
    let write = |table: &mut Table| {
        let all = table.all();
        let saved = "*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n";
        text::everything(saved, &all, table, &node(), Settings::default())
    };
    (0..400).for_each(|number| set(&mut table, number));
    assert_eq!(write(&mut table).matches("*nat\n").count(), 1, "1600 chains");
    (400..1200).for_each(|number| set(&mut table, number));
    let text = write(&mut table);
    let transactions: Vec<&str> =
        text.split("*nat\n").skip(1).map(|rest| rest.split("COMMIT").next().unwrap()).collect();
    assert_eq!(transactions.len(), 3, "4800 chains");
    let mut declared = Vec::new();
    for transaction in &transactions {
        declared.extend(transaction.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next()));
        for line in transaction.lines().filter(|line| line.starts_with("-A ")) {
            let target = line.split("-j ").last().unwrap().split(' ').next().unwrap();
            assert!(!target.starts_with("KUBE-") || declared.contains(&target), "{line}");
        }
    }
    let count = declared.len();
    declared.sort_unstable();
    declared.dedup();
    assert_eq!(declared.len(), count, "each chain is written once");
    for last in [":KUBE-SERVICES ", ":KUBE-NODEPORTS ", ":KUBE-PROXY-CANARY ", "-X KUBE-SVC-AAAAAAAAAAAAAAAA\n", "-I "]
    {
        let with: Vec<bool> = transactions.iter().map(|transaction| transaction.contains(last)).collect();
        assert_eq!(with, [false, false, true], "{last}");
    }
}

#[test]
fn everything_takes_over_what_is_there() {
    let saved = "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n\
        -A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\nCOMMIT\n\
        *nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:OTHER - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n";
    let table = Table::default();
    let all = text::everything(saved, &[], &table, &node(), Settings::default());
    assert!(all.contains("*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n"), "{all}");
    assert!(all.contains("-X KUBE-SVC-AAAAAAAAAAAAAAAA\n") && !all.contains("OTHER"), "{all}");
    assert!(!all.contains("-I FORWARD -m comment") && !all.contains("-I PREROUTING"), "jumps that are there: {all}");
    assert!(all.contains("-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n"), "{all}");
    assert!(all.contains("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n"), "{all}");
    assert!(all.contains("block incoming localnet connections"), "{all}");
    let apart = Settings { localhost_node_ports: false, tcp_be_liberal: true };
    let all = text::everything("", &[], &table, &node(), apart);
    assert!(all.contains("! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n"), "{all}");
    assert!(!all.contains("INVALID") && !all.contains("localnet"), "{all}");
    let gone = text::nothing(saved);
    assert!(
        gone.contains("-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n"),
        "{gone}"
    );
    assert!(gone.contains("-X KUBE-FORWARD\n") && !gone.contains("OTHER") && !gone.contains("-D OUTPUT"), "{gone}");
    assert_eq!(text::nothing("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), "");
}

#[test]
fn names_and_protocols_that_no_api_server_lets_in_write_no_rules() {
    let port = |more: Value| {
        let mut port = json!({"name": "http", "port": 80});
        port.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        render(&BOTH, json!({"ports": [port]}), json!({}))
    };
    assert!(!port(json!({})).items.is_empty());
    for more in [json!({"name": "x\"\n-F"}), json!({"protocol": "TCP -j ACCEPT"}), json!({"protocol": "ICMP"})] {
        assert_eq!(port(more.clone()), ServiceRules::default(), "{more}");
    }
}
