//! The mishaps of a cluster in a story: parts restart, nodes come and go, the network breaks, the server is overloaded,
//! history is cut off, power fails.

use client::Kind;
use client::rest::{self, Resource, Verb};
use clock::Duration;

use crate::{Cluster, Component, Faults};

pub fn below(end: u64) -> u64 {
    clock::random_range(0..end)
}

pub fn one_of<T: Copy>(list: &[T]) -> T {
    list[below(list.len() as u64) as usize]
}

pub fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

/// A cluster to which things happen.
pub struct Chaos {
    pub cluster: Cluster,
    pub nodes: usize,
    /// Promises of service hold: no node stays away for long, and no answer is lost.
    pub gentle: bool,
    /// How often a part was killed, and the power cut.
    pub kills: usize,
    pub power_cuts: usize,
}

impl Chaos {
    pub async fn begin(seed: u64) -> Self {
        let nodes = 6 + below(10) as usize;
        let cluster = Cluster::start(seed, nodes).await;
        cluster.until("all nodes are there", minutes(2), |m| m.nodes().count() == nodes).await;
        let gentle = below(2) == 0;
        cluster.model.lock().service_may_drop = !gentle;
        Chaos { cluster, nodes, gentle, kills: 0, power_cuts: 0 }
    }

    /// A write of the test's own, which no fault touches.
    pub async fn write<T: Kind>(&self, name: &str, verb: Verb) {
        self.write_in::<T>("default", name, verb).await;
    }

    /// A write of the test's own in another namespace, or in none.
    pub async fn write_in<T: Kind>(&self, namespace: &str, name: &str, verb: Verb) {
        let written = rest::write(&self.cluster.client(), &Resource::of::<T>(), namespace, name, "", &verb).await;
        if let Err(error) = written {
            self.cluster.fail(&format!("the test's own write failed: {}", rest::message(&error)));
        }
    }

    pub async fn restart(&mut self) {
        let node = Component::Node(below(self.nodes as u64) as usize);
        let mut component = one_of(&[Component::Manager(0), Component::Scheduler, node, node]);
        if component == Component::Manager(0) && self.cluster.managers > 1 {
            component = Component::Manager(below(self.cluster.managers as u64) as usize);
        }
        self.cluster.tell(&format!("restart {component:?}"));
        self.kills += 1;
        self.cluster.kill(component);
        clock::sleep(Duration::from_millis(below(2000))).await;
        self.cluster.run(component);
    }

    /// A node is away: a moment in gentle stories, otherwise for so long that its Pods are replaced.
    pub async fn node_away(&mut self) {
        let number = below(self.nodes as u64) as usize;
        let seconds = if self.gentle { 1 + below(20) } else { 30 + below(600) };
        self.cluster.tell(&format!("node {number} is away for {seconds} s"));
        self.cluster.kill(Component::Node(number));
        self.kills += 1;
        self.cluster.pass(Duration::from_secs(seconds)).await;
        self.cluster.run(Component::Node(number));
    }

    pub async fn node_joins(&mut self) {
        self.cluster.tell(&format!("node {} joins", self.nodes));
        self.cluster.run(Component::Node(self.nodes));
        self.nodes += 1;
        let nodes = self.nodes;
        self.cluster.until("the new node is there", minutes(5), |m| m.nodes().count() == nodes).await;
    }

    pub fn weather(&self) {
        let faults = match below(4) {
            0 => Faults::NONE,
            1 if !self.gentle => Faults::LOSSY_STORM,
            1 | 2 => Faults::STORM,
            _ => Faults::OVERLOAD,
        };
        self.cluster.tell(&format!("{faults:?}"));
        self.cluster.weather.set(faults);
    }

    pub async fn compact(&mut self) {
        let kept = one_of(&[0, 1, 10, 100]);
        self.cluster.tell(&format!("history is cut off but for {kept}"));
        self.cluster.compact(kept).await;
    }

    pub async fn cut_power(&mut self) {
        self.cluster.tell("the power is cut");
        self.power_cuts += 1;
        self.cluster.cut_power().await;
    }

    /// Something of what can happen to any cluster.
    pub async fn mishap(&mut self) {
        match below(6) {
            0 => self.restart().await,
            1 => self.node_away().await,
            2 if self.nodes < 16 => self.node_joins().await,
            3 => self.compact().await,
            4 if !self.gentle => self.cut_power().await,
            _ => self.weather(),
        }
    }

    /// A pause before the next step, of any length.
    pub async fn pause(&self) {
        self.cluster.pass(Duration::from_millis(one_of(&[0, 100, 5_000, 30_000]))).await;
        self.cluster.check("after a step");
    }

    pub async fn rolled_out(&self, when: &str) {
        // How long it may take depends on what was just written.
        self.cluster.until("what was written is seen", minutes(60), |_| true).await;
        let limit = minutes(60) + self.cluster.model.lock().patience();
        self.cluster.until(&format!("everything is rolled out {when}"), limit, |m| m.rolled_out()).await;
    }

    /// From here on nothing goes wrong between the parts.
    pub fn good_weather(&self) {
        self.cluster.tell("good weather");
        self.cluster.weather.set(Faults::NONE);
    }

    /// The weather clears up, and everything comes to rest.
    pub async fn clears_up(&self) {
        self.good_weather();
        self.rolled_out("at the end").await;
        self.cluster.stays_quiet(minutes(10), minutes(60)).await;
        self.cluster.quiesce().await;
    }

    /// Nothing is left of what was deleted.
    pub async fn nothing_is_left(&self) {
        let nothing_left = |m: &crate::check::Model| m.deployments.replica_sets().count() == 0 && m.pods().count() == 0;
        self.cluster.until("nothing is left", minutes(10), nothing_left).await;
        self.cluster.check("at the end");
    }
}
