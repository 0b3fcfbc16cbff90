//! The rules in the real kernel, with real connections, in a network namespace that the test makes itself; each test in both
//! families of addresses.

mod machine;

use std::{process::Command, time::Duration};

use client::Key;
use json::{Value, json};
use nft::{Census, Family};
use proxy::{
    apply,
    health::HealthChecks,
    liveness::Liveness,
    script,
    service_rules::{self, HealthCheck, ServiceRules},
    table::Table,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

use machine::{Namespace, call, callers, endpoint, node, objects, text, wire};

fn render(family: Family, endpoints: &[&str], spec: Value, status: Value) -> ServiceRules {
    let (service, slices) = objects(family, endpoints, spec, status);
    service_rules::render(&service, &slices, &node(family))
}

/// The table as the kernel of this namespace has it.
struct Rules {
    family: Family,
    table: Table,
}

impl Rules {
    async fn fresh(family: Family) -> Self {
        apply::transaction(&script::fresh_table(&node(family))).await.expect("the fixed part");
        Rules { family, table: Table::new(family) }
    }

    /// The script that makes all of it.
    fn everything(&mut self) -> String {
        let fixed = script::fresh_table(&node(self.family));
        format!("{fixed}{}", self.table.everything().text())
    }

    fn census(&mut self) -> Census {
        Census::of_script(&self.everything())
    }

    async fn in_kernel(&self) -> Census {
        Census::of_kernel(script::table(self.family)).await.unwrap().expect("the table")
    }

    async fn set(&mut self, rules: ServiceRules) {
        self.table.set(&Key::new("default", "web"), rules);
        let text = self.table.changes().text();
        apply::transaction(&text).await.unwrap_or_else(|e| panic!("{e}\n{text}"));
        apply::conntrack::forget(self.family, &self.table.changed_flows()).await.expect("connection tracking");
    }
}

#[test]
fn the_kernel_takes_every_transition_between_rules() {
    for family in Family::ALL {
        transitions(family);
    }
}

fn transitions(family: Family) {
    let Some(namespace) = Namespace::make("states") else { return };
    namespace.run(async || {
        let render = |endpoints: &[&str], spec, status| render(family, endpoints, spec, status);
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
        let mut rules = Rules::fresh(family).await;
        for from in &states {
            for to in &states {
                rules.set(from.clone()).await;
                rules.set(to.clone()).await;
            }
            assert_eq!(rules.census(), rules.in_kernel().await, "what is counted is what is there");
        }
        let out = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        let left = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(!left.contains(&text(family, "10.96.0.7")) && !left.contains("default/web"), "nothing of the Service is left: {left}");
        assert!(left.contains("chain nat-output"), "{left}");
        // Another start takes the table over, whatever is in it.
        rules.set(states[2].clone()).await;
        let mut rules = Rules::fresh(family).await;
        rules.set(states[2].clone()).await;
    });
}

#[test]
fn packets_to_addresses_that_no_service_has_stay_here() {
    for family in Family::ALL {
        unallocated(family);
    }
}

fn unallocated(family: Family) {
    let Some(namespace) = Namespace::make("ranges") else { return };
    namespace.run(async || {
        let [a, own, service, nobody] =
            ["10.244.0.2", "192.168.7.1", "10.96.0.7", "10.96.0.9"].map(|four| text(family, four));
        wire(family, &[&a, &own]);
        endpoint(&a).await;
        let mut rules = Rules::fresh(family).await;
        rules.set(render(family, &[&a], json!({}), json!({}))).await;
        let (bare, ranges) = (node(family), ["10.96.0.4/30", "10.96.0.8/30"].map(|r| text(family, r).parse().unwrap()));
        let known = bare.knowing(&ranges);
        let sent = async || {
            let udp = UdpSocket::bind((own.as_str(), 0)).await.unwrap();
            udp.send_to(b"who", (nobody.as_str(), 99)).await.map_err(|error| error.kind())
        };
        assert_eq!(sent().await, Ok(3), "nobody knows which addresses are the cluster's");
        apply::transaction(&script::ranges(&bare, &known).text()).await.unwrap();
        assert_eq!(sent().await, Err(std::io::ErrorKind::PermissionDenied));
        assert_eq!(call((&service, 80)).await, a, "a Service in the range");
        let fixed = script::fresh_table(&known);
        let wanted = Census::of_script(&format!("{fixed}{}", rules.table.everything().text()));
        assert_eq!(rules.in_kernel().await, wanted, "what changed is what a rebuild makes");
        apply::transaction(&script::fresh_table(&known)).await.unwrap();
        assert_eq!(sent().await, Err(std::io::ErrorKind::PermissionDenied), "after a rebuild");
        apply::transaction(&script::ranges(&known, &bare).text()).await.unwrap();
        assert_eq!(sent().await, Ok(3));
    });
}

/// The answer to a plain HTTP request.
async fn get(address: (&str, u16)) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
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
    for family in Family::ALL {
        traffic(family);
    }
}

fn traffic(family: Family) {
    let Some(namespace) = Namespace::make("traffic") else { return };
    namespace.run(async || {
        let of = |four: &str| text(family, four);
        let [a, b, own] = ["10.244.0.2", "10.244.0.3", "192.168.7.1"].map(of);
        let (a, b) = (a.as_str(), b.as_str());
        wire(family, &[a, b, &own]);
        endpoint(a).await;
        endpoint(b).await;
        let [service, balancer_ip, other] = ["10.96.0.7", "5.6.7.8", "10.96.0.7"].map(of);
        let (service, node, balancer_ip) = ((service.as_str(), 80), (own.as_str(), 30080), (balancer_ip.as_str(), 80));
        let render = |endpoints: &[&str], spec, status| render(family, endpoints, spec, status);
        let mut rules = Rules::fresh(family).await;
        let plain = |endpoints: &[&str]| render(endpoints, json!({}), json!({}));

        rules.set(plain(&[])).await;
        assert_eq!(call(service).await, "refused", "no endpoint");
        assert_eq!(call(node).await, "refused", "no endpoint, by the node's port");

        rules.set(plain(&[a, b])).await;
        assert_eq!(callers(service, 40).await, [a, b]);
        assert_eq!(callers(node, 40).await, [a, b]);
        assert_eq!(call((&other, 81)).await, "refused", "a port that the Service does not have");

        rules.set(render(&[a, b], json!({"sessionAffinity": "ClientIP"}), json!({}))).await;
        assert_eq!(callers(service, 20).await.len(), 1, "a client stays with its endpoint");

        let udp = UdpSocket::bind((own.as_str(), 5353)).await.unwrap();
        udp.connect((other.as_str(), 53)).await.unwrap();
        rules.set(plain(&[a])).await;
        assert_eq!(ask(&udp).await, a);
        rules.set(plain(&[b])).await;
        assert_eq!(ask(&udp).await, b, "the flow to the endpoint that is gone is forgotten");

        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}});
        let from = |ranges: &str| render(&[a], json!({"loadBalancerSourceRanges": [ranges]}), balancer.clone());
        rules.set(from("8.8.8.0/24")).await;
        assert_eq!(call(balancer_ip).await, "silence", "the load balancer's firewall");
        assert_eq!(call(service).await, a, "which is not the Service's");
        rules.set(from("192.168.0.0/16")).await;
        assert_eq!(call(balancer_ip).await, a);

        let mut checks = HealthChecks::of(family == Family::V6, Liveness::default());
        let key = Key::new("default", "web");
        for (local_endpoints, expected) in [(2, "HTTP/1.1 200 OK"), (0, "HTTP/1.1 503 Service Unavailable")] {
            checks.set(&key, Some(HealthCheck { port: 31000, local_endpoints }));
            let answer = loop {
                // The listener needs a moment; it must not need two.
                match get((&own, 31000)).await {
                    Ok(answer) => break answer,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            assert!(answer.starts_with(expected), "{answer}");
            assert!(answer.contains(&format!("\"localEndpoints\":{local_endpoints}")), "{answer}");
        }
        checks.set(&key, None);
        tokio::task::yield_now().await;
        assert!(get((&own, 31000)).await.is_err(), "a Service without a check is not listened for");

        let local = json!({"externalTrafficPolicy": "Local"});
        rules.set(render(&[b], local.clone(), json!({}))).await;
        assert_eq!(call(node).await, b);
        rules.set(render(&[], local, json!({}))).await;
        assert_eq!(call(node).await, "refused");
    });
}
