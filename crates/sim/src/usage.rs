//! The usage of the simulation's Pods, as `metrics.k8s.io` tells it: nobody measures hollow Pods.

use std::{collections::BTreeMap, sync::Arc};

use clock::Timestamp;
use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::{check::Model, hollow::Profile, objects::serves};

const PATH: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";

/// The load of each application, which all its Pods that serve share.
#[derive(Clone, Default)]
pub struct Usage {
    loads: Arc<Mutex<BTreeMap<String, i64>>>,
    model: Arc<Mutex<Model>>,
}

fn app(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get("app").map(String::as_str)
}

/// A node measures by its own clock, which also says since when its Pods are ready.
fn measured_at(pod: &Pod) -> Timestamp {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    Profile::named(node).map_or_else(clock::now_seconds, |node| node.now_seconds())
}

impl Usage {
    pub fn of(model: Arc<Mutex<Model>>) -> Self {
        Usage { loads: Arc::default(), model }
    }

    /// From now on, the Pods of this application need this much CPU together.
    pub fn set(&self, app: &str, milli: i64) {
        self.loads.lock().insert(app.to_owned(), milli);
    }

    pub fn load(&self, app: &str) -> i64 {
        self.loads.lock().get(app).copied().unwrap_or(0)
    }

    /// The answer to a request for what the Pods of an application use.
    pub fn answer(&self, path: &str, query: &str) -> Option<Value> {
        let name = (path == PATH).then_some(query)?.rsplit("app%3D").next()?;
        let model = self.model.lock();
        let pods: Vec<&Pod> = model.pods().filter(|pod| app(pod) == Some(name) && serves(pod)).collect();
        let each = self.load(name) / (pods.len().max(1) as i64);
        // The window is shorter than an autoscaler's round: of a Pod that became ready in the round before, the sample counts.
        let items = pods.iter().map(|pod| {
            let usage = json!({"cpu": format!("{each}m"), "memory": "1Mi"});
            json!({"metadata": {"name": pod.metadata.name, "namespace": "default"}, "timestamp": measured_at(pod),
                "window": "10s", "containers": [{"name": "c", "usage": usage}]})
        });
        let (version, kind) = ("metrics.k8s.io/v1beta1", "PodMetricsList");
        Some(json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items.collect::<Vec<_>>()}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nodes_measure_by_their_own_clocks() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        clock::simulate(at(1000), 1);
        let on = |node: &str| json::from_value(json!({"metadata": {}, "spec": {"nodeName": node, "containers": []}}));
        let seen = ["node-00", "node-03", "node-04", ""].map(|node| measured_at(&on(node).unwrap()));
        assert_eq!(seen, [at(1000), at(1090), at(910), at(1000)]);
    }
}
