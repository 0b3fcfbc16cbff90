//! Endpoints: the older form of a Service's addresses, one object of the Service's name, kept for those who read it.
//! Reads: Service, Pod, Endpoints. Writes: Endpoints (create, update, delete).
//! Upstream counterpart: pkg/controller/endpoint.

use std::{collections::BTreeMap, sync::Arc};

use api::rules::pod;
use client::Key;
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::endpoints::endpoint::{self, HEADLESS_LABEL, TRIGGER_TIME};

pub struct LegacyEndpoints;

/// Says that there were more addresses than fit.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const CAPACITY: usize = 1000;
const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

pub struct Observed {
    pods: Vec<Arc<Pod>>,
    held: Option<Arc<Endpoints>>,
}

impl Controller for LegacyEndpoints {
    const NAME: &'static str = "endpoints-controller";
    type Object = Service;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Service>) {
        watches.changed::<Pod>(endpoint::services_of_change).changed::<Endpoints>(|change, _| vec![change.key.clone()]);
    }

    fn observe(&self, service: &Service, listers: &Listers) -> Observed {
        let held = listers.caches.of::<Endpoints>().get(&Key::of(service));
        Observed { pods: endpoint::pods_of(service, listers.caches), held }
    }

    fn plan(&self, service: &Service, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if !endpoint::has_selector(service) {
            return plan;
        }
        let (subsets, truncated) = subsets(service, &observed.pods);
        let mut labels = service.metadata.labels.clone().unwrap_or_default();
        labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
        labels.remove(HEADLESS_LABEL);
        if endpoint::is_headless(service) {
            labels.insert(HEADLESS_LABEL.to_owned(), String::new());
        }
        let held = observed.held.as_deref();
        let was_truncated = held.is_some_and(|e| {
            e.metadata.annotations.as_ref().and_then(|a| a.get(OVER_CAPACITY)).is_some_and(|v| v == "truncated")
        });
        let same = |e: &Endpoints| {
            e.subsets.as_deref().unwrap_or_default() == subsets.as_slice()
                && e.metadata.labels.as_ref() == Some(&labels)
        };
        if held.is_some_and(|e| same(e) && was_truncated == truncated) {
            return plan;
        }
        let mut new = held.cloned().unwrap_or_else(|| Endpoints {
            metadata: ObjectMeta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                ..Default::default()
            },
            subsets: None,
        });
        new.subsets = (!subsets.is_empty()).then_some(subsets);
        new.metadata.labels = Some(labels);
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.remove(OVER_CAPACITY);
        if truncated {
            annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
        }
        if let Some(trigger) = endpoint::trigger_time(service, &observed.pods) {
            annotations.insert(TRIGGER_TIME.to_owned(), trigger);
        }
        plan.step(if held.is_some() { Write::update(&new) } else { Write::create(&new) });
        plan
    }

    fn plan_gone(&self, key: &Key, listers: &Listers, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let held = listers.caches.of::<Endpoints>().get(key);
        // Only what this controller made: others' Endpoints may be about no Service at all.
        let ours = |e: &Endpoints| e.metadata.labels.as_ref().is_some_and(|l| l.contains_key(MANAGED_BY.0));
        if let Some(held) = held.filter(|e| ours(e) && e.metadata.deletion_timestamp.is_none()) {
            plan.step(Write::delete(&*held));
        }
        plan
    }
}

/// The addresses by their ports, sorted; whether some had to be left out.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let ipv6 = service.spec.as_ref().and_then(|s| s.ip_families.as_ref()?.first()).is_some_and(|f| f == "IPv6");
    let has_ports = service.spec.as_ref().and_then(|s| s.ports.as_ref()).is_some_and(|p| !p.is_empty());
    let publish = endpoint::publishes_not_ready(service);
    let mut by_ports: BTreeMap<Vec<(String, i32, String)>, EndpointSubset> = BTreeMap::new();
    for pod in pods {
        let Some(ip) = endpoint::addresses(pod).into_iter().find(|a| a.contains(':') == ipv6) else { continue };
        let ports = ports(service, pod);
        // Only a headless Service has no ports; a Pod that has none of the named ones is no endpoint.
        if (pod.metadata.deletion_timestamp.is_some() && !publish) || (has_ports && ports.is_empty()) {
            continue;
        }
        let id = ports
            .iter()
            .map(|p| (p.name.clone().unwrap_or_default(), p.port, p.protocol.clone().unwrap_or_default()))
            .collect();
        let subset = by_ports
            .entry(id)
            .or_insert_with(|| EndpointSubset { ports: (!ports.is_empty()).then_some(ports), ..Default::default() });
        let list = if publish || pod::is_ready(pod) { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(address(service, pod, ip));
    }
    let mut subsets: Vec<EndpointSubset> = by_ports.into_values().collect();
    for subset in &mut subsets {
        for list in [&mut subset.addresses, &mut subset.not_ready_addresses].into_iter().flatten() {
            list.sort_by(|a, b| a.ip.cmp(&b.ip));
        }
    }
    let truncated = truncate(&mut subsets);
    (subsets, truncated)
}

/// Leaves out what does not fit: not ready addresses first, from each subset in proportion. Whether anything was.
fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let len = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let ready: usize = subsets.iter().map(|s| len(&s.addresses)).sum();
    let not_ready: usize = subsets.iter().map(|s| len(&s.not_ready_addresses)).sum();
    if ready + not_ready <= CAPACITY {
        return false;
    }
    let only_ready = ready > CAPACITY;
    let (room, total) = if only_ready { (CAPACITY, ready) } else { (CAPACITY - ready, not_ready) };
    let mut left = room;
    for subset in subsets {
        if only_ready {
            subset.not_ready_addresses = None;
        }
        let list = if only_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        let share = (len(list) * room).div_ceil(total).min(left);
        left -= share;
        list.iter_mut().for_each(|list| list.truncate(share));
        list.take_if(|list| list.is_empty());
    }
    true
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let mapped = ports.iter().filter_map(|port| {
        Some(EndpointPort {
            name: port.name.clone().filter(|n| !n.is_empty()),
            port: endpoint::target_port(pod, port)?,
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
    });
    mapped.collect()
}

fn address(service: &Service, pod: &Pod, ip: &str) -> EndpointAddress {
    EndpointAddress {
        ip: ip.to_owned(),
        hostname: endpoint::hostname(service, pod),
        node_name: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
        target_ref: Some(endpoint::reference(pod)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn ready_and_unready_addresses_are_apart() {
        let service: Service = json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http", "name": "web"}]},
        }))
        .unwrap();
        let pod = |name: &str, ip: &str, ready: &str, deleting: bool| -> Arc<Pod> {
            Arc::new(
                json::from_value(json!({
                    "metadata": {"name": name, "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z")},
                    "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
                    "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
                }))
                .unwrap(),
            )
        };
        let pods = vec![
            pod("b", "10.0.0.2", "True", false),
            pod("a", "10.0.0.1", "True", false),
            pod("c", "10.0.0.3", "False", false),
            pod("d", "10.0.0.4", "True", true),
        ];
        let observed = Observed { pods, held: None };
        let plan = LegacyEndpoints.plan(&service, &observed, Timestamp::UNIX_EPOCH);
        assert_eq!(plan.to_string(), "create endpoints web");
        let body = plan.writes().next().unwrap().body().clone();
        let subset = &body["subsets"][0];
        assert_eq!(subset["ports"], json!([{"name": "web", "port": 8080, "protocol": "TCP"}]));
        let ips = |list: &str| -> Vec<String> {
            subset[list].as_array().unwrap().iter().map(|a| a["ip"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            (ips("addresses"), ips("notReadyAddresses")),
            (vec!["10.0.0.1".into(), "10.0.0.2".into()], vec!["10.0.0.3".into()])
        );
        let held = Some(Arc::new(json::from_value(body).unwrap()));
        assert!(LegacyEndpoints.plan(&service, &Observed { held, ..observed }, Timestamp::UNIX_EPOCH).is_empty());
    }

    #[test]
    fn what_does_not_fit_is_left_out_in_proportion() {
        let list = |n: usize| (n > 0).then(|| vec![EndpointAddress::default(); n]);
        let check = |held: &[(usize, usize)], expected: &[(usize, usize)]| {
            let subset = |(ready, not_ready): &(usize, usize)| EndpointSubset {
                addresses: list(*ready),
                not_ready_addresses: list(*not_ready),
                ports: None,
            };
            let mut subsets: Vec<_> = held.iter().map(subset).collect();
            assert_eq!(truncate(&mut subsets), held != expected);
            assert_eq!(subsets, expected.iter().map(subset).collect::<Vec<_>>());
        };
        check(&[(600, 400)], &[(600, 400)]);
        check(&[(600, 600)], &[(600, 400)]);
        check(&[(300, 200), (300, 400)], &[(300, 134), (300, 266)]);
        check(&[(1200, 5), (300, 5)], &[(800, 0), (200, 0)]);
        check(&[(1000, 1)], &[(1000, 0)]);
    }

    #[test]
    fn a_pod_without_the_named_port_is_no_endpoint() {
        let check = |spec: json::Value, expected: usize| {
            let service = json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
            let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"podIP": "10.0.0.1"}});
            let (subsets, _) = subsets(&service, &[Arc::new(json::from_value(pod).unwrap())]);
            assert_eq!(subsets.len(), expected);
        };
        check(json!({"ports": [{"port": 80, "targetPort": "http"}]}), 0);
        check(json!({"ports": [{"port": 80, "targetPort": 80}]}), 1);
        check(json!({"clusterIP": "None"}), 1);
    }
}
