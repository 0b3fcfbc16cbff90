//! EndpointSlice: the addresses behind each Service, in slices of at most 100.
//! Reads: Service, Pod, Node, EndpointSlice. Writes: EndpointSlice (create, update, delete).
//! Upstream counterpart: pkg/controller/endpointslice, staging/src/k8s.io/endpointslice.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use api::rules::pod;
use client::{
    Key,
    slices::{BY_SERVICE, SERVICE_NAME_LABEL, index_by_service, service_of},
};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, owner_reference};
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, Service},
        discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    endpoints::{
        endpoint::{self, HEADLESS_LABEL, TRIGGER_TIME},
        slice_packing::{Group, Parent},
        topology::{self, zone},
    },
    node::on_node,
};
use parking_lot::Mutex;

/// The name of the index of Services whose hints follow the CPU of the zones.
const AUTO: &str = "services with hints by zone";

#[derive(Default)]
pub struct EndpointSlices {
    /// The Services that wanted such hints when they were looked at last.
    auto: Mutex<HashSet<Key>>,
}

const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");

pub struct Observed {
    pods: Vec<Arc<Pod>>,
    /// The nodes of the Pods that exist, with the zone of each that has one.
    nodes: BTreeMap<String, Option<String>>,
    /// The slices that this controller manages for the Service.
    slices: Vec<Arc<EndpointSlice>>,
    /// The CPU of the zones, where the Service's hints follow it and enough is known.
    ratios: Option<topology::Ratios>,
    /// Its hints followed it when it was looked at last.
    was_auto: bool,
}

impl Controller for EndpointSlices {
    const NAME: &'static str = "endpointslice-controller";
    type Object = Service;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<Service>) {
        index_by_service(&watches.caches().of());
        watches
            .caches()
            .of::<Service>()
            .add_index(AUTO, |service| topology::is_auto(service).then(String::new).into_iter().collect());
        on_node::index(&watches.caches().of());
        watches
            .changed::<Node>(|change, caches| {
                let share = |node: &Option<Arc<Node>>| {
                    let share = node.as_deref().and_then(topology::share);
                    share.map(|(zone, cpu)| (zone.cloned(), cpu))
                };
                if share(&change.old) == share(&change.new) {
                    return Vec::new();
                }
                caches.of::<Service>().by_index(AUTO, "").iter().map(|service| Key::of(&**service)).collect()
            })
            .changed::<Node>(|change, caches| {
                let place = |node: &Option<Arc<Node>>| node.as_ref().map(|n| zone(n).cloned());
                if place(&change.old) == place(&change.new) {
                    return Vec::new();
                }
                let pods = on_node::pods(caches, &change.key.name);
                let keys = pods.iter().flat_map(|p| {
                    endpoint::services_of(p.metadata.namespace.as_deref().unwrap_or(""), &[&**p], caches)
                });
                keys.collect()
            })
            .changed::<Pod>(endpoint::services_of_change)
            .mapped::<EndpointSlice>(|slice, _| service_of(slice).filter(|_| is_ours(slice)).into_iter().collect());
    }

    fn observe(&self, service: &Service, listers: &Listers) -> Observed {
        let pods = endpoint::pods_of(service, listers.caches);
        let nodes = listers.caches.of::<Node>();
        let named = pods.iter().map(|p| on_node::node_of(p).to_owned());
        let places = named.filter_map(|name| Some((name.clone(), zone(&*nodes.get(&Key::new("", name))?).cloned())));
        let places = places.collect();
        let mut slices = listers.caches.of::<EndpointSlice>().by_index(BY_SERVICE, &Key::of(service).to_string());
        slices.retain(|s| is_ours(s) && s.metadata.deletion_timestamp.is_none());
        let (key, auto) = (Key::of(service), topology::is_auto(service));
        let ratios = if auto { topology::ratios(nodes.list().iter().map(|node| &**node)) } else { None };
        let mut known = self.auto.lock();
        let was_auto = if auto { !known.insert(key) } else { known.remove(&key) };
        Observed { pods, nodes: places, slices, ratios, was_auto }
    }

    fn plan(&self, service: &Service, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if !endpoint::has_selector(service) || service.metadata.deletion_timestamp.is_some() {
            // A Service that lost its selector keeps its slices, because its user manages them now.
            return plan;
        }
        let parent = Parent {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", service.metadata.name.as_deref().unwrap_or(""))),
                namespace: service.metadata.namespace.clone(),
                labels: Some(labels(service)),
                annotations: endpoint::trigger_time(service, &observed.pods)
                    .map(|at| [(TRIGGER_TIME.to_owned(), at)].into()),
                owner_references: Some(vec![owner_reference(service)]),
                ..Default::default()
            },
            annotations_decide: false,
            empty_slice: true,
        };
        let mut groups = wanted(service, observed);
        for family in families(service) {
            let note = if topology::is_auto(service) {
                topology::give_hints(family, &mut groups, &observed.slices, observed.ratios.as_ref())
            } else {
                topology::taken_away(family, &observed.slices).filter(|_| observed.was_auto)
            };
            note.into_iter().for_each(|note| {
                plan.tell(note);
            });
        }
        parent.arrange(groups, &observed.slices, &mut plan);
        plan
    }
}

fn is_ours(slice: &EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().and_then(|l| l.get(MANAGED_BY.0)).is_some_and(|by| by == MANAGED_BY.1)
}

/// The Service's labels, with the ones that say whose slice it is.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS_LABEL);
    if endpoint::is_headless(service) {
        labels.insert(HEADLESS_LABEL.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME_LABEL.to_owned(), service.metadata.name.clone().unwrap_or_default());
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    labels
}

/// The endpoints that should be, by group. Each family that the Service serves has at least one group, so that a
/// Service without Pods has an (empty) slice too.
fn wanted(service: &Service, observed: &Observed) -> Vec<(Group, Vec<Endpoint>)> {
    let mut groups: Vec<(Group, Vec<Endpoint>)> = Vec::new();
    for family in families(service) {
        let before = groups.len();
        for pod in &observed.pods {
            let v6 = family == "IPv6";
            let Some(address) = endpoint::addresses(pod).into_iter().find(|a| a.contains(':') == v6) else { continue };
            // Nothing answers on a node that is gone; its Pods will follow it.
            let node = on_node::node_of(pod);
            if !(node.is_empty() || observed.nodes.contains_key(node) || endpoint::publishes_not_ready(service)) {
                continue;
            }
            let group = (family, ports(service, pod));
            let endpoint = one(service, pod, address, observed);
            match groups.iter_mut().find(|(g, _)| *g == group) {
                Some((_, endpoints)) => endpoints.push(endpoint),
                None => groups.push((group, vec![endpoint])),
            }
        }
        if groups.len() == before {
            groups.push(((family, Vec::new()), Vec::new()));
        }
    }
    groups
}

fn families(service: &Service) -> Vec<&'static str> {
    let families = service.spec.as_ref().and_then(|s| s.ip_families.as_deref()).unwrap_or_default();
    if families.is_empty() {
        return vec!["IPv4"];
    }
    families.iter().map(|f| if f == "IPv6" { "IPv6" } else { "IPv4" }).collect()
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let mut list: Vec<EndpointPort> = ports
        .iter()
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(endpoint::target_port(pod, port)?),
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list
}

fn one(service: &Service, pod: &Pod, address: &str, observed: &Observed) -> Endpoint {
    let serving = pod::is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let node = Some(on_node::node_of(pod).to_owned()).filter(|n| !n.is_empty());
    let zone = node.as_ref().and_then(|n| observed.nodes.get(n)?.clone());
    let ready = endpoint::publishes_not_ready(service) || (serving && !terminating);
    Endpoint {
        addresses: vec![address.to_owned()],
        hints: hints(service, node.as_ref(), zone.as_ref()).filter(|_| ready),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        zone,
        node_name: node,
        hostname: endpoint::hostname(service, pod),
        target_ref: Some(endpoint::reference(pod)),
        ..Default::default()
    }
}

/// The zones or nodes that the endpoint is for, when the Service wants its traffic to stay near.
fn hints(service: &Service, node: Option<&String>, zone: Option<&String>) -> Option<EndpointHints> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    if topology::is_auto(service) {
        return None;
    }
    let for_zones = zone.map(|name| vec![ForZone { name: name.clone() }]);
    let for_nodes = node.map(|name| vec![ForNode { name: name.clone() }]);
    let hints = match distribution {
        "PreferClose" | "PreferSameZone" => EndpointHints { for_zones, for_nodes: None },
        "PreferSameNode" => EndpointHints { for_zones, for_nodes },
        _ => return None,
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn service(extra: Value) -> Service {
        let mut spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let meta = json!({"name": "web", "namespace": "d", "uid": "s", "labels": {"team": "a"}});
        json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn pod(number: usize, ready: bool, deleting: bool) -> Arc<Pod> {
        let name = format!("p{number}");
        Arc::new(
            json::from_value(json!({
                "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": "web"},
                    "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z")},
                "spec": {"containers": [], "nodeName": "n1"},
                "status": {"podIP": format!("10.0.{}.{}", number / 250, number % 250),
                    "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
            }))
            .unwrap(),
        )
    }

    fn plan(service: &Service, pods: Vec<Arc<Pod>>, slices: Vec<EndpointSlice>) -> Plan {
        let nodes = BTreeMap::from([("n1".to_owned(), Some("z".to_owned()))]);
        let slices = slices.into_iter().map(Arc::new).collect();
        let observed = Observed { pods, nodes, slices, ratios: None, was_auto: false };
        EndpointSlices::default().plan(service, &observed, Timestamp::UNIX_EPOCH)
    }

    fn written(plan: &Plan) -> Vec<EndpointSlice> {
        let writes = plan.writes().filter(|w| w.verb_name() != "delete").enumerate();
        let named = writes.map(|(i, w)| {
            let mut slice: EndpointSlice = json::from_value(w.body().clone()).unwrap();
            slice.metadata.name.get_or_insert(format!("s{i}"));
            slice
        });
        named.collect()
    }

    fn notes(plan: &Plan) -> impl Iterator<Item = &controller::Note> {
        plan.steps.iter().filter_map(|step| match step {
            controller::Step::Tell(note) => Some(note),
            _ => None,
        })
    }

    #[test]
    fn a_slice_says_what_its_pods_are() {
        let slices = written(&plan(&service(json!({})), vec![pod(1, true, false), pod(2, true, true)], Vec::new()));
        let slice = json::to_value(&slices[0]).unwrap();
        assert_eq!(slice["metadata"]["generateName"], "web-");
        let labels = json!({"team": "a", SERVICE_NAME_LABEL: "web", MANAGED_BY.0: MANAGED_BY.1});
        assert_eq!(slice["metadata"]["labels"], labels);
        assert_eq!(slice["ports"], json!([{"name": "", "port": 8080, "protocol": "TCP"}]));
        assert_eq!(slice["endpoints"][0]["zone"], "z");
        let conditions = |i: usize| slice["endpoints"][i]["conditions"].clone();
        assert_eq!(conditions(0), json!({"ready": true, "serving": true, "terminating": false}));
        assert_eq!(conditions(1), json!({"ready": false, "serving": true, "terminating": true}));
    }

    #[test]
    fn publishing_and_headless_follow_the_service() {
        let service = service(json!({"publishNotReadyAddresses": true, "clusterIP": "None"}));
        let slice = &written(&plan(&service, vec![pod(1, false, false)], Vec::new()))[0];
        assert_eq!(slice.endpoints[0].conditions.as_ref().unwrap().ready, Some(true));
        assert!(slice.metadata.labels.as_ref().unwrap().contains_key(HEADLESS_LABEL));
    }

    #[test]
    fn traffic_that_is_to_stay_near_gets_hints() {
        let check = |distribution: &str, ready: bool, expected: Value| {
            let service = service(json!({"trafficDistribution": distribution}));
            let slice = &written(&plan(&service, vec![pod(1, ready, false)], Vec::new()))[0];
            assert_eq!(json::to_value(&slice.endpoints[0].hints).unwrap(), expected, "{distribution}");
        };
        let zone = json!({"forZones": [{"name": "z"}]});
        check("PreferClose", true, zone.clone());
        check("PreferSameZone", true, zone);
        check("PreferSameNode", true, json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]}));
        check("PreferClose", false, Value::Null);
    }

    #[test]
    fn hints_follow_the_cpu_of_zones_and_are_told() {
        let mut auto = service(json!({"trafficDistribution": "PreferClose"}));
        auto.metadata.annotations =
            Some([("service.kubernetes.io/topology-mode".to_owned(), "Auto".to_owned())].into());
        let look = |service: &Service, slices: Vec<EndpointSlice>, zones: &[&str], was_auto: bool| {
            let ratios = zones.iter().map(|zone| ((*zone).to_owned(), 1.0 / zones.len() as f64)).collect();
            let observed = Observed {
                pods: (1..=4).map(|i| pod(i, true, false)).collect(),
                nodes: BTreeMap::from([("n1".to_owned(), Some("z".to_owned()))]),
                slices: slices.into_iter().map(Arc::new).collect(),
                ratios: Some(ratios).filter(|_| zones.len() > 1),
                was_auto,
            };
            let plan = EndpointSlices::default().plan(service, &observed, Timestamp::UNIX_EPOCH);
            let hints =
                |e: &Endpoint| e.hints.as_ref().map_or("", |h| &h.for_zones.as_ref().unwrap()[0].name).to_owned();
            let hints: Vec<String> = written(&plan).iter().flat_map(|s| &s.endpoints).map(hints).collect();
            let told: Vec<String> = notes(&plan).map(|note| format!("{} {}", note.reason, note.message)).collect();
            (hints.join(" "), told.join("; "), written(&plan))
        };
        let enabled = "TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4";
        let (hints, told, slices) = look(&auto, Vec::new(), &["y", "z"], false);
        assert_eq!((hints.as_str(), told.as_str()), ("y y z z", enabled));
        let (hints, told, none) = look(&auto, slices.clone(), &["y", "z"], true);
        assert_eq!((hints.as_str(), told.as_str(), none.len()), ("", "", 0));
        let info = "TopologyAwareHintsDisabled Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4";
        let (hints, told, _) = look(&auto, slices.clone(), &[], true);
        assert_eq!((hints.trim(), told.as_str()), ("", info));
        let (hints, told, _) = look(&service(json!({})), slices.clone(), &[], true);
        let disabled = "TopologyAwareHintsDisabled Topology Aware Hints has been disabled, addressType: IPv4";
        assert_eq!((hints.trim(), told.as_str()), ("", disabled));
        // Hints of the other sort come and go without a word.
        let (hints, told, _) = look(&service(json!({"trafficDistribution": "PreferClose"})), slices, &[], false);
        assert_eq!((hints.as_str(), told.as_str()), ("z z z z", ""));
    }

    #[test]
    fn pods_of_missing_nodes_are_left_out_unless_all_are_published() {
        let lost = || {
            let mut pod = (*pod(1, true, false)).clone();
            pod.spec.as_mut().unwrap().node_name = Some("gone".into());
            vec![Arc::new(pod)]
        };
        let count = |extra: Value| written(&plan(&service(extra), lost(), Vec::new()))[0].endpoints.len();
        assert_eq!(count(json!({})), 0);
        assert_eq!(count(json!({"publishNotReadyAddresses": true})), 1);
    }

    #[test]
    fn packing_is_stable() {
        let service = service(json!({}));
        let pods = |n: std::ops::Range<usize>| n.map(|i| pod(i, true, false)).collect::<Vec<_>>();
        assert_eq!(plan(&service, Vec::new(), Vec::new()).to_string(), "create endpointslices ");
        let slices = written(&plan(&service, pods(0..250), Vec::new()));
        assert_eq!(slices.iter().map(|s| s.endpoints.len()).collect::<Vec<_>>(), [100, 100, 50]);
        let check = |pods: Vec<Arc<Pod>>, expected: &str| {
            assert_eq!(plan(&service, pods, slices.clone()).to_string().replace("endpointslices ", ""), expected);
        };
        check(pods(0..250), "");
        check(pods(0..251), "update s2");
        check([pods(1..250), vec![pod(0, false, false)]].concat(), "update s0");
        // A Service without Pods has one empty slice without ports.
        check(Vec::new(), "create , delete s0, delete s1, delete s2");
    }
}
