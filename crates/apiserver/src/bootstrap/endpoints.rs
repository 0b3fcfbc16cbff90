//! Where the API servers of a cluster are reached: the Endpoints and the EndpointSlice of the `kubernetes` Service.
//!
//! With a store of its own a server is the only one, and says its own address. Servers that share an etcd each keep a key there that
//! ends by itself, as upstream's servers do in the same place, and all of them write the addresses of the keys: none undoes what
//! another one wrote, and the address of one that is gone leaves with its key. The key is written as often as upstream's, since
//! upstream's servers may read it too; it costs the etcd a write, and a node with a store of its own nothing.
//!
//! Upstream counterpart: pkg/controlplane/reconcilers (lease.go, endpointsadapter.go).

use std::{collections::BTreeSet, net::IpAddr};

use api::{
    kind::{Definition, Target},
    status::StatusError,
};
use clock::Duration;
use json::{Value, json};
use store::{Change, Commit, Expect, Range, StoreError};

use super::cluster::{Cluster, family};
use crate::storage::{error::store_error, object, object_store::ObjectStore};

/// The keys of the servers, named by their addresses.
pub const LEASES: &str = "/registry/masterleases/";
/// How long a key outlives a server that is gone.
const LEASE_SECONDS: u32 = 15;
/// The time between two writes of a key.
pub const RENEWAL: Duration = Duration::from_secs(10);

const OF: (&str, &str) = ("default", "kubernetes");
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The Endpoints with these addresses.
pub fn endpoints(addresses: &[String], port: u16) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": OF.1, "namespace": OF.0, "labels": {SKIP_MIRROR: "true"}},
        "subsets": [{"addresses": addresses, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    })
}

/// The slice that says the same as these Endpoints.
pub fn slice(endpoints: &Value) -> Value {
    let subset = &endpoints["subsets"][0];
    let addresses = || subset["addresses"].as_array().into_iter().flatten().filter_map(|one| one["ip"].as_str());
    let first: Option<IpAddr> = addresses().next().and_then(|address| address.parse().ok());
    let ready = |address: &str| json!({"addresses": [address], "conditions": {"ready": true}});
    let port = |port: &Value| json!({"name": port["name"], "port": port["port"], "protocol": port["protocol"]});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": OF.1, "namespace": OF.0, "labels": {SERVICE_NAME: OF.1}},
        "addressType": first.as_ref().map_or("IPv4", family),
        "endpoints": addresses().map(ready).collect::<Vec<_>>(),
        "ports": subset["ports"].as_array().into_iter().flatten().map(port).collect::<Vec<_>>(),
    })
}

/// The Endpoints as they have to be beside what is there, or nothing where they are right. Ports are put right at the start alone.
fn mended(present: &Value, addresses: &[String], port: u16, ports: bool) -> Option<Value> {
    let wanted = endpoints(addresses, port);
    let mut object = present.clone();
    if object["metadata"]["labels"][SKIP_MIRROR] != "true" {
        object["metadata"]["labels"][SKIP_MIRROR] = json!("true");
    }
    let subsets = present["subsets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [subset] = subsets else {
        object["subsets"] = wanted["subsets"].clone();
        return Some(object);
    };
    let listed = subset["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let there: BTreeSet<&str> = listed.iter().filter_map(|one| one["ip"].as_str()).collect();
    let same = listed.len() == addresses.len() && there == addresses.iter().map(String::as_str).collect();
    if !same {
        object["subsets"][0]["addresses"] = wanted["subsets"][0]["addresses"].clone();
        // A server that writes its address here is ready.
        object["subsets"][0].as_object_mut().map(|subset| subset.remove("notReadyAddresses"));
    }
    if ports && subset["ports"] != wanted["subsets"][0]["ports"] {
        object["subsets"][0]["ports"] = wanted["subsets"][0]["ports"].clone();
    }
    (object != *present).then_some(object)
}

/// The place of one server among all.
pub struct Place {
    address: String,
    port: u16,
}

impl Place {
    pub fn of(cluster: &Cluster) -> Self {
        Place { address: cluster.advertise_address.to_string(), port: cluster.secure_port }
    }

    fn key(&self) -> String {
        format!("{LEASES}{}", self.address)
    }

    /// Says that this server is there, where others share the store.
    pub async fn renew(&self, objects: &ObjectStore) -> Result<(), StatusError> {
        if !objects.store.is_shared() {
            return Ok(());
        }
        let definition = objects.definition("", "endpoints")?;
        let lease = json!({"metadata": {}, "subsets": [{"addresses": [{"ip": self.address}]}]});
        let value = object::encode(&definition, &lease);
        let change = Change::Put { value, ttl_seconds: Some(LEASE_SECONDS) };
        let commit = Commit { key: self.key().into(), expect: Expect::Any, change };
        objects.store.commit(commit).await.map(|_| ()).map_err(store_error)
    }

    /// Writes the addresses of all servers into the objects.
    pub async fn write(&self, objects: &ObjectStore, ports: bool) -> Result<(), StatusError> {
        let addresses = self.addresses(objects).await?;
        if addresses.is_empty() {
            return Err(StatusError::internal(
                "no API server is said to be there: the endpoints of kubernetes are left",
            ));
        }
        let definition = objects.definition("", "endpoints")?;
        let mend = |present: &mut Value| {
            let mended = mended(present, &addresses, self.port, ports);
            Ok(mended.map(|object| *present = object).is_some())
        };
        match objects.update(&definition, OF, Target::Object, mend).await {
            Err(error) if error.code == 404 => {
                made(objects.create(&definition, endpoints(&addresses, self.port)).await)?;
            }
            done => done?,
        }
        let written = objects.get(&definition, OF.0, OF.1).await?;
        same_slice(objects, &slice(&written)).await
    }

    /// The addresses of the servers, in order.
    async fn addresses(&self, objects: &ObjectStore) -> Result<Vec<String>, StatusError> {
        if !objects.store.is_shared() {
            return Ok(vec![self.address.clone()]);
        }
        let definition = objects.definition("", "endpoints")?;
        let leases = objects.store.range(Range::prefix(LEASES)).await.map_err(store_error)?.entries;
        let address = |entry| {
            let lease = object::of_entry(&definition, entry);
            lease["subsets"][0]["addresses"][0]["ip"].as_str().filter(|address| !address.is_empty()).map(str::to_owned)
        };
        let all: BTreeSet<String> = leases.iter().filter_map(address).collect();
        Ok(all.into_iter().collect())
    }

    /// Takes the server's own address away: others are asked from now on. The last server leaves it.
    pub async fn leave(&self, objects: &ObjectStore) -> Result<(), StatusError> {
        if !objects.store.is_shared() {
            return Ok(());
        }
        let commit = Commit { key: self.key().into(), expect: Expect::Any, change: Change::Delete };
        match objects.store.commit(commit).await {
            Ok(_) | Err(StoreError::Conflict { current: None, .. }) => {}
            Err(error) => return Err(store_error(error)),
        }
        match self.addresses(objects).await?.is_empty() {
            true => Ok(()),
            false => self.write(objects, true).await,
        }
    }
}

/// Another server may have been faster.
fn made(created: Result<(), StatusError>) -> Result<(), StatusError> {
    match created {
        Err(error) if error.code == 409 => Ok(()),
        done => done,
    }
}

/// Makes the slice say what it is to say. The family of its addresses is for life.
async fn same_slice(objects: &ObjectStore, wanted: &Value) -> Result<(), StatusError> {
    let definition = objects.definition("discovery.k8s.io", "endpointslices")?;
    let other_family = |present: &Value| present["addressType"] != wanted["addressType"];
    let mend = |present: &mut Value| {
        let mut object = present.clone();
        for field in ["endpoints", "ports"] {
            object[field] = wanted[field].clone();
        }
        object["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
        let changed = !other_family(present) && object != *present;
        *present = object;
        Ok(changed)
    };
    match objects.update(&definition, OF, Target::Object, mend).await {
        Err(error) if error.code == 404 => return made(objects.create(&definition, wanted.clone()).await),
        done => done?,
    }
    replace_other_family(objects, &definition, wanted, other_family).await
}

async fn replace_other_family(
    objects: &ObjectStore,
    definition: &Definition,
    wanted: &Value,
    other_family: impl Fn(&Value) -> bool,
) -> Result<(), StatusError> {
    let entry = objects.entry(definition, OF.0, OF.1).await?;
    let mut swap = objects.swap(definition, entry);
    if !other_family(&swap.object()) {
        return Ok(());
    }
    swap.remove().await?;
    made(objects.create(definition, wanted.clone()).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_mended_where_they_are_wrong() {
        let all = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let present = endpoints(&all(&["10.0.0.1", "10.0.0.2"]), 6443);
        assert_eq!(mended(&present, &all(&["10.0.0.1", "10.0.0.2"]), 6443, true), None);
        assert_eq!(mended(&present, &all(&["10.0.0.2"]), 6443, false), Some(endpoints(&all(&["10.0.0.2"]), 6443)));
        let turned = endpoints(&all(&["10.0.0.2", "10.0.0.1"]), 6443);
        assert_eq!(mended(&turned, &all(&["10.0.0.1", "10.0.0.2"]), 6443, true), None, "their order means nothing");
        let other_port = endpoints(&all(&["10.0.0.1"]), 1);
        assert_eq!(mended(&other_port, &all(&["10.0.0.1"]), 6443, false), None);
        assert_eq!(mended(&other_port, &all(&["10.0.0.1"]), 6443, true), Some(endpoints(&all(&["10.0.0.1"]), 6443)));
        let mut none = present.clone();
        none["subsets"] = json!([]);
        none["metadata"]["labels"] = json!({"mine": "x"});
        let mut expected = endpoints(&all(&["10.0.0.1"]), 6443);
        expected["metadata"]["labels"]["mine"] = json!("x");
        assert_eq!(mended(&none, &all(&["10.0.0.1"]), 6443, false), Some(expected));
    }

    #[test]
    fn the_slice_says_what_the_endpoints_say() {
        let found = slice(&endpoints(&["fd00::1".to_owned()], 6443));
        assert_eq!(found["addressType"], "IPv6");
        assert_eq!(found["endpoints"], json!([{"addresses": ["fd00::1"], "conditions": {"ready": true}}]));
        assert_eq!(found["ports"], json!([{"name": "https", "port": 6443, "protocol": "TCP"}]));
    }
}
