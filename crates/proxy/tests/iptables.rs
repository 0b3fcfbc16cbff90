//! The mode iptables in the real kernel, with real connections, in a network namespace of the test's own; in both families.

mod machine;

use std::{collections::BTreeSet, process::Command, sync::Arc};

use client::Key;
use json::{Value, json};
use nft::Family;
use proxy::{
    iptables::{Settings, rules, run, text as lines},
    ports::ServiceRules,
    table::Table,
};

use machine::{Namespace, call, callers, endpoint, node, objects, text, wire};

const ALL: Settings = Settings { localhost_node_ports: true, tcp_be_liberal: false };

fn render(family: Family, endpoints: &[&str], spec: Value, status: Value) -> ServiceRules {
    let (service, slices) = objects(family, endpoints, spec, status);
    rules::render(&service, &slices, &node(family))
}

/// The rules as the kernel of this namespace has them.
struct Rules {
    family: Family,
    table: Table,
}

impl Rules {
    async fn fresh(family: Family) -> Self {
        let mut rules = Rules { family, table: Table::new(family) };
        rules.rebuild().await;
        rules
    }

    async fn everything(&mut self) -> String {
        let saved = run::saved(self.family).await.expect("what is there");
        let all = self.table.all();
        lines::everything(&saved, &all, &self.table, &node(self.family), ALL)
    }

    async fn rebuild(&mut self) {
        let text = self.everything().await;
        run::restore(self.family, &text).await.unwrap_or_else(|e| panic!("{e}\n{text}"));
    }

    async fn set(&mut self, rules: ServiceRules) {
        self.change(&Key::new("default", "web"), rules).await;
    }

    async fn change(&mut self, key: &Key, rules: ServiceRules) {
        self.table.set(key, rules);
        let changes = self.table.changed();
        let text = lines::partial(&changes, &self.table, &node(self.family), ALL);
        run::restore(self.family, &text).await.unwrap_or_else(|e| panic!("{e}\n{text}"));
    }

    /// The lines of the kernel, without counters and comments of the program.
    async fn in_kernel(&self) -> Vec<String> {
        let saved = run::saved(self.family).await.expect("what is there");
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        let without_counts = |line: &str| line.split(" [").next().unwrap_or_default().to_owned();
        let mut lines: Vec<String> = lines.map(without_counts).collect();
        lines.sort();
        lines
    }
}

/// Says aloud what is missing.
async fn is_possible(family: Family) -> bool {
    if let Err(error) = run::available(family).await {
        eprintln!("SKIPPED: the mode iptables needs its programs: {error}");
        return false;
    }
    let needed = "*filter\n:SKIFF-TEST - [0:0]\n-A SKIFF-TEST -m recent --name x --rcheck -j RETURN\n\
        -A SKIFF-TEST -m addrtype --src-type LOCAL -m statistic --mode random --probability 0.5 -j REJECT\n-F SKIFF-TEST\n-X SKIFF-TEST\nCOMMIT\n";
    match run::restore(family, needed).await {
        Ok(()) => true,
        Err(error) => {
            eprintln!("SKIPPED: this kernel lacks what the mode iptables needs: {error}");
            false
        }
    }
}

#[test]
fn changes_lead_to_what_everything_says_and_nothing_is_left() {
    for family in Family::ALL {
        transitions(family);
    }
}

fn transitions(family: Family) {
    let Some(namespace) = Namespace::make("ipt-states") else { return };
    namespace.run(async || {
        if !is_possible(family).await {
            return;
        }
        let render = |endpoints: &[&str], spec, status| render(family, endpoints, spec, status);
        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}});
        let ranges = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 31000, "loadBalancerSourceRanges": ["8.8.8.0/24"]});
        let (two, one) = (["10.244.0.2", "10.244.0.3"], ["10.244.0.3"]);
        let states = [
            render(&[], json!({}), json!({})),
            render(&two, json!({}), json!({})),
            render(&two, json!({"sessionAffinity": "ClientIP"}), json!({})),
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
                let stepwise = rules.in_kernel().await;
                rules.rebuild().await;
                assert_eq!(stepwise, rules.in_kernel().await, "differences lead where everything leads");
            }
        }
        assert!(!rules.in_kernel().await.join("\n").contains("default/web"), "nothing of the Service is left");
        assert!(!run::emptied(family).await.unwrap());
        rules.set(states[1].clone()).await;
        // Another start takes the rules over, whatever is in them.
        let again = Rules::fresh(family).await;
        assert!(!again.in_kernel().await.join("\n").contains("KUBE-SVC-"), "chains of a Service that is gone");
        let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let flushed = ["-F", "-X"].map(|what| Command::new(program).args(["-t", "nat", what]).status().unwrap().success());
        assert_eq!(flushed, [true, true]);
        assert!(run::emptied(family).await.unwrap(), "somebody emptied a table");
        rules.rebuild().await;
        assert!(!run::emptied(family).await.unwrap());
        run::remove().await.unwrap();
        let left = again.in_kernel().await.join("\n");
        assert!(!left.contains("KUBE-"), "{left}");
        run::remove().await.expect("nothing to remove is fine");
    });
}

#[test]
fn many_services_lead_to_the_same_in_steps_and_at_once() {
    let Some(namespace) = Namespace::make("ipt-many") else { return };
    namespace.run(async || {
        if !is_possible(Family::V4).await {
            return;
        }
        let render = |number: usize, last: usize| {
            let ip = format!("10.97.{}.{}", number / 250, number % 250);
            let service = json!({"metadata": {"namespace": "default", "name": format!("s{number}")},
                "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}});
            let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [{"port": 8080}],
                "endpoints": [{"addresses": ["10.244.0.2"]}, {"addresses": [format!("10.244.1.{last}")]}]});
            let slices = [Arc::new(json::from_value(slice).unwrap())];
            rules::render(&json::from_value(service).unwrap(), &slices, &node(Family::V4))
        };
        let key = |number: usize| Key::new("default", format!("s{number}"));
        let mut rules = Rules::fresh(Family::V4).await;
        for number in 0..1000 {
            rules.table.set(&key(number), render(number, 3));
        }
        rules.rebuild().await;
        let all = rules.in_kernel().await;
        let chains = |beginning: &str| all.iter().filter(|line| line.starts_with(beginning)).count();
        assert_eq!((chains(":KUBE-SVC-"), chains(":KUBE-SEP-"), chains("-A KUBE-SERVICES ")), (1000, 2000, 1001));
        assert!(!run::emptied(Family::V4).await.unwrap());
        rules.rebuild().await;
        assert_eq!(rules.in_kernel().await, all, "written over what is there");
        rules.change(&key(7), render(7, 4)).await;
        rules.change(&key(8), ServiceRules::default()).await;
        let stepwise = rules.in_kernel().await;
        assert_ne!(stepwise, all);
        rules.rebuild().await;
        assert_eq!(rules.in_kernel().await, stepwise);

        // The last transaction fails, the one before it does not: what leads to Services stays, and so do the chains that it leads to.
        for number in 20..60 {
            rules.table.set(&key(number), render(number, 5));
            rules.table.set(&key(number + 100), ServiceRules::default());
        }
        let mut broken = rules.everything().await;
        broken.insert_str(broken.rfind("COMMIT").unwrap(), "-A NOBODY-MADE-IT -j ACCEPT\n");
        assert!(run::restore(Family::V4, &broken).await.is_err());
        let half = rules.in_kernel().await;
        assert_ne!(half, stepwise, "the first transaction is in the kernel");
        let leading = |all: &[String]| -> Vec<String> {
            all.iter().filter(|line| line.starts_with("-A KUBE-SERVICES ")).cloned().collect()
        };
        assert_eq!(leading(&half), leading(&stepwise));
        let filled: BTreeSet<&str> =
            half.iter().filter_map(|line| line.strip_prefix("-A ")?.split(' ').next()).collect();
        let targets = half.iter().filter_map(|line| line.rsplit_once(" -j ")).map(|(_, target)| target);
        for target in targets.filter(|target| target.starts_with("KUBE-S")) {
            assert!(filled.contains(target), "{target}");
        }
        rules.rebuild().await;
        let whole = rules.in_kernel().await;
        let moved = whole.iter().filter(|line| line.ends_with("10.244.1.5:8080")).count();
        assert_eq!((moved, leading(&whole).len()), (40, leading(&half).len() - 40));

        // A change that finds its tables emptied fails, and everything brings all of it.
        for what in ["-F", "-X"] {
            assert!(Command::new("iptables").args(["-t", "nat", what]).status().unwrap().success());
        }
        rules.table.set(&key(7), render(7, 5));
        let changes = rules.table.changed();
        let text = lines::partial(&changes, &rules.table, &node(Family::V4), ALL);
        assert!(run::restore(Family::V4, &text).await.is_err());
        rules.rebuild().await;
        assert_eq!(rules.in_kernel().await.len(), whole.len());

        let nobody = Rules::fresh(Family::V4).await;
        assert!(!nobody.in_kernel().await.join("\n").contains("default/s"), "chains of Services that are gone");
    });
}

#[test]
fn connections_go_where_the_rules_say() {
    for family in Family::ALL {
        // With many endpoints there is less in each line.
        for others in [0, 2000] {
            traffic(family, others);
        }
    }
}

fn traffic(family: Family, others: usize) {
    let Some(namespace) = Namespace::make("ipt-traffic") else { return };
    namespace.run(async || {
        if !is_possible(family).await {
            return;
        }
        let [a, b, own] = ["10.244.0.2", "10.244.0.3", "192.168.7.1"].map(|four| text(family, four));
        let (a, b) = (a.as_str(), b.as_str());
        wire(family, &[a, b, &own]);
        endpoint(a).await;
        endpoint(b).await;
        let [service, balancer_ip] = ["10.96.0.7", "5.6.7.8"].map(|four| text(family, four));
        let (service, node, balancer_ip) = ((service.as_str(), 80), (own.as_str(), 30080), (balancer_ip.as_str(), 80));
        let render = |endpoints: &[&str], spec, status| render(family, endpoints, spec, status);
        let mut rules = Rules::fresh(family).await;
        let elsewhere = ServiceRules { endpoints: others, ..ServiceRules::default() };
        rules.table.set(&Key::new("default", "others"), elsewhere);

        rules.set(render(&[], json!({}), json!({}))).await;
        assert_eq!(call(service).await, "refused", "no endpoint");
        assert_eq!(call(node).await, "refused", "no endpoint, by the node's port");

        rules.set(render(&[a, b], json!({}), json!({}))).await;
        assert_eq!(callers(service, 40).await, [a, b]);
        assert_eq!(callers(node, 40).await, [a, b]);
        if family == Family::V4 {
            run::route_localnet().unwrap();
            assert_eq!(callers(("127.0.0.1", 30080), 40).await, [a, b], "node ports are at the loopback address too");
        }

        rules.set(render(&[a, b], json!({"sessionAffinity": "ClientIP"}), json!({}))).await;
        assert_eq!(callers(service, 20).await.len(), 1, "a client stays with its endpoint");

        let balancer = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}});
        let from = |ranges: &str| render(&[a], json!({"loadBalancerSourceRanges": [ranges]}), balancer.clone());
        rules.set(from("8.8.8.0/24")).await;
        assert_eq!(call(balancer_ip).await, "silence", "the load balancer's firewall");
        assert_eq!(call(service).await, a, "which is not the Service's");
        rules.set(from("192.168.0.0/16")).await;
        assert_eq!(call(balancer_ip).await, a);

        let local = json!({"externalTrafficPolicy": "Local"});
        rules.set(render(&[b], local.clone(), json!({}))).await;
        assert_eq!(call(node).await, b);
        rules.set(render(&[], local, json!({}))).await;
        assert_eq!(call(node).await, "refused");
    });
}
