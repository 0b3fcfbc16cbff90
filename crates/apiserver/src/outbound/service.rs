//! From a reference to a Service to one of the addresses behind it.

use api::{Value, status::StatusError};
use dialer::Endpoint;

use super::dialer::bare;
use crate::storage::{object, object_store::ObjectStore};

/// Which address behind a Service is dialed (`--enable-aggregator-routing`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Routing {
    /// The Service's own, which the proxy of this machine spreads.
    #[default]
    ClusterAddress,
    /// One of its endpoints.
    Endpoints,
}

impl Routing {
    /// Where the server listens now.
    pub async fn endpoint(
        self,
        objects: &ObjectStore,
        (namespace, name, port): (&str, &str, u16),
    ) -> Result<Endpoint, StatusError> {
        match self {
            Routing::ClusterAddress => cluster_address(objects, namespace, name, port).await,
            Routing::Endpoints => {
                let service = named(objects, namespace, name).await?;
                has_endpoints(&service)?;
                let found = resolve(objects, namespace, name, &port.to_string()).await?;
                let none = || StatusError::unavailable(format!("no endpoints available for service {name:?}"));
                found.ok_or_else(none)
            }
        }
    }
}

/// A ready address behind a port of a Service, chosen at random; `None` when there is none. The port may be given by name
/// or number, and a single one left out. Over TLS the server shows a certificate for the Service, as upstream demands.
pub async fn resolve(
    objects: &ObjectStore,
    namespace: &str,
    name: &str,
    port: &str,
) -> Result<Option<Endpoint>, StatusError> {
    let get = async |plural| objects.get(&*objects.definition("", plural)?, namespace, name).await;
    let service = get("services").await?;
    let port = port_name(&service, name, port)?;
    // Endpoints are one object of a known name. A Service whose slices are kept by hand has none.
    let mut backends = match get("endpoints").await {
        Ok(endpoints) => backends(&endpoints, &port),
        Err(error) if error.code == 404 => Vec::new(),
        Err(error) => return Err(error),
    };
    if backends.is_empty() {
        let primary = service["spec"]["ipFamilies"][0].as_str();
        backends = of_slices(&slices(objects, namespace, name).await?, &port, primary);
    }
    if backends.is_empty() {
        return Ok(None);
    }
    let chosen = clock::random_range(0..backends.len() as u64) as usize;
    Ok(Some(Endpoint { server_name: Some(format!("{name}.{namespace}.svc")), ..backends.swap_remove(chosen) }))
}

/// The address of the Service itself; the proxy of this machine leads it to one behind. Of a Service that stands for a name
/// outside it is that name. Over TLS the server shows a certificate for the Service.
pub async fn cluster_address(
    objects: &ObjectStore,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Endpoint, StatusError> {
    let service = named(objects, namespace, name).await?;
    let host = host_of(&service, name, port)?;
    Ok(Endpoint { server_name: Some(format!("{name}.{namespace}.svc")), ..Endpoint::new(host, port) })
}

/// The Service of a reference. Upstream reads it from a cache, which names the resource in the singular when it has none.
async fn named(objects: &ObjectStore, namespace: &str, name: &str) -> Result<Value, StatusError> {
    let found = objects.get(&*objects.definition("", "services")?, namespace, name).await;
    found.map_err(|error| if error.code == 404 { StatusError::not_found("", "service", name) } else { error })
}

fn host_of(service: &Value, name: &str, port: u16) -> Result<String, StatusError> {
    let spec = |field: &str| service["spec"][field].as_str().unwrap_or_default();
    match (spec("type"), spec("clusterIP")) {
        ("ExternalName", _) => Ok(spec("externalName").to_owned()),
        ("ClusterIP" | "NodePort" | "LoadBalancer", address) => {
            if matches!(address, "" | "None") {
                return Err(bare("cannot route to service with ClusterIP \"None\"".to_owned()));
            }
            port_name(service, name, &port.to_string())?;
            Ok(address.to_owned())
        }
        (other, _) => Err(unsupported(other)),
    }
}

/// A Service that stands for a name outside has no endpoints of its own, whatever somebody wrote under its name.
fn has_endpoints(service: &Value) -> Result<(), StatusError> {
    match service["spec"]["type"].as_str().unwrap_or_default() {
        "ClusterIP" | "NodePort" | "LoadBalancer" => Ok(()),
        other => Err(unsupported(other)),
    }
}

fn unsupported(sort: &str) -> StatusError {
    bare(format!("unsupported service type {sort:?}"))
}

/// The name of the Service's port that is meant.
fn port_name(service: &Value, name: &str, wanted: &str) -> Result<String, StatusError> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let name_of = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
    match (wanted.parse::<u64>(), ports) {
        (Err(_), [only]) if wanted.is_empty() => Ok(name_of(only)),
        (Err(_), _) => Ok(wanted.to_owned()),
        (Ok(number), _) => {
            let found = ports.iter().find(|p| p.get("port").and_then(Value::as_u64) == Some(number));
            let missing = || StatusError::unavailable(format!("no service port {number} found for service \"{name}\""));
            found.map(name_of).ok_or_else(missing)
        }
    }
}

/// The label of an EndpointSlice that names its Service.
pub const SLICE_OF: &str = "kubernetes.io/service-name";

/// The EndpointSlices of a Service.
pub async fn slices(objects: &ObjectStore, namespace: &str, name: &str) -> Result<Vec<Value>, StatusError> {
    let definition = objects.definition("discovery.k8s.io", "endpointslices")?;
    let entries = objects.entries(&definition, namespace).await?;
    let finder = memchr::memmem::Finder::new(name.as_bytes());
    let near = entries.iter().filter(|entry| finder.find(&entry.value).is_some());
    let slices = near.map(|entry| object::of_entry(&definition, entry));
    Ok(slices.filter(|slice| slice["metadata"]["labels"][SLICE_OF] == *name).collect())
}

/// The ready addresses in slices behind the port of that name: those of the Service's first family where there are any.
fn of_slices(slices: &[Value], port: &str, primary: Option<&str>) -> Vec<Endpoint> {
    let of_family = |wanted: bool| {
        let slices = slices.iter().filter(|slice| (slice["addressType"].as_str() == primary) == wanted);
        slices.flat_map(|slice| of_slice(slice, port)).collect::<Vec<_>>()
    };
    let first = of_family(true);
    if first.is_empty() { of_family(false) } else { first }
}

fn of_slice(slice: &Value, port: &str) -> Vec<Endpoint> {
    let list = |field: &str| slice[field].as_array().into_iter().flatten();
    let port = list("ports").find(|p| p["name"].as_str().unwrap_or_default() == port);
    let Some(port) = port.and_then(|p| u16::try_from(p["port"].as_u64()?).ok()) else { return Vec::new() };
    let ready = list("endpoints").filter(|endpoint| endpoint["conditions"]["ready"] != false);
    ready.filter_map(|endpoint| Some(Endpoint::new(endpoint["addresses"][0].as_str()?, port))).collect()
}

/// The ready addresses behind the port of that name.
fn backends(endpoints: &Value, port: &str) -> Vec<Endpoint> {
    let list = |v: &Value, key: &str| v.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all = Vec::new();
    for subset in list(endpoints, "subsets") {
        let ports = list(&subset, "ports");
        let wanted = ports.iter().find(|p| p.get("name").and_then(Value::as_str).unwrap_or("") == port);
        let Some(port) = wanted.and_then(|p| u16::try_from(p.get("port")?.as_u64()?).ok()) else { continue };
        let addresses = list(&subset, "addresses");
        let hosts = addresses.iter().filter_map(|a| a.get("ip")?.as_str());
        all.extend(hosts.map(|host| Endpoint::new(host, port)));
    }
    all
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn services_lead_to_ready_addresses() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80}]}});
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "notReadyAddresses": [{"ip": "10.0.0.3"}],
             "ports": [{"name": "web", "port": 8080}]}, {"addresses": [{"ip": "10.0.0.4"}]}]});
        for wanted in ["", "80", "web"] {
            let port = port_name(&service, "s", wanted).unwrap();
            let found: Vec<String> = backends(&endpoints, &port).iter().map(Endpoint::authority).collect();
            assert_eq!(found, ["10.0.0.1:8080", "10.0.0.2:8080"], "{wanted:?}");
        }
        assert_eq!(port_name(&service, "s", "81").unwrap_err().message, "no service port 81 found for service \"s\"");
        assert!(backends(&endpoints, "other").is_empty());
    }

    #[test]
    fn slices_lead_to_ready_addresses_of_the_first_family() {
        let slice = |family: &str, address: &str, ready: Value, port: Value| {
            json!({"addressType": family, "ports": [port],
                "endpoints": [{"addresses": [address, "10.0.0.9"], "conditions": {"ready": ready}}]})
        };
        let web = || json!({"name": "web", "port": 8080});
        let check = |slices: &[Value], expected: &[&str]| {
            let found: Vec<String> = of_slices(slices, "web", Some("IPv4")).iter().map(Endpoint::authority).collect();
            assert_eq!(found, expected);
        };
        let six = slice("IPv6", "fd00::1", json!(true), web());
        check(&[six.clone(), slice("IPv4", "10.0.0.1", json!(null), web())], &["10.0.0.1:8080"]);
        check(&[six.clone(), slice("IPv4", "10.0.0.1", json!(false), web())], &["[fd00::1]:8080"]);
        check(&[slice("IPv4", "10.0.0.1", json!(true), json!({"name": "other", "port": 1}))], &[]);
        check(&[slice("IPv4", "10.0.0.1", json!(true), json!({"name": "web"}))], &[]);
        check(&[], &[]);
    }

    /// Upstream's TestResolve: the way to the address of the Service, and to one of its endpoints.
    #[test]
    fn each_sort_of_service_leads_where_upstreams_does() {
        let usual = json!([{"name": "https", "port": 443}, {"port": 1234}]);
        let other = json!([{"port": 1234}]);
        let check = |spec: Value, slices: usize, cluster: Result<&str, &str>, endpoint: Result<&str, &str>| {
            let service = json!({"metadata": {"name": "alfa"}, "spec": spec});
            let found = host_of(&service, "alfa", 443).map_err(|error| error.message);
            assert_eq!(found.as_deref().map_err(String::as_str), cluster, "{service}");
            let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}],
                "ports": [{"name": "https", "port": 1443}, {"port": 1234}]});
            let empty = json!({"addressType": "IPv4", "endpoints": [], "ports": [{"name": "https", "port": 1443}]});
            let slices = [slice, empty].into_iter().skip(2 - slices).collect::<Vec<_>>();
            let found = has_endpoints(&service).and_then(|()| port_name(&service, "alfa", "443")).map(|port| {
                let found = of_slices(&slices, &port, None);
                found.first().map_or_else(|| "none".to_owned(), Endpoint::authority)
            });
            let found = found.map_err(|error| error.message);
            assert_eq!(found.as_deref().map_err(String::as_str), endpoint, "{service}");
        };
        let of = |sort: &str, address: &str, ports: &Value| json!({"type": sort, "clusterIP": address, "ports": ports});
        let no_port = Err("no service port 443 found for service \"alfa\"");
        check(of("ClusterIP", "hit", &other), 2, no_port, no_port);
        check(of("ClusterIP", "hit", &usual), 2, Ok("hit"), Ok("127.0.0.1:1443"));
        check(of("ClusterIP", "hit", &usual), 0, Ok("hit"), Ok("none"));
        check(of("ClusterIP", "hit", &usual), 1, Ok("hit"), Ok("none"));
        check(of("ClusterIP", "None", &json!([])), 0, Err("cannot route to service with ClusterIP \"None\""), no_port);
        check(of("LoadBalancer", "lb", &usual), 2, Ok("lb"), Ok("127.0.0.1:1443"));
        check(of("NodePort", "np", &usual), 2, Ok("np"), Ok("127.0.0.1:1443"));
        let name = json!({"type": "ExternalName", "externalName": "foo.bar.com", "ports": usual});
        check(name, 2, Ok("foo.bar.com"), Err("unsupported service type \"ExternalName\""));
        let unknown = Err("unsupported service type \"unsupported\"");
        check(json!({"type": "unsupported"}), 0, unknown, unknown);
    }

    #[test]
    fn services_have_addresses_of_their_own() {
        let check = |spec: Value, expected: &str| {
            let service = json!({ "spec": spec });
            assert_eq!(host_of(&service, "s", 443).unwrap_or_else(|error| error.message), expected);
        };
        let ports = json!([{"port": 443}]);
        for sort in ["ClusterIP", "NodePort", "LoadBalancer"] {
            check(json!({"type": sort, "clusterIP": "10.0.0.9", "ports": ports}), "10.0.0.9");
        }
        check(json!({"type": "ExternalName", "externalName": "example.com"}), "example.com");
        let headless = json!({"type": "ClusterIP", "clusterIP": "None", "ports": ports});
        check(headless, "cannot route to service with ClusterIP \"None\"");
        let other = json!({"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": [{"port": 80}]});
        check(other, "no service port 443 found for service \"s\"");
    }
}
