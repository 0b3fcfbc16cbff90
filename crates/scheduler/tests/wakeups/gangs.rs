//! Gangs in the histories: Workloads come, change and go, their Pods wait with their nodes for each other, and sometimes for
//! too long.

use std::collections::{BTreeMap, BTreeSet};

use api::features::{Feature, Features};
use clock::{Duration, Instant};
use json::json;
use k8s_openapi::api::core::v1::Pod;
use scheduler::{Engine, Settings, gangs::Workload};

use crate::{World, key, node_name, parks};

pub const WORKLOADS: [&str; 2] = ["w0", "w1"];

/// How many Pods the one group of each Workload needs; 0 where they need each other not.
pub type Workloads = BTreeMap<String, usize>;

pub fn settings() -> Settings {
    let features = [
        Feature::GenericWorkload,
        Feature::GangScheduling,
        Feature::NodeDeclaredFeatures,
        Feature::DRAExtendedResource,
    ];
    let features = features.into_iter().fold(Features::default(), |all, feature| all.with(feature, true));
    Settings { features, ..Settings::default() }
}

pub fn workload_of(pod: &Pod) -> Option<&str> {
    Some(&pod.spec.as_ref()?.workload_ref.as_ref()?.name)
}

pub fn tell(engine: &mut Engine, workloads: &Workloads, name: &str, now: Instant) {
    let workload = workloads.get(name).map(|least| {
        let policy = if *least == 0 { json!({"basic": {}}) } else { json!({"gang": {"minCount": least}}) };
        let workload = json!({"metadata": {"name": name}, "spec": {"podGroups": [{"name": "g", "policy": policy}]}});
        Workload::of(&json::from_value(workload).unwrap())
    });
    engine.set_workload(&key(name), workload, now);
}

impl World {
    pub fn change_workload(&mut self) {
        let name = self.dice.of(&WORKLOADS).unwrap();
        match self.dice.below(5) {
            0 => _ = self.workloads.remove(name),
            least => _ = self.workloads.insert(name.to_owned(), least - 1),
        }
        self.log.push(format!("workloads {:?}", self.workloads));
        tell(&mut self.engine, &self.workloads, name, self.now);
    }

    /// The Pods that wait with their nodes lose patience.
    pub fn wait_in_vain(&mut self) {
        self.log.push("five minutes later".to_owned());
        self.now += Duration::from_secs(301);
    }

    /// The node on which a Pod waits for its gang.
    pub fn held_on(&self, name: &str) -> Option<String> {
        let waits = self.pods.get(name).is_some_and(|pod| node_name(pod).is_none());
        let placed = self.engine.cache.placed(&key(name)).filter(|_| waits)?;
        Some(self.engine.cache.node(placed.node).name.to_string())
    }

    /// A Pod of a gang is tried as soon as there are enough, and stays parked only where it does not fit, if one of its gang
    /// has a node and waits or it needs no others. If none has a node, one at least of those that are parked does not fit.
    pub fn check_gangs(&self, seed: u64) {
        let parked: BTreeSet<&str> = self.engine.queue.parked_pods().map(|pod| pod.key.name.as_str()).collect();
        for workload in WORKLOADS {
            let all: Vec<&str> = self.pods.keys().map(String::as_str).collect();
            let all = all.into_iter().filter(|name| workload_of(&self.pods[*name]) == Some(workload));
            let (free, placed): (Vec<&str>, Vec<&str>) =
                all.partition(|name| node_name(&self.pods[*name]).is_none() && self.held_on(name).is_none());
            let least = self.workloads.get(workload).copied().unwrap_or(usize::MAX);
            let has_company = placed.iter().any(|name| self.held_on(name).is_some()) || placed.len() >= least;
            let said = || {
                let log = self.log.join("\n");
                format!("seed {seed}, {workload}, placed {placed:?}, waiting {free:?}, parked {parked:?}\n{log}")
            };
            let mut fitting = 0;
            for name in &free {
                let verdict = self.verdict(name);
                if self.engine.queue.get(&key(name)).is_some_and(|pod| pod.gated) {
                    assert!(verdict.is_none(), "{name} is held back, but {verdict:?}; {}", said());
                }
                let fits = parked.contains(name) && verdict.as_ref().is_some_and(|decision| !parks(decision));
                assert!(!(fits && has_company), "{name} is parked, but {verdict:?}; {}", said());
                fitting += usize::from(fits);
            }
            assert!(fitting == 0 || fitting < free.len(), "all are parked and fit; {}", said());
        }
    }
}
