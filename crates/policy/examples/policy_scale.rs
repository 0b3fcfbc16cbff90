//! The cost of one change among many policies and Pods: plans them all, writes them to the kernel, then changes one label
//! of one Pod, one policy, and one of administrators, again and again. Run it in a network namespace of its own:
//! `ip netns exec NAME policy_scale [POLICIES] [PODS] [POLICIES OF ADMINISTRATORS]`.

use std::{net::Ipv4Addr, time::Instant};

use client::Key;
use json::json;
use policy::{
    admin,
    kind::{PolicyKind, PolicyName},
    pod::Facts,
    rule::Policy,
    tables::Tables,
    text,
    world::World,
};

/// Pods of one namespace belong together, and each policy is about some of them.
const NAMESPACES: usize = 10;

fn pod(number: usize, group: usize) -> Facts {
    Facts {
        namespace: format!("n{}", number % NAMESPACES),
        labels: [("app".to_owned(), format!("a{group}"))].into(),
        addresses: vec![Ipv4Addr::from(0x0af4_0000 + number as u32 + 2).into()],
        ports: Vec::new(),
        is_local: true,
    }
}

fn policy(number: usize, port: u16) -> (PolicyName, Policy) {
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
fn of_administrators(number: usize, port: u16) -> (PolicyName, Policy) {
    let app =
        |group: usize| json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": format!("a{group}")}}});
    let rule = |at: usize| {
        let action = if at == 4 { "Pass" } else { "Deny" };
        json!({"action": action, "to": [{"pods": app(60 + at)}, {"networks": ["192.0.2.0/24"]}],
            "ports": [{"portNumber": {"port": port}}]})
    };
    let subject = if number.is_multiple_of(2) { json!({"namespaces": {}}) } else { json!({"pods": app(number % 50)}) };
    let rules: Vec<json::Value> = (0..5).map(rule).collect();
    let spec = json!({"priority": number, "subject": subject, "egress": rules});
    let name = PolicyName::new(PolicyKind::Admin, Key::new("", format!("p{number}")));
    (name, admin::read(PolicyKind::Admin, &spec))
}

fn number(at: usize, usual: usize) -> usize {
    std::env::args().nth(at).and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Makes a change in the world, then in the kernel, twenty times.
async fn measure(
    what: &str,
    world: &mut World,
    kernel: &mut Tables,
    mut change: impl FnMut(&mut World, usize),
) -> Result<(), nft::ApplyError> {
    let (mut planned, mut times) = (Vec::new(), Vec::new());
    for round in 0..20 {
        let begun = Instant::now();
        change(world, round);
        let plan = world.plan();
        let script = kernel.changes(&plan).text();
        planned.push(begun.elapsed());
        nft::transaction(&script).await?;
        times.push(begun.elapsed());
        *kernel = plan;
    }
    planned.sort_unstable();
    times.sort_unstable();
    println!("{what}: median {:?}, slowest {:?}; planning alone {:?}", times[10], times[19], planned[10]);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), nft::ApplyError> {
    let (policies, pods, administrators) = (number(1, 1000), number(2, 1000), number(3, 20));
    let mut world = World::default();
    let begun = Instant::now();
    for namespace in 0..NAMESPACES {
        world.set_namespace(&format!("n{namespace}"), Some(&Default::default()));
    }
    for number in 0..pods {
        world.set_pod(&number.to_string(), Some(pod(number, number / NAMESPACES % 50)));
    }
    for number in 0..policies {
        let (key, policy) = policy(number, 80);
        world.set_policy(&key, Some(policy));
    }
    for number in 0..administrators {
        let (name, policy) = of_administrators(number, 80);
        world.set_policy(&name, Some(policy));
    }
    let mut kernel = world.plan();
    let script = format!("{}{}", text::fresh_table("skf"), Tables::default().changes(&kernel).text());
    println!(
        "plan {policies} and {administrators} policies and {pods} Pods of this node: {:?}, {} bytes",
        begun.elapsed(),
        script.len()
    );
    let begun = Instant::now();
    nft::transaction(&script).await?;
    println!("write all of them: {:?}", begun.elapsed());
    measure("one label of one Pod changes", &mut world, &mut kernel, |world, round| {
        world.set_pod("7", Some(pod(7, (round + 1) % 2)));
    })
    .await?;
    measure("one policy changes", &mut world, &mut kernel, |world, round| {
        let (key, policy) = policy(7, 81 + round as u16);
        world.set_policy(&key, Some(policy));
    })
    .await?;
    measure("one policy of administrators changes", &mut world, &mut kernel, |world, round| {
        let (name, policy) = of_administrators(0, 81 + round as u16);
        world.set_policy(&name, Some(policy));
    })
    .await
}
