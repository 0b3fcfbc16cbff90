//! No wake-up is lost: after any history of events, a Pod that is parked fits nowhere, and no preemption would make room
//! for it. A fresh engine that is given the same cluster is the judge, since it has nothing to remember.

mod devices;
mod gangs;

use std::collections::BTreeMap;

use api::rules::declared_feature::{RESTART_ALL, RESTART_ALL_ACTION};
use client::Key;
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::{
    api::core::v1::{Namespace, Node, Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use scheduler::{
    Decision, Engine, Settings,
    attachable::{Attachable, Limits},
    claims::{Claim, Volume},
    failure::{Preemption, Release, Victims},
};

use devices::{CLAIMS, Devices, RESOURCE, claims_of};
use gangs::{WORKLOADS, Workloads, workload_of};

/// A generator of numbers whose whole state is its seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> Option<T> {
        if list.is_empty() { None } else { Some(list[self.below(list.len())].clone()) }
    }
}

/// The cluster as the API has it, and the engine that is told of it.
struct World {
    dice: Dice,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    namespaces: BTreeMap<String, Namespace>,
    /// The one claim that Pods name, and the one volume that it can have.
    claim: Option<Claim>,
    volume: Option<Volume>,
    /// How many volumes of the one driver each node can hold.
    limits: BTreeMap<String, Limits>,
    devices: Devices,
    workloads: Workloads,
    /// How often a Pod waited for its gang, and how often one of a gang was bound.
    of_gangs: [usize; 2],
    /// Bound Pods that the engine has not been shown on their nodes.
    unconfirmed: Vec<String>,
    engine: Engine,
    now: Instant,
    made: usize,
    log: Vec<String>,
}

fn key(name: &str) -> Key {
    Key::new("d", name)
}

fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn status(pod: &mut Pod) -> &mut PodStatus {
    pod.status.get_or_insert_default()
}

fn namespace(name: &str, labels: Value) -> Namespace {
    json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
}

/// Claims with volumes of a CSI driver, which are there all the time.
const DRIVEN: [&str; 3] = ["v0", "v1", "v2"];

fn add_driven(engine: &mut Engine, now: Instant) {
    for name in DRIVEN {
        let volume = json!({"metadata": {"name": name}, "spec": {"csi": {"driver": "drv", "volumeHandle": name}}});
        let volume = json::from_value(volume).unwrap();
        engine.set_attachable(&Key::new("", name), Attachable::of_volume(&volume), now);
        engine.set_volume(&Key::new("", name), Some(Volume::of(&volume)), now);
        let claim = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": name}});
        engine.set_claim(&key(name), Some(Claim::of(&json::from_value(claim).unwrap())), now);
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let (mut engine, now) = (Engine::new(gangs::settings()), Instant::now());
        add_driven(&mut engine, now);
        let (dice, log) = (Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), Vec::new());
        let (nodes, pods, namespaces) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (claim, volume, limits, unconfirmed) = (None, None, BTreeMap::new(), Vec::new());
        let (devices, workloads) = (Devices { has_class: true, ..Devices::default() }, Workloads::new());
        devices.tell_class(&mut engine, now);
        World {
            dice,
            nodes,
            pods,
            namespaces,
            claim,
            volume,
            limits,
            devices,
            workloads,
            of_gangs: [0; 2],
            unconfirmed,
            engine,
            now,
            made: 0,
            log,
        }
    }

    fn tell(&mut self, name: &str) {
        match self.pods.get(name) {
            Some(pod) => self.engine.set_pod(pod, self.now),
            None => self.engine.remove_pod(&key(name), self.now),
        }
    }

    // The events in the cluster.

    fn step(&mut self) {
        let (waiting, placed): (Vec<String>, Vec<String>) =
            self.pods.keys().cloned().partition(|name| node_name(&self.pods[name]).is_none());
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        match self.dice.below(22) {
            16..=18 => self.change_devices(),
            19 | 20 => self.change_workload(),
            21 if self.dice.one_in(3) => self.wait_in_vain(),
            0 => self.add_node(),
            1..=3 => self.dice.of(&nodes).into_iter().for_each(|node| self.change_node(&node)),
            4 if nodes.len() > 1 => self.dice.of(&nodes).into_iter().for_each(|node| self.remove_node(&node)),
            5..=8 => self.add_pod(),
            9 => self.dice.of(&placed).into_iter().for_each(|pod| self.change_placed(&pod)),
            10 => self.dice.of(&waiting).into_iter().for_each(|pod| self.remove_pod(&pod)),
            11 => self.change_namespace(),
            12 => self.change_claim(),
            13 => self.dice.of(&waiting).into_iter().for_each(|pod| self.open_gate(&pod)),
            _ => self.dice.of(&placed).into_iter().for_each(|pod| self.remove_pod(&pod)),
        }
        let unconfirmed = std::mem::take(&mut self.unconfirmed);
        for name in unconfirmed {
            match self.dice.below(4) {
                0 => self.unconfirmed.push(name),
                1 => self.refuse_binding(&name),
                _ => {
                    self.show_devices(&name);
                    self.engine.prepared(&key(&name), &name);
                    self.tell(&name);
                }
            }
        }
        self.now += Duration::from_secs(self.dice.below(3) as u64);
        self.schedule();
    }

    fn add_node(&mut self) {
        let name = format!("n{}", self.dice.below(4));
        if self.nodes.contains_key(&name) {
            return;
        }
        // A node that an autoscaler makes joins with a taint and turns ready later.
        let taints =
            if self.dice.one_in(2) { json!([]) } else { json!([{"key": "not-ready", "effect": "NoSchedule"}]) };
        let zone = ["x", "y"][self.dice.below(2)];
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": zone}},
            "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": (1 + self.dice.below(3)).to_string(), "pods": "4"}},
        });
        self.log.push(format!("node {node}"));
        let mut node: Node = json::from_value(node).unwrap();
        if self.dice.one_in(2) {
            devices::change_resource(&mut self.dice, &mut node);
        }
        self.engine.set_node(&node, self.now);
        self.nodes.insert(name, node);
    }

    fn change_node(&mut self, name: &str) {
        if self.dice.one_in(6) {
            return self.change_limit(name);
        }
        let node = self.nodes.get_mut(name).unwrap();
        let (labels, spec) = (node.metadata.labels.as_mut().unwrap(), node.spec.as_mut().unwrap());
        match self.dice.below(8) {
            0 => spec.unschedulable = Some(spec.unschedulable != Some(true)),
            1 => {
                let taint = json!([{"key": "not-ready", "effect": "NoSchedule"}]);
                let held = spec.taints.take().unwrap_or_default();
                spec.taints = Some(if held.is_empty() { json::from_value(taint).unwrap() } else { Vec::new() });
            }
            2 if labels.remove("disk").is_none() => _ = labels.insert("disk".to_owned(), "ssd".to_owned()),
            2 => {}
            3 => _ = labels.insert("zone".to_owned(), ["x", "y"][self.dice.below(2)].to_owned()),
            4 => {
                let declared = &mut node.status.as_mut().unwrap().declared_features;
                *declared = if declared.is_none() { Some(vec![RESTART_ALL.to_owned()]) } else { None };
            }
            5 | 6 => devices::change_resource(&mut self.dice, node),
            _ => {
                let cpu = (1 + self.dice.below(3)).to_string();
                let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
                allocatable.get_mut("cpu").unwrap().0 = cpu;
            }
        }
        self.log.push(format!("changed {}", serde_json::to_string(node).unwrap()));
        self.engine.set_node(node, self.now);
    }

    fn change_limit(&mut self, name: &str) {
        let drivers = json!([{"name": "drv", "nodeID": name, "allocatable": {"count": self.dice.below(3)}}]);
        let node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
        self.log.push(format!("limits {node}"));
        let limits = Limits::of(&json::from_value(node).unwrap());
        self.engine.set_volume_limits(&Key::new("", name), Some(limits.clone()), self.now);
        self.limits.insert(name.to_owned(), limits);
    }

    fn open_gate(&mut self, name: &str) {
        let spec = self.pods.get_mut(name).unwrap().spec.as_mut().unwrap();
        if spec.scheduling_gates.take().is_some() {
            self.log.push(format!("{name} is let in"));
            self.tell(name);
        }
    }

    fn remove_node(&mut self, name: &str) {
        self.log.push(format!("removed node {name}"));
        self.nodes.remove(name);
        self.engine.remove_node(name, self.now);
    }

    fn change_namespace(&mut self) {
        if self.namespaces.remove("d").is_some() {
            self.log.push("no namespace".to_owned());
            self.engine.remove_namespace("d", self.now);
        } else {
            self.log.push("namespace".to_owned());
            let team = namespace("d", json!({"team": "x"}));
            self.engine.set_namespace(&team, self.now);
            self.namespaces.insert("d".to_owned(), team);
        }
    }

    fn change_claim(&mut self) {
        if self.dice.one_in(3) {
            let zone = ["x", "y"][self.dice.below(2)];
            let only = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
            let volume = json!({"metadata": {"name": "v"},
                "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [only]}}}});
            let gone = self.dice.one_in(3);
            self.volume = (!gone).then(|| Volume::of(&json::from_value(volume).unwrap()));
            self.engine.set_volume(&Key::new("", "v"), self.volume.clone(), self.now);
        } else {
            let mut claim = json!({"metadata": {"name": "c", "namespace": "d"}});
            if self.dice.one_in(2) {
                claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
                claim["spec"] = json!({"volumeName": "v"});
            }
            let gone = self.dice.one_in(4);
            self.claim = (!gone).then(|| Claim::of(&json::from_value(claim).unwrap()));
            self.engine.set_claim(&key("c"), self.claim.clone(), self.now);
        }
        self.log.push(format!("{:?} {:?}", self.claim, self.volume));
    }

    fn add_pod(&mut self) {
        self.made += 1;
        let name = format!("p{}", self.made);
        let app = ["a", "b"][self.dice.below(2)];
        let mut container =
            json!({"name": "c", "resources": {"requests": {"cpu": (1 + self.dice.below(2)).to_string()}}});
        if self.dice.one_in(3) {
            container["resources"]["requests"][RESOURCE] = json!("1");
        }
        if self.dice.one_in(4) {
            container["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        }
        if self.dice.one_in(8) {
            container["restartPolicyRules"] = json!([{"action": RESTART_ALL_ACTION}]);
        }
        let mut spec = json!({"containers": [container], "priority": self.dice.below(4)});
        let near = json!({"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "zone"});
        let term = |namespaces: bool| {
            let mut term = near.clone();
            if namespaces {
                term["namespaceSelector"] = json!({"matchLabels": {"team": "x"}});
            }
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
        };
        match self.dice.below(24) {
            18..=23 => spec["workloadRef"] = json!({"name": self.dice.of(&WORKLOADS), "podGroup": "g"}),
            14..=17 => {
                let claims = self.dice.of(&[&CLAIMS[..1], &CLAIMS[1..2], &CLAIMS[2..], &CLAIMS[1..]]).unwrap();
                spec["resourceClaims"] = claims.iter().map(|c| json!({"name": c, "resourceClaimName": c})).collect();
            }
            9 => spec["schedulingGates"] = json!([{"name": "held"}]),
            10 => spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
            11..=13 => {
                let claim = self.dice.of(&DRIVEN).unwrap();
                spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
            }
            0 => spec["nodeSelector"] = json!({"disk": "ssd"}),
            1 => spec["tolerations"] = json!([{"key": "not-ready", "operator": "Exists"}]),
            2 => spec["affinity"] = json!({"podAffinity": term(self.dice.one_in(2))}),
            3 => spec["affinity"] = json!({"podAntiAffinity": term(self.dice.one_in(2))}),
            4 => {
                let taints = ["Ignore", "Honor"][self.dice.below(2)];
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": app}},
                    "nodeTaintsPolicy": taints}]);
            }
            5 => spec["preemptionPolicy"] = json!("Never"),
            _ => {}
        }
        let pod =
            json!({"metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": app}}, "spec": spec});
        self.log.push(format!("pod {pod}"));
        self.pods.insert(name.clone(), json::from_value(pod).unwrap());
        self.tell(&name);
    }

    fn change_placed(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).unwrap();
        if self.unconfirmed.iter().any(|held| held == name) {
            return;
        }
        match self.dice.below(3) {
            0 => pod.metadata.deletion_timestamp = Some(Time(clock::Timestamp::UNIX_EPOCH)),
            1 => status(pod).phase = Some("Succeeded".to_owned()),
            _ => {
                let labels = pod.metadata.labels.as_mut().unwrap();
                labels.insert("app".to_owned(), ["a", "b"][self.dice.below(2)].to_owned());
            }
        }
        self.log.push(format!("changed {}", serde_json::to_string(pod).unwrap()));
        self.tell(name);
        if self.pods[name].status.as_ref().is_some_and(|s| s.phase.is_some()) {
            self.leave_devices(name);
            self.pods.remove(name);
        }
    }

    fn remove_pod(&mut self, name: &str) {
        self.log.push(format!("removed {name}"));
        let was_unconfirmed = self.unconfirmed.iter().any(|held| held == name);
        self.unconfirmed.retain(|held| held != name);
        let pod = self.pods.remove(name);
        self.tell(name);
        self.pods.extend(pod.map(|pod| (name.to_owned(), pod)));
        self.leave_devices(name);
        self.pods.remove(name);
        if was_unconfirmed {
            self.engine.bind_failed(&key(name), name, self.now);
        }
    }

    // The work of the scheduler.

    fn schedule(&mut self) {
        while let Some(decision) = self.engine.schedule_one(self.now) {
            match decision {
                Decision::Bind { pod, node, prepare } => {
                    let name = pod.key.name;
                    self.give_devices(&name, prepare.iter().filter_map(|p| p.brought.clone().downcast().ok()));
                    self.log.push(format!("{name} goes to {node}"));
                    let held = self.pods.get_mut(&name).unwrap();
                    self.of_gangs[1] += usize::from(workload_of(held).is_some());
                    held.spec.as_mut().unwrap().node_name = Some(node.to_string());
                    status(held).nominated_node_name = None;
                    self.unconfirmed.push(name);
                }
                Decision::Unschedulable { pod, failure, preemption } => {
                    let name = pod.key.name;
                    self.log.push(format!("{name}: {}", failure.message(&preemption)));
                    match &failure.release {
                        Release::Devices(claim) => _ = self.devices.claims.insert(claim.name.clone(), json!({})),
                        Release::Claim(claim) => _ = self.devices.claims.remove(&claim.name),
                        Release::None | Release::Nothing => {}
                    }
                    if let Release::Devices(claim) | Release::Claim(claim) = &failure.release {
                        self.devices.tell_claim(&mut self.engine, &claim.name, self.now);
                    }
                    match preemption {
                        Preemption::Victims(victims) => self.preempt(&name, victims),
                        Preemption::Fruitless(_) => self.nominate(&name, None),
                        Preemption::Off | Preemption::NotTried | Preemption::NotEligible(_) => {}
                    }
                }
                Decision::Waits { pod } => {
                    let name = pod.key.name;
                    self.of_gangs[0] += 1;
                    self.log.push(format!("{name} waits on {:?}", self.held_on(&name)));
                    status(self.pods.get_mut(&name).unwrap()).nominated_node_name = None;
                }
                Decision::Consult(_) | Decision::Failed { .. } => {
                    unreachable!("there are no extenders, and no Pod of a gang without Workload is tried")
                }
            }
        }
    }

    fn nominate(&mut self, name: &str, node: Option<&str>) {
        status(self.pods.get_mut(name).unwrap()).nominated_node_name = node.map(str::to_owned);
        self.tell(name);
    }

    fn preempt(&mut self, name: &str, victims: Victims) {
        self.log.push(format!("{victims:?}"));
        victims.displaced.iter().for_each(|other| self.nominate(&other.name, None));
        // An eviction that fails once succeeds the next time.
        if self.dice.one_in(3) {
            self.engine.preemption_failed(&key(name), &victims.pods, self.now);
        } else {
            for victim in &victims.pods {
                let condition =
                    json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]);
                if self.unconfirmed.contains(&victim.name) {
                    self.show_devices(&victim.name);
                }
                self.unconfirmed.retain(|held| *held != victim.name);
                if self.held_on(&victim.name).is_some() {
                    self.remove_pod(&victim.name);
                    continue;
                }
                let pod = self.pods.get_mut(&victim.name).unwrap();
                pod.metadata.deletion_timestamp = Some(Time(clock::Timestamp::UNIX_EPOCH));
                status(pod).conditions = Some(json::from_value(condition).unwrap());
                self.tell(&victim.name);
            }
        }
        self.nominate(name, Some(&victims.node));
    }

    fn refuse_binding(&mut self, name: &str) {
        self.log.push(format!("{name} is not bound"));
        self.devices.given.remove(name);
        self.pods.get_mut(name).unwrap().spec.as_mut().unwrap().node_name = None;
        self.engine.bind_failed(&key(name), name, self.now);
    }

    // The promises that must hold.

    /// The decision about a Pod of an engine that knows nothing but the cluster as it is; `None` if it does not try it.
    fn verdict(&self, name: &str) -> Option<Decision> {
        let mut engine = Engine::new(gangs::settings());
        add_driven(&mut engine, self.now);
        self.namespaces.values().for_each(|n| engine.set_namespace(n, self.now));
        self.nodes.values().for_each(|n| engine.set_node(n, self.now));
        engine.set_claim(&key("c"), self.claim.clone(), self.now);
        engine.set_volume(&Key::new("", "v"), self.volume.clone(), self.now);
        self.devices.tell_all(&mut engine, self.now);
        WORKLOADS.iter().for_each(|workload| gangs::tell(&mut engine, &self.workloads, workload, self.now));
        let workload = workload_of(&self.pods[name]);
        for (node, limits) in &self.limits {
            engine.set_volume_limits(&Key::new("", node), Some(limits.clone()), self.now);
        }
        for (other, pod) in self.pods.iter().filter(|(other, _)| *other != name) {
            let nominated = pod.status.as_ref().is_some_and(|s| s.nominated_node_name.is_some());
            let (held, placed) = (self.held_on(other), node_name(pod).is_some());
            let of_its_gang = workload.is_some() && workload_of(pod) == workload;
            if placed || nominated || of_its_gang || held.is_some() {
                let mut pod = pod.clone();
                if held.is_some() {
                    pod.spec.as_mut().unwrap().node_name = held;
                } else if !placed {
                    let gates = json::from_value(json!([{"name": "held"}])).unwrap();
                    pod.spec.as_mut().unwrap().scheduling_gates = Some(gates);
                }
                assert_ne!(other, name);
                engine.set_pod(&pod, self.now);
            }
        }
        engine.set_pod(&self.pods[name], self.now);
        engine.schedule_one(self.now)
    }

    fn check(&self, seed: u64) {
        for parked in self.engine.queue.parked_pods() {
            // It waits until a claim that it shares is shown to have devices.
            let pod = &self.pods[&parked.key.name];
            if workload_of(pod).is_some() || claims_of(pod).iter().any(|claim| self.devices.is_pending(claim)) {
                continue;
            }
            let decision = self.verdict(&parked.key.name).expect("a Pod waits");
            assert!(
                parks(&decision),
                "seed {seed}: {} is parked, but {decision:?}\n{}",
                parked.key,
                self.log.join("\n")
            );
        }
        self.check_gangs(seed);
    }
}

/// Whether a Pod is parked that this was decided about.
fn parks(decision: &Decision) -> bool {
    match decision {
        Decision::Bind { .. } | Decision::Consult(_) | Decision::Waits { .. } | Decision::Failed { .. } => false,
        // It waits for Pods that leave anyhow.
        Decision::Unschedulable { preemption: Preemption::Victims(victims), .. } => {
            victims.pods.is_empty() && victims.displaced.is_empty()
        }
        Decision::Unschedulable { .. } => true,
    }
}

#[test]
fn no_pod_stays_parked_that_fits_or_can_preempt() {
    let (mut of_gangs, mut extended) = ([0; 2], [0; 2]);
    for seed in 1..=80 {
        let mut world = World::new(seed);
        for _ in 0..40 {
            world.step();
            world.check(seed);
        }
        of_gangs = [of_gangs[0] + world.of_gangs[0], of_gangs[1] + world.of_gangs[1]];
        extended = [extended[0] + world.devices.extended[0], extended[1] + world.devices.extended[1]];
    }
    assert!(extended.iter().all(|count| *count > 0), "the resource is given as such and as devices: {extended:?}");
    assert!(of_gangs.iter().all(|count| *count > 0), "Pods of gangs waited and were bound: {of_gangs:?}");
}

fn pod(name: &str, more: Value) -> Pod {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
    let mut pod =
        json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"containers": [container]}});
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    json::from_value(pod).unwrap()
}

fn node(name: &str, spec: Value, labels: Value) -> Node {
    let status = json!({"allocatable": {"cpu": "1", "pods": "9"}});
    json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status})).unwrap()
}

fn goes_to(engine: &mut Engine, now: Instant) -> Option<String> {
    match engine.schedule_one(now)? {
        Decision::Bind { node, .. } => Some(node.to_string()),
        Decision::Consult(_) | Decision::Waits { .. } | Decision::Failed { .. } => None,
        Decision::Unschedulable { failure, preemption, .. } => Some(failure.message(&preemption)),
    }
}

/// A Pod that waits on a full node, with the events before the last one that helps: each must not wake it.
fn woken_by_the_last(waiting: Pod, events: &[&dyn Fn(&mut Engine)]) {
    let (mut engine, now) = (Engine::new(Settings::default()), Instant::now());
    engine.set_node(&node("a", json!({}), json!({})), now);
    engine.set_pod(&pod("full", json!({"nodeName": "a"})), now);
    engine.set_pod(&waiting, now);
    assert!(goes_to(&mut engine, now).is_some_and(|said| said.starts_with("0/1")));
    for (index, event) in events.iter().enumerate() {
        event(&mut engine);
        let goes = goes_to(&mut engine, now);
        assert_eq!(goes.is_some(), index + 1 == events.len(), "after event {index}: {goes:?}");
    }
}

#[test]
fn what_is_mended_in_two_steps_wakes_at_the_second() {
    let now = Instant::now();
    let set =
        |spec: Value, labels: Value| move |e: &mut Engine| e.set_node(&node("a", spec.clone(), labels.clone()), now);
    let (cordon, plain) = (set(json!({"unschedulable": true}), json!({})), set(json!({}), json!({})));
    let empty = |e: &mut Engine| e.remove_pod(&key("full"), now);
    woken_by_the_last(pod("p", json!({})), &[&cordon, &empty, &plain]);
    let new = |taints: Value| move |e: &mut Engine| e.set_node(&node("b", json!({"taints": taints}), json!({})), now);
    let not_ready = new(json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    woken_by_the_last(pod("p", json!({})), &[&not_ready, &new(json!([]))]);
    let labelled = set(json!({}), json!({"disk": "ssd"}));
    woken_by_the_last(pod("p", json!({"nodeSelector": {"disk": "ssd"}})), &[&labelled, &empty]);
}
