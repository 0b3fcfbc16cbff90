//! The nodes, Pods and volumes of upstream's workloads (test/integration/scheduler_perf/templates), by the names that they
//! have there.

use json::{Value, json};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};

const HOST: &str = "kubernetes.io/hostname";
pub const ZONE: &str = "topology.kubernetes.io/zone";

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    json::from_value(value).expect("an object of this program's own making")
}

/// `node-default`, in a zone if one is given.
pub fn node(name: &str, zone: Option<&str>) -> Node {
    let mut node: Node = object(json!({
        "metadata": {"name": name, "labels": {HOST: name}},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    }));
    if let Some(zone) = zone {
        node.metadata.labels.get_or_insert_default().insert(ZONE.to_owned(), zone.to_owned());
    }
    node
}

/// Lets a node have this much of a resource.
pub fn offer(node: &mut Node, resource: &str, amount: &str) {
    let allocatable = node.status.get_or_insert_default().allocatable.get_or_insert_default();
    allocatable.insert(resource.to_owned(), json::from_value(json!(amount)).expect("a quantity"));
}

/// Taints a node, or takes its taints away.
pub fn taint(node: &mut Node, tainted: bool) {
    let taints = json!([{"key": "foo", "effect": "NoSchedule"}]);
    node.spec.get_or_insert_default().taints = tainted.then(|| object(taints));
}

fn affinity(kind: &str, key: &str, color: &str, whose: Value, required: bool) -> Value {
    let mut term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"color": color}}});
    for (field, value) in whose.as_object().into_iter().flatten() {
        term[field] = value.clone();
    }
    match required {
        true => json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
        false => json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 1, "podAffinityTerm": term}]}}}),
    }
}

fn spread(key: &str, skew: i32, when: &str, labels: Value) -> Value {
    json!({"topologySpreadConstraints": [{"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": labels}}]})
}

fn nodes(term: Value) -> Value {
    let terms = json!({"nodeSelectorTerms": [term]});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
}

/// cpu and memory, labels, and further fields of the spec.
type Shape = (Option<(&'static str, &'static str)>, Value, Value);

/// The shape that upstream's template of this name gives a Pod.
fn shape(template: &str) -> Shape {
    let default = Some(("100m", "500Mi"));
    let color = |color: &str| json!({"color": color});
    let both = || json!({"namespaces": ["sched-1", "sched-0"]});
    let team = || json!({"namespaceSelector": {"matchLabels": {"team": "devops"}}});
    let (like, unlike) = ("podAffinity", "podAntiAffinity");
    match template {
        "pod-default" | "pod-with-secret-volume" => (default, json!({}), json!({})),
        "light-pod" | "pod-with-finalizer" => (None, json!({}), json!({})),
        "gated-pod" => (None, json!({}), json!({"schedulingGates": [{"name": "test.k8s.io/hold"}]})),
        "gated-pod-with-pod-affinity" => {
            let app = json!({"app": "scheduler-perf"});
            let term = json!([{"topologyKey": HOST, "labelSelector": {"matchLabels": app}}]);
            let near = json!({like: {"requiredDuringSchedulingIgnoredDuringExecution": term}});
            (None, app, json!({"schedulingGates": [{"name": "test.k8s.io/hold"}], "affinity": near}))
        }
        "pod-with-label" => (None, json!({"app": "scheduler-perf"}), json!({})),
        "daemonset-pod" => {
            let field = json!({"key": "metadata.name", "operator": "In", "values": ["scheduler-perf-node"]});
            (None, json!({}), nodes(json!({"matchFields": [field]})))
        }
        "pod-low-priority" => (Some(("900m", "500Mi")), json!({}), json!({})),
        "pod-high-priority" => (Some(("3000m", "500Mi")), json!({}), json!({"priority": 10})),
        "pod-high-priority-large-cpu" => (Some(("9", "500Mi")), json!({}), json!({"priority": 10})),
        "pod-with-pod-affinity" => (default, color("blue"), affinity(like, ZONE, "blue", both(), true)),
        "pod-with-pod-anti-affinity" => (default, color("green"), affinity(unlike, HOST, "green", both(), true)),
        "pod-with-pod-anti-affinity-label" => (default, color("green"), json!({})),
        "pod-with-preferred-pod-affinity" => (default, color("red"), affinity(like, HOST, "red", both(), false)),
        "pod-with-preferred-pod-anti-affinity" => {
            (default, color("yellow"), affinity(unlike, HOST, "yellow", both(), false))
        }
        "pod-anti-affinity-ns-selector" => (default, color("green"), affinity(unlike, HOST, "green", team(), true)),
        "pod-preferred-anti-affinity-ns-selector" => {
            (default, color("green"), affinity(unlike, HOST, "green", team(), false))
        }
        "pod-affinity-ns-selector" => (default, color("blue"), affinity(like, ZONE, "blue", team(), true)),
        "pod-preferred-affinity-ns-selector" => (default, color("red"), affinity(like, HOST, "red", team(), false)),
        "pod-with-node-affinity" => {
            let zones = json!({"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]});
            (default, json!({}), nodes(json!({"matchExpressions": [zones]})))
        }
        "pod-with-topology-spreading" => (default, color("blue"), spread(ZONE, 5, "DoNotSchedule", color("blue"))),
        "pod-with-preferred-topology-spreading" => {
            (default, color("blue"), spread(ZONE, 5, "ScheduleAnyway", color("blue")))
        }
        // Its policies are misspelt at upstream, so they are not in force.
        "pod-with-node-inclusion-policy" => {
            let labels = json!({"foo": "bar"});
            (default, labels.clone(), spread(HOST, 1, "DoNotSchedule", labels))
        }
        other => panic!("there is no template {other}"),
    }
}

/// A Pod of a template, without a name.
pub fn pod(template: &str, namespace: &str) -> Pod {
    let (requests, labels, more) = shape(template);
    let resources = requests.map(|(cpu, memory)| json!({"requests": {"cpu": cpu, "memory": memory}}));
    let mut pod = json!({
        "metadata": {"namespace": namespace, "labels": labels},
        "spec": {"priority": 0, "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10",
            "ports": [{"containerPort": 80}], "resources": resources.unwrap_or(json!({}))}]},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    object(pod)
}

/// The Pod under a name.
pub fn named(template: &Pod, name: String) -> Pod {
    let mut pod = template.clone();
    pod.metadata.uid = Some(name.clone());
    pod.metadata.name = Some(name);
    pod
}

/// Lets a Pod use the claim of its own name.
pub fn with_claim(mut pod: Pod) -> Pod {
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": pod.metadata.name}});
    pod.spec.get_or_insert_default().volumes.get_or_insert_default().push(object(claim));
    pod
}

/// `pv-aws` or `pv-csi` with its `pvc`, both bound.
pub fn volume(namespace: &str, name: &str, csi: bool) -> (PersistentVolume, PersistentVolumeClaim) {
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"],
        "claimRef": {"namespace": namespace, "name": name}});
    match csi {
        true => spec["csi"] = json!({"driver": "ebs.csi.aws.com", "volumeHandle": name}),
        false => spec["awsElasticBlockStore"] = json!({"volumeID": name}),
    }
    let volume = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound"}});
    let claim = json!({
        "metadata": {"namespace": namespace, "name": name,
            "annotations": {"pv.kubernetes.io/bind-completed": "true"}},
        "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name},
        "status": {"phase": "Bound"},
    });
    (object(volume), object(claim))
}
