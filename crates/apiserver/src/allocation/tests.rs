//! Services over one store, written by one server or two, with a checker that reads the store alone.

use std::{collections::BTreeMap, sync::Arc};

use api::{Value, kind::Definition, meta, rules::service_range};
use futures::future::join_all;
use json::json;
use store::{
    Range, Store,
    embedded::{Embedded, Options, memory::Memory},
};

use super::{ServiceAllocation, addresses::parent_service, held, port_map, port_map::PortMap};
use crate::{
    admission::attributes::Allocation,
    storage::{commit::ATTEMPTS, object, object_store::ObjectStore},
};

const RANGE: &str = "10.0.0.0/29";
const PORTS: std::ops::RangeInclusive<u16> = 30000..=30003;

/// One server's allocation. Writes go the way of the pipeline.
struct Server {
    objects: Arc<ObjectStore>,
    allocation: ServiceAllocation,
    services: Arc<Definition>,
}

fn memory() -> Arc<dyn Store> {
    Arc::new(Embedded::memory())
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "d", "name": name}, "spec": spec})
}

impl Server {
    async fn start(store: Arc<dyn Store>, ranges: &[&str]) -> Server {
        Self::try_start(store, ranges).await.unwrap()
    }

    async fn try_start(store: Arc<dyn Store>, ranges: &[&str]) -> Result<Server, String> {
        let objects = ObjectStore::new(store).await.map_err(|e| e.to_string())?;
        let ranges: Vec<ipnet::IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let allocation = ServiceAllocation::start(objects.clone(), &ranges, PORTS).await.map_err(|e| e.message)?;
        let services = objects.definition("", "services").unwrap();
        Ok(Server { objects, allocation, services })
    }

    async fn create(&self, name: &str, spec: Value) -> Result<Value, String> {
        for _ in 0..ATTEMPTS {
            let mut new = service(name, spec.clone());
            let with = self.allocation.allocate(None, &mut new, false).await.map_err(|e| e.message)?;
            let inserted = self
                .objects
                .insert_with(&self.services, &Arc::new(new.clone()), Some(with), None)
                .await
                .map_err(|e| e.message)?;
            if inserted.is_some() {
                return Ok(new);
            }
            self.objects.caught_up().await.map_err(|e| e.message)?;
        }
        Err("never had".to_owned())
    }

    async fn update(&self, name: &str, spec: Value) -> Result<Value, String> {
        let entry = self.objects.entry(&self.services, "d", name).await.map_err(|e| e.message)?;
        let mut swap = self.objects.swap(&self.services, entry);
        loop {
            let (old, mut new) = (swap.object(), service(name, spec.clone()));
            let with = self.allocation.allocate(Some(&old), &mut new, false).await.map_err(|e| e.message)?;
            swap.bring(Some(with));
            if swap.replace(new.clone()).await.map_err(|e| e.message)?.is_some() {
                return Ok(new);
            }
            self.objects.caught_up().await.map_err(|e| e.message)?;
        }
    }

    async fn delete(&self, name: &str) -> Result<(), String> {
        let entry = self.objects.entry(&self.services, "d", name).await.map_err(|e| e.message)?;
        let mut swap = self.objects.swap(&self.services, entry);
        loop {
            let with = self.allocation.release(&swap.object()).await.map_err(|e| e.message)?;
            swap.bring(Some(with));
            if swap.remove().await.map_err(|e| e.message)?.is_some() {
                return Ok(());
            }
        }
    }

    fn store(&self) -> &dyn Store {
        &*self.objects.store
    }

    async fn put(&self, group: &str, plural: &str, object: Value) {
        self.objects.create(&self.objects.definition(group, plural).unwrap(), object).await.unwrap();
        self.objects.caught_up().await.unwrap();
    }

    /// Removes an object behind everybody's back.
    async fn lose(&self, group: &str, plural: &str, name: &str) {
        let kind = self.objects.definition(group, plural).unwrap();
        let entry = self.objects.entry(&kind, "", name).await.unwrap();
        self.objects.swap(&kind, entry).remove().await.unwrap();
        self.objects.caught_up().await.unwrap();
    }

    async fn addresses(&self) -> Vec<String> {
        let kind = self.objects.definition("networking.k8s.io", "ipaddresses").unwrap();
        self.objects.list(&kind, "").await.unwrap().iter().map(|address| meta::name(address).to_owned()).collect()
    }

    async fn reasons(&self) -> Vec<String> {
        let events = self.objects.list(&self.objects.definition("", "events").unwrap(), "").await.unwrap();
        let mut reasons: Vec<String> =
            events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
        reasons.sort();
        reasons
    }
}

/// The promises for every snapshot of the store: the IPAddresses are those of the Services and the other way round, the map
/// has the ports of the Services, and nothing is two Services'.
async fn check(store: &dyn Store) {
    let page = store.range(Range::prefix("/registry/")).await.unwrap();
    let (mut wanted, mut found, mut ports) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let mut map = PortMap::new(&PORTS);
    for entry in &page.entries {
        let object = object::value(&entry.value, entry.modified);
        if entry.key.starts_with("/registry/services/specs/") {
            let (addresses, of_service) = held(&object);
            for address in addresses {
                let another = wanted.insert(address.to_string(), format!("d/{}", meta::name(&object)));
                assert_eq!(another, None, "{address} is two Services'");
            }
            ports.extend(of_service);
        } else if entry.key.starts_with("/registry/ipaddresses/") {
            found.insert(meta::name(&object).to_owned(), parent_service(&object).unwrap_or_default());
        } else if &*entry.key == port_map::KEY {
            map = PortMap::decode(&entry.value, &PORTS).unwrap();
        }
    }
    assert_eq!(found, wanted, "IPAddresses and the addresses of Services");
    ports.sort_unstable();
    assert_eq!(map.taken().collect::<Vec<_>>(), ports, "the map and the ports of Services");
}

#[tokio::test]
async fn each_service_gets_its_own_address() {
    let all = Server::start(memory(), &[RANGE]).await;
    let first = all.create("a", json!({"type": "ClusterIP"})).await.unwrap();
    let address = first["spec"]["clusterIP"].as_str().unwrap();
    assert_eq!(first["spec"]["clusterIPs"], json!([address]));
    assert_eq!(first["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(first["spec"]["ipFamilyPolicy"], "SingleStack");
    let kind = all.objects.definition("networking.k8s.io", "ipaddresses").unwrap();
    let taken = all.objects.get(&kind, "", address).await.unwrap();
    assert_eq!(taken["spec"], json!({"parentRef": {"resource": "services", "namespace": "d", "name": "a"}}));
    let labels = json!({service_range::FAMILY: "IPv4", service_range::MANAGED_BY: "ipallocator.k8s.io"});
    assert_eq!(taken["metadata"]["labels"], labels);
    let refused = async |address: &str, why: &str| {
        let error = all.create("b", json!({"type": "ClusterIP", "clusterIP": address})).await.unwrap_err();
        let place = format!("spec.clusterIPs: Invalid value: [\"{address}\"]");
        assert_eq!(error, format!("Service \"b\" is invalid: {place}: failed to allocate IP {address}: {why}"));
    };
    refused(address, "provided IP is already allocated").await;
    for outside in ["10.1.0.1", "10.0.0.0", "10.0.0.7"] {
        refused(outside, "the provided network does not match the current range").await;
    }
    // Six addresses between network and broadcast.
    for name in ["b", "c", "d", "e", "f"] {
        all.create(name, json!({"type": "ClusterIP"})).await.unwrap();
    }
    check(all.store()).await;
    let full = all.create("g", json!({"type": "ClusterIP"})).await.unwrap_err();
    assert!(full.contains("failed to allocate a serviceIP: range is full"), "{full}");
    all.delete("a").await.unwrap();
    assert_eq!(all.create("g", json!({"type": "ClusterIP"})).await.unwrap()["spec"]["clusterIP"], address);
    check(all.store()).await;
}

#[tokio::test]
async fn what_is_not_written_takes_nothing() {
    let all = Server::start(memory(), &[RANGE]).await;
    let before = all.store().revision().await.unwrap();
    let spec = json!({"type": "NodePort", "ports": [{"port": 80}]});
    let mut shown = service("s", json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81}]}));
    drop(all.allocation.allocate(None, &mut shown, true).await.unwrap());
    let spec_shown = &shown["spec"];
    assert_eq!(
        (&spec_shown["ports"][0]["nodePort"], &spec_shown["ports"][1]["nodePort"]),
        (&json!(32769), &json!(32770))
    );
    assert_eq!(spec_shown["clusterIPs"], json!(["10.0.0.0"]), "upstream shows the range's own address");
    let mut given = service("s", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}, {"port": 81}]}));
    drop(all.allocation.allocate(None, &mut given, true).await.unwrap());
    assert_eq!(given["spec"]["ports"][1]["nodePort"], 30002);
    for _ in 0..20 {
        // As a write that validation refuses.
        let mut new = service("s", spec.clone());
        drop(all.allocation.allocate(None, &mut new, false).await.unwrap());
        assert!(new["spec"]["ports"][0]["nodePort"].is_number() && new["spec"]["clusterIP"].is_string());
    }
    // The second port can't be had.
    let ports = json!([{"port": 1, "nodePort": 30001}, {"port": 2, "nodePort": 1}]);
    let error = all.create("s", json!({"type": "NodePort", "ports": ports})).await.unwrap_err();
    let expected = "spec.ports[1].nodePort: Invalid value: 1: provided port is not in the valid range. The range of valid \
                    ports is 30000-30003";
    assert!(error.contains(expected), "{error}");
    assert_eq!(all.store().revision().await.unwrap(), before, "nothing was written");
    all.create("s", spec.clone()).await.unwrap();
    let error = all.create("s", spec).await.unwrap_err();
    assert!(error.contains("already exists"), "{error}");
    check(all.store()).await;
}

#[tokio::test]
async fn node_ports_come_and_go_with_the_type() {
    let all = Server::start(memory(), &[RANGE]).await;
    let ports =
        json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 80, "nodePort": 30002}]);
    let old = all.create("s", json!({"type": "NodePort", "ports": ports})).await.unwrap();
    let got = |service: &Value, at: usize| service["spec"]["ports"][at]["nodePort"].clone();
    assert_eq!(got(&old, 0), got(&old, 1));
    assert_eq!(got(&old, 2), 30002);
    check(all.store()).await;
    let same = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30002}]});
    let taken = all.create("t", same).await.unwrap_err();
    assert!(
        taken.contains("spec.ports[0].nodePort: Invalid value: 30002: provided port is already allocated"),
        "{taken}"
    );
    // A PUT that leaves out what was given keeps it.
    let kept = all.update("s", json!({"type": "NodePort", "ports": ports})).await.unwrap();
    assert_eq!(kept["spec"]["clusterIP"], old["spec"]["clusterIP"]);
    assert_eq!(got(&kept, 0), got(&old, 0));
    let mut spec = kept["spec"].clone();
    (spec["type"], spec["externalTrafficPolicy"]) = (json!("LoadBalancer"), json!("Local"));
    let balanced = all.update("s", spec).await.unwrap();
    assert!(balanced["spec"]["healthCheckNodePort"].is_number());
    check(all.store()).await;
    // Validation is what refuses another port for health checks, wherever that is.
    let mut moved = service("s", balanced["spec"].clone());
    moved["spec"]["healthCheckNodePort"] = json!(1);
    drop(all.allocation.allocate(Some(&balanced), &mut moved, false).await.unwrap());
    assert_eq!(moved["spec"]["healthCheckNodePort"], 1);
    let mut spec = balanced["spec"].clone();
    (spec["type"], spec["externalTrafficPolicy"]) = (json!("ClusterIP"), json!(null));
    let plain = all.update("s", spec).await.unwrap();
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
    check(all.store()).await;
    let mut spec = plain["spec"].clone();
    spec["type"] = json!("ExternalName");
    spec["externalName"] = json!("x");
    let name = all.update("s", spec).await.unwrap();
    assert!(name["spec"].get("clusterIP").is_none());
    assert!(all.addresses().await.is_empty());
    check(all.store()).await;
}

#[tokio::test]
async fn named_ports_are_had_or_refused() {
    let all = Server::start(memory(), &[RANGE]).await;
    let balanced = |health: i64, port: i64| {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": health,
            "ports": [{"port": 80, "nodePort": port}]})
    };
    let created = all.create("a", balanced(30000, 30001)).await.unwrap();
    assert_eq!(created["spec"]["healthCheckNodePort"], 30000);
    check(all.store()).await;
    let range = "provided port is not in the valid range. The range of valid ports is 30000-30003";
    let taken = "provided port is already allocated";
    let refused = async |spec: Value, expected: String| assert_eq!(all.create("b", spec).await.unwrap_err(), expected);
    let health = |number: i64, why: &str| {
        format!("Internal error occurred: failed to allocate requested HealthCheck NodePort {number}: {why}")
    };
    refused(balanced(30000, 30002), health(30000, taken)).await;
    refused(balanced(30002, 30002), health(30002, taken)).await;
    for number in [80, -1, 70_000] {
        refused(balanced(number, 30002), health(number, range)).await;
        let place = format!("Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: {number}");
        refused(balanced(30003, number), format!("{place}: {range}")).await;
    }
    let ports = |ports: &[(i64, &str, i64)]| {
        let port = |(port, protocol, number): &(i64, &str, i64)| json!({"port": port, "protocol": protocol, "nodePort": number});
        json!({"type": "NodePort", "ports": ports.iter().map(port).collect::<Vec<_>>()})
    };
    // Protocols of one service port share a number; those of others do so only in a Service that is there.
    let place = "Service \"b\" is invalid: spec.ports[1].nodePort: Invalid value: 30002";
    refused(ports(&[(80, "TCP", 30002), (81, "UDP", 30002)]), format!("{place}: {taken}")).await;
    all.create("b", ports(&[(80, "TCP", 30002), (80, "UDP", 30002)])).await.unwrap();
    all.update("b", ports(&[(80, "TCP", 30003), (81, "UDP", 30003)])).await.unwrap();
    check(all.store()).await;
    let twice = all.update("b", ports(&[(80, "TCP", 30003), (81, "TCP", 30003)])).await.unwrap_err();
    assert_eq!(twice, "duplicate nodePort: {TCP 30003}");
    for number in [-1, 70_000] {
        let lost = all.update("b", ports(&[(80, "TCP", number)])).await.unwrap_err();
        assert!(lost.contains(range), "{lost}");
    }
    all.create("c", ports(&[(80, "TCP", 30002)])).await.unwrap();
    let mut full = balanced(0, 0);
    full["allocateLoadBalancerNodePorts"] = json!(false);
    refused(full, "Internal error occurred: failed to allocate a HealthCheck NodePort 0: range is full".to_owned())
        .await;
    check(all.store()).await;
}

#[tokio::test]
async fn families_follow_policy_and_cluster() {
    let dual = Server::start(memory(), &["10.0.0.0/24", "fd00::/112"]).await;
    let both = dual.create("a", json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"})).await.unwrap();
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(both["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
    let six = dual.create("b", json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})).await.unwrap();
    assert!(six["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00::"));
    check(dual.store()).await;
    let mut spec = both["spec"].clone();
    spec["ipFamilyPolicy"] = json!("SingleStack");
    let one = dual.update("a", spec).await.unwrap();
    assert_eq!(one["spec"]["clusterIPs"].as_array().unwrap().len(), 1);
    check(dual.store()).await;
    let mut spec = one["spec"].clone();
    spec["ipFamilyPolicy"] = json!("RequireDualStack");
    assert_eq!(dual.update("a", spec).await.unwrap()["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
    check(dual.store()).await;
    let single = Server::start(memory(), &[RANGE]).await;
    let refused = async |spec: Value, why: &str| {
        let error = single.create("a", spec).await.unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    let dual = "this cluster is not configured for dual-stack services";
    refused(json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}), dual).await;
    let other = "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster";
    refused(json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]}), other).await;
    let headless = json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}});
    let headless = single.create("h", headless).await.unwrap();
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(headless["spec"]["ipFamilies"], json!(["IPv4"]));
    check(single.store()).await;
}

#[tokio::test]
async fn more_ranges_give_more_addresses() {
    let all = Server::start(memory(), &["10.0.0.0/30"]).await;
    let plain = || json!({"type": "ClusterIP"});
    for name in ["a", "b"] {
        all.create(name, plain()).await.unwrap();
    }
    assert!(all.create("c", plain()).await.unwrap_err().contains("range is full"));
    let range = |ready: &str| {
        json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.0.1.0/30"]},
            "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    all.put("networking.k8s.io", "servicecidrs", range("False")).await;
    assert!(all.create("c", plain()).await.unwrap_err().contains("range is full"), "a range that is not ready");
    all.lose("networking.k8s.io", "servicecidrs", "more").await;
    all.put("networking.k8s.io", "servicecidrs", range("True")).await;
    let made = all.create("c", plain()).await.unwrap();
    assert!(made["spec"]["clusterIP"].as_str().unwrap().starts_with("10.0.1."));
    check(all.store()).await;
}

/// Two servers write Services at the same time, more than there is room for. Every snapshot is right.
#[tokio::test]
async fn two_servers_over_one_store_never_give_anything_twice() {
    let store = memory();
    let servers = [Server::start(store.clone(), &[RANGE]).await, Server::start(store.clone(), &[RANGE]).await];
    let work = (0..16).map(|worker: usize| {
        let (server, store) = (&servers[worker % 2], &store);
        async move {
            let mut made = 0;
            for round in 0..12 {
                let name = format!("s{worker}");
                let spec = match (worker + round) % 3 {
                    0 => json!({"type": "ClusterIP", "clusterIP": format!("10.0.0.{}", 1 + round % 6)}),
                    1 => json!({"type": "NodePort", "ports": [{"port": 80}, {"port": 81}]}),
                    _ => json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000 + round % 4}]}),
                };
                match server.create(&name, spec).await {
                    Ok(_) => made += 1,
                    Err(error) => {
                        assert!(error.contains("already allocated") || error.contains("range is full"), "{error}");
                        continue;
                    }
                }
                check(&**store).await;
                tokio::task::yield_now().await;
                if round % 2 == 0 {
                    server.update(&name, json!({"type": "ClusterIP", "ports": [{"port": 80}]})).await.unwrap();
                    check(&**store).await;
                }
                server.delete(&name).await.unwrap();
                check(&**store).await;
            }
            made
        }
    });
    let made: usize = join_all(work).await.into_iter().sum();
    assert!(made > 16, "only {made} Services were made");
    assert!(servers[0].addresses().await.is_empty());
}

/// The power goes at each sync in turn, and once more at the next start: what is stored fits without any mending.
#[tokio::test]
async fn no_power_cut_parts_a_service_from_what_it_holds() {
    let open = |disk: &Memory| {
        let options = Options { inline: true, abort_when_broken: false, reserve_bytes: 0, ..Options::default() };
        Embedded::open_on(Arc::new(disk.clone()), options).map(|store| Arc::new(store) as Arc<dyn Store>)
    };
    let spec = || json!({"type": "NodePort", "ports": [{"port": 80}]});
    let mut cuts = 0;
    for syncs in 0.. {
        let disk = Memory::default();
        disk.die_after_syncs(syncs);
        let run = async {
            let server = Server::try_start(open(&disk).map_err(|e| e.to_string())?, &[RANGE]).await?;
            for name in ["a", "b", "c"] {
                server.create(name, spec()).await?;
            }
            server.delete("b").await?;
            server.update("a", json!({"type": "ExternalName", "externalName": "x"})).await?;
            server.create("d", spec()).await.map(drop)
        };
        let ended: Result<(), String> = run.await;
        let survived = !disk.is_dead();
        assert_eq!(ended.is_ok(), survived, "{ended:?}");
        disk.lose_power(|unsynced| unsynced / 2);
        let store = open(&disk).unwrap();
        check(&*store).await;
        let server = Server::start(store.clone(), &[RANGE]).await;
        assert!(server.reasons().await.is_empty(), "there was nothing to mend");
        server.create("e", spec()).await.unwrap();
        check(&*store).await;
        cuts += 1;
        if survived {
            break;
        }
    }
    assert!(cuts > 6, "{cuts} cuts");
}

/// A store that somebody else brought into disorder is in order again when a server has started.
#[tokio::test]
async fn a_start_mends_what_others_did() {
    let store = memory();
    let server = Server::start(store.clone(), &[RANGE]).await;
    for name in ["a", "b"] {
        server.create(name, json!({"type": "NodePort", "ports": [{"port": 80}]})).await.unwrap();
    }
    let lost = server.addresses().await[0].clone();
    server.lose("networking.k8s.io", "ipaddresses", &lost).await;
    let key = store::Commit { key: port_map::KEY.into(), expect: store::Expect::Any, change: store::Change::Delete };
    store.commit(key).await.unwrap();
    // A Service of a version that kept its books in memory.
    let old = json!({"type": "ClusterIP", "clusterIP": "10.0.0.6", "clusterIPs": ["10.0.0.6"], "ipFamilies": ["IPv4"]});
    if !server.addresses().await.iter().any(|address| address == "10.0.0.6") {
        server.objects.insert_with(&server.services, &Arc::new(service("old", old)), None, None).await.unwrap();
    }
    let orphan = json!({"metadata": {"name": "10.0.0.9", "labels": {service_range::MANAGED_BY: "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "gateways", "name": "g"}}});
    server.put("networking.k8s.io", "ipaddresses", orphan).await;
    drop(server);
    let again = Server::start(store.clone(), &[RANGE]).await;
    check(&*store).await;
    let reasons = again.reasons().await;
    for reason in ["ClusterIPNotAllocated", "IPAddressNotAllocated", "PortNotAllocated"] {
        assert!(reasons.iter().any(|r| r == reason), "{reason} in {reasons:?}");
    }
    drop(again);
    let told = reasons.len();
    assert_eq!(Server::start(store.clone(), &[RANGE]).await.reasons().await.len(), told, "it is mended once");
}

#[tokio::test(start_paused = true)]
async fn what_is_disturbed_while_the_server_runs_is_mended_too() {
    let server = Server::start(memory(), &[RANGE]).await;
    server.create("a", json!({"type": "ClusterIP"})).await.unwrap();
    let address = server.addresses().await[0].clone();
    server.lose("networking.k8s.io", "ipaddresses", &address).await;
    server.lose("networking.k8s.io", "servicecidrs", "kubernetes").await;
    let kind = server.objects.definition("networking.k8s.io", "servicecidrs").unwrap();
    let mended = async || server.addresses().await == [address.clone()];
    for _ in 0..1000 {
        if mended().await && server.objects.get(&kind, "", "kubernetes").await.is_ok() {
            check(server.store()).await;
            return;
        }
        clock::sleep(std::time::Duration::from_secs(1)).await;
    }
    panic!("never mended: {:?}", server.addresses().await);
}

/// An address is not free as long as somebody holds its IPAddress by a finalizer.
#[tokio::test]
async fn a_finalizer_keeps_an_address() {
    let server = Server::start(memory(), &[RANGE]).await;
    server.create("a", json!({"type": "ClusterIP", "clusterIP": "10.0.0.1"})).await.unwrap();
    let kind = server.objects.definition("networking.k8s.io", "ipaddresses").unwrap();
    let hold = |object: &mut Value| {
        object["metadata"]["finalizers"] = json!(["x.io/y"]);
        Ok(true)
    };
    server.objects.update(&kind, ("", "10.0.0.1"), api::kind::Target::Object, hold).await.unwrap();
    server.delete("a").await.unwrap();
    let left = server.objects.get(&kind, "", "10.0.0.1").await.unwrap();
    assert!(meta::deletion_timestamp(&left).is_some());
    let again = server.create("b", json!({"type": "ClusterIP", "clusterIP": "10.0.0.1"})).await.unwrap_err();
    assert!(again.contains("already allocated"), "{again}");
}

/// A Service never gives back an address whose IPAddress is another Service's.
#[tokio::test]
async fn nobody_frees_the_address_of_another() {
    let server = Server::start(memory(), &[RANGE]).await;
    server.create("a", json!({"type": "ClusterIP", "clusterIP": "10.0.0.1"})).await.unwrap();
    let twin =
        json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]});
    server.objects.insert_with(&server.services, &Arc::new(service("twin", twin)), None, None).await.unwrap();
    server.delete("twin").await.unwrap();
    check(server.store()).await;
    assert_eq!(server.addresses().await, ["10.0.0.1"]);
}
