//! The disorder between Services, IPAddresses and the map of node ports, and how it is mended. Pure.
//!
//! It judges a snapshot of one revision. Since a Service and what it holds are written in one transaction, everything that
//! does not fit in such a snapshot was done by somebody else: by hand, or by a server of an older version. So a port that no
//! Service holds is free at once, where upstream waits for three rounds. An IPAddress that a Service is yet to be made
//! for is left alone for upstream's minute all the same: a client that makes them in two steps may be about to take the second.
//! Upstream counterpart: pkg/registry/core/service/ipallocator/controller/repairip.go,
//! pkg/registry/core/service/portallocator/controller/repair.go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    ops::RangeInclusive,
    time::Duration,
};

use api::{Value, meta, rules::service_range};
use clock::Timestamp;
use ipnet::IpNet;
use store::Revision;

use super::{addresses::parent_service, port_map::PortMap};

/// How old an IPAddress must be whose Service does not exist.
const GRACE: Duration = Duration::from_secs(60);

pub const ADDRESSES: &str = "ipallocator-repair-controller";
pub const PORTS: &str = "portallocator-repair-controller";

/// The holdings of a stored Service.
#[derive(Debug, Default)]
pub struct Holder {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<u16>,
}

/// Everything, as of one revision.
pub struct Snapshot {
    pub services: Vec<Holder>,
    /// The IPAddresses with the revisions that wrote them.
    pub addresses: Vec<(Value, Revision)>,
    pub ranges: Vec<IpNet>,
    /// `None` when there is no map, or none that can be read.
    pub map: Option<PortMap>,
    pub node_ports: RangeInclusive<u16>,
    pub now: Timestamp,
}

/// One step of the mending.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The address becomes that of the Service at this place of the snapshot.
    Create(IpAddr, usize),
    Remove(IpAddr, Revision),
    /// Removed, and made anew for a Service.
    Recreate(IpAddr, Revision, usize),
}

/// The object that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The Service at this place of the snapshot.
    Service(usize),
    /// The IPAddress at this place of the snapshot.
    Address(usize),
}

/// An event for users.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub about: About,
    pub component: &'static str,
    pub reason: &'static str,
    pub action: &'static str,
    pub message: String,
}

#[derive(Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The map as it should be, where it is not.
    pub map: Option<PortMap>,
    pub told: Vec<Told>,
    /// When something is to be looked at again.
    pub again: Option<Duration>,
}

struct Address<'a> {
    place: usize,
    object: &'a Value,
    revision: Revision,
}

pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut plan = Plan::default();
    plan.addresses(snapshot);
    plan.ports(snapshot);
    plan
}

fn is_managed(object: &Value) -> bool {
    object["metadata"]["labels"][service_range::MANAGED_BY] == service_range::ALLOCATOR
}

impl Plan {
    fn tell(&mut self, about: About, reason: &'static str, message: String) {
        let action = match about {
            About::Service(_) => "ClusterIPAllocation",
            About::Address(_) => "IPAddressAllocation",
        };
        self.told.push(Told { about, component: ADDRESSES, reason, action, message });
    }

    fn addresses(&mut self, snapshot: &Snapshot) {
        let services: HashMap<String, usize> =
            snapshot.services.iter().enumerate().map(|(i, s)| (format!("{}/{}", s.namespace, s.name), i)).collect();
        let addresses: BTreeMap<IpAddr, Address<'_>> = (snapshot.addresses.iter().enumerate())
            .filter_map(|(place, (object, revision))| {
                Some((meta::name(object).parse().ok()?, Address { place, object, revision: *revision }))
            })
            .collect();
        let mut made = BTreeSet::new();
        for (place, service) in snapshot.services.iter().enumerate() {
            for address in &service.addresses {
                if !snapshot.ranges.iter().any(|range| service_range::holds(range, address)) {
                    let family = service_range::family(address);
                    let why = "is not within any configured Service CIDR; please recreate service";
                    let message = format!("Cluster IP [{family}]: {address} {why}");
                    self.tell(About::Service(place), "ClusterIPOutOfRange", message);
                } else if let Some(known) = addresses.get(address) {
                    self.held(snapshot, &services, place, *address, known);
                } else if made.insert(*address) {
                    // The first one of a cluster is made before anybody allocates.
                    if (service.namespace.as_str(), service.name.as_str()) != ("default", "kubernetes") {
                        let family = service_range::family(address);
                        let message = format!("Cluster IP [{family}]: {address} is not allocated; repairing");
                        self.tell(About::Service(place), "ClusterIPNotAllocated", message);
                    }
                    self.steps.push(Step::Create(*address, place));
                } else {
                    self.duplicate(place, *address);
                }
            }
        }
        for (address, known) in addresses.iter().filter(|(_, known)| is_managed(known.object)) {
            self.unheld(snapshot, &services, *address, known);
        }
    }

    fn duplicate(&mut self, place: usize, address: IpAddr) {
        let family = service_range::family(&address);
        let message =
            format!("Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service");
        self.tell(About::Service(place), "ClusterIPAlreadyAllocated", message);
    }

    /// The IPAddress of an address that a Service has.
    fn held(
        &mut self,
        snapshot: &Snapshot,
        services: &HashMap<String, usize>,
        place: usize,
        address: IpAddr,
        known: &Address<'_>,
    ) {
        let service = &snapshot.services[place];
        let (family, key) = (service_range::family(&address), format!("{}/{}", service.namespace, service.name));
        let parent = parent_service(known.object);
        let other = parent.as_ref().filter(|parent| **parent != key).map(|parent| services.get(parent));
        match (&parent, other) {
            (None, _) | (_, Some(None)) => {
                let why = format!("for Service {key} has a wrong reference; repairing");
                let message = format!("the ClusterIP [{family}]: {address} {why}");
                self.tell(About::Service(place), "ClusterIPNotAllocated", message);
                self.steps.push(Step::Recreate(address, known.revision, place));
                return;
            }
            (_, Some(Some(other))) => {
                // One that does not have the address either loses the IPAddress below.
                if snapshot.services[*other].addresses.contains(&address) {
                    self.duplicate(place, address);
                }
                return;
            }
            (Some(_), None) => {}
        }
        let label = &known.object["metadata"]["labels"][service_range::FAMILY];
        if *label != family || !is_managed(known.object) {
            self.steps.push(Step::Recreate(address, known.revision, place));
        }
    }

    /// The IPAddress of an address that its Service may not have (any more).
    fn unheld(&mut self, snapshot: &Snapshot, services: &HashMap<String, usize>, address: IpAddr, known: &Address<'_>) {
        let remade = |step: &Step| matches!(step, Step::Recreate(of, ..) if *of == address);
        if meta::deletion_timestamp(known.object).is_some() || self.steps.iter().any(remade) {
            return;
        }
        let about = About::Address(known.place);
        let Some(parent) = parent_service(known.object) else {
            let text = |field: &str| known.object["spec"]["parentRef"][field].as_str().unwrap_or("").to_owned();
            let fields = ["group", "resource", "namespace", "name"].map(text).join(" ");
            let modified = "appears to have been modified, not referencing a Service";
            let message = format!("IPAddress {address} {modified} &{{{fields}}}: cleaning up");
            self.tell(about, "IPAddressNotAllocated", message);
            self.steps.push(Step::Remove(address, known.revision));
            return;
        };
        match services.get(&parent).map(|place| &snapshot.services[*place]) {
            Some(service) if service.addresses.contains(&address) => {}
            Some(_) => {
                let message = format!("IPAddress: {address} for Service {parent} has a wrong reference; cleaning up");
                self.tell(about, "IPAddressWrongReference", message);
                self.steps.push(Step::Remove(address, known.revision));
            }
            None => {
                let made = known.object["metadata"]["creationTimestamp"].as_str().and_then(|t| t.parse().ok());
                let age = snapshot.now.duration_since(made.unwrap_or(Timestamp::UNIX_EPOCH));
                let left = GRACE.saturating_sub(age.unsigned_abs());
                if age.is_positive() && left.is_zero() {
                    let message =
                        format!("IPAddress: {address} for Service {parent} appears to have leaked: cleaning up");
                    self.tell(about, "IPAddressNotAllocated", message);
                    self.steps.push(Step::Remove(address, known.revision));
                } else {
                    let left = left.max(Duration::from_secs(1));
                    self.again = Some(self.again.map_or(left, |again| again.min(left)));
                }
            }
        }
    }

    fn ports(&mut self, snapshot: &Snapshot) {
        let mut map = PortMap::new(&snapshot.node_ports);
        for (place, service) in snapshot.services.iter().enumerate() {
            for port in &service.ports {
                let mut tell = |reason, message| {
                    self.told.push(Told {
                        about: About::Service(place),
                        component: PORTS,
                        reason,
                        action: "",
                        message,
                    });
                };
                if !snapshot.node_ports.contains(port) {
                    let range = format!("{}-{}", snapshot.node_ports.start(), snapshot.node_ports.end());
                    let why = format!("is not within the port range {range}; please recreate service");
                    tell("PortOutOfRange", format!("Port {port} {why}"));
                } else if map.has(*port) {
                    let why = "was assigned to multiple services; please recreate service";
                    tell("PortAlreadyAllocated", format!("Port {port} {why}"));
                } else if snapshot.map.as_ref().is_none_or(|stored| !stored.has(*port)) {
                    tell("PortNotAllocated", format!("Port {port} is not allocated; repairing"));
                }
                map.take(*port);
            }
        }
        let differs = snapshot.map.as_ref().is_none_or(|stored| !stored.taken().eq(map.taken()));
        self.map = differs.then_some(map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    const NOW: &str = "2026-01-01T01:00:00Z";

    /// `name addresses ports`, the lists with commas; `-` is an empty one.
    fn service(words: &str) -> Holder {
        let words: Vec<&str> = words.split(' ').collect();
        fn list<T: std::str::FromStr>(text: &str) -> Vec<T> {
            text.split(',').filter(|t| *t != "-").map(|t| t.parse().ok().unwrap()).collect()
        }
        let (namespace, name) = words[0].split_once('/').unwrap();
        let (addresses, ports) = (list(words[1]), list(words.get(2).unwrap_or(&"-")));
        Holder { namespace: namespace.into(), name: name.into(), uid: "u".into(), addresses, ports }
    }

    /// `address parent flags`: the parent as `namespace/name` or another resource; `young`, `unlabelled`, `family`.
    fn address(words: &str) -> (Value, Revision) {
        let words: Vec<&str> = words.split(' ').collect();
        let flag = |name: &str| words.contains(&name);
        let parent = match words[1].split_once('/') {
            Some((namespace, name)) => json!({"resource": "services", "namespace": namespace, "name": name}),
            None => json!({"group": "x.io", "resource": words[1], "name": "g"}),
        };
        let family = if flag("family") { "IPv6" } else { "IPv4" };
        let labels = if flag("unlabelled") {
            json!({})
        } else {
            json!({service_range::FAMILY: family, service_range::MANAGED_BY: service_range::ALLOCATOR})
        };
        let made = if flag("young") { "2026-01-01T00:59:30Z" } else { "2026-01-01T00:00:00Z" };
        let object = json!({"metadata": {"name": words[0], "labels": labels, "creationTimestamp": made},
            "spec": {"parentRef": parent}});
        (object, 7)
    }

    fn snapshot(services: &[&str], addresses: &[&str], map: Option<&[u16]>) -> Snapshot {
        let node_ports = 30000..=30010;
        let map = map.map(|ports| {
            let mut map = PortMap::new(&node_ports);
            ports.iter().for_each(|port| map.take(*port));
            map
        });
        Snapshot {
            services: services.iter().map(|words| service(words)).collect(),
            addresses: addresses.iter().map(|words| address(words)).collect(),
            ranges: vec!["10.0.0.0/24".parse().unwrap()],
            map,
            node_ports,
            now: NOW.parse().unwrap(),
        }
    }

    fn reasons(plan: &Plan) -> Vec<&'static str> {
        plan.told.iter().map(|told| told.reason).collect()
    }

    #[test]
    fn addresses_and_services_are_brought_together() {
        let check = |services: &[&str], addresses: &[&str], steps: &[Step], told: &[&str]| {
            let plan = plan(&snapshot(services, addresses, Some(&[])));
            assert_eq!((plan.steps.as_slice(), reasons(&plan).as_slice()), (steps, told), "{services:?} {addresses:?}");
        };
        let (a, b): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        check(&["d/s 10.0.0.1"], &["10.0.0.1 d/s"], &[], &[]);
        check(&["d/s -"], &[], &[], &[]);
        check(&["d/s 10.0.0.1"], &[], &[Step::Create(a, 0)], &["ClusterIPNotAllocated"]);
        check(&["default/kubernetes 10.0.0.1"], &[], &[Step::Create(a, 0)], &[]);
        check(&["d/s 10.0.1.1"], &[], &[], &["ClusterIPOutOfRange"]);
        check(&["d/s 10.0.0.1"], &["10.0.0.1 gateways"], &[Step::Recreate(a, 7, 0)], &["ClusterIPNotAllocated"]);
        check(&["d/s 10.0.0.1"], &["10.0.0.1 d/gone"], &[Step::Recreate(a, 7, 0)], &["ClusterIPNotAllocated"]);
        check(&["d/s 10.0.0.1"], &["10.0.0.1 d/s unlabelled"], &[Step::Recreate(a, 7, 0)], &[]);
        check(&["d/s 10.0.0.1"], &["10.0.0.1 d/s family"], &[Step::Recreate(a, 7, 0)], &[]);
        // Two Services with one address: the IPAddress says whose it is.
        let both = ["d/s 10.0.0.1", "d/t 10.0.0.1"];
        check(&both, &["10.0.0.1 d/s"], &[], &["ClusterIPAlreadyAllocated"]);
        check(&both, &[], &[Step::Create(a, 0)], &["ClusterIPNotAllocated", "ClusterIPAlreadyAllocated"]);
        // The Service that the IPAddress names has another address.
        let other = ["d/s 10.0.0.1", "d/t 10.0.0.2"];
        let addresses = ["10.0.0.1 d/t", "10.0.0.2 d/t"];
        check(&other, &addresses, &[Step::Remove(a, 7)], &["IPAddressWrongReference"]);
        check(&[], &["10.0.0.2 d/gone"], &[Step::Remove(b, 7)], &["IPAddressNotAllocated"]);
        check(&[], &["10.0.0.2 d/gone young"], &[], &[]);
        check(&[], &["10.0.0.2 gateways"], &[Step::Remove(b, 7)], &["IPAddressNotAllocated"]);
        check(&[], &["10.0.0.2 gateways unlabelled"], &[], &[]);
        check(&[], &["10.0.0.2 d/gone unlabelled"], &[], &[]);
    }

    #[test]
    fn an_address_that_waits_for_its_service_is_looked_at_again() {
        let plan = plan(&snapshot(&[], &["10.0.0.2 d/s young"], Some(&[])));
        assert_eq!(plan.again, Some(Duration::from_secs(30)));
    }

    #[test]
    fn the_words_are_upstreams() {
        let addresses = ["10.0.0.1 d/t", "10.0.0.3 gateways", "10.0.0.4 d/gone", "10.0.0.5 d/s"];
        let services = ["d/s 10.0.0.1,10.0.0.2,10.1.0.1", "d/t 10.0.0.1"];
        let plan = plan(&snapshot(&services, &addresses, Some(&[])));
        let messages: Vec<&str> = plan.told.iter().map(|told| told.message.as_str()).collect();
        let expected = [
            "Cluster IP [IPv4]:10.0.0.1 was assigned to multiple services; please recreate service",
            "Cluster IP [IPv4]: 10.0.0.2 is not allocated; repairing",
            "Cluster IP [IPv4]: 10.1.0.1 is not within any configured Service CIDR; please recreate service",
            "IPAddress 10.0.0.3 appears to have been modified, not referencing a Service &{x.io gateways  g}: cleaning up",
            "IPAddress: 10.0.0.4 for Service d/gone appears to have leaked: cleaning up",
            "IPAddress: 10.0.0.5 for Service d/s has a wrong reference; cleaning up",
        ];
        assert_eq!(messages, expected);
    }

    #[test]
    fn the_map_says_what_services_hold() {
        let check = |services: &[&str], map: Option<&[u16]>, expected: Option<&[u16]>, told: &[&str]| {
            let plan = plan(&snapshot(services, &[], map));
            let map = plan.map.as_ref().map(|map| map.taken().collect::<Vec<_>>());
            assert_eq!((map.as_deref(), reasons(&plan).as_slice()), (expected, told), "{services:?}");
        };
        check(&[], Some(&[]), None, &[]);
        check(&[], None, Some(&[]), &[]);
        check(&["d/s - 30001"], Some(&[30001]), None, &[]);
        check(&["d/s - 30001"], None, Some(&[30001]), &["PortNotAllocated"]);
        check(&["d/s - 30001"], Some(&[30001, 30002]), Some(&[30001]), &[]);
        check(&["d/s - 30001", "d/t - 30001"], Some(&[30001]), None, &["PortAlreadyAllocated"]);
        // A port that another range gave stays taken.
        check(&["d/s - 29999"], Some(&[29999]), None, &["PortOutOfRange"]);
    }
}
