//! Address ranges of Services.

use api::rules::service_range;
use client::{Api, Kind, rest::DeleteOptions};
use json::json;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};

use crate::common::object;
use crate::world::{Story, World, below, chance, converges};

/// Ranges that come and go, some of which lie in others, and addresses that Services get from those that stay.
struct Ranges;

const RANGES: [&str; 5] = ["10.0.0.0/29", "10.0.0.0/28", "10.0.0.8/29", "10.0.0.0/29", "10.0.1.0/29"];

async fn all<K: Kind>(world: &World) -> Vec<K> {
    Api::all(world.client.clone()).list(&[]).await.unwrap()
}

async fn create<K: Kind>(world: &World, value: json::Value) {
    // It may be there already.
    let _ = Api::<K>::all(world.client.clone()).create(&object(value)).await;
}

async fn delete<K: Kind>(world: &World, name: &str) {
    // It may be gone.
    let _ = Api::<K>::all(world.client.clone()).delete(name, DeleteOptions::default()).await;
}

fn is_leaving(cidr: &ServiceCIDR) -> bool {
    cidr.metadata.deletion_timestamp.is_some()
}

fn holds(cidr: &ServiceCIDR, address: &IPAddress) -> bool {
    let texts = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()).map(String::as_str);
    let address = address.metadata.name.as_deref().unwrap_or("").parse().unwrap();
    service_range::ranges(texts).iter().any(|range| service_range::holds(range, &address))
}

fn is_protected(cidr: &ServiceCIDR) -> bool {
    cidr.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
}

fn condition(cidr: &ServiceCIDR) -> Option<(&str, &str)> {
    let conditions = cidr.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == "Ready").map(|c| (c.status.as_str(), c.reason.as_str()))
}

impl Story for Ranges {
    const CONTROLLERS: &'static [&'static str] = &["service-cidr-controller"];

    async fn begin(_: &World) -> Self {
        Ranges
    }

    async fn change(&mut self, world: &World) {
        let range = below(RANGES.len() as u64) as usize;
        match below(4) {
            0 => {
                let name = format!("r{range}");
                create::<ServiceCIDR>(world, json!({"metadata": {"name": name}, "spec": {"cidrs": [RANGES[range]]}}))
                    .await;
            }
            1 => delete::<ServiceCIDR>(world, &format!("r{range}")).await,
            2 => {
                let address: IPAddress = object(json!({
                    "metadata": {"name": format!("10.0.{}.{}", below(2), 1 + below(14)), "labels":
                        {service_range::FAMILY: "IPv4", service_range::MANAGED_BY: service_range::ALLOCATOR}},
                    "spec": {"parentRef": {"resource": "services", "namespace": "d", "name": "s"}}}));
                let ranges = all::<ServiceCIDR>(world).await;
                // One that no controller has protected yet may go at once: upstream's servers give addresses of it all the
                // same, here only those are given whose range cannot go unseen.
                let gives = |cidr: &ServiceCIDR| !is_leaving(cidr) && is_protected(cidr) && holds(cidr, &address);
                if ranges.iter().any(gives) {
                    let _ = Api::<IPAddress>::all(world.client.clone()).create(&address).await;
                }
            }
            _ => {
                for address in all::<IPAddress>(world).await.iter().filter(|_| chance(50)) {
                    delete::<IPAddress>(world, address.metadata.name.as_deref().unwrap_or("")).await;
                }
            }
        }
    }

    async fn check(&self, world: &World) {
        // In this order: a range that is gone afterwards may have been let go with its last address.
        let addresses = all::<IPAddress>(world).await;
        let ranges = all::<ServiceCIDR>(world).await;
        for address in &addresses {
            let kept = ranges.iter().any(|cidr| holds(cidr, address));
            assert!(kept, "{:?} is in no range any more", address.metadata.name);
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let (ranges, addresses) = (all::<ServiceCIDR>(world).await, all::<IPAddress>(world).await);
        let wrong = |cidr: &&ServiceCIDR| {
            let stays = |other: &&ServiceCIDR| !is_leaving(other) && other.metadata.name != cidr.metadata.name;
            let orphan = |a: &&IPAddress| holds(cidr, a) && !ranges.iter().filter(stays).any(|other| holds(other, a));
            let needed = addresses.iter().any(|address| orphan(&address));
            let expected = match (is_leaving(cidr), needed) {
                (false, _) => Some(("True", "")),
                (true, true) => Some(("False", "Terminating")),
                (true, false) => return true,
            };
            condition(cidr) != expected || !is_protected(cidr)
        };
        ranges.iter().find(wrong).map(|cidr| format!("{:?}: {:?}", cidr.metadata, cidr.status))
    }
}

#[test]
fn ranges_stay_as_long_as_addresses_need_them() {
    converges::<Ranges>(0..40);
}
