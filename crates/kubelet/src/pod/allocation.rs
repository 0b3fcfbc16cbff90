//! The resources that the node has set aside for a Pod. They lag behind its spec while a resize waits, and all of the node
//! but the one who allocates sees the Pod with these. A file in the Pod's folder keeps them for the next kubelet.
//! Upstream counterpart: pkg/kubelet/allocation/state.

use std::{collections::BTreeMap, fs, io, sync::Arc};

use api::rules::{
    pod::is_sidecar,
    quantity::{Quantity, parse},
};
use files::modes;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as Text,
};
use serde::{Deserialize, Serialize};

use crate::{counted::Requested, volumes::folder::PodFolder};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// The generation of the Pod whose resize was allocated last.
    pub resized: Option<i64>,
    /// By the names of the containers that can be resized.
    containers: BTreeMap<String, ResourceRequirements>,
    /// Those of the whole Pod; `None` where an older kubelet did not write them down.
    #[serde(default)]
    whole: Option<ResourceRequirements>,
}

/// The containers whose resources may change: those that stay.
pub fn resizable(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)).chain(&spec.containers)
}

/// Whether two lists have the same amounts, however they are written.
fn same_amounts(one: Option<&BTreeMap<String, Text>>, other: Option<&BTreeMap<String, Text>>) -> bool {
    let amounts = |list: Option<&BTreeMap<String, Text>>| -> BTreeMap<String, Quantity> {
        list.into_iter().flatten().map(|(name, amount)| (name.clone(), parse(amount))).collect()
    };
    amounts(one) == amounts(other)
}

fn same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    same_amounts(one.requests.as_ref(), other.requests.as_ref())
        && same_amounts(one.limits.as_ref(), other.limits.as_ref())
}

/// The change of an amount, in upstream's word. No amount and none at all are the same.
fn operation(before: Quantity, after: Quantity) -> Option<&'static str> {
    let none = Quantity::default();
    match (before == none, after == none) {
        (true, false) => Some("add"),
        (false, true) => Some("remove"),
        _ if after > before => Some("increase"),
        _ if after < before => Some("decrease"),
        _ => None,
    }
}

impl Allocation {
    /// The amounts that containers are to have now and were not to have before, or others.
    pub fn changes(&self, before: &Allocation) -> Vec<Requested<'static>> {
        let amount = |list: &Option<BTreeMap<String, Text>>, name: &str| {
            list.as_ref().and_then(|list| list.get(name)).map(parse).unwrap_or_default()
        };
        let mut changes = Vec::new();
        for (name, after) in &self.containers {
            let Some(before) = before.containers.get(name) else { continue };
            for resource in ["cpu", "memory"] {
                let lists =
                    [("requests", &before.requests, &after.requests), ("limits", &before.limits, &after.limits)];
                for (requirement, before, after) in lists {
                    let operation = operation(amount(before, resource), amount(after, resource));
                    changes.extend(operation.map(|operation| Requested { resource, requirement, operation }));
                }
            }
        }
        changes
    }

    /// All that a spec asks for.
    pub fn of(spec: &PodSpec, resized: Option<i64>) -> Self {
        let of = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        let whole = Some(spec.resources.clone().unwrap_or_default());
        Allocation { resized, containers: resizable(spec).map(of).collect(), whole }
    }

    /// A Pod that asks for nothing never asks for anything: its class of service cannot change.
    pub fn is_nothing(&self) -> bool {
        self.containers.values().chain(&self.whole).all(|r| r.requests.is_none() && r.limits.is_none())
    }

    /// Whether a spec asks for other resources than these.
    pub fn differs(&self, spec: &PodSpec) -> bool {
        let asked = |c: &Container| c.resources.clone().unwrap_or_default();
        let whole = spec.resources.clone().unwrap_or_default();
        self.whole.as_ref().is_some_and(|held| !same(held, &whole))
            || resizable(spec).any(|c| self.containers.get(&c.name).is_some_and(|held| !same(held, &asked(c))))
    }

    /// The Pod with the resources that it has instead of those that it asks for.
    pub fn applied_to(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if !pod.spec.as_ref().is_some_and(|spec| self.differs(spec)) {
            return pod.clone();
        }
        let mut pod = Pod::clone(pod);
        if let (Some(spec), Some(held)) = (&mut pod.spec, &self.whole) {
            let is_any = held.requests.is_some() || held.limits.is_some();
            spec.resources = is_any.then(|| held.clone());
        }
        let spec = pod.spec.iter_mut();
        let all = spec.flat_map(|spec| spec.init_containers.iter_mut().flatten().chain(&mut spec.containers));
        for container in all {
            if let Some(held) = self.containers.get(&container.name) {
                container.resources = Some(held.clone());
            }
        }
        Arc::new(pod)
    }

    /// The resources that an earlier kubelet has set aside for a Pod. A file that cannot be read counts as none.
    pub fn read(folder: &PodFolder) -> Option<Self> {
        let at = folder.path().join("allocation.json");
        match fs::read(&at).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::from)) {
            Ok(allocation) => Some(allocation),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %at.display(), %error, "what is allocated to a Pod cannot be read");
                }
                None
            }
        }
    }

    /// Once this has returned, the next kubelet reads the same.
    pub fn write(&self, folder: &PodFolder) -> io::Result<()> {
        modes::folder(folder.path(), modes::NODE_FOLDER)?;
        let text = serde_json::to_vec(self).map_err(io::Error::from)?;
        modes::replace_durably(&folder.path().join("allocation.json"), modes::PRIVATE_FILE, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::pod;

    fn spec(sidecar: &str, init: &str, main: &str) -> String {
        let one = |name: &str, cpu: &str, more: &str| {
            format!(r#"{{"name": "{name}", {more} "resources": {{"requests": {{"cpu": "{cpu}"}}}}}}"#)
        };
        let sidecar = one("s", sidecar, r#""restartPolicy": "Always","#);
        format!(
            r#"{{"initContainers": [{}, {}], "containers": [{}]}}"#,
            sidecar,
            one("i", init, ""),
            one("m", main, "")
        )
    }

    #[test]
    fn each_amount_that_changes_is_a_change() {
        let of = |main: &str| {
            let text = format!(r#"{{"containers": [{{"name": "main", "resources": {main}}}]}}"#);
            Allocation::of(pod(&text).spec(), None)
        };
        let check = |before: &str, after: &str, expected: &[&str]| {
            let changes = of(after).changes(&of(before));
            let words = changes.iter().map(|one| format!("{} {} {}", one.operation, one.resource, one.requirement));
            assert_eq!(words.collect::<Vec<_>>(), expected);
        };
        let before = r#"{"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}"#;
        check(before, before, &[]);
        check(before, r#"{"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2Gi"}}"#, &[]);
        let after = r#"{"requests": {"cpu": "500m", "memory": "1536Mi"}, "limits": {"cpu": "2"}}"#;
        check(
            before,
            after,
            &["decrease cpu requests", "add cpu limits", "increase memory requests", "remove memory limits"],
        );
    }

    #[test]
    fn a_pod_is_seen_with_what_it_has() {
        let allocation = Allocation::of(pod(&spec("1", "1", "1")).spec(), None);
        let cpu = |wanted: &str| -> Vec<String> {
            let wanted = pod(wanted);
            let seen = allocation.applied_to(&wanted.pod);
            assert_eq!(Arc::ptr_eq(&seen, &wanted.pod), !allocation.differs(wanted.spec()));
            let spec = seen.spec.clone().unwrap();
            let all = spec.init_containers.unwrap().into_iter().chain(spec.containers);
            all.map(|c| c.resources.unwrap().requests.unwrap()["cpu"].0.clone()).collect()
        };
        assert_eq!(cpu(&spec("2", "1", "3")), ["1", "1", "1"]);
        // The same amount in other words is no resize, and an init container that ends is never resized.
        assert_eq!(cpu(&spec("1000m", "1", "1")), ["1000m", "1", "1"]);
        assert_eq!(cpu(&spec("1", "7", "1")), ["1", "7", "1"]);
    }

    #[test]
    fn a_pod_is_seen_with_what_it_has_as_a_whole() {
        let with = |whole: &str| pod(&format!(r#"{{"containers": [{{"name": "c"}}], "resources": {whole}}}"#));
        let [one, two] = ["1", "2"].map(|cpu| with(&format!(r#"{{"requests": {{"cpu": "{cpu}"}}}}"#)));
        let (allocation, none) = (Allocation::of(one.spec(), None), with("null"));
        assert!(!allocation.is_nothing() && allocation.differs(two.spec()) && !allocation.differs(one.spec()));
        let whole = |pod: &Arc<Pod>| pod.spec.as_ref().unwrap().resources.clone();
        assert_eq!(whole(&allocation.applied_to(&two.pod)), one.spec().resources);
        assert_eq!(whole(&Allocation::of(none.spec(), None).applied_to(&two.pod)), None);
        // An older kubelet has not said.
        let old: Allocation = serde_json::from_str(r#"{"resized": 3, "containers": {"c": {}}}"#).unwrap();
        assert!(!old.differs(two.spec()) && Arc::ptr_eq(&old.applied_to(&two.pod), &two.pod));
    }

    #[test]
    fn the_next_kubelet_reads_it_and_a_broken_file_counts_as_none() {
        let root = tempfile::tempdir().unwrap();
        let folder = PodFolder::new(root.path(), "u");
        assert_eq!(Allocation::read(&folder), None);
        fs::create_dir_all(root.path().join("pods")).unwrap();
        let allocation = Allocation::of(pod(&spec("1", "1", "100m")).spec(), Some(3));
        allocation.write(&folder).unwrap();
        assert_eq!(Allocation::read(&folder), Some(allocation));
        fs::write(folder.path().join("allocation.json"), "{\"resized\": 1").unwrap();
        assert_eq!(Allocation::read(&folder), None);
        assert!(Allocation::of(pod(r#"{"containers": [{"name": "c"}]}"#).spec(), None).is_nothing());
    }
}
