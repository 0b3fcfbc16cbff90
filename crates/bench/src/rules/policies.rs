//! Many policies about many Pods, all of this node: what it takes to plan and write them, and then a change of one label of one
//! Pod, of one policy, and of one policy of administrators.

use std::{net::Ipv4Addr, time::Instant};

use client::Key;
use json::{Value, json};
use policy::{
    admin,
    kind::{PolicyKind, PolicyName},
    pod::Facts,
    rule::Policy,
    tables::Tables,
    text,
    world::World,
};

use super::{ROUNDS, Times};
use crate::report::Report;

const POLICIES: usize = 1000;
const PODS: usize = 1000;
const OF_ADMINISTRATORS: usize = 20;
/// Pods of one namespace belong together, and each policy is about some of them.
const NAMESPACES: usize = 10;
/// The time in milliseconds within which one change is to be in the kernel.
const MOST: f64 = 50.0;

pub async fn measure(report: &mut Report) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut world = world();
    let mut kernel = world.plan();
    let script = format!("{}{}", text::fresh_table("skf"), Tables::default().changes(&kernel).text());
    let planned = begun.elapsed().as_secs_f64();
    nft::transaction(&script).await?;
    let what = format!("{POLICIES} policies about {PODS} Pods of a node, planned and written");
    let note = format!("planning {planned:.2} s, {:.1} MB of rules", script.len() as f64 / 1e6);
    report.add(&what, begun.elapsed().as_secs_f64(), "s", None, note);

    let mut row = async |what: &str, change: &dyn Fn(&mut World, usize)| {
        let (mut plans, mut times) = (Times::default(), Times::default());
        for round in 0..ROUNDS {
            let begun = Instant::now();
            change(&mut world, round);
            let plan = world.plan();
            let script = kernel.changes(&plan).text();
            plans.push(begun.elapsed());
            nft::transaction(&script).await?;
            times.push(begun.elapsed());
            kernel = plan;
        }
        let note = format!("; planning {:.1} ms", plans.median());
        times.report(&format!("the same: {what}, until it is in the kernel"), Some(MOST), &note, report);
        anyhow::Ok(())
    };
    row("a label of one Pod changes", &|world, round| {
        world.set_pod("7", Some(pod(7, (round + 1) % 2)));
    })
    .await?;
    row("one policy changes", &|world, round| {
        let (name, policy) = policy(7, 81 + round);
        world.set_policy(&name, Some(policy));
    })
    .await?;
    row("one of administrators changes", &|world, round| {
        let (name, policy) = of_administrators(0, 81 + round);
        world.set_policy(&name, Some(policy));
    })
    .await
}

fn world() -> World {
    let mut world = World::default();
    for namespace in 0..NAMESPACES {
        world.set_namespace(&format!("n{namespace}"), Some(&Default::default()));
    }
    for number in 0..PODS {
        world.set_pod(&number.to_string(), Some(pod(number, number / NAMESPACES % 50)));
    }
    for number in 0..POLICIES {
        let (name, policy) = policy(number, 80);
        world.set_policy(&name, Some(policy));
    }
    for number in 0..OF_ADMINISTRATORS {
        let (name, policy) = of_administrators(number, 80);
        world.set_policy(&name, Some(policy));
    }
    world
}

fn pod(number: usize, group: usize) -> Facts {
    Facts {
        namespace: format!("n{}", number % NAMESPACES),
        labels: [("app".to_owned(), format!("a{group}"))].into(),
        addresses: vec![Ipv4Addr::from(0x0af4_0000 + number as u32 + 2).into()],
        ports: Vec::new(),
        is_local: true,
    }
}

fn policy(number: usize, port: usize) -> (PolicyName, Policy) {
    let (namespace, name) = (format!("n{}", number % NAMESPACES), format!("p{number}"));
    let app = |group: usize| json!({"matchLabels": {"app": format!("a{group}")}});
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {
        "podSelector": app(number % 50), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": app((number + 1) % 50)}, {"namespaceSelector": {}, "podSelector": app((number + 7) % 50)},
            {"ipBlock": {"cidr": "192.168.0.0/16", "except": ["192.168.7.0/24"]}}], "ports": [{"port": port}, {"port": 8000, "endPort": 9000}]}],
        "egress": [{"to": [{"podSelector": {}}]}, {"ports": [{"port": 53, "protocol": "UDP"}]}]}});
    let name = PolicyName::new(PolicyKind::Network, Key::new(namespace, name));
    (name, Policy::of(&json::from_value(object).expect("a policy")))
}

/// Every fifth rule passes connections on; every second policy is about all namespaces.
fn of_administrators(number: usize, port: usize) -> (PolicyName, Policy) {
    let app =
        |group: usize| json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": format!("a{group}")}}});
    let rule = |at: usize| {
        let action = if at == 4 { "Pass" } else { "Deny" };
        json!({"action": action, "to": [{"pods": app(60 + at)}, {"networks": ["192.0.2.0/24"]}],
            "ports": [{"portNumber": {"port": port}}]})
    };
    let subject = if number.is_multiple_of(2) { json!({"namespaces": {}}) } else { json!({"pods": app(number % 50)}) };
    let rules: Vec<Value> = (0..5).map(rule).collect();
    let spec = json!({"priority": number, "subject": subject, "egress": rules});
    let name = PolicyName::new(PolicyKind::Admin, Key::new("", format!("p{number}")));
    (name, admin::read(PolicyKind::Admin, &spec))
}
