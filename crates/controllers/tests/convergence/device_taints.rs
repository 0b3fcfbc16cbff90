//! Devices that are tainted by their drivers and by rules, and the Pods on them.

use client::{Api, Key, Kind, rest::DeleteOptions};
use json::{Value, json};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::{
        v1::{ResourceClaim, ResourceSlice},
        v1alpha3::DeviceTaintRule,
    },
};

use crate::common::object;
use crate::world::{Story, World, below, chance, converges, name, phase};

/// Drivers and rules taint devices and take the taints back; Pods come that tolerate them for ever, for a while or not.
struct DeviceTaints {
    made: u64,
}

const DEVICES: u64 = 4;
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
/// For how long a Pod tolerates taints, in seconds.
const PATIENCE: [Option<i64>; 3] = [None, Some(0), Some(40)];

fn all<K: Kind>(world: &World) -> Api<K> {
    Api::all(world.client.clone())
}

async fn listed<K: Kind>(world: &World) -> Vec<K> {
    all::<K>(world).list(&[]).await.unwrap()
}

/// A claim `c1` has a device; its Pod is `p1`.
fn claim_of(pod: &Pod) -> String {
    name(pod).replace('p', "c")
}

fn device(claim: &ResourceClaim) -> Value {
    json!(claim.status)["allocation"]["devices"]["results"][0].clone()
}

/// Whether a taint with this effect does not move a Pod that has the device.
fn is_tolerated(device: &Value) -> bool {
    device["tolerations"].as_array().is_some_and(|list| list.iter().any(|t| t["tolerationSeconds"].is_null()))
}

fn selects(rule: &DeviceTaintRule, device: &Value) -> bool {
    let selector = rule.spec.device_selector.as_ref();
    selector.is_some_and(|s| s.device.as_deref().is_none_or(|name| device["device"] == name))
}

fn slice(effects: &[Option<&str>]) -> Value {
    let device = |(number, effect): (usize, &Option<&str>)| {
        let taints: Vec<Value> = effect.iter().map(|effect| json!({"key": "broken", "effect": effect})).collect();
        json!({"name": format!("d{number}"), "taints": taints})
    };
    let devices: Vec<Value> = effects.iter().enumerate().map(device).collect();
    json!({"metadata": {"name": "s"}, "spec": {"driver": "drv.io", "allNodes": true, "devices": devices,
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1}}})
}

impl DeviceTaints {
    async fn add_pod(&mut self, world: &World) {
        self.made += 1;
        let (pod, claim) = (format!("p{}", self.made), format!("c{}", self.made));
        let tolerations = match below(4) as usize {
            3 => json!([]),
            index => json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE[index]}]),
        };
        let exactly = json!({"deviceClassName": "any", "tolerations": tolerations});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}});
        world.create::<ResourceClaim>(json!({"metadata": {"name": claim}, "spec": spec})).await;
        world
            .create::<Pod>(json!({"metadata": {"name": pod}, "spec": {
                "nodeName": format!("n{}", 1 + below(3)), "containers": [{"name": "c", "image": "i"}],
                "resourceClaims": [{"name": "x", "resourceClaimName": claim}]}}))
            .await;
        let uid = world.api::<Pod>().get(&pod).await.unwrap().metadata.uid;
        let result = json!({"request": "r", "driver": "drv.io", "pool": "pool",
            "device": format!("d{}", below(DEVICES)), "tolerations": tolerations});
        let status = json!({"allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}]});
        world.api::<ResourceClaim>().merge_patch(&claim, "status", json!({"status": status})).await.unwrap();
    }
}

impl Story for DeviceTaints {
    const CONTROLLERS: &'static [&'static str] = &["device-taint-eviction-controller"];

    async fn begin(world: &World) -> Self {
        all::<ResourceSlice>(world).create(&object(slice(&[None; DEVICES as usize]))).await.unwrap();
        let mut story = DeviceTaints { made: 0 };
        for _ in 0..3 {
            story.add_pod(world).await;
        }
        story
    }

    async fn change(&mut self, world: &World) {
        match below(6) {
            0 => {
                let effects: Vec<Option<&str>> =
                    (0..DEVICES).map(|_| chance(40).then(|| EFFECTS[below(3) as usize])).collect();
                let spec = slice(&effects)["spec"].clone();
                all::<ResourceSlice>(world).merge_patch("s", "", json!({"spec": spec})).await.unwrap();
            }
            1 | 2 => {
                let name = format!("r{}", below(3));
                let selector = if chance(30) { json!({}) } else { json!({"device": format!("d{}", below(DEVICES))}) };
                let taint = json!({"key": "rule", "effect": EFFECTS[below(3) as usize]});
                let spec = json!({"deviceSelector": selector, "taint": taint});
                let rule = object(json!({"metadata": {"name": name}, "spec": spec}));
                if all::<DeviceTaintRule>(world).create(&rule).await.is_err() {
                    let patch = json!({"spec": {"taint": {"effect": taint["effect"]}}});
                    all::<DeviceTaintRule>(world).merge_patch(&name, "", patch).await.unwrap();
                }
            }
            3 => {
                for rule in listed::<DeviceTaintRule>(world).await {
                    let name = rule.metadata.name.unwrap_or_default();
                    all::<DeviceTaintRule>(world).delete(&name, DeleteOptions::default()).await.unwrap();
                }
            }
            4 => world.delete_some_pod().await,
            _ => self.add_pod(world).await,
        }
    }

    async fn missing(&self, world: &World) -> Option<String> {
        let (pods, claims) = (world.list::<Pod>().await, world.list::<ResourceClaim>().await);
        let (slices, rules) = (listed::<ResourceSlice>(world).await, listed::<DeviceTaintRule>(world).await);
        let tainted = |device: &Value| {
            let own = json!(slices[0].spec.devices.as_ref().unwrap());
            let own = own.as_array().unwrap().iter().find(|one| one["name"] == device["device"]).unwrap().clone();
            let by_driver =
                own["taints"].as_array().is_some_and(|list| list.iter().any(|t| t["effect"] == "NoExecute"));
            let by_rule = |rule: &DeviceTaintRule| rule.spec.taint.effect == "NoExecute" && selects(rule, device);
            by_driver || rules.iter().any(by_rule)
        };
        let ended = |pod: &&Pod| matches!(phase(pod), "Succeeded" | "Failed");
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !ended(pod)) {
            let claim = claims.iter().find(|claim| Key::of(*claim).name == claim_of(pod))?;
            let device = device(claim);
            if tainted(&device) && !is_tolerated(&device) {
                return Some(format!("{} is still on {device}", name(pod)));
            }
        }
        for rule in &rules {
            let status = json!(rule.status);
            let condition = status["conditions"].as_array().and_then(|list| list.first()).cloned().unwrap_or_default();
            let expected: &[&str] = match rule.spec.taint.effect.as_str() {
                "NoExecute" => &["NotStarted", "Completed"],
                "None" => &["NoEffect"],
                _ => &["OtherEffect"],
            };
            let current = condition["observedGeneration"] == json!(rule.metadata.generation);
            if !current || condition["status"] != "False" || !expected.iter().any(|r| condition["reason"] == *r) {
                return Some(format!("{:?} with {} says {condition}", rule.metadata.name, rule.spec.taint.effect));
            }
        }
        None
    }

    /// Whoever tolerates all taints for ever is never evicted.
    async fn check(&self, world: &World) {
        let claims = world.list::<ResourceClaim>().await;
        for pod in world.list::<Pod>().await {
            let Some(claim) = claims.iter().find(|claim| Key::of(*claim).name == claim_of(&pod)) else { continue };
            let conditions = json!(pod.status)["conditions"].clone();
            let evicted =
                conditions.as_array().is_some_and(|list| list.iter().any(|c| c["type"] == "DisruptionTarget"));
            assert!(!(evicted && is_tolerated(&device(claim))), "{} tolerates everything", name(&pod));
        }
    }
}

#[test]
fn pods_leave_devices_whose_taints_they_do_not_tolerate() {
    converges::<DeviceTaints>(0..8);
}
