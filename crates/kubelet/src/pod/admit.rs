//! Whether a Pod may start on this node: what the scheduler has checked, checked again against what the node itself knows.
//! Pure. Upstream counterpart: pkg/kubelet/lifecycle/predicate.go.

use std::collections::BTreeMap;

use api::rules::{
    host_port::{self, HostPort},
    node_affinity,
    pod::{self, Resources},
    quantity::Quantity,
    resource_name, taint,
};
use k8s_openapi::api::core::v1::{Pod, PodSpec, Taint};

/// The least priority of the Pods that the cluster cannot do without.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Whether the node, or the cluster, cannot do without the Pod: it is never evicted, let in under pressure, and others make room
/// for it.
pub fn is_critical(pod: &Pod, is_static: bool) -> bool {
    is_static || pod::is_mirror(pod) || pod::priority(pod) >= SYSTEM_CRITICAL
}

/// The node's properties, and the Pods that have their part of it.
pub struct NodeFacts<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub taints: &'a [Taint],
    pub allocatable: &'a Resources,
    pub others: &'a [&'a Pod],
}

/// Why a Pod is not let in, in the words of its status and its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

impl Refusal {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Refusal { reason: reason.into(), message: message.into() }
    }

    /// Something that the Pod asks for could not be given, though there should have been enough of it.
    pub fn unexpected(why: &str) -> Self {
        Refusal::new("UnexpectedAdmissionError", format!("Allocate failed due to {why}, which is unexpected"))
    }

    /// A driver has found no place for one more volume, though the scheduler thought that there was one.
    pub fn no_place_for_volumes() -> Self {
        let message = "Node has reached its volume attachment limit, rejecting pod";
        Refusal::new("VolumeAttachmentLimitExceeded", message)
    }

    /// The engine would add groups that the Pod does not want.
    pub fn no_strict_groups() -> Self {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        Refusal::new("SupplementalGroupsPolicyNotSupported", message)
    }

    fn predicate(name: &str, why: &str) -> Self {
        Refusal::new(name, format!("Predicate {name} failed: {why}"))
    }

    /// It follows from the Node object, of which the copy at hand may be old.
    pub fn depends_on_node(&self) -> bool {
        matches!(self.reason.as_str(), "NodeAffinity" | "TaintToleration")
    }
}

/// An amount that the node lacks for a Pod. Processors are counted in thousandths, all else whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    wanted: i64,
    used: i64,
    most: i64,
}

impl Shortage {
    /// How much has to become free.
    pub fn lacking(&self) -> i64 {
        self.wanted - (self.most - self.used)
    }

    fn refusal(&self) -> Refusal {
        let Shortage { resource, wanted, used, most } = self;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {most}"
        );
        Refusal::new(format!("OutOf{resource}"), message)
    }
}

/// The first thing that speaks against the Pod. A shortage of resources does not speak against a critical one, for which others
/// make room: it is what comes back.
pub fn admit(pod: &Pod, is_static: bool, node: &NodeFacts<'_>) -> Result<Vec<Shortage>, Refusal> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    system(pod, spec)?;
    let (short, place) = (shortages(spec, node.allocatable, node.others), place(spec, is_static, node));
    match short.first() {
        Some(first) if !is_critical(pod, is_static) => Err(first.refusal()),
        _ => place.map(|()| short),
    }
}

/// Whether the Pod belongs on this node.
fn place(spec: &PodSpec, is_static: bool, node: &NodeFacts<'_>) -> Result<(), Refusal> {
    if !node_affinity::admits(spec, node.labels, node.name) {
        return Err(Refusal::predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node.name) {
        return Err(Refusal::predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    let specs = node.others.iter().filter_map(|p| p.spec.as_ref());
    let taken: Vec<HostPort> = specs.flat_map(host_port::of_pod).collect();
    if host_port::of_pod(spec).any(|wanted| taken.iter().any(|t| wanted.conflicts(t))) {
        return Err(Refusal::predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"));
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    // A Pod that must be on the node, such as its own control plane, is not kept away by taints.
    if !is_static && taint::first_untolerated(node.taints, tolerations, &[taint::NO_EXECUTE]).is_some() {
        return Err(Refusal::predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"));
    }
    Ok(())
}

fn system(pod: &Pod, spec: &PodSpec) -> Result<(), Refusal> {
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Refusal::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Refusal::new("PodOSNotSupported", message));
    }
    Ok(())
}

/// Whether a Pod's processes are to have no other groups than it names.
pub fn wants_strict_groups(spec: &PodSpec) -> bool {
    let policy = spec.security_context.as_ref().and_then(|c| c.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

pub const INFEASIBLE: &str = "Infeasible";
pub const DEFERRED: &str = "Deferred";

/// Whether a Pod that is here may have other resources: a reason and a message if not. An amount that the node never has is
/// infeasible; one that others have now may become free. A shortage for a critical Pod comes back with them, since others
/// make room for it.
pub fn resize(
    pod: &Pod,
    capacity: &Resources,
    allocatable: &Resources,
    others: &[&Pod],
) -> Result<Vec<Shortage>, (&'static str, String)> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let requested = pod::requests(spec);
    for name in ["memory", "cpu"] {
        let amount = |list: &Resources| list.get(name).map_or(0, |q| in_units(name, *q));
        let (wanted, most) = (amount(&requested), amount(capacity));
        if wanted > most {
            let text = format!("Node didn't have enough capacity: {name}, requested: {wanted}, capacity: {most}");
            return Err((INFEASIBLE, text));
        }
    }
    let short = shortages(spec, allocatable, others);
    match short.first() {
        Some(first) if !is_critical(pod, false) => Err((DEFERRED, first.refusal().message)),
        _ => Ok(short),
    }
}

fn shortages(spec: &PodSpec, allocatable: &Resources, others: &[&Pod]) -> Vec<Shortage> {
    let mut short = Vec::new();
    let mut used = Resources::new();
    for other in others.iter().filter_map(|p| p.spec.as_ref()) {
        for (name, amount) in pod::requests(other) {
            *used.entry(name).or_default() += amount;
        }
    }
    let requested = pod::requests(spec);
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX);
    let most = allocatable.get("pods").map_or(0, |q| q.value());
    if count + 1 > most {
        short.push(Shortage { resource: "pods".to_owned(), wanted: 1, used: count, most });
    }
    let amount = |list: &Resources, name: &str| list.get(name).map_or(0, |q| in_units(name, *q));
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = requested.keys().map(String::as_str).filter(|name| !first.contains(name));
    for name in first.into_iter().chain(rest) {
        // A resource that belongs to the cluster rather than to a node is not the node's to refuse.
        if resource_name::may_be_devices(name) && !allocatable.contains_key(name) {
            continue;
        }
        let (wanted, used, most) = (amount(&requested, name), amount(&used, name), amount(allocatable, name));
        if wanted > 0 && wanted > most - used {
            short.push(Shortage { resource: name.to_owned(), wanted, used, most });
        }
    }
    short
}

/// Processors are counted in thousandths, all else whole.
pub fn in_units(name: &str, amount: Quantity) -> i64 {
    if name == "cpu" { amount.milli_value() } else { amount.value() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{pod, pod_of};
    use json::json;

    fn check(spec: &str, expected: &str) {
        check_as(&pod(spec).pod, false, expected);
    }

    fn check_as(asking: &Pod, is_static: bool, expected: &str) {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let taints = [Taint { key: "gone".into(), effect: "NoExecute".into(), ..Default::default() }];
        let allocatable: Resources = [("cpu", "2"), ("memory", "1Gi"), ("pods", "2"), ("a.io/gpu", "1")]
            .map(|(name, amount)| (name.to_owned(), amount.parse().unwrap()))
            .into();
        let other = pod(r#"{"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Mi"}},
                "ports": [{"containerPort": 1, "hostPort": 80}]}]}"#);
        let others = [&*other.pod];
        let node =
            NodeFacts { name: "n1", labels: &labels, taints: &taints, allocatable: &allocatable, others: &others };
        let in_words = |short: Vec<Shortage>| {
            short.iter().map(|s| format!("{} {}", s.resource, s.lacking())).collect::<Vec<_>>().join(", ")
        };
        let got = admit(asking, is_static, &node)
            .map_or_else(|refusal| format!("{}: {}", refusal.reason, refusal.message), in_words);
        assert_eq!(got, expected);
    }

    const TOLERANT: &str = r#""tolerations": [{"key": "gone", "operator": "Exists"}]"#;

    #[test]
    fn a_pod_is_let_in_or_told_what_it_lacks() {
        let requests = |list: &str| {
            format!(r#"{{"containers": [{{"name": "c", "resources": {{"requests": {list}}}}}], {TOLERANT}}}"#)
        };
        let none = "Node didn't have enough resource";
        check(&requests(r#"{"cpu": "500m"}"#), "");
        check(
            &requests(r#"{"cpu": "501m"}"#),
            &format!("OutOfcpu: {none}: cpu, requested: 501, used: 1500, capacity: 2000"),
        );
        let memory = format!("OutOfmemory: {none}: memory, requested: 1073741824, used: 1048576, capacity: 1073741824");
        check(&requests(r#"{"memory": "1Gi"}"#), &memory);
        let storage = format!("OutOfephemeral-storage: {none}: ephemeral-storage, requested: 1, used: 0, capacity: 0");
        check(&requests(r#"{"ephemeral-storage": "1"}"#), &storage);
        check(
            &requests(r#"{"a.io/gpu": "2"}"#),
            &format!("OutOfa.io/gpu: {none}: a.io/gpu, requested: 2, used: 0, capacity: 1"),
        );
        check(&requests(r#"{"b.io/licence": "2"}"#), "");
    }

    #[test]
    fn a_critical_pod_is_told_what_others_have_to_give_up() {
        let spec = |cpu: &str, more: &str| {
            let resources = format!(r#"{{"requests": {{"cpu": "{cpu}", "memory": "1Gi"}}}}"#);
            format!(
                r#"{{"priority": 2000000000, "containers": [{{"name": "c", "resources": {resources}}}], {TOLERANT} {more}}}"#
            )
        };
        check(&spec("700m", ""), "cpu 200, memory 1048576");
        // A refusal that making room does not help with comes first.
        let affinity = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        check(&spec("700m", r#", "nodeSelector": {"zone": "b"}"#), affinity);
        let modest = pod(&spec("700m", "").replace("2000000000", "1999999999"));
        let none = "OutOfcpu: Node didn't have enough resource: cpu, requested: 700, used: 1500, capacity: 2000";
        check_as(&modest.pod, false, none);
        check_as(&modest.pod, true, "cpu 200, memory 1048576");
    }

    #[test]
    fn a_pod_is_let_in_only_where_it_belongs() {
        let spec = |more: &str| format!(r#"{{"containers": [], {TOLERANT}, {more}}}"#);
        check(&spec(r#""nodeSelector": {"zone": "a"}"#), "");
        let affinity = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        check(&spec(r#""nodeSelector": {"zone": "b"}"#), affinity);
        let name = "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name";
        check(&spec(r#""nodeName": "n2""#), name);
        let taint =
            "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        let intolerant = pod(r#"{"containers": []}"#);
        check_as(&intolerant.pod, false, taint);
        check_as(&intolerant.pod, true, "");
        let port = |p: i32| {
            format!(
                r#"{{"containers": [{{"name": "c", "ports": [{{"containerPort": 1, "hostPort": {p}}}]}}], {TOLERANT}}}"#
            )
        };
        let ports = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        check(&port(80), ports);
        check(&port(81), "");
        let os = "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS";
        check(&spec(r#""os": {"name": "windows"}"#), os);
        let labelled =
            pod_of(json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}, "spec": {"containers": []}}));
        let label = "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        check_as(&labelled.pod, true, label);
    }

    #[test]
    fn a_resize_fits_waits_or_never_fits() {
        let with = |cpu: &str, memory: &str| {
            let requests = format!(r#"{{"cpu": "{cpu}", "memory": "{memory}"}}"#);
            pod(&format!(r#"{{"containers": [{{"name": "c", "resources": {{"requests": {requests}}}}}]}}"#))
        };
        let list = |cpu: &str, memory: &str| -> Resources {
            [("cpu", cpu), ("memory", memory), ("pods", "9")].map(|(n, a)| (n.to_owned(), a.parse().unwrap())).into()
        };
        let (capacity, allocatable) = (list("4", "4Gi"), list("4", "3Gi"));
        let other = with("2500m", "1Gi");
        let check = |cpu: &str, memory: &str, expected: Result<(), (&'static str, &str)>| {
            let got = resize(&with(cpu, memory).pod, &capacity, &allocatable, &[&*other.pod]);
            let expected = expected.map_err(|(reason, text)| (reason, text.to_owned()));
            assert_eq!(got.map(|short| assert!(short.is_empty())), expected, "{cpu} {memory}");
        };
        check("1500m", "2Gi", Ok(()));
        check(
            "1600m",
            "1Gi",
            Err((DEFERRED, "Node didn't have enough resource: cpu, requested: 1600, used: 2500, capacity: 4000")),
        );
        check("5", "1Gi", Err((INFEASIBLE, "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000")));
        let memory = "Node didn't have enough capacity: memory, requested: 5368709120, capacity: 4294967296";
        check("5", "5Gi", Err((INFEASIBLE, memory)));
        // An amount that must stay free may be given back one day.
        let text =
            "Node didn't have enough resource: memory, requested: 4294967296, used: 1073741824, capacity: 3221225472";
        check("1", "4Gi", Err((DEFERRED, text)));
    }

    #[test]
    fn no_more_pods_than_the_node_takes() {
        let labels = BTreeMap::new();
        let allocatable: Resources = [("pods".to_owned(), "1".parse().unwrap())].into();
        let other = pod(r#"{"containers": []}"#);
        let others = [&*other.pod];
        let node = NodeFacts { name: "n1", labels: &labels, taints: &[], allocatable: &allocatable, others: &others };
        let refusal = admit(&other.pod, false, &node).unwrap_err();
        assert_eq!(refusal.reason, "OutOfpods");
        assert_eq!(refusal.message, "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1");
    }
}
