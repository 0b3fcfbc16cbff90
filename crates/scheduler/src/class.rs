//! A class: everything the scheduler looks at in a Pod, shared by all Pods that are equal in it.
//!
//! The replicas of one workload are one class, so what is computed for a class (which nodes' taints and labels it
//! accepts, how many matching Pods each zone has, why it fits nowhere) is computed once.

use std::collections::{BTreeMap, BTreeSet};

use api::rules::{
    declared_feature,
    host_port::{self, HostPort},
    selector::{Operator, Requirement, Selector},
};
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, ResourceRequirements,
        Toleration, TopologySpreadConstraint,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use serde::Serialize;

use crate::{
    asks::{self, Asks},
    attachable::{self, Attachable},
    claims::{self, Named},
    disks::{self, Disk},
    resources::{Amounts, ResourceNames},
    topology::{KeyId, Labels, Topologies},
};

/// The number of a class in the [`Cache`](crate::cache::Cache).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

impl ClassId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rule about other Pods in the same topology domain.
#[derive(Debug, Clone)]
pub struct Term {
    pub key: KeyId,
    namespaces: BTreeSet<String>,
    namespace_selector: Selector,
    selector: Selector,
}

impl Term {
    /// Whether the rule speaks about Pods of `class`. `namespace_labels` are the labels of that Pod's namespace.
    pub fn matches(&self, class: &Class, namespace_labels: Option<&Labels>) -> bool {
        let empty = Labels::new();
        let namespace = self.namespaces.contains(&class.namespace)
            || self.namespace_selector.matches(namespace_labels.unwrap_or(&empty));
        namespace && self.selector.matches(&class.labels)
    }
}

/// One topology spread constraint.
#[derive(Debug, Clone)]
pub struct Spread {
    pub key: KeyId,
    pub max_skew: i64,
    pub min_domains: i64,
    /// `DoNotSchedule`, against `ScheduleAnyway`.
    pub hard: bool,
    pub honour_affinity: bool,
    pub honour_taints: bool,
    /// A node counts that has this key, even if it has not the keys of the other constraints.
    pub any_key: bool,
    pub(crate) selector: Selector,
}

impl Spread {
    /// The constraint for Pods that this selector selects.
    pub fn selecting(&self, selector: Selector) -> Self {
        Spread { selector, ..self.clone() }
    }

    /// Whether the constraint counts a Pod of `class`; `own` is the namespace of the constraint's Pod.
    pub fn counts(&self, own: &str, class: &Class) -> bool {
        class.namespace == own && !self.selector.is_everything() && self.selector.matches(&class.labels)
    }
}

/// All that the scheduler looks at in a Pod.
#[derive(Debug, Clone, Default)]
pub struct Class {
    pub namespace: String,
    /// The scheduler that is to decide about the Pods.
    pub scheduler: String,
    pub labels: Labels,
    pub requests: Amounts,
    /// cpu (thousandths) and memory (bytes) for scoring, where a container that requests none counts with a default.
    pub scored: (i64, i64),
    pub node_selector: Labels,
    pub required_nodes: Option<NodeSelector>,
    pub preferred_nodes: Vec<(i64, NodeSelectorTerm)>,
    /// The only nodes that can take the Pod, when its affinity names them.
    pub only_nodes: Option<BTreeSet<String>>,
    pub tolerations: Vec<Toleration>,
    pub ports: Vec<HostPort>,
    /// Image names with their tag, of containers and of volumes.
    pub images: Vec<String>,
    pub spread: Vec<Spread>,
    /// The controller whose selector counts for constraints by default, unless the Pods have constraints of their own.
    pub defaults: Option<Owner>,
    /// PersistentVolumeClaims and ResourceClaims that the Pods use.
    pub claims: Vec<Named>,
    pub devices: Vec<Named>,
    /// The requests of the containers, where some of them may be for devices.
    pub asks: Vec<Asks>,
    /// Volumes without a claim that a CSI driver may have to attach.
    pub inline: Vec<Attachable>,
    /// Disks without a claim that not all Pods of a node can share.
    pub disks: Vec<Disk>,
    pub affinity: Vec<Term>,
    pub anti_affinity: Vec<Term>,
    /// Preferred affinity, and with negative weight preferred anti-affinity.
    pub preferred: Vec<(i64, Term)>,
    /// The features that a node must declare.
    pub features: Vec<&'static str>,
}

impl Class {
    /// How many volumes a Pod has that may have to be attached to its node.
    pub fn volumes(&self) -> usize {
        self.claims.len() + self.inline.len()
    }
}

/// The scheduler of Pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A sort of controller whose selector counts for the default constraints of its Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

impl OwnerKind {
    fn name(self) -> &'static str {
        match self {
            OwnerKind::ReplicationController => "ReplicationController",
            OwnerKind::ReplicaSet => "ReplicaSet",
            OwnerKind::StatefulSet => "StatefulSet",
        }
    }
}

/// Sort and name of the controller, if there is one whose selector counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner(pub Option<(OwnerKind, String)>);

fn owner(pod: &Pod) -> Option<(OwnerKind, &str)> {
    let references = pod.metadata.owner_references.iter().flatten();
    let reference = references.into_iter().find(|r| r.controller == Some(true))?;
    let kinds = [
        ("v1", OwnerKind::ReplicationController),
        ("apps/v1", OwnerKind::ReplicaSet),
        ("apps/v1", OwnerKind::StatefulSet),
    ];
    let named =
        |(version, kind): &(&str, OwnerKind)| *version == reference.api_version && kind.name() == reference.kind;
    kinds.iter().find(|k| named(k)).map(|(_, kind)| (*kind, reference.name.as_str()))
}

fn has_constraints(spec: &PodSpec) -> bool {
    spec.topology_spread_constraints.as_ref().is_some_and(|list| !list.is_empty())
}

/// The parts of a Pod that decide its class, in the form that is compared.
#[derive(Serialize)]
struct Identity<'a> {
    namespace: &'a str,
    scheduler: Option<&'a str>,
    labels: Option<&'a Labels>,
    owner: Option<(&'a str, &'a str)>,
    node_selector: Option<&'a Labels>,
    affinity: Option<&'a Affinity>,
    tolerations: Option<&'a Vec<Toleration>>,
    spread: Option<&'a Vec<TopologySpreadConstraint>>,
    overhead: Option<&'a Amount>,
    claims: Vec<Named>,
    devices: Vec<Named>,
    inline: Vec<Attachable>,
    disks: Vec<Disk>,
    image_volumes: Vec<&'a str>,
    resources: Option<&'a ResourceRequirements>,
    features: Vec<&'static str>,
    containers: Vec<ContainerIdentity<'a>>,
    starting: Vec<ContainerIdentity<'a>>,
}

type Amount = BTreeMap<String, Quantity>;

/// Image, restart policy, requests and host ports.
type ContainerIdentity<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a Amount>, Vec<(i32, &'a str, &'a str)>);

fn container_identity(container: &Container) -> ContainerIdentity<'_> {
    (
        container.image.as_deref(),
        container.restart_policy.as_deref(),
        container.resources.as_ref().and_then(|r| r.requests.as_ref()),
        host_port::of_container(container).collect(),
    )
}

/// The images that a Pod mounts as volumes.
fn image_volumes(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref())
}

/// Two Pods with the same identity are of one class.
pub fn identity(pod: &Pod) -> Vec<u8> {
    let (empty, resizing) = (PodSpec::default(), api::rules::pod::resizing(pod));
    let spec = resizing.as_ref().or(pod.spec.as_ref()).unwrap_or(&empty);
    let owner = owner(pod).filter(|_| !has_constraints(spec));
    let identity = Identity {
        namespace: pod.metadata.namespace.as_deref().unwrap_or(""),
        scheduler: spec.scheduler_name.as_deref(),
        labels: pod.metadata.labels.as_ref(),
        owner: owner.map(|(kind, name)| (kind.name(), name)),
        node_selector: spec.node_selector.as_ref(),
        affinity: spec.affinity.as_ref(),
        tolerations: spec.tolerations.as_ref(),
        spread: spec.topology_spread_constraints.as_ref(),
        overhead: spec.overhead.as_ref(),
        claims: claims::volume_claims(pod),
        devices: claims::device_claims(pod),
        inline: attachable::inline(pod),
        disks: disks::of_pod(pod),
        image_volumes: image_volumes(spec).collect(),
        resources: spec.resources.as_ref(),
        features: declared_feature::to_start(spec),
        containers: spec.containers.iter().map(container_identity).collect(),
        starting: spec.init_containers.iter().flatten().map(container_identity).collect(),
    };
    serde_json::to_vec(&identity).expect("plain data with text keys")
}

/// The requests that scoring assumes for a container that has none.
const SCORED_DEFAULTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "200Mi")];

/// The spec with every container requesting at least by default.
fn with_defaults(spec: &PodSpec) -> PodSpec {
    let mut spec = spec.clone();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let requests = container.resources.get_or_insert_default().requests.get_or_insert_default();
        for (name, amount) in SCORED_DEFAULTS {
            requests.entry(name.to_owned()).or_insert_with(|| Quantity(amount.to_owned()));
        }
    }
    spec
}

/// A selector that cannot be understood selects nothing.
fn selector(object: Option<&LabelSelector>) -> Selector {
    Selector::of_object(object).unwrap_or(Selector::NOTHING)
}

/// Compiles what the scheduler needs of a Pod.
pub fn compile(pod: &Pod, names: &mut ResourceNames, topologies: &mut Topologies) -> Class {
    let (empty, resizing) = (PodSpec::default(), api::rules::pod::resizing(pod));
    let spec = resizing.as_ref().or(pod.spec.as_ref()).unwrap_or(&empty);
    let owner = owner(pod).map(|(kind, name)| (kind, name.to_owned()));
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let scored = names.amounts(&api::rules::pod::requests(&with_defaults(spec)));
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers).filter_map(|c| c.image.as_deref());
    let mut class = Class {
        scheduler: spec.scheduler_name.clone().unwrap_or_else(|| DEFAULT_SCHEDULER.to_owned()),
        defaults: (!has_constraints(spec)).then_some(Owner(owner)),
        claims: claims::volume_claims(pod),
        devices: claims::device_claims(pod),
        asks: asks::asks(spec),
        features: declared_feature::to_start(spec),
        inline: attachable::inline(pod),
        disks: disks::of_pod(pod),
        requests: names.amounts(&api::rules::pod::requests(spec)),
        scored: (scored.cpu_milli, scored.memory_bytes),
        node_selector: spec.node_selector.clone().unwrap_or_default(),
        tolerations: spec.tolerations.clone().unwrap_or_default(),
        ports: host_port::of_pod(spec).collect(),
        images: containers.chain(image_volumes(spec)).map(image_name).collect(),
        spread: spec.topology_spread_constraints.iter().flatten().map(|c| spread(c, &labels, topologies)).collect(),
        ..Class::default()
    };
    class.ports.sort();
    class.ports.dedup();
    let affinity = spec.affinity.as_ref();
    if let Some(nodes) = affinity.and_then(|a| a.node_affinity.as_ref()) {
        class.required_nodes = nodes.required_during_scheduling_ignored_during_execution.clone();
        class.only_nodes = class.required_nodes.as_ref().and_then(only_nodes);
        let preferred = nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        class.preferred_nodes = preferred.map(|p| (i64::from(p.weight), p.preference.clone())).collect();
    }
    let mut term = |t: &PodAffinityTerm| self::term(t, &namespace, &labels, topologies);
    if let Some(pods) = affinity.and_then(|a| a.pod_affinity.as_ref()) {
        class.affinity =
            pods.required_during_scheduling_ignored_during_execution.iter().flatten().map(&mut term).collect();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        class.preferred.extend(preferred.map(|p| (i64::from(p.weight), term(&p.pod_affinity_term))));
    }
    if let Some(pods) = affinity.and_then(|a| a.pod_anti_affinity.as_ref()) {
        let required = pods.required_during_scheduling_ignored_during_execution.iter().flatten();
        class.anti_affinity = required.map(&mut term).collect();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        class.preferred.extend(preferred.map(|p| (-i64::from(p.weight), term(&p.pod_affinity_term))));
    }
    Class { namespace, labels, ..class }
}

/// An image name with its tag: `latest` is added where neither tag nor digest is named.
pub fn image_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// The node names that the terms allow, when every term allows only named nodes.
fn only_nodes(selector: &NodeSelector) -> Option<BTreeSet<String>> {
    if selector.node_selector_terms.is_empty() {
        return None;
    }
    let mut names = BTreeSet::new();
    for term in &selector.node_selector_terms {
        let mut named = term.match_fields.iter().flatten().filter(|f| f.key == "metadata.name" && f.operator == "In");
        let first: BTreeSet<String> = named.next()?.values.iter().flatten().cloned().collect();
        let all = named.fold(first, |held, f| {
            held.into_iter().filter(|name| f.values.iter().flatten().any(|v| v == name)).collect()
        });
        names.extend(all);
    }
    Some(names)
}

/// Adds that `keys` are as these labels have them (or, with `NotIn`, are not).
fn as_labelled(selector: &mut Selector, keys: Option<&Vec<String>>, operator: Operator, labels: &Labels) {
    for key in keys.into_iter().flatten() {
        if let Some(value) = labels.get(key) {
            selector.requirements.push(Requirement::new(key, operator, &[value]));
        }
    }
}

fn term(term: &PodAffinityTerm, own_namespace: &str, labels: &Labels, topologies: &mut Topologies) -> Term {
    let mut selector = self::selector(term.label_selector.as_ref());
    as_labelled(&mut selector, term.match_label_keys.as_ref(), Operator::In, labels);
    as_labelled(&mut selector, term.mismatch_label_keys.as_ref(), Operator::NotIn, labels);
    let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.insert(own_namespace.to_owned());
    }
    Term {
        key: topologies.key(&term.topology_key),
        namespaces,
        namespace_selector: self::selector(term.namespace_selector.as_ref()),
        selector,
    }
}

/// Compiles a constraint of a Pod with these labels.
pub fn spread(constraint: &TopologySpreadConstraint, labels: &Labels, topologies: &mut Topologies) -> Spread {
    let mut selector = selector(constraint.label_selector.as_ref());
    as_labelled(&mut selector, constraint.match_label_keys.as_ref(), Operator::In, labels);
    Spread {
        key: topologies.key(&constraint.topology_key),
        max_skew: i64::from(constraint.max_skew),
        min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
        hard: constraint.when_unsatisfiable != "ScheduleAnyway",
        honour_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honour_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
        any_key: false,
        selector,
    }
}
