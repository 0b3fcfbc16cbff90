//! What Services hold out of a limited supply: cluster addresses and node ports. The books are in memory and made anew
//! from the stored Services at every start.

pub mod families;
pub mod pool;
pub mod ports;

use std::net::IpAddr;
use std::sync::Arc;

use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use api::{Value, meta};
use futures::future::BoxFuture;
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::json;

use crate::admission::attributes::{Allocation, Reservation};
use families::Family;
use pool::{Pool, PoolError};

/// The kind whose allocation this is.
pub const KEY: (&str, &str) = ("", "services");

/// The supplies.
struct Books {
    addresses: Vec<(Family, Pool<IpAddr>)>,
    ports: Pool<u16>,
}

/// Something that a Service holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Address(IpAddr),
    Port(u16),
}

/// Gives cluster addresses and node ports to Services.
pub struct ServiceAllocation {
    families: Vec<Family>,
    books: Arc<Mutex<Books>>,
}

impl ServiceAllocation {
    /// `ranges` are the service ranges, at most one per family, the main one first; `ports` is the range of node ports.
    /// `existing` are all Services that are stored.
    pub fn new<'a>(
        ranges: &[IpNet],
        ports: std::ops::RangeInclusive<u16>,
        existing: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let addresses: Vec<_> =
            ranges.iter().map(|range| (Family::of(&range.addr()), Pool::addresses(range))).collect();
        let families = addresses.iter().map(|(family, _)| *family).collect();
        let mut books = Books { addresses, ports: Pool::ports(ports) };
        for service in existing {
            for item in held(service) {
                if let Err(error) = books.take(item) {
                    let name = format!("{}/{}", meta::namespace(service), meta::name(service));
                    tracing::error!(service = name, ?item, %error, "a stored Service holds what it can't hold");
                }
            }
        }
        ServiceAllocation { families, books: Arc::new(Mutex::new(books)) }
    }

    fn assign(&self, old: Option<&Value>, new: &mut Value) -> Result<Box<dyn Reservation>, StatusError> {
        families::carry_over(old, new);
        ports::carry_over(old, new);
        let name = meta::name(new).to_owned();
        let invalid = |error: FieldError| StatusError::invalid("", "Service", &name, &[error]);
        families::settle(new, old, &self.families).map_err(invalid)?;
        let before: Vec<Item> = old.map(held).unwrap_or_default();
        let mut taken = Taken { books: self.books.clone(), taken: Vec::new(), freed: Vec::new(), kept: false };
        self.assign_addresses(new, &before, &mut taken, &name)?;
        self.assign_ports(new, &before, &mut taken, &name)?;
        let after = held(new);
        taken.freed = before.into_iter().filter(|item| !after.contains(item)).collect();
        Ok(Box::new(taken))
    }

    fn assign_addresses(
        &self,
        new: &mut Value,
        before: &[Item],
        taken: &mut Taken,
        name: &str,
    ) -> Result<(), StatusError> {
        if !families::needs_address(new) {
            return Ok(());
        }
        let wanted: Vec<Family> = families::listed(new);
        let mut addresses = families::addresses(new);
        for (at, family) in wanted.iter().enumerate() {
            match addresses.get(at).copied() {
                Some(given) if before.contains(&Item::Address(given)) => {}
                Some(given) => taken.take(Item::Address(given)).map_err(|error| {
                    let path = Path::new("spec").child("clusterIPs");
                    let why = format!("failed to allocate IP {given}: {error}");
                    StatusError::invalid("", "Service", name, &[FieldError::invalid(&path, &addresses, &why)])
                })?,
                None => {
                    let next = self.books.lock().next_address(*family);
                    let next =
                        next.map_err(|e| StatusError::internal(format!("failed to allocate a serviceIP: {e}")))?;
                    taken.taken.push(Item::Address(next));
                    addresses.push(next);
                }
            }
        }
        if let Some(first) = addresses.first() {
            new["spec"]["clusterIP"] = json!(first);
            new["spec"]["clusterIPs"] = json!(addresses);
        }
        Ok(())
    }

    fn assign_ports(&self, new: &mut Value, before: &[Item], taken: &mut Taken, name: &str) -> Result<(), StatusError> {
        let mut shares = ports::Shares::of(new);
        for want in ports::wanted(new) {
            let port = match want.given {
                // Already this Service's: from before, or for another protocol of the same port.
                Some(given) if before.contains(&Item::Port(given)) || taken.taken.contains(&Item::Port(given)) => given,
                Some(given) => {
                    taken.take(Item::Port(given)).map_err(|error| {
                        let error = FieldError::invalid(&want.path, given, &error.to_string());
                        StatusError::invalid("", "Service", name, &[error])
                    })?;
                    given
                }
                None => match shares.find(&want) {
                    Some(port) => port,
                    None => {
                        let next = self.books.lock().ports.draw();
                        let what = if want.pointer.ends_with("healthCheckNodePort") {
                            "HealthCheck NodePort"
                        } else {
                            "nodePort"
                        };
                        let next =
                            next.map_err(|e| StatusError::internal(format!("failed to allocate a {what}: {e}")))?;
                        taken.taken.push(Item::Port(next));
                        next
                    }
                },
            };
            ports::set(new, &want, port);
            shares.note(&want, port);
        }
        Ok(())
    }
}

impl Books {
    fn take(&mut self, item: Item) -> Result<(), PoolError> {
        match item {
            Item::Port(port) => self.ports.take(port),
            Item::Address(address) => {
                let family = Family::of(&address);
                let pool = self.addresses.iter_mut().find(|(f, _)| *f == family);
                pool.map_or(Err(PoolError::family(address)), |(_, pool)| pool.take(address))
            }
        }
    }

    fn free(&mut self, item: Item) {
        match item {
            Item::Port(port) => self.ports.free(port),
            Item::Address(address) => {
                for (_, pool) in self.addresses.iter_mut().filter(|(f, _)| *f == Family::of(&address)) {
                    pool.free(address);
                }
            }
        }
    }

    fn next_address(&mut self, family: Family) -> Result<IpAddr, PoolError> {
        let pool = self.addresses.iter_mut().find(|(f, _)| *f == family);
        pool.map_or(Err(PoolError::Full), |(_, pool)| pool.draw())
    }
}

/// Everything that a Service holds.
fn held(service: &Value) -> Vec<Item> {
    let addresses = families::needs_address(service).then(|| families::addresses(service)).into_iter().flatten();
    let mut all: Vec<Item> = addresses.map(Item::Address).collect();
    for port in ports::held(service) {
        if !all.contains(&Item::Port(port)) {
            all.push(Item::Port(port));
        }
    }
    all
}

/// What one write took, and what it gives back once it is durable.
struct Taken {
    books: Arc<Mutex<Books>>,
    taken: Vec<Item>,
    freed: Vec<Item>,
    kept: bool,
}

impl Taken {
    fn take(&mut self, item: Item) -> Result<(), PoolError> {
        self.books.lock().take(item)?;
        self.taken.push(item);
        Ok(())
    }
}

impl Reservation for Taken {
    fn keep(mut self: Box<Self>) {
        self.kept = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let back = if self.kept { &self.freed } else { &self.taken };
        let mut books = self.books.lock();
        for item in back {
            books.free(*item);
        }
    }
}

impl Allocation for ServiceAllocation {
    fn allocate<'a>(
        &'a self,
        old: Option<&'a Value>,
        new: &'a mut Value,
        _: bool,
    ) -> BoxFuture<'a, Result<Box<dyn Reservation>, StatusError>> {
        Box::pin(std::future::ready(self.assign(old, new)))
    }

    fn release(&self, object: &Value) {
        let mut books = self.books.lock();
        for item in held(object) {
            books.free(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single() -> ServiceAllocation {
        ServiceAllocation::new(&["10.0.0.0/29".parse().unwrap()], 30000..=30003, [])
    }

    fn service(spec: Value) -> Value {
        json!({"metadata": {"name": "s"}, "spec": spec})
    }

    fn create(all: &ServiceAllocation, spec: Value) -> Result<Value, String> {
        let mut new = service(spec);
        all.assign(None, &mut new).map_err(|e| e.message)?.keep();
        Ok(new)
    }

    fn update(all: &ServiceAllocation, old: &Value, spec: Value) -> Result<Value, String> {
        let mut new = service(spec);
        all.assign(Some(old), &mut new).map_err(|e| e.message)?.keep();
        Ok(new)
    }

    #[test]
    fn each_service_gets_its_own_address() {
        let all = single();
        let first = create(&all, json!({"type": "ClusterIP"})).unwrap();
        let address = first["spec"]["clusterIP"].clone();
        assert_eq!(first["spec"]["clusterIPs"], json!([address]));
        assert_eq!(first["spec"]["ipFamilies"], json!(["IPv4"]));
        assert_eq!(first["spec"]["ipFamilyPolicy"], "SingleStack");
        let again = create(&all, json!({"type": "ClusterIP", "clusterIP": address})).unwrap_err();
        let address = address.as_str().unwrap();
        let expected = format!(
            "Service \"s\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: \
             provided IP is already allocated"
        );
        assert_eq!(again, expected);
        let outside = create(&all, json!({"type": "ClusterIP", "clusterIP": "10.1.0.1"})).unwrap_err();
        assert!(
            outside.contains(
                "the provided IP (10.1.0.1) is not in the valid range. The range of valid IPs is 10.0.0.0/29"
            ),
            "{outside}"
        );
        // Six addresses between network and broadcast.
        for _ in 0..5 {
            create(&all, json!({"type": "ClusterIP"})).unwrap();
        }
        let full = create(&all, json!({"type": "ClusterIP"})).unwrap_err();
        assert!(full.contains("failed to allocate a serviceIP: range is full"), "{full}");
        all.release(&first);
        assert_eq!(create(&all, json!({"type": "ClusterIP"})).unwrap()["spec"]["clusterIP"], address);
    }

    #[test]
    fn a_failed_write_gives_everything_back() {
        let all = single();
        for _ in 0..20 {
            let mut new = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
            drop(all.assign(None, &mut new).unwrap());
        }
        assert_eq!(all.books.lock().ports.used(), 0);
        assert_eq!(all.books.lock().addresses[0].1.used(), 0);
        // The second port can't be had: the first one is free again.
        let error = create(
            &all,
            json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}, {"port": 2, "nodePort": 1}]}),
        );
        let expected = "spec.ports[1].nodePort: Invalid value: 1: provided port is not in the valid range. The range of \
                        valid ports is 30000-30003";
        assert!(error.as_ref().unwrap_err().contains(expected), "{error:?}");
        assert_eq!(all.books.lock().ports.used(), 0);
    }

    #[test]
    fn node_ports_come_and_go_with_the_type() {
        let all = single();
        let ports =
            json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 80, "nodePort": 30002}]);
        let old = create(&all, json!({"type": "NodePort", "ports": ports})).unwrap();
        let got = |service: &Value, at: usize| service["spec"]["ports"][at]["nodePort"].clone();
        assert_eq!(got(&old, 0), got(&old, 1));
        assert_eq!(got(&old, 2), 30002);
        let taken = create(&all, json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30002}]})).unwrap_err();
        assert!(
            taken.contains("spec.ports[0].nodePort: Invalid value: 30002: provided port is already allocated"),
            "{taken}"
        );
        // A PUT that leaves out what was given keeps it.
        let kept = update(&all, &old, json!({"type": "NodePort", "ports": ports})).unwrap();
        assert_eq!(kept["spec"]["clusterIP"], old["spec"]["clusterIP"]);
        assert_eq!(got(&kept, 0), got(&old, 0));
        let mut spec = kept["spec"].clone();
        spec["type"] = json!("ClusterIP");
        let plain = update(&all, &kept, spec).unwrap();
        assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
        assert_eq!(all.books.lock().ports.used(), 0);
        let mut spec = plain["spec"].clone();
        spec["type"] = json!("ExternalName");
        spec["externalName"] = json!("x");
        let name = update(&all, &plain, spec).unwrap();
        assert!(name["spec"].get("clusterIP").is_none());
        assert_eq!(all.books.lock().addresses[0].1.used(), 0);
    }

    #[test]
    fn families_follow_policy_and_cluster() {
        let dual =
            ServiceAllocation::new(&["10.0.0.0/24".parse().unwrap(), "fd00::/112".parse().unwrap()], 30000..=30003, []);
        let both = create(&dual, json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"})).unwrap();
        assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        assert_eq!(both["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
        let six = create(&dual, json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})).unwrap();
        assert!(six["spec"]["clusterIP"].as_str().unwrap().starts_with("fd00::"));
        let mut spec = both["spec"].clone();
        spec["ipFamilyPolicy"] = json!("SingleStack");
        let one = update(&dual, &both, spec).unwrap();
        assert_eq!(one["spec"]["clusterIPs"].as_array().unwrap().len(), 1);
        let error = create(&single(), json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"})).unwrap_err();
        assert!(error.contains("this cluster is not configured for dual-stack services"), "{error}");
        let error = create(&single(), json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]})).unwrap_err();
        assert!(
            error.contains("spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"),
            "{error}"
        );
        let headless =
            create(&single(), json!({"type": "ClusterIP", "clusterIP": "None", "selector": {"a": "b"}})).unwrap();
        assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
        assert_eq!(headless["spec"]["ipFamilies"], json!(["IPv4"]));
    }

    #[test]
    fn a_start_books_what_is_stored() {
        let stored = service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ports": [{"port": 80, "nodePort": 30000}]}),
        );
        let all = ServiceAllocation::new(&["10.0.0.0/29".parse().unwrap()], 30000..=30003, [&stored]);
        assert!(create(&all, json!({"type": "ClusterIP", "clusterIP": "10.0.0.1"})).is_err());
        assert!(create(&all, json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}]})).is_err());
    }
}
