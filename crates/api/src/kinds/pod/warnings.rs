//! Warnings about Pods and templates that are valid but hardly meant, or use what is no more.
//! Upstream counterpart: pkg/api/pod/warnings.go.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, Pod, PodAffinityTerm, PodSpec, PodTemplateSpec, Volume, VolumeProjection,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kinds::persistent_volume_claim;
use crate::kinds::pod::security::annotations::{SECCOMP_OF_CONTAINER, SECCOMP_OF_POD};
use crate::rules::{app_armor, node_label, quantity};
use crate::validation::{field::Path, object_meta};

/// Annotations that do nothing any more, and what to write instead.
const ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Only new Pods are warned about: people hardly change Pods by hand.
pub(super) fn of_pod(pod: &Pod, old: Option<&Pod>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut list = Vec::from_iter(object_meta::name_warning(&pod.metadata, "the Pod's hostname"));
    if let Some(spec) = &pod.spec {
        let about = About { spec, path: Path::new("spec"), metadata: Path::new("metadata"), template: false };
        about.all(Some(&pod.metadata), &mut list);
    }
    list
}

/// Warnings about the template at this place.
pub(crate) fn of_template(template: &PodTemplateSpec, path: &Path) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(spec) = &template.spec {
        let about = About { spec, path: path.child("spec"), metadata: path.child("metadata"), template: true };
        about.all(template.metadata.as_ref(), &mut list);
    }
    list
}

/// The Pod or template that is warned about, and its place.
struct About<'p> {
    spec: &'p PodSpec,
    path: Path,
    metadata: Path,
    template: bool,
}

impl<'p> About<'p> {
    /// All warnings, in upstream's order.
    fn all(&self, metadata: Option<&ObjectMeta>, list: &mut Vec<String>) {
        let none = BTreeMap::new();
        let annotations = metadata.and_then(|m| m.annotations.as_ref()).unwrap_or(&none);
        self.placement(list);
        self.annotated(annotations, ANNOTATIONS.iter().copied(), list);
        let volumes = self.spec.volumes.as_deref().unwrap_or_default();
        volumes.iter().enumerate().for_each(|(i, v)| volume(v, &self.path.child("volumes").index(i), list));
        self.paths_of_tokens(volumes, list);
        self.repeated(list);
        fractions(self.spec.overhead.as_ref(), &self.path.child("overhead"), list);
        let security = self.spec.security_context.as_ref();
        if security.and_then(|s| s.seccomp_profile.as_ref()).is_none() {
            self.annotated(annotations, [(SECCOMP_OF_POD, SECCOMP)], list);
        }
        for (container, place) in self.containers() {
            if !annotations.is_empty() {
                self.profiles(container, annotations, list);
            }
            let resources = container.resources.as_ref();
            fractions(resources.and_then(|r| r.limits.as_ref()), &place.child("resources").child("limits"), list);
            fractions(resources.and_then(|r| r.requests.as_ref()), &place.child("resources").child("requests"), list);
            environment(container, &place, list);
        }
        self.ports(list);
        if self.spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
            let place = self.path.child("terminationGracePeriodSeconds");
            list.push(format!("{place}: must be >= 0; negative values are invalid and will be treated as 1"));
        }
        self.spec.affinity.iter().for_each(|affinity| of_pods(affinity, &self.path.child("affinity"), list));
    }

    fn containers(&self) -> impl Iterator<Item = (&'p Container, Path)> {
        let init = self.spec.init_containers.as_deref().unwrap_or_default();
        [("initContainers", init), ("containers", &self.spec.containers)].into_iter().flat_map(|(field, all)| {
            let path = self.path.child(field);
            all.iter().enumerate().map(move |(i, container)| (container, path.index(i)))
        })
    }

    fn annotated<'a>(
        &self,
        annotations: &BTreeMap<String, String>,
        known: impl IntoIterator<Item = (&'a str, &'a str)>,
        list: &mut Vec<String>,
    ) {
        let there = known.into_iter().filter(|(name, _)| annotations.contains_key(*name));
        list.extend(there.map(|(name, why)| format!("{}: {why}", self.metadata.child("annotations").key(name))));
    }

    /// Labels of nodes with other names by now, and spreading that concerns no Pod.
    fn placement(&self, list: &mut Vec<String>) {
        for label in self.spec.node_selector.iter().flat_map(BTreeMap::keys) {
            let place = self.path.child("nodeSelector").key(label);
            list.extend(node_label::deprecated(label).map(|why| format!("{place}: {why}")));
        }
        let nodes = self.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let path = self.path.child("affinity").child("nodeAffinity");
        let required = nodes.and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
        let place = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
        for (i, term) in required.iter().flat_map(|required| &required.node_selector_terms).enumerate() {
            list.extend(node_label::of_term(term, false, &place.index(i)));
        }
        let preferred = nodes.and_then(|n| n.preferred_during_scheduling_ignored_during_execution.as_ref());
        let place = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, term) in preferred.into_iter().flatten().enumerate() {
            list.extend(node_label::of_term(&term.preference, true, &place.index(i).child("preference")));
        }
        for (i, spread) in self.spec.topology_spread_constraints.iter().flatten().enumerate() {
            let place = self.path.child("topologySpreadConstraints").index(i);
            let key = &spread.topology_key;
            list.extend(
                node_label::deprecated(key).map(|why| format!("{}: {key} is {why}", place.child("topologyKey"))),
            );
            if spread.label_selector.is_none() {
                list.push(format!("{}: {NO_SELECTOR}", place.child("labelSelector")));
            }
        }
    }

    /// Files of projected volumes that stand where a token is.
    fn paths_of_tokens(&self, volumes: &'p [Volume], list: &mut Vec<String>) {
        let sources = |v: &'p Volume| v.projected.as_ref().and_then(|of| of.sources.as_deref()).unwrap_or_default();
        let token = |source: &'p VolumeProjection| Some(source.service_account_token.as_ref()?.path.as_str());
        let tokens: BTreeSet<&str> = volumes.iter().flat_map(sources).filter_map(token).collect();
        for (i, volume) in volumes.iter().enumerate() {
            let place = self.path.child("volumes").index(i).child("projected").child("sources");
            let mut tell = |place: Path, path: &str| {
                if tokens.contains(path) {
                    list.push(format!("{place}: has duplicated path with ServiceAccountToken {path:?}"));
                }
            };
            for source in sources(volume) {
                let maps = source.config_map.iter().flat_map(|s| s.items.iter().flatten());
                maps.enumerate().for_each(|(j, item)| tell(place.child("configMap").index(j), &item.path));
                let secrets = source.secret.iter().flat_map(|s| s.items.iter().flatten());
                secrets.enumerate().for_each(|(j, item)| tell(place.child("secrets").index(j), &item.path));
                let fields = source.downward_api.iter().flat_map(|s| s.items.iter().flatten());
                fields.enumerate().for_each(|(j, item)| tell(place.child("downwardAPI").index(j), &item.path));
                let bundle = source.cluster_trust_bundle.as_ref();
                bundle.into_iter().for_each(|bundle| tell(place.child("ClusterTrustBundle"), &bundle.path));
            }
        }
    }

    /// Aliases of hosts and pull secrets that are there twice, or have no name.
    fn repeated(&self, list: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        for (i, alias) in self.spec.host_aliases.iter().flatten().enumerate() {
            if !seen.insert(&alias.ip) {
                let place = self.path.child("hostAliases").index(i).child("ip");
                list.push(format!("{place}: duplicate ip {:?}", alias.ip));
            }
        }
        let secrets = || self.spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str()).enumerate();
        let place = |i| self.path.child("imagePullSecrets").index(i).child("name");
        let mut seen = BTreeSet::new();
        let repeated = secrets().filter(|(_, name)| !seen.insert(*name));
        list.extend(repeated.map(|(i, name)| format!("{}: duplicate name {name:?}", place(i))));
        let unnamed = secrets().filter(|(_, name)| name.is_empty());
        list.extend(unnamed.map(|(i, name)| format!("{}: invalid empty name {name:?}", place(i))));
    }

    /// Annotations about a container's profiles where no field says anything. Those of new Pods about AppArmor become fields before,
    /// and are warned about then.
    fn profiles(&self, container: &Container, annotations: &BTreeMap<String, String>, list: &mut Vec<String>) {
        let own = container.security_context.as_ref();
        if own.and_then(|s| s.seccomp_profile.as_ref()).is_none() {
            let name = format!("{SECCOMP_OF_CONTAINER}{}", container.name);
            self.annotated(annotations, [(&*name, SECCOMP)], list);
        }
        let of_pod = self.spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
        if self.template && own.and_then(|s| s.app_armor_profile.as_ref()).or(of_pod).is_none() {
            let name = format!("{}{}", app_armor::ANNOTATION, container.name);
            self.annotated(annotations, [(&*name, app_armor::WARNING)], list);
        }
    }

    /// Ports that several containers, or one of them twice, want to have.
    fn ports(&self, list: &mut Vec<String>) {
        let mut all: BTreeMap<(i32, &str), Vec<(Path, &ContainerPort)>> = BTreeMap::new();
        for (container, place) in self.containers() {
            for (i, port) in container.ports.iter().flatten().enumerate() {
                let place = place.child("ports").index(i);
                if !host_ip(port).is_empty() && host_port(port) == 0 {
                    list.push(format!("{place}: hostIP set without hostPort: {}", in_go(port)));
                }
                let others = all.entry((port.container_port, protocol(port))).or_default();
                let told =
                    others.iter().filter_map(|(other, of)| Some(format!("{place}: {} with {other}", clash(port, of)?)));
                list.extend(told);
                others.push((place, port));
            }
        }
    }
}

fn host_ip(port: &ContainerPort) -> &str {
    port.host_ip.as_deref().unwrap_or_default()
}

fn host_port(port: &ContainerPort) -> i32 {
    port.host_port.unwrap_or_default()
}

fn protocol(port: &ContainerPort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// How two ports with the same number and protocol come into each other's way.
fn clash(one: &ContainerPort, other: &ContainerPort) -> Option<&'static str> {
    let (numbers, addresses) = ((host_port(one), host_port(other)), (host_ip(one), host_ip(other)));
    if numbers.0 == numbers.1 && addresses.0 == addresses.1 {
        Some("duplicate port definition")
    } else if numbers.0 == 0 || numbers.1 == 0 {
        Some("overlapping port definition")
    } else if numbers.0 == numbers.1 && addresses.0.is_empty() != addresses.1.is_empty() {
        Some("dangerously ambiguous port definition")
    } else {
        None
    }
}

/// A port as Go prints it.
fn in_go(port: &ContainerPort) -> String {
    let name = port.name.as_deref().unwrap_or_default();
    format!(
        "{{Name:{name} HostPort:{} ContainerPort:{} Protocol:{} HostIP:{}}}",
        host_port(port),
        port.container_port,
        protocol(port),
        host_ip(port)
    )
}

/// Volumes of plugins that are going or gone.
fn volume(volume: &Volume, path: &Path, list: &mut Vec<String>) {
    let gone = [
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk", "v1.11, non-functional in v1.16+"),
        (volume.git_repo.is_some(), "gitRepo", "v1.11"),
        (volume.scale_io.is_some(), "scaleIO", "v1.16, non-functional in v1.22+"),
        (volume.flocker.is_some(), "flocker", "v1.22, non-functional in v1.25+"),
        (volume.storageos.is_some(), "storageOS", "v1.22, non-functional in v1.25+"),
        (volume.quobyte.is_some(), "quobyte", "v1.22, non-functional in v1.25+"),
        (volume.glusterfs.is_some(), "glusterfs", "v1.25, non-functional in v1.26+"),
        (volume.cephfs.is_some(), "cephfs", "v1.28, non-functional in v1.31+"),
        (volume.rbd.is_some(), "rbd", "v1.28, non-functional in v1.31+"),
    ];
    for (_, field, since) in gone.into_iter().filter(|(used, ..)| *used) {
        list.push(format!("{}: deprecated in {since}", path.child(field)));
    }
    if let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) {
        let place = path.child("ephemeral").child("volumeClaimTemplate").child("spec");
        list.extend(persistent_volume_claim::spec_warnings(&template.spec, &place));
    }
}

/// Amounts of memory and storage that are no whole bytes.
fn fractions(amounts: Option<&BTreeMap<String, Text>>, path: &Path, list: &mut Vec<String>) {
    let Some(amounts) = amounts else { return };
    for name in ["memory", "ephemeral-storage"] {
        let amount = amounts.get(name).map(quantity::parse).unwrap_or_default();
        if amount.milli_value() % 1000 != 0 {
            let (place, shown) = (path.key(name), amount.to_string());
            list.push(format!("{place}: fractional byte value {shown:?} is invalid, must be an integer"));
        }
    }
}

/// Variables that hide earlier ones, unless they are made from those.
fn environment(container: &Container, path: &Path, list: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let (name, value) = (&variable.name, variable.value.as_deref().unwrap_or_default());
        if seen.insert(name) {
            continue;
        }
        let earlier = format!("$({name})");
        if variable.value_from.is_some() || value == earlier || !value.contains(&earlier) {
            let place = path.child("env").index(i);
            list.push(format!("{place}: hides previous definition of {name:?}, which may be dropped when using apply"));
        }
    }
}

/// Terms about other Pods that concern none.
fn of_pods(affinity: &Affinity, path: &Path, list: &mut Vec<String>) {
    let mut tell = |required: Option<&Vec<PodAffinityTerm>>,
                    preferred: Option<&Vec<WeightedPodAffinityTerm>>,
                    path: Path| {
        let place = path.child("requiredDuringSchedulingIgnoredDuringExecution");
        let none = |term: &PodAffinityTerm| term.label_selector.is_none();
        let required = required.into_iter().flatten().enumerate().filter(|(_, term)| none(term));
        list.extend(required.map(|(i, _)| format!("{}: {NO_SELECTOR}", place.index(i).child("labelSelector"))));
        let place = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.into_iter().flatten().enumerate().filter(|(_, term)| none(&term.pod_affinity_term));
        let place = |i| place.index(i).child("podAffinityTerm").child("labelSelector");
        list.extend(preferred.map(|(i, _)| format!("{}: {NO_SELECTOR}", place(i))));
    };
    if let Some(near) = &affinity.pod_affinity {
        tell(
            near.required_during_scheduling_ignored_during_execution.as_ref(),
            near.preferred_during_scheduling_ignored_during_execution.as_ref(),
            path.child("podAffinity"),
        );
    }
    if let Some(far) = &affinity.pod_anti_affinity {
        tell(
            far.required_during_scheduling_ignored_during_execution.as_ref(),
            far.preferred_during_scheduling_ignored_during_execution.as_ref(),
            path.child("podAntiAffinity"),
        );
    }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn told(spec: Value, annotations: Value) -> Vec<String> {
        let pod = json!({"metadata": {"name": "a", "annotations": annotations}, "spec": spec});
        of_pod(&json::from_value(pod).expect("a Pod"), None)
    }

    fn check(spec: Value, expected: &[&str]) {
        let mut whole = json!({"containers": [{"name": "c"}]});
        for (name, value) in spec.as_object().expect("an object") {
            whole[name.as_str()] = value.clone();
        }
        assert_eq!(told(whole, json!({})), expected, "{spec}");
    }

    #[test]
    fn nodes_and_pods_that_nobody_finds() {
        check(
            json!({"nodeSelector": {"beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}),
            &["spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead"],
        );
        let term = json!({"matchExpressions": [
            {"key": "node-role.kubernetes.io/master", "operator": "In", "values": ["-"]}]});
        let nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]});
        let pods = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "k"}}]});
        let list = told(
            json!({"containers": [], "affinity": {"nodeAffinity": nodes, "podAntiAffinity": pods},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "beta.kubernetes.io/arch", "whenUnsatisfiable": "x"}]}),
            json!({}),
        );
        let expected = [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: \
             node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" instead",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: \
             node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" instead",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[0]: \
             - is invalid, a valid label must be an empty string",
            "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is deprecated since v1.14",
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null",
        ];
        assert_eq!(list.len(), expected.len(), "{list:?}");
        list.iter().zip(expected).for_each(|(told, expected)| assert!(told.starts_with(expected), "{told}"));
    }

    #[test]
    fn ports_in_each_others_way() {
        let ports =
            |a: Value, b: Value| json!({"containers": [{"name": "c", "ports": [a]}, {"name": "d", "ports": [b]}]});
        let with = |what: &str| {
            format!("spec.containers[1].ports[0]: {what} port definition with spec.containers[0].ports[0]")
        };
        let port = json!({"containerPort": 80});
        for (other, what) in [
            (json!({"containerPort": 80, "protocol": "TCP"}), Some("duplicate")),
            (json!({"containerPort": 80, "hostPort": 8080}), Some("overlapping")),
            (json!({"containerPort": 80, "protocol": "UDP"}), None),
            (json!({"containerPort": 81}), None),
        ] {
            check(ports(port.clone(), other), &what.map(with).iter().map(String::as_str).collect::<Vec<_>>());
        }
        let on = |ip: &str| json!({"containerPort": 80, "hostPort": 80, "hostIP": ip});
        check(ports(on(""), on("10.0.0.1")), &[&with("dangerously ambiguous")]);
        check(ports(on("10.0.0.2"), on("10.0.0.1")), &[]);
        check(
            json!({"containers": [{"name": "c", "ports": [{"name": "p", "containerPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}]}]}),
            &[
                "spec.containers[0].ports[0]: hostIP set without hostPort: {Name:p HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}",
            ],
        );
    }

    #[test]
    fn what_is_there_twice_or_gone() {
        check(
            json!({"hostAliases": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.1"}], "imagePullSecrets": [{"name": "s"}, {"name": "s"}, {"name": ""}]}),
            &[
                "spec.hostAliases[1].ip: duplicate ip \"1.1.1.1\"",
                "spec.imagePullSecrets[1].name: duplicate name \"s\"",
                "spec.imagePullSecrets[2].name: invalid empty name \"\"",
            ],
        );
        let env = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "$(A)"}, {"name": "A", "value": "3"}]);
        let hidden = |i: usize| {
            format!(
                "spec.containers[0].env[{i}]: hides previous definition of \"A\", which may be dropped when using apply"
            )
        };
        check(json!({"containers": [{"name": "c", "env": env}]}), &[&hidden(2), &hidden(3)]);
        check(
            json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "100m"}, "requests": {"ephemeral-storage": "1500m"}}}],
                "volumes": [{"name": "v", "gitRepo": {"repository": "r"}}, {"name": "w", "rbd": {"image": "i", "monitors": []}}]}),
            &[
                "spec.volumes[0].gitRepo: deprecated in v1.11",
                "spec.volumes[1].rbd: deprecated in v1.28, non-functional in v1.31+",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
                "spec.containers[0].resources.requests[ephemeral-storage]: fractional byte value \"1500m\" is invalid, must be an integer",
            ],
        );
        let sources = json!([{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "t"}]}}]);
        check(
            json!({"volumes": [{"name": "v", "projected": {"sources": sources}}]}),
            &["spec.volumes[0].projected.sources.configMap[0]: has duplicated path with ServiceAccountToken \"t\""],
        );
    }

    #[test]
    fn annotations_that_do_nothing() {
        let annotations = json!({
            "scheduler.alpha.kubernetes.io/critical-pod": "", "seccomp.security.alpha.kubernetes.io/pod": "x",
            "container.seccomp.security.alpha.kubernetes.io/c": "x", "container.apparmor.security.beta.kubernetes.io/c": "x",
        });
        let spec = json!({"containers": [{"name": "c"}]});
        let of_pod = [
            "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
            "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
        ];
        assert_eq!(told(spec.clone(), annotations.clone()), of_pod);
        let template = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let list = of_template(&json::from_value(template).expect("a template"), &Path::new("spec").child("template"));
        assert_eq!(list[0], format!("spec.template.{}", of_pod[0]));
        assert!(
            list[3]
                .ends_with("beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead"),
            "{list:?}"
        );
        let with_field = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}],
            "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}});
        let list = of_template(&json::from_value(with_field).expect("a template"), &Path::new("template"));
        assert_eq!(list.len(), 3, "{list:?}");
    }
}
