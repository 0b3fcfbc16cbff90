//! The objects that rows create.

use json::{Value, json};

pub fn pod(i: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("o-{i}"), "labels": {"app": "bench", "color": "blue", "shard": format!("s{}", i % 50)}},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "registry.k8s.io/pause:3.10", "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "1"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}, "limits": {"cpu": "100m", "memory": "500Mi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
            }],
        },
    })
}

pub fn config_map(name: String) -> Value {
    let labels = json!({"bench": "watch"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"key": "x".repeat(900)}})
}
