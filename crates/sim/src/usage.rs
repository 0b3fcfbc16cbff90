//! What the Pods of the simulation use, as `metrics.k8s.io` tells it: nobody measures hollow Pods.

use std::{collections::BTreeMap, sync::Arc};

use json::{Value, json};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::{check::Model, objects::serves};

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

impl Usage {
    pub fn of(model: Arc<Mutex<Model>>) -> Self {
        Usage { loads: Arc::default(), model }
    }

    /// From now on, the Pods of this application need so many thousandths of a CPU together.
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
        let now = clock::now_seconds().to_string();
        // The window is shorter than an autoscaler's round: of a Pod that became ready in the round before, the sample counts.
        let items = pods.iter().map(|pod| {
            let usage = json!({"cpu": format!("{each}m"), "memory": "1Mi"});
            json!({"metadata": {"name": pod.metadata.name, "namespace": "default"}, "timestamp": now, "window": "10s",
                "containers": [{"name": "c", "usage": usage}]})
        });
        let (version, kind) = ("metrics.k8s.io/v1beta1", "PodMetricsList");
        Some(json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items.collect::<Vec<_>>()}))
    }
}
