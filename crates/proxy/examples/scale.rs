//! The cost of one change among many Services: renders them all, writes them to the kernel, then changes one endpoint
//! of one Service again and again. Run it in a network namespace of its own: `ip netns exec NAME scale [SERVICES]`.

use std::{sync::Arc, time::Instant};

use client::Key;
use json::json;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use proxy::{
    apply,
    node::Node,
    script,
    service_rules::{self, ServiceRules},
    table::Table,
};

fn render(number: usize, shift: usize) -> ServiceRules {
    let address = |base: usize, n: usize| format!("10.{}.{}.{}", base + n / 65536, n / 256 % 256, n % 256);
    let ip = address(96, number + 1);
    let service: Service = json::from_value(json!({
        "metadata": {"namespace": "default", "name": format!("service-{number}")},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": 80}]}
    }))
    .expect("a Service");
    let endpoints: Vec<_> = (0..2).map(|n| json!({"addresses": [address(200, number * 2 + n + shift)]})).collect();
    let slice: EndpointSlice = json::from_value(json!({
        "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080}]
    }))
    .expect("a slice");
    service_rules::render(&service, &[Arc::new(slice)], &Node::default())
}

#[tokio::main]
async fn main() -> Result<(), apply::ApplyError> {
    let services: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let key = |number: usize| Key::new("default", format!("service-{number}"));
    let mut table = Table::default();
    let begun = Instant::now();
    for number in 0..services {
        table.set(&key(number), render(number, 0));
    }
    let text = format!("{}{}", script::fresh_table(None), table.everything().text());
    println!("render {services} Services: {:?}, {} bytes", begun.elapsed(), text.len());
    let begun = Instant::now();
    apply::transaction(&text).await?;
    println!("write all of them: {:?}", begun.elapsed());
    let mut times = Vec::new();
    for round in 0..20 {
        let begun = Instant::now();
        table.set(&key(7), render(7, (round + 1) % 2));
        apply::transaction(&table.changes().text()).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("one endpoint of one Service changes: median {:?}, slowest {:?}", times[10], times[19]);
    Ok(())
}
