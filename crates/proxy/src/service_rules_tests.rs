//! Rules of Services as tables: what a spec and its endpoints become in the kernel.

use super::*;
use crate::node::FromPods;

/// The items of a Service, a line each: `map key -> value`, `chain name: rules`.
fn render_all(spec: json::Value, status: json::Value, endpoints: &[json::Value]) -> ServiceRules {
    let service = json::json!({
        "metadata": {"namespace": "default", "name": "web"}, "spec": spec, "status": status,
    });
    let slice = json::json!({
        "metadata": {"name": "web-1"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080}],
    });
    let node = Node {
        name: "n1".into(),
        ip: Some("192.168.0.1".parse().unwrap()),
        pods: Some(FromPods::Range("10.244.0.0/16".parse().unwrap())),
        ..Node::default()
    };
    let slices = [Arc::new(json::from_value(slice).unwrap())];
    super::render(&json::from_value(service).unwrap(), &slices, &node)
}

fn ready(ip: &str, node: &str) -> json::Value {
    json::json!({"addresses": [ip], "nodeName": node, "conditions": {"ready": true}})
}

fn spec(more: json::Value) -> json::Value {
    let mut spec = json::json!({
        "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"name": "http", "port": 80, "appProtocol": "x/y"}],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn show(rules: &ServiceRules) -> Vec<String> {
    let line = |(item, value): (&Item, &String)| match item {
        Item::Chain(name) => format!("chain {name}: {}", value.replace('\n', "; ")),
        Item::Set(name) => format!("set {name}: {value}"),
        Item::Element(map, key) if value.is_empty() => format!("{} {key}", map.name()),
        Item::Element(map, key) => format!("{} {key} -> {value}", map.name()),
        Item::Line(..) => panic!("nft has no lines of iptables"),
    };
    rules.items.iter().map(line).collect()
}

/// Every line must be there, with `*` for a hash; and no other line about addresses.
fn check(spec: json::Value, endpoints: &[json::Value], expected: &[&str]) {
    check_with_status(spec, json::json!({}), endpoints, expected);
}

fn check_with_status(spec: json::Value, status: json::Value, endpoints: &[json::Value], expected: &[&str]) {
    let shown: Vec<String> =
        show(&render_all(spec, status, endpoints)).iter().map(|line| without_hashes(line)).collect();
    let mut wanted: Vec<String> = expected.iter().map(|l| (*l).to_owned()).collect();
    wanted.sort();
    let mut got = shown;
    got.sort();
    assert_eq!(got, wanted, "got\n{}\nwanted\n{}", got.join("\n"), wanted.join("\n"));
}

/// `local-0123456789-default/web/…` becomes `local-*-default/web/…`.
fn without_hashes(line: &str) -> String {
    let parts: Vec<&str> = line.split('-').collect();
    let is_hash = |p: &&str| p.len() == 10 && p.chars().all(|c| c.is_ascii_hexdigit());
    parts.iter().map(|p| if is_hash(p) { "*" } else { p }).collect::<Vec<_>>().join("-")
}

#[test]
fn an_ordinary_port_needs_elements_only() {
    check(
        spec(json::json!({})),
        &[ready("10.244.0.2", "n1"), ready("10.244.1.3", "n2")],
        &[
            "service-ips 10.96.0.7 . tcp . 80 -> goto pick-2",
            "endpoints 10.96.0.7 . tcp . 80 . 0 -> 10.244.0.2 . 8080",
            "endpoints 10.96.0.7 . tcp . 80 . 1 -> 10.244.1.3 . 8080",
            "cluster-ips 10.96.0.7",
            "hairpins 10.244.0.2 . 10.244.0.2",
        ],
    );
}

#[test]
fn outside_doors_hide_the_source_unless_the_policy_is_local() {
    let ports = json::json!([{"name": "http", "port": 80, "nodePort": 30080, "protocol": "SCTP"}]);
    check(
        spec(json::json!({"ports": ports, "externalIPs": ["1.2.3.4"]})),
        &[ready("10.244.1.3", "n2")],
        &[
            "service-ips 10.96.0.7 . sctp . 80 -> goto pick-1",
            "service-ips 1.2.3.4 . sctp . 80 -> goto external-pick-1",
            "service-nodeports sctp . 30080 -> goto external-pick-nodeport-1",
            "endpoints 10.96.0.7 . sctp . 80 . 0 -> 10.244.1.3 . 8080",
            "endpoints 1.2.3.4 . sctp . 80 . 0 -> 10.244.1.3 . 8080",
            "nodeport-endpoints sctp . 30080 . 0 -> 10.244.1.3 . 8080",
            "cluster-ips 10.96.0.7",
        ],
    );
    let local =
        json::json!({"ports": [{"name": "http", "port": 80, "nodePort": 30080}], "externalTrafficPolicy": "Local"});
    let id = "*-default/web/tcp/http";
    let inside = format!(
        "ip saddr 10.244.0.0/16 goto service-{id}; fib saddr type local jump mark-for-masquerade; fib saddr type local goto service-{id}"
    );
    check(
        spec(local.clone()),
        &[ready("10.244.0.9", "n1"), ready("10.244.1.3", "n2")],
        &[
            &format!(
                "chain service-{id}: meta l4proto tcp dnat ip addr . port to numgen random mod 2 map {{ 0 : 10.244.0.9 . 8080, 1 : 10.244.1.3 . 8080 }}"
            ),
            &format!("chain local-{id}: meta l4proto tcp dnat to 10.244.0.9:8080"),
            &format!("chain external-{id}/nodeport: {inside}; goto local-{id}"),
            "service-ips 10.96.0.7 . tcp . 80 -> goto pick-2",
            &format!("service-nodeports tcp . 30080 -> goto external-{id}/nodeport"),
            "endpoints 10.96.0.7 . tcp . 80 . 0 -> 10.244.0.9 . 8080",
            "endpoints 10.96.0.7 . tcp . 80 . 1 -> 10.244.1.3 . 8080",
            "cluster-ips 10.96.0.7",
            "hairpins 10.244.0.9 . 10.244.0.9",
        ],
    );
    check(
        spec(local),
        &[ready("10.244.1.3", "n2")],
        &[
            &format!("chain service-{id}: meta l4proto tcp dnat to 10.244.1.3:8080"),
            &format!("chain external-{id}/nodeport: {inside}"),
            "service-ips 10.96.0.7 . tcp . 80 -> goto pick-1",
            &format!("service-nodeports tcp . 30080 -> goto external-{id}/nodeport"),
            "refused-nodeports tcp . 30080 -> goto discard",
            "endpoints 10.96.0.7 . tcp . 80 . 0 -> 10.244.1.3 . 8080",
            "cluster-ips 10.96.0.7",
        ],
    );
}

#[test]
fn without_endpoints_connections_are_refused() {
    let ports = json::json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    check(
        spec(json::json!({"ports": ports})),
        &[],
        &[
            "refused-ips 10.96.0.7 . tcp . 80 -> goto refuse",
            "refused-nodeports tcp . 30080 -> goto refuse",
            "cluster-ips 10.96.0.7",
        ],
    );
    check(
        spec(json::json!({"internalTrafficPolicy": "Local"})),
        &[ready("10.244.1.3", "n2")],
        &["refused-ips 10.96.0.7 . tcp . 80 -> goto discard", "cluster-ips 10.96.0.7"],
    );
}

#[test]
fn an_internal_policy_keeps_to_this_node() {
    check(
        spec(json::json!({"internalTrafficPolicy": "Local"})),
        &[ready("10.244.0.2", "n1"), ready("10.244.1.3", "n2")],
        &[
            "service-ips 10.96.0.7 . tcp . 80 -> goto pick-1",
            "endpoints 10.96.0.7 . tcp . 80 . 0 -> 10.244.0.2 . 8080",
            "cluster-ips 10.96.0.7",
            "hairpins 10.244.0.2 . 10.244.0.2",
        ],
    );
}

#[test]
fn load_balancers_deliver_or_proxy_and_have_a_firewall() {
    let ingress = json::json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}, {"ip": "5.6.7.9", "ipMode": "Proxy"}]}});
    let expected = |rule: &str| {
        vec![
            format!("chain firewall-*-default/web/tcp/http: {rule}"),
            "service-ips 10.96.0.7 . tcp . 80 -> goto pick-1".to_owned(),
            "service-ips 5.6.7.8 . tcp . 80 -> goto external-pick-1".to_owned(),
            "firewall 5.6.7.8 . tcp . 80 -> goto firewall-*-default/web/tcp/http".to_owned(),
            "endpoints 10.96.0.7 . tcp . 80 . 0 -> 10.244.1.3 . 8080".to_owned(),
            "endpoints 5.6.7.8 . tcp . 80 . 0 -> 10.244.1.3 . 8080".to_owned(),
            "cluster-ips 10.96.0.7".to_owned(),
        ]
    };
    for (ranges, rule) in [
        (json::json!(["8.8.0.0/16", " 9.9.9.9/32 "]), "ip saddr != { 8.8.0.0/16, 9.9.9.9/32 } drop"),
        (json::json!(["192.168.0.0/24"]), "ip saddr != { 192.168.0.0/24, 5.6.7.8 } drop"),
        (json::json!(["fd00::/8"]), "drop"),
    ] {
        let spec = spec(json::json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}));
        let expected = expected(rule);
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_with_status(spec, ingress.clone(), &[ready("10.244.1.3", "n2")], &expected);
    }
}

#[test]
fn affinity_remembers_clients_per_endpoint() {
    let config =
        json::json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}});
    let rules = render_all(spec(config), json::json!({}), &[ready("10.244.0.2", "n1"), ready("10.244.1.3", "n2")]);
    let shown = show(&rules).join("\n");
    assert_eq!(shown.matches("timeout 5s").count(), 2, "{shown}");
    assert!(shown.contains("numgen random mod 2 vmap { 0 : goto endpoint-"), "{shown}");
    assert!(shown.contains("update @clients-") && !shown.contains("endpoints 10.96.0.7"), "{shown}");
}

#[test]
fn some_services_are_not_ours() {
    assert_eq!(render_all(spec(json::json!({"type": "ExternalName"})), json::json!({}), &[]), ServiceRules::default());
    let headless = json::json!({"clusterIP": "None", "clusterIPs": ["None"]});
    assert_eq!(render_all(spec(headless), json::json!({}), &[ready("10.1.1.1", "n1")]), ServiceRules::default());
    let service = json::json!({
        "metadata": {"namespace": "d", "name": "n", "labels": {"service.kubernetes.io/service-proxy-name": "other"}},
        "spec": spec(json::json!({})),
    });
    let rules = super::render(&json::from_value(service).unwrap(), &[], &Node::default());
    assert_eq!(rules, ServiceRules::default());
}

#[test]
fn load_balancers_hear_how_many_endpoints_are_here() {
    let local = json::json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 31000});
    let ending = json::json!({"addresses": ["10.244.0.5"], "nodeName": "n1",
        "conditions": {"ready": false, "serving": true, "terminating": true}});
    let endpoints = [ready("10.244.0.2", "n1"), ready("10.244.1.3", "n2"), ending];
    let rules = render_all(spec(local), json::json!({}), &endpoints);
    assert_eq!(rules.health, Some(HealthCheck { port: 31000, local_endpoints: 1 }));
    assert_eq!(render_all(spec(json::json!({"healthCheckNodePort": 31000})), json::json!({}), &[]).health, None);
}

#[test]
fn udp_flows_are_named_with_the_targets_they_may_have() {
    let ports = json::json!([{"name": "http", "port": 53, "nodePort": 30053, "protocol": "UDP"}]);
    let rules = render_all(spec(json::json!({"ports": ports})), json::json!({}), &[ready("10.244.0.2", "n1")]);
    let doors: Vec<_> = rules.flows.keys().copied().collect();
    assert_eq!(doors, [Door::Address("10.96.0.7".parse().unwrap(), 53), Door::NodePort(30053)]);
    assert!(rules.flows.values().all(|targets| targets.len() == 1));
    assert!(render_all(spec(json::json!({})), json::json!({}), &[ready("10.1.1.1", "n")]).flows.is_empty());
}
