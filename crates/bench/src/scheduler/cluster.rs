//! The engine with the API that it needs played around it: what is bound is shown as bound, victims go at once, and a
//! simulated clock goes on by a millisecond with each decision.

use std::{collections::HashMap, time::Duration};

use client::Key;
use clock::Instant;
use k8s_openapi::api::core::v1::{Node, Pod};
use nix::sys::resource::{UsageWho, getrusage};
use scheduler::{
    Decision, Engine, Settings,
    claims::{Claim, Volume},
    failure::Preemption,
};

use super::objects;

/// The names of the Pods that count begin with this.
pub const MEASURED: &str = "measured";

/// A Pod waits at most this long before it is tried again. A later look is nothing but a precaution.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

pub struct Cluster {
    pub engine: Engine,
    pub now: Instant,
    /// Pods that wait for a node.
    waiting: HashMap<Key, Pod>,
    pub unschedulable: usize,
    pub victims: usize,
}

/// It is told how often it happened before.
pub type Happening = Box<dyn FnMut(&mut Cluster, usize)>;

/// Something that happens beside the scheduling.
pub struct Churn {
    pub every: Duration,
    pub happens: Happening,
}

/// The outcome of a run.
pub struct Run {
    /// Of one core.
    pub seconds: f64,
    pub placed: usize,
    pub left: usize,
}

/// The seconds that this thread has had a core so far. The engine runs in one thread and waits for nothing, so this is the
/// time that it takes, whatever else the machine does meanwhile.
pub fn cpu_seconds() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_THREAD).expect("every thread can ask for its own usage");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(used.user_time()) + seconds(used.system_time())
}

impl Cluster {
    pub fn new() -> Self {
        let engine = Engine::new(Settings::default());
        Cluster { engine, now: Instant::now(), waiting: HashMap::new(), unschedulable: 0, victims: 0 }
    }

    pub fn set_node(&mut self, node: &Node) {
        self.engine.set_node(node, self.now);
    }

    pub fn add(&mut self, pod: Pod) {
        self.engine.set_pod(&pod, self.now);
        self.waiting.insert(Key::of(&pod), pod);
    }

    pub fn remove(&mut self, key: &Key) {
        self.waiting.remove(key);
        self.engine.remove_pod(key, self.now);
    }

    /// Changes a Pod that waits.
    pub fn change(&mut self, key: &Key, change: impl Fn(&mut Pod)) {
        if let Some(pod) = self.waiting.get_mut(key) {
            change(pod);
            self.engine.set_pod(pod, self.now);
        }
    }

    /// A volume, bound to the claim of the same name.
    pub fn add_volume(&mut self, namespace: &str, name: &str, csi: bool) {
        let (volume, claim) = objects::volume(namespace, name, csi);
        self.engine.set_volume(&Key::of(&volume), Some(Volume::of(&volume)), self.now);
        self.engine.set_claim(&Key::of(&claim), Some(Claim::of(&claim)), self.now);
    }

    /// Decides about one Pod, and says whether one that counts has a node now. `None` when none is to be tried.
    fn step(&mut self) -> Option<bool> {
        let decision = self.engine.schedule_one(self.now)?;
        self.now += Duration::from_millis(1);
        Some(match decision {
            Decision::Bind { pod, node, .. } => {
                let Some(mut object) = self.waiting.remove(&pod.key) else { return Some(false) };
                object.spec.get_or_insert_default().node_name = Some(node.to_string());
                self.engine.set_pod(&object, self.now);
                pod.key.name.starts_with(MEASURED)
            }
            Decision::Unschedulable { preemption, .. } => {
                self.unschedulable += 1;
                if let Preemption::Victims(victims) = preemption {
                    self.victims += victims.pods.len();
                    victims.pods.iter().for_each(|key| self.engine.remove_pod(key, self.now));
                }
                false
            }
            // There are no extenders.
            Decision::Consult(_) | Decision::Waits { .. } | Decision::Failed { .. } => false,
        })
    }

    /// Places Pods before the clock runs.
    pub fn settle(&mut self, pods: impl Iterator<Item = Pod>) {
        for pod in pods {
            self.add(pod);
            while self.step().is_some() {}
        }
    }

    /// Decides until nobody is to be tried any more, those that wait a while before they are tried again too. Says how many
    /// that count have a node now.
    pub fn drain(&mut self) -> usize {
        let mut placed = 0;
        loop {
            match self.step() {
                Some(bound) => placed += usize::from(bound),
                None => match self.engine.wake_at().filter(|at| *at <= self.now + LONGEST_BACKOFF) {
                    Some(at) => self.now = at,
                    None => return placed,
                },
            }
        }
    }

    /// Adds all these Pods and decides until each has a node, or none is to be tried any more.
    pub fn run(&mut self, pods: Vec<Pod>, mut churn: Option<Churn>) -> Run {
        let (count, begun) = (pods.len(), cpu_seconds());
        let mut next = self.now;
        pods.into_iter().for_each(|pod| self.add(pod));
        let (mut placed, mut happened) = (0, 0);
        while placed < count {
            if let Some(churn) = churn.as_mut().filter(|_| self.now >= next) {
                (churn.happens)(self, happened);
                happened += 1;
                next += churn.every;
            }
            match self.step() {
                Some(bound) => placed += usize::from(bound),
                None => match churn.as_ref().filter(|_| happened <= count) {
                    Some(_) => self.now = next,
                    None => break,
                },
            }
        }
        Run { seconds: cpu_seconds() - begun, placed, left: count - placed }
    }
}
