//! The processors and the memory that containers may have for themselves: whole ones, of Guaranteed Pods. Pure.

use std::collections::BTreeMap;

use api::rules::{
    pod::{self, is_sidecar},
    quantity,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// Amounts of memory and huge pages by the names of the resources, in bytes.
pub type Memory = BTreeMap<String, u64>;

/// The init containers and then the others, in the order in which they get what they ask for.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// An init container that ends before others begin, so that they can have what it had.
pub fn makes_way(pod: &Pod, name: &str) -> bool {
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    inits.into_iter().find(|init| init.name == name).is_some_and(|init| !is_sidecar(init))
}

fn is_memory(name: &str) -> bool {
    name == "memory" || name.starts_with("hugepages-")
}

/// Resources for the whole Pod leave nothing to give to one container.
fn is_shared_out(spec: &PodSpec) -> bool {
    let lists = spec.resources.iter().flat_map(|all| [&all.requests, &all.limits]);
    lists.flatten().flat_map(BTreeMap::keys).any(|name| name == "cpu" || is_memory(name))
}

/// Whether its containers may have anything for themselves.
fn is_eligible(pod: &Pod) -> bool {
    pod::qos(pod) == pod::GUARANTEED && !pod.spec.as_ref().is_some_and(is_shared_out)
}

/// How many processors a container gets for itself.
pub fn cpus(pod: &Pod, container: &Container) -> usize {
    let request = container.resources.as_ref().and_then(|all| all.requests.as_ref()?.get("cpu"));
    let milli = request.filter(|_| is_eligible(pod)).map_or(0, |amount| quantity::parse(amount).milli_value());
    if milli > 0 && milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// The memory that a container gets for itself; `None` when it gets none.
pub fn memory(pod: &Pod, container: &Container) -> Option<Memory> {
    let requests = container.resources.iter().flat_map(|all| all.requests.iter().flatten());
    let amount = |text| u64::try_from(quantity::parse(text).value()).unwrap_or(0);
    is_eligible(pod).then(|| {
        requests.filter(|(name, _)| is_memory(name)).map(|(name, text)| (name.clone(), amount(text))).collect()
    })
}

/// The most that a Pod needs at once of an amount that each container needs.
pub fn at_once(pod: &Pod, of: impl Fn(&Container) -> u64) -> u64 {
    let (mut sidecars, mut inits) = (0_u64, 0_u64);
    for init in pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()) {
        if is_sidecar(init) {
            sidecars = sidecars.saturating_add(of(init));
        } else {
            inits = inits.max(sidecars.saturating_add(of(init)));
        }
    }
    let mains = pod.spec.iter().flat_map(|spec| &spec.containers).map(of);
    inits.max(mains.fold(sidecars, u64::saturating_add))
}

/// How many processors the containers of a Pod need for themselves at once.
pub fn cpus_of_pod(pod: &Pod) -> usize {
    let of = |container: &Container| u64::try_from(cpus(pod, container)).unwrap_or(u64::MAX);
    usize::try_from(at_once(pod, of)).unwrap_or(usize::MAX)
}

/// The memory that the containers of a Pod need for themselves at once, of the sorts that its main containers ask for.
pub fn memory_of_pod(pod: &Pod) -> Option<Memory> {
    let mains = pod.spec.iter().flat_map(|spec| &spec.containers).filter_map(|container| memory(pod, container));
    let names = mains.flat_map(Memory::into_keys);
    let of = |name: &str| at_once(pod, |c| memory(pod, c).and_then(|all| all.get(name).copied()).unwrap_or(0));
    is_eligible(pod).then(|| names.map(|name| (name.clone(), of(&name))).collect())
}

#[cfg(test)]
pub mod fixture {
    use super::*;
    use json::{Value, json};

    /// Pod `uid` of containers such as `c 2 1Gi`, with `init` or `sidecar` in front of those that are; requests are limits.
    pub fn pod(uid: &str, containers: &[&str]) -> Pod {
        let of = |text: &str| {
            let mut words: Vec<&str> = text.split_whitespace().collect();
            let sort = ["init", "sidecar"].into_iter().find(|sort| words[0] == *sort);
            words.drain(..usize::from(sort.is_some()));
            let amounts: Value = match words[..] {
                [_, cpu] => json!({"cpu": cpu, "memory": "1Mi"}),
                [_, cpu, memory] => json!({"cpu": cpu, "memory": memory}),
                [_, cpu, memory, pages] => json!({"cpu": cpu, "memory": memory, "hugepages-1Gi": pages}),
                _ => json!({}),
            };
            let mut container = json!({"name": words[0], "resources": {"requests": amounts, "limits": amounts}});
            if sort == Some("sidecar") {
                container["restartPolicy"] = "Always".into();
            }
            (sort.is_some(), container)
        };
        let (inits, mains): (Vec<_>, Vec<_>) = containers.iter().map(|text| of(text)).partition(|(init, _)| *init);
        let list = |all: Vec<(bool, Value)>| all.into_iter().map(|(_, container)| container).collect::<Vec<_>>();
        let spec = json!({"initContainers": list(inits), "containers": list(mains)});
        json::from_value(json!({"metadata": {"uid": uid, "name": uid, "namespace": "d"}, "spec": spec})).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::pod;
    use super::*;

    #[test]
    fn whole_processors_of_guaranteed_pods_are_for_themselves() {
        let first = |pod: &Pod| cpus(pod, &pod.spec.as_ref().unwrap().containers[0]);
        for (amount, expected) in [("2", 2), ("2000m", 2), ("977m", 0), ("1500m", 0), ("0", 0)] {
            assert_eq!(first(&pod("u", &[&format!("c {amount}")])), expected, "{amount}");
        }
        let mut burstable = pod("u", &["c 2"]);
        burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
        assert_eq!(first(&burstable), 0);
        let mut whole = pod("u", &["c 2"]);
        let spec = whole.spec.as_mut().unwrap();
        spec.resources = spec.containers[0].resources.clone();
        assert_eq!((first(&whole), memory_of_pod(&whole)), (0, None));
    }

    #[test]
    fn a_pod_needs_what_runs_at_once() {
        let check = |containers: &[&str], expected: usize| {
            assert_eq!(cpus_of_pod(&pod("u", containers)), expected, "{containers:?}");
        };
        check(&["a 1", "b 2"], 3);
        check(&["init i 4", "a 1", "b 2"], 4);
        check(&["sidecar s 1", "init i 4", "a 1"], 5);
        check(&["init i 4", "sidecar s 1", "a 4"], 5);
        let memory = memory_of_pod(&pod("u", &["init i 1 3Gi", "sidecar s 1 1Gi", "a 1 1Gi 2Gi"])).unwrap();
        assert_eq!(memory, [("memory".to_owned(), 3 << 30), ("hugepages-1Gi".to_owned(), 2 << 30)].into());
    }
}
