//! Rules about Pods that scheduler, kubelet, controllers and server share: what a Pod asks for, its QoS class, whether it is
//! ready, done, static or a mirror.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, PersistentVolumeClaim, Pod, PodCondition, PodSpec, ResourceRequirements, Volume,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::rules::quantity::{Quantity, parse};

/// Set by the kubelet on the API object that shows a static Pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Where the kubelet got the Pod from: `file`, `http` or `api`.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// Amounts by resource name.
pub type Resources = BTreeMap<String, Quantity>;

type Texts = BTreeMap<String, Text>;

fn add(sum: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_default() += *amount;
    }
}

fn raise(most: &mut Resources, other: &Resources) {
    for (name, amount) in other {
        let entry = most.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

fn parsed(texts: Option<&Texts>) -> Resources {
    texts.into_iter().flatten().map(|(name, text)| (name.clone(), parse(text))).collect()
}

/// An init container that keeps running beside the main ones.
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// The resources that a Pod's spec may set for the whole Pod, which then count instead of the sum of its containers.
fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

/// Whether the rule of a container that lists exit codes is about one of them.
pub fn exit_code_fits<N: PartialEq>(operator: &str, mut codes: impl Iterator<Item = N>, exit_code: N) -> bool {
    let listed = codes.any(|code| code == exit_code);
    match operator {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// Whether the spec sets resources for the whole Pod.
pub fn has_resources(spec: &PodSpec) -> bool {
    let whole = spec.resources.iter().flat_map(|r| r.requests.iter().chain(&r.limits).flatten());
    whole.into_iter().any(|(name, _)| is_pod_level(name))
}

fn total(spec: &PodSpec, of: fn(&ResourceRequirements) -> Option<&Texts>) -> Resources {
    let one = |c: &Container| parsed(c.resources.as_ref().and_then(of));
    let mut sum = Resources::new();
    for container in &spec.containers {
        add(&mut sum, &one(container));
    }
    let (mut sidecars, mut starting) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        let amounts = one(container);
        let mut running = sidecars.clone();
        add(&mut running, &amounts);
        if is_sidecar(container) {
            add(&mut sum, &amounts);
            sidecars.clone_from(&running);
        }
        raise(&mut starting, &running);
    }
    raise(&mut sum, &starting);
    let whole = spec.resources.as_ref().and_then(of).into_iter().flatten();
    sum.extend(whole.filter(|(name, _)| is_pod_level(name)).map(|(name, text)| (name.clone(), parse(text))));
    sum
}

/// The amounts that the scheduler sets aside and the kubelet admits by: the containers together or the hungriest
/// moment of the start, whichever is more, with sidecars, Pod-level requests and overhead.
pub fn requests(spec: &PodSpec) -> Resources {
    let mut sum = total(spec, |r| r.requests.as_ref());
    add(&mut sum, &parsed(spec.overhead.as_ref()));
    sum
}

/// The spec with the requests and limits that a Pod on a node may really have: of each container the greatest of what is
/// wanted, what the kubelet set aside and what the container runs with, since a resize takes effect step by step. A wish that
/// the node refused for good does not count. `None` when that is what the spec says already.
pub fn resizing(pod: &Pod) -> Option<PodSpec> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let refused = condition(pod, "PodResizePending").is_some_and(|c| c.reason.as_deref() == Some("Infeasible"));
    let init = status.init_container_statuses.iter().flatten();
    let mut changed: Option<PodSpec> = None;
    for running in status.container_statuses.iter().flatten().chain(init) {
        let Some(actual) = &running.resources else { continue };
        let named = |c: &Container| c.name == running.name;
        let sidecar = |c: &Container| is_sidecar(c) && named(c);
        let place = spec.containers.iter().position(named);
        let place = place.map(|i| (i, false)).or_else(|| {
            let init = spec.init_containers.as_ref()?;
            init.iter().position(sidecar).map(|i| (i, true))
        });
        let Some((index, init)) = place else { continue };
        let own = match (init, &spec.init_containers) {
            (true, Some(list)) => &list[index],
            _ => &spec.containers[index],
        };
        let own = own.resources.as_ref();
        let asked = own.and_then(|r| r.requests.as_ref());
        let requests = greatest(asked, refused, &[actual.requests.as_ref(), running.allocated_resources.as_ref()]);
        let limits = greatest(own.and_then(|r| r.limits.as_ref()), refused, &[actual.limits.as_ref()]);
        if requests.is_none() && limits.is_none() {
            continue;
        }
        let spec = changed.get_or_insert_with(|| spec.clone());
        let container = match (init, &mut spec.init_containers) {
            (true, Some(list)) => &mut list[index],
            _ => &mut spec.containers[index],
        };
        let resources = container.resources.get_or_insert_default();
        resources.requests = requests.or(resources.requests.take());
        resources.limits = limits.or(resources.limits.take());
    }
    if let (Some(actual), Some(own)) = (&status.resources, &spec.resources) {
        let allocated = status.allocated_resources.as_ref();
        let requests = greatest(own.requests.as_ref(), refused, &[actual.requests.as_ref(), allocated]);
        let limits = greatest(own.limits.as_ref(), refused, &[actual.limits.as_ref()]);
        if requests.is_some() || limits.is_some() {
            let resources = changed.get_or_insert_with(|| spec.clone()).resources.get_or_insert_default();
            resources.requests = requests.or(resources.requests.take());
            resources.limits = limits.or(resources.limits.take());
        }
    }
    changed
}

/// The greatest amounts of what is wanted (unless it was refused) and what there is; `None` when that is what is wanted.
fn greatest(wanted: Option<&Texts>, refused: bool, present: &[Option<&Texts>]) -> Option<Texts> {
    // Mostly nothing is being resized, and then nothing is copied.
    if present.iter().all(|amounts| amounts.is_none() || *amounts == wanted) && present[0] == wanted {
        return None;
    }
    let mut most = if refused { Texts::new() } else { wanted.cloned().unwrap_or_default() };
    for (name, amount) in present.iter().copied().flatten().flatten() {
        match most.get(name) {
            Some(held) if parse(held) >= parse(amount) => {}
            _ => _ = most.insert(name.clone(), amount.clone()),
        }
    }
    let same = Some(&most) == wanted || (most.is_empty() && wanted.is_none());
    (!same).then_some(most)
}

/// The limits of the whole Pod; overhead raises only limits that exist.
pub fn limits(spec: &PodSpec) -> Resources {
    let mut sum = total(spec, |r| r.limits.as_ref());
    for (name, amount) in parsed(spec.overhead.as_ref()) {
        if let Some(limit) = sum.get_mut(&name).filter(|l| !l.is_zero()) {
            *limit += amount;
        }
    }
    sum
}

pub const GUARANTEED: &str = "Guaranteed";
pub const BURSTABLE: &str = "Burstable";
pub const BEST_EFFORT: &str = "BestEffort";

/// The QoS class that follows from the spec.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let stated = containers.filter_map(|container| container.resources.as_ref()).map(Stated::of);
    qos_of(spec.resources.as_ref().map(Stated::of), stated, count(spec))
}

fn count(spec: &PodSpec) -> usize {
    spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len)
}

/// The class of a running Pod: the one in its status, which never changes, or else what follows from its spec.
pub fn qos(pod: &Pod) -> &str {
    let stated = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    stated.or_else(|| pod.spec.as_ref().map(qos_class)).unwrap_or(BEST_EFFORT)
}

/// The rule itself, over the resources of the containers that state any and the number of all containers.
pub(crate) fn qos_of(
    whole: Option<Stated>,
    containers: impl IntoIterator<Item = Stated>,
    count: usize,
) -> &'static str {
    let (mut requests, mut limits) = (Compute::default(), Compute::default());
    let mut all_limited;
    if let Some(whole) = whole.filter(|whole| whole.requests.is_some() || whole.limits.is_some()) {
        requests.add(whole.requests);
        all_limited = limits.add(whole.limits);
    } else {
        let mut stated = 0;
        all_limited = true;
        for resources in containers {
            stated += 1;
            requests.add(resources.requests);
            all_limited &= limits.add(resources.limits);
        }
        all_limited &= stated == count;
    }
    if requests == Compute::default() && limits == Compute::default() {
        BEST_EFFORT
    } else if all_limited && requests == limits {
        GUARANTEED
    } else {
        BURSTABLE
    }
}

/// The requests and the limits of a container or a whole Pod, where it has such lists, as far as they decide about the class.
pub(crate) struct Stated {
    pub requests: Option<Compute>,
    pub limits: Option<Compute>,
}

impl Stated {
    fn of(resources: &ResourceRequirements) -> Self {
        let compute = |texts: &Texts| Compute::of(|name| texts.get(name).map(parse));
        Stated { requests: resources.requests.as_ref().map(compute), limits: resources.limits.as_ref().map(compute) }
    }
}

/// The resources that decide about the class. None of one is as good as zero of it.
#[derive(Default, PartialEq)]
pub(crate) struct Compute {
    cpu: Quantity,
    memory: Quantity,
}

impl Compute {
    /// The amounts by name, of which those count that are more than nothing.
    pub(crate) fn of(amount: impl Fn(&str) -> Option<Quantity>) -> Self {
        let counted = |name| amount(name).filter(|amount| *amount > Quantity::ZERO).unwrap_or_default();
        Compute { cpu: counted("cpu"), memory: counted("memory") }
    }

    /// Adds the amounts of a list. True when there is some of both.
    fn add(&mut self, list: Option<Compute>) -> bool {
        let Compute { cpu, memory } = list.unwrap_or_default();
        self.cpu += cpu;
        self.memory += memory;
        !cpu.is_zero() && !memory.is_zero()
    }
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// The condition of a Pod that is about to be taken away, which says by whom and why.
pub fn disruption_target(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> PodCondition {
    PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    }
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// Ready for at least this long.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    let ready = condition(pod, "Ready").filter(|c| c.status == "True");
    let since = |c: &PodCondition| c.last_transition_time.as_ref().map(|t| t.0.as_second());
    ready.is_some_and(|c| {
        let long_enough = since(c).is_some_and(|t| t + i64::from(min_ready_seconds) <= now.as_second());
        min_ready_seconds == 0 || long_enough
    })
}

/// Pending, Running, Succeeded, Failed or Unknown.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// No container runs or will run again.
pub fn is_terminal(pod: &Pod) -> bool {
    is_terminal_phase(phase(pod))
}

/// The phases that no Pod leaves.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// A PersistentVolumeClaim that a volume of a Pod stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeClaim {
    pub name: String,
    /// The volume's name in the Pod.
    pub volume: String,
    /// It is made for an ephemeral volume: the Pod owns it, and a claim of that name that it does not own is another one.
    pub is_own: bool,
    pub read_only: bool,
}

impl VolumeClaim {
    /// Whether this is the claim that the Pod means, and not another one of the same name.
    pub fn is(&self, claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
        let mut owners = claim.metadata.owner_references.iter().flatten();
        !self.is_own || owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
    }
}

/// The claims that a Pod's volumes stand for, in the volumes' order.
pub fn volume_claims(pod: &Pod) -> impl Iterator<Item = VolumeClaim> {
    let of = |volume: &Volume| {
        let (name, is_own, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => (source.claim_name.clone(), false, source.read_only == Some(true)),
            (None, Some(_)) => {
                let pod = pod.metadata.name.as_deref().unwrap_or("");
                (format!("{pod}-{}", volume.name), true, false)
            }
            (None, None) => return None,
        };
        Some(VolumeClaim { name, volume: volume.name.clone(), is_own, read_only })
    };
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter_map(of)
}

/// A ResourceClaim that a Pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceClaim {
    /// The claim's name in the Pod.
    pub claim: String,
    /// `None` while nobody has made it: the name of one that is made from a template is in the Pod's status.
    pub name: Option<String>,
    /// It is made from a template: the Pod owns it, and a claim of that name that it does not own is another one.
    pub is_own: bool,
}

impl DeviceClaim {
    /// Whether this is the claim that the Pod means, and not another one of the same name.
    pub fn is(&self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let mut owners = claim.metadata.owner_references.iter().flatten();
        !self.is_own || owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
    }
}

/// Whether the Pod is among those that may use a ResourceClaim.
pub fn is_reserved_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    reserved.into_iter().any(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref())
}

/// The ResourceClaims that a Pod names.
pub fn device_claims(pod: &Pod) -> impl Iterator<Item = DeviceClaim> {
    let made = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.filter_map(|claim| {
        let (name, is_own) = match &claim.resource_claim_name {
            Some(name) => (Some(name.clone()), false),
            None => match made.iter().find(|made| made.name == claim.name) {
                // Without a name in the status, no claim was necessary.
                Some(made) => (Some(made.resource_claim_name.clone()?), true),
                None => (None, true),
            },
        };
        Some(DeviceClaim { claim: claim.name.clone(), name, is_own })
    })
}

/// The ResourceClaim that the scheduler made for the extended resources of a Pod that are devices.
pub fn extended_claim(pod: &Pod) -> Option<&str> {
    let made = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(made.resource_claim_name.as_str())
}

/// Being deleted, whether it has ended or not.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Being deleted, and not ended.
pub fn is_terminating(pod: &Pod) -> bool {
    is_deleted(pod) && !is_terminal(pod)
}

/// Neither done nor being deleted: what controllers count.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_deleted(pod)
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The API's form of a static Pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some()
}

/// The kubelet has it from a file or URL, not from the API.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Priority, 0 when admission has not set one.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn spec(value: Value) -> PodSpec {
        json::from_value(value).unwrap()
    }

    fn asks(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn requests_count_sidecars_init_containers_and_overhead() {
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "10m"}}});
        for (value, expected) in [
            (json!({"containers": [asks("100m"), asks("200m")]}), "300m"),
            (json!({"containers": [asks("100m")], "initContainers": [asks("1")]}), "1"),
            (json!({"containers": [asks("100m")], "initContainers": [sidecar]}), "110m"),
            (json!({"containers": [asks("100m")], "initContainers": [sidecar, asks("1")]}), "1010m"),
            (json!({"containers": [asks("100m")], "initContainers": [asks("1"), sidecar]}), "1"),
            (json!({"containers": [asks("100m")], "overhead": {"cpu": "5m"}}), "105m"),
            (json!({"containers": [asks("100m")], "resources": {"requests": {"cpu": "2"}}}), "2"),
        ] {
            assert_eq!(requests(&spec(value.clone()))["cpu"].to_string(), expected, "{value}");
        }
        let limited = json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}],
            "overhead": {"cpu": "5m", "memory": "1Mi"}});
        assert_eq!(
            limits(&spec(limited)).into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
            ["cpu=1005m"]
        );
    }

    #[test]
    fn a_resize_counts_with_the_most_that_the_container_may_have() {
        let pod = |spec: &str, allocated: &str, actual: &str, reason: &str| -> Pod {
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}});
            let pending = json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
            let status = json!({"containerStatuses": [status], "conditions": pending});
            json::from_value(json!({"spec": {"containers": [asks(spec)]}, "status": status})).unwrap()
        };
        for (spec, allocated, actual, reason, expected) in [
            ("1", "1", "1", "", None),
            ("1000m", "1", "1", "", None),
            ("1", "2", "2", "", Some("2")),
            ("1", "1", "2", "", Some("2")),
            ("3", "1", "2", "Deferred", None),
            ("3", "1", "2", "Infeasible", Some("2")),
            ("3", "2", "1", "Infeasible", Some("2")),
        ] {
            let spec = resizing(&pod(spec, allocated, actual, reason));
            assert_eq!(
                spec.map(|s| requests(&s)["cpu"].to_string()).as_deref(),
                expected,
                "{allocated} {actual} {reason}"
            );
        }
    }

    #[test]
    fn a_resize_of_a_whole_pod_counts_with_the_most_that_it_may_have() {
        let check = |spec: &str, allocated: &str, actual: &str, expected: Option<&str>| {
            let of = |cpu: &str| json!({"requests": {"cpu": cpu}});
            let status = json!({"allocatedResources": {"cpu": allocated}, "resources": of(actual)});
            let spec = json!({"containers": [asks("1")], "resources": of(spec)});
            let pod: Pod = json::from_value(json!({"spec": spec, "status": status})).unwrap();
            assert_eq!(resizing(&pod).map(|s| requests(&s)["cpu"].to_string()).as_deref(), expected);
        };
        check("2", "2", "2", None);
        check("2", "4", "3", Some("4"));
        check("2", "2", "3", Some("3"));
        check("4", "2", "2", None);
    }

    #[test]
    fn qos_classes() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let container = |requests: &Value, limits: &Value| json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let none = json!({});
        for (value, expected) in [
            (json!({"containers": [{"name": "c"}]}), BEST_EFFORT),
            (json!({"containers": [container(&both, &both)]}), GUARANTEED),
            (json!({"containers": [container(&both, &both), {"name": "d"}]}), BURSTABLE),
            (json!({"containers": [container(&both, &none)]}), BURSTABLE),
            (json!({"containers": [container(&json!({"cpu": "0"}), &none)]}), BEST_EFFORT),
            (json!({"containers": [container(&json!({"cpu": "500m", "memory": "1Gi"}), &both)]}), BURSTABLE),
            (json!({"containers": [{"name": "c"}], "resources": {"requests": both, "limits": both}}), GUARANTEED),
        ] {
            assert_eq!(qos_class(&spec(value.clone())), expected, "{value}");
        }
    }
}
