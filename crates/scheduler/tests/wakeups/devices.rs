//! Devices in the histories: slices and their class come and go, claims get devices and give them back. The class stands for
//! an extended resource: a Pod that asks for that gets a device where the node has it not as such, with a claim of its own.

use std::{collections::BTreeMap, sync::Arc};

use client::Key;
use clock::Instant;
use json::{Value, json};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use scheduler::{
    Engine,
    devices::{Claim as DeviceClaim, Class, Given, Slice},
};

use crate::{Dice, World, key};

/// The extended resource that nodes have, or their devices.
pub const RESOURCE: &str = "example.com/g";

/// Claims on devices that Pods name.
pub const CLAIMS: [&str; 3] = ["g0", "g1", "g2"];

/// Devices as the API has them.
#[derive(Default)]
pub struct Devices {
    pub has_class: bool,
    /// How many devices the slice of a node has.
    pub slices: BTreeMap<String, usize>,
    /// Claims with their status.
    pub claims: BTreeMap<String, Value>,
    /// The allocations that were decided for claims of Pods that are not confirmed.
    pub given: BTreeMap<String, Vec<(String, Value)>>,
    /// How many Pods got the extended resource from a node as such, and how many as a device.
    pub extended: [usize; 2],
}

impl Devices {
    pub fn slice(node: &str, devices: usize) -> Slice {
        let devices: Vec<Value> = (0..devices).map(|i| json!({"name": format!("d{i}")})).collect();
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let slice = json!({"metadata": {"name": node},
            "spec": {"driver": "drv", "nodeName": node, "pool": pool, "devices": devices}});
        Slice::of(&json::from_value(slice).unwrap())
    }

    pub fn claim(name: &str, status: &Value) -> DeviceClaim {
        let requests = json!([{"name": "r", "exactly": {"deviceClassName": "any", "count": 1}}]);
        let mut meta = json!({"name": name, "uid": name});
        if let Some(pod) = name.strip_prefix(OF_POD) {
            meta["annotations"] = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
            meta["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": true}]);
        }
        let claim = json!({"metadata": meta, "spec": {"devices": {"requests": requests}}, "status": status});
        DeviceClaim::of(&json::from_value(claim).unwrap())
    }

    pub fn class() -> Class {
        let spec = json!({"extendedResourceName": RESOURCE});
        Class::of(&json::from_value(json!({"metadata": {"name": "any"}, "spec": spec})).unwrap())
    }

    pub fn tell_class(&self, engine: &mut Engine, now: Instant) {
        engine.set_device_class(&Key::new("", "any"), self.has_class.then(Self::class), now);
    }

    pub fn tell_claim(&self, engine: &mut Engine, name: &str, now: Instant) {
        let claim = self.claims.get(name).map(|status| Self::claim(name, status));
        engine.set_device_claim(&key(name), claim, now);
    }

    fn given(&self, claim: &str) -> Option<&Value> {
        let found = self.given.values().flatten().find(|(given, _)| given == claim);
        found.map(|(_, allocation)| allocation)
    }

    /// Tells an engine that knows nothing, also of what was decided.
    pub fn tell_all(&self, engine: &mut Engine, now: Instant) {
        self.tell_class(engine, now);
        for (node, devices) in &self.slices {
            engine.set_slice(&Key::new("", node), Some(Self::slice(node, *devices)), now);
        }
        let unmade = self.given.values().flatten().map(|(given, _)| given).filter(|given| given.starts_with(OF_POD));
        for name in self.claims.keys().chain(unmade) {
            match self.given(name) {
                Some(allocation) => {
                    let claim = Self::claim(name, &json!({"allocation": allocation}));
                    engine.set_device_claim(&key(name), Some(claim), now);
                }
                None => self.tell_claim(engine, name, now),
            }
        }
    }

    pub fn is_pending(&self, name: &str) -> bool {
        self.given(name).is_some()
    }

    /// The claims that a Pod names, and the one that was made for it.
    fn claims_used(&self, name: &str, pod: Option<&Pod>) -> Vec<String> {
        let made = claim_for(name);
        let there = self.claims.contains_key(&made);
        pod.map(claims_of).unwrap_or_default().into_iter().chain(there.then_some(made)).collect()
    }

    pub fn users<'a>(&'a mut self, name: &str) -> Option<&'a mut Vec<Value>> {
        let status = self.claims.get_mut(name)?;
        status.get("allocation")?;
        if status.get("reservedFor").is_none() {
            status["reservedFor"] = json!([]);
        }
        status["reservedFor"].as_array_mut()
    }
}

/// Before the name of a Pod: the name of the claim for its extended resources.
const OF_POD: &str = "for-";

pub fn claim_for(pod: &str) -> String {
    format!("{OF_POD}{pod}")
}

pub fn claims_of(pod: &Pod) -> Vec<String> {
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.filter_map(|claim| claim.resource_claim_name.clone()).collect()
}

/// A node begins or ceases to have the resource as such.
pub fn change_resource(dice: &mut Dice, node: &mut Node) {
    let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    allocatable.remove(RESOURCE);
    if dice.one_in(2) {
        allocatable.insert(RESOURCE.to_owned(), Quantity((1 + dice.below(2)).to_string()));
    }
}

impl World {
    /// Notes what a Pod is about to get.
    pub fn give_devices(&mut self, name: &str, brought: impl Iterator<Item = Arc<Given>>) {
        let mut given: Vec<(String, Value)> = Vec::new();
        for brought in brought {
            given.extend(brought.claims.iter().map(|(claim, result)| (claim.name.clone(), json!(**result))));
            given.extend(brought.extended.iter().map(|extended| (claim_for(name), json!(*extended.result))));
        }
        let as_device = given.iter().any(|(claim, _)| *claim == claim_for(name));
        let asks = api::rules::pod::requests(self.pods[name].spec.as_ref().unwrap()).contains_key(RESOURCE);
        self.devices.extended[0] += usize::from(asks && !as_device);
        self.devices.extended[1] += usize::from(as_device);
        self.log.push(format!("{name} gets {given:?}"));
        self.devices.given.insert(name.to_owned(), given);
    }

    pub fn change_devices(&mut self) {
        let name = self.dice.of(&CLAIMS).unwrap();
        let status = self.devices.claims.get(name).cloned();
        let pending = self.devices.is_pending(name);
        let in_use =
            status.as_ref().is_some_and(|s| s["reservedFor"].as_array().is_some_and(|users| !users.is_empty()));
        match self.dice.below(6) {
            0 => {
                self.devices.has_class ^= true;
                self.devices.tell_class(&mut self.engine, self.now);
            }
            1 | 2 => {
                let (node, count) = (format!("n{}", self.dice.below(4)), self.dice.below(4));
                let slice = (count < 3).then(|| Devices::slice(&node, count));
                self.engine.set_slice(&Key::new("", &*node), slice, self.now);
                self.devices.slices.remove(&node);
                if count < 3 {
                    self.devices.slices.insert(node, count);
                }
            }
            3 if !pending && !in_use && status.is_some() => _ = self.devices.claims.remove(name),
            4 if !pending && status.as_ref().is_some_and(|status| status.get("allocation").is_none()) => {
                let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}]);
                let result = json!({"request": "r", "driver": "drv", "pool": "n0", "device": "d0"});
                let allocation =
                    json!({"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}});
                self.devices.claims.insert(name.to_owned(), json!({"allocation": allocation}));
            }
            _ if !pending && !in_use => _ = self.devices.claims.insert(name.to_owned(), json!({})),
            _ => {}
        }
        self.log
            .push(format!("class {}, {:?}, {:?}", self.devices.has_class, self.devices.slices, self.devices.claims));
        self.devices.tell_claim(&mut self.engine, name, self.now);
    }

    /// The decision about the claims of a Pod is written, with the Pod as their user.
    pub fn show_devices(&mut self, name: &str) {
        for (claim, allocation) in self.devices.given.remove(name).unwrap_or_default() {
            self.devices.claims.insert(claim, json!({"allocation": allocation}));
        }
        for claim in self.devices.claims_used(name, self.pods.get(name)) {
            self.devices.users(&claim).into_iter().for_each(|users| {
                users.push(json!({"resource": "pods", "name": name, "uid": name}));
            });
            self.devices.tell_claim(&mut self.engine, &claim, self.now);
        }
    }

    /// The Pod uses its claims no more; those that nobody uses are given back, and the one that was made for it is gone.
    pub fn leave_devices(&mut self, name: &str) {
        self.devices.given.remove(name);
        for claim in self.devices.claims_used(name, self.pods.get(name)) {
            if claim.starts_with(OF_POD) {
                self.devices.claims.remove(&claim);
                self.devices.tell_claim(&mut self.engine, &claim, self.now);
                continue;
            }
            let Some(users) = self.devices.users(&claim) else { continue };
            let before = users.len();
            users.retain(|user| user["uid"] != name);
            if users.is_empty() && before > 0 {
                self.devices.claims.insert(claim.clone(), json!({}));
            }
            self.devices.tell_claim(&mut self.engine, &claim, self.now);
        }
    }
}
