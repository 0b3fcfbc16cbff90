//! Which nodes run a DaemonSet's Pods, and the Pods that are made for them. The scheduler binds them: a Pod names its node
//! in its affinity.

use std::collections::BTreeMap;

use api::{
    kinds::daemon_set::TEMPLATE_GENERATION,
    rules::{
        node_affinity,
        taint::{NO_EXECUTE, NO_SCHEDULE, first_untolerated},
    },
};
use controller::owner_reference;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration},
};

use crate::workloads::{history::POD_REVISION, pod_template};

/// The field by which a Pod's affinity names its node.
const NAME_FIELD: &str = "metadata.name";
const GENERATION_LABEL: &str = "pod-template-generation";

/// The suitability of a node for a set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fit {
    /// It runs a Pod.
    Runs,
    /// A Pod that is there stays, but none is made.
    Keeps,
    Refuses,
}

/// The demands that a set's Pods have of nodes.
pub struct Placement<'a> {
    spec: Option<&'a PodSpec>,
    tolerations: Vec<Toleration>,
}

impl<'a> Placement<'a> {
    pub fn of(set: &'a DaemonSet) -> Self {
        let spec = set.spec.as_ref().and_then(|s| s.template.spec.as_ref());
        Placement { spec, tolerations: spec.map(tolerations).unwrap_or_default() }
    }

    pub fn fit(&self, node: &Node) -> Fit {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let none = BTreeMap::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let named = self.spec.and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        if named.is_some_and(|named| named != name) || !self.spec.is_none_or(|s| node_affinity::admits(s, labels, name))
        {
            return Fit::Refuses;
        }
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let repels = |effects: &[&str]| first_untolerated(taints, &self.tolerations, effects).is_some();
        match (repels(&[NO_EXECUTE]), repels(&[NO_SCHEDULE])) {
            (true, _) => Fit::Refuses,
            (false, true) => Fit::Keeps,
            (false, false) => Fit::Runs,
        }
    }
}

/// The Pod's own tolerations, and those of a node's troubles that daemons live with.
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut all = spec.tolerations.clone().unwrap_or_default();
    let network = (spec.host_network == Some(true)).then_some(("network-unavailable", NO_SCHEDULE));
    let troubles = [
        ("not-ready", NO_EXECUTE),
        ("unreachable", NO_EXECUTE),
        ("disk-pressure", NO_SCHEDULE),
        ("memory-pressure", NO_SCHEDULE),
        ("pid-pressure", NO_SCHEDULE),
        ("unschedulable", NO_SCHEDULE),
    ];
    for (trouble, effect) in troubles.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{trouble}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        // One of the user's for the same taint is without end too.
        let same = |t: &&mut Toleration| Toleration { toleration_seconds: None, ..(**t).clone() } == toleration;
        match all.iter_mut().find(same) {
            Some(held) => *held = toleration,
            None => all.push(toleration),
        }
    }
    all
}

fn generation(set: &DaemonSet) -> Option<i64> {
    set.metadata.annotations.as_ref()?.get(TEMPLATE_GENERATION)?.parse().ok()
}

/// Whether the Pod was made from the template that the set has now: it names the revision with this hash or, however
/// revisions were named when it was made, the count of templates.
pub fn is_updated(set: &DaemonSet, hash: &str, pod: &Pod) -> bool {
    let label = |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
    let counted = generation(set).is_some_and(|n| label(GENERATION_LABEL).is_some_and(|held| *held == n.to_string()));
    counted || (!hash.is_empty() && label(POD_REVISION).is_some_and(|held| held == hash))
}

/// The Pod of a node, of the revision with this hash.
pub fn pod(set: &DaemonSet, hash: &str, node: &str) -> Pod {
    let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let mut pod = pod_template::instantiate(&template, &set.metadata, owner_reference(set));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_REVISION.to_owned(), hash.to_owned());
    if let Some(generation) = generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_string());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let named = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    // The node was checked against the demands of the template, which this one takes the place of.
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm { match_fields: Some(vec![named]), match_expressions: None }],
    });
    pod
}

/// The node that a Pod is bound to, or is meant for.
pub fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(bound) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(bound);
    }
    let required = &spec.affinity.as_ref()?.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution;
    let fields = required.as_ref()?.node_selector_terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    let mut names = fields.filter(|f| f.key == NAME_FIELD && f.operator == "In");
    match names.next()?.values.as_deref()? {
        [only] => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn set(spec: Value) -> DaemonSet {
        let mut spec = spec;
        spec["containers"] = json!([]);
        json::from_value(json!({"metadata": {"name": "agent", "uid": "ds", "annotations": {TEMPLATE_GENERATION: "3"}},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"app": "agent"}}, "spec": spec}}}))
        .unwrap()
    }

    fn check(spec: Value, taints: Value, expected: Fit) {
        let node = json!({"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"taints": taints}});
        let node: Node = json::from_value(node).unwrap();
        assert_eq!(Placement::of(&set(spec.clone())).fit(&node), expected, "{spec} {taints}");
    }

    fn taint(key: &str, effect: &str) -> Value {
        json!([{"key": key, "effect": effect}])
    }

    #[test]
    fn nodes_are_chosen_by_selector_affinity_and_name() {
        let required = |term: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term]}}}})
        };
        check(json!({}), json!([]), Fit::Runs);
        check(json!({"nodeSelector": {"zone": "a"}}), json!([]), Fit::Runs);
        check(json!({"nodeSelector": {"zone": "b"}}), json!([]), Fit::Refuses);
        check(json!({"nodeName": "n1"}), json!([]), Fit::Runs);
        check(json!({"nodeName": "n2"}), json!([]), Fit::Refuses);
        let zone = |zone: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
        check(required(zone("a")), json!([]), Fit::Runs);
        check(required(zone("b")), json!([]), Fit::Refuses);
        let name = |name: &str| json!({"matchFields": [{"key": NAME_FIELD, "operator": "In", "values": [name]}]});
        check(required(name("n1")), json!([]), Fit::Runs);
        check(required(name("n2")), json!([]), Fit::Refuses);
    }

    #[test]
    fn taints_repel_except_those_of_a_nodes_troubles() {
        check(json!({}), taint("dedicated", "NoSchedule"), Fit::Keeps);
        check(json!({}), taint("dedicated", "NoExecute"), Fit::Refuses);
        check(json!({}), taint("dedicated", "PreferNoSchedule"), Fit::Runs);
        let all = json!({"tolerations": [{"operator": "Exists"}]});
        check(all, taint("dedicated", "NoExecute"), Fit::Runs);
        for (trouble, effect, expected) in [
            ("not-ready", "NoExecute", Fit::Runs),
            ("unreachable", "NoExecute", Fit::Runs),
            ("disk-pressure", "NoSchedule", Fit::Runs),
            ("memory-pressure", "NoSchedule", Fit::Runs),
            ("pid-pressure", "NoSchedule", Fit::Runs),
            ("unschedulable", "NoSchedule", Fit::Runs),
            ("network-unavailable", "NoSchedule", Fit::Keeps),
            ("out-of-service", "NoExecute", Fit::Refuses),
        ] {
            check(json!({}), taint(&format!("node.kubernetes.io/{trouble}"), effect), expected);
        }
        let network = taint("node.kubernetes.io/network-unavailable", "NoSchedule");
        check(json!({"hostNetwork": true}), network, Fit::Runs);
    }

    #[test]
    fn a_pod_names_its_node_and_tolerates_without_end() {
        let mine = json!({"tolerations": [{"key": "a", "operator": "Exists"}, {"key": "node.kubernetes.io/not-ready",
            "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "zone", "operator": "Exists"}]}]}}}});
        let made = pod(&set(mine), "abc", "n1");
        assert_eq!(node_of(&made), Some("n1"));
        let made = json::to_value(made).unwrap();
        let labels = json!({"app": "agent", "controller-revision-hash": "abc", "pod-template-generation": "3"});
        assert_eq!((&made["metadata"]["labels"], &made["metadata"]["generateName"]), (&labels, &json!("agent-")));
        let required = &made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let field = json!({"key": NAME_FIELD, "operator": "In", "values": ["n1"]});
        assert_eq!(required, &json!({"nodeSelectorTerms": [{"matchFields": [field]}]}));
        let tolerations = made["spec"]["tolerations"].as_array().unwrap();
        let keys: Vec<&str> = tolerations.iter().map(|t| t["key"].as_str().unwrap()).collect();
        let troubles =
            ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];
        let expected: Vec<String> = troubles.iter().map(|t| format!("node.kubernetes.io/{t}")).collect();
        assert_eq!((keys[0], &keys[1..]), ("a", expected.iter().map(String::as_str).collect::<Vec<_>>().as_slice()));
        assert_eq!(tolerations[1]["tolerationSeconds"], Value::Null);
    }

    #[test]
    fn a_pod_is_updated_by_its_revision_or_by_the_count_of_templates() {
        // The count and the revision that the Pod names, and the revision of the set, whose count is 3.
        let check = |count: Option<&str>, revision: Option<&str>, present: &str, expected: bool| {
            let labels = json!({GENERATION_LABEL: count, POD_REVISION: revision});
            let labels: BTreeMap<String, Option<String>> = json::from_value(labels).unwrap();
            let labels: BTreeMap<_, _> = labels.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            let mut pod = Pod::default();
            pod.metadata.labels = Some(labels);
            assert_eq!(is_updated(&set(json!({})), present, &pod), expected, "{count:?} {revision:?} {present}");
        };
        check(Some("3"), Some("h"), "h", true);
        check(Some("3"), Some("i"), "h", true);
        check(Some("3"), None, "h", true);
        check(Some("3"), None, "", true);
        check(Some("2"), Some("h"), "h", true);
        check(Some("2"), Some("i"), "h", false);
        check(Some("2"), None, "", false);
        check(Some("2"), Some(""), "", false);
        check(None, Some("h"), "h", true);
        check(None, None, "h", false);
        let mut uncounted = set(json!({}));
        uncounted.metadata.annotations = None;
        assert!(!is_updated(&uncounted, "h", &Pod::default()));
    }

    #[test]
    fn the_node_of_a_pod_is_where_it_is_or_is_meant_to_be() {
        let of = |spec: Value| {
            let pod: Pod = json::from_value(json!({"spec": spec})).unwrap();
            node_of(&pod).map(str::to_owned)
        };
        let meant = |values: Value| {
            json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields":
                [{"key": NAME_FIELD, "operator": "In", "values": values}]}]}}}})
        };
        assert_eq!(of(json!({"containers": [], "nodeName": "n1"})).as_deref(), Some("n1"));
        assert_eq!(of(meant(json!(["n2"]))).as_deref(), Some("n2"));
        assert_eq!(of(meant(json!(["n2", "n3"]))), None);
        assert_eq!(of(json!({"containers": []})), None);
    }
}
