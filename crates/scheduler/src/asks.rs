//! The requests of containers for resources whose names may stand for devices, and the requests of the claim that is made
//! for that.
//! Upstream counterpart: pkg/scheduler/framework/plugins/dynamicresources (createRequestsAndMappings).

use std::collections::BTreeMap;

use api::rules::{pod::is_sidecar, quantity::parse, resource_name};
use k8s_openapi::api::{
    core::v1::{Container, PodSpec},
    resource::v1::{DeviceRequest, ExactDeviceRequest},
};

/// Extended resources, each with the DeviceClass that stands for it.
pub type Resources = BTreeMap<String, String>;

/// The requests of one container, under all their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asks {
    /// It has ended when those after it start.
    starts_only: bool,
    requests: BTreeMap<String, i64>,
}

impl Asks {
    fn of(container: &Container, starts_only: bool) -> Self {
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref()).into_iter().flatten();
        Asks { starts_only, requests: requests.map(|(name, amount)| (name.clone(), parse(amount).value())).collect() }
    }

    /// The requests that could be for devices.
    pub fn candidates(&self) -> impl Iterator<Item = &str> {
        let asked = self.requests.iter().filter(|(_, amount)| **amount > 0).map(|(name, _)| name.as_str());
        asked.filter(|name| resource_name::may_be_devices(name))
    }

    /// How its request for a resource is called in the claim.
    fn name(&self, container: usize, resource: &str) -> String {
        let place = self.requests.keys().position(|name| name == resource).unwrap_or_default();
        format!("container-{container}-request-{place}")
    }
}

/// The requests of a Pod's containers, those that start it first. Empty when none of it could be devices.
pub fn asks(spec: &PodSpec) -> Vec<Asks> {
    let starting = spec.init_containers.iter().flatten().map(|c| Asks::of(c, !is_sidecar(c)));
    let all: Vec<Asks> = starting.chain(spec.containers.iter().map(|c| Asks::of(c, false))).collect();
    if all.iter().any(|asks| asks.candidates().next().is_some()) { all } else { Vec::new() }
}

/// A container's part in the claim: its number, the resource, and the request that gives it.
pub type Part = (usize, String, String);

/// The requests of the claim, and which container gets its devices from which of them. A container that only starts the Pod
/// uses the devices of those that come later before it has some of its own, and all such have these in common.
pub fn requests(all: &[Asks], resources: &Resources) -> (Vec<DeviceRequest>, Vec<Part>) {
    let (mut requests, mut parts) = (Vec::new(), Vec::new());
    for (resource, class) in resources {
        let amount = |asks: &Asks| asks.requests.get(resource).copied().filter(|amount| *amount > 0);
        let mut held: Vec<Option<(String, i64)>> = vec![None; all.len()];
        for (index, asks) in all.iter().enumerate().filter(|(_, asks)| !asks.starts_only) {
            let Some(amount) = amount(asks) else { continue };
            let name = asks.name(index, resource);
            parts.push((index, resource.clone(), name.clone()));
            held[index] = Some((name, amount));
        }
        // The own request of the containers that only start the Pod, and the places in the list of those who use it.
        let (mut own, mut users): (Option<(String, i64)>, Vec<usize>) = (None, Vec::new());
        for (index, asks) in all.iter().enumerate().filter(|(_, asks)| asks.starts_only) {
            let Some(amount) = amount(asks) else { continue };
            let mut covered = 0;
            for (name, count) in held[index..].iter().flatten() {
                if covered >= amount {
                    break;
                }
                covered += count;
                parts.push((index, resource.clone(), name.clone()));
            }
            if covered < amount {
                let name = asks.name(index, resource);
                users.push(parts.len());
                parts.push((index, resource.clone(), name.clone()));
                if own.as_ref().is_none_or(|(_, most)| *most < amount - covered) {
                    own = Some((name, amount - covered));
                }
            }
        }
        if let Some((name, _)) = &own {
            users.into_iter().for_each(|at| parts[at].2.clone_from(name));
        }
        let request = |(name, count): (String, i64)| DeviceRequest {
            name,
            exactly: Some(ExactDeviceRequest {
                device_class_name: class.clone(),
                allocation_mode: Some("ExactCount".to_owned()),
                count: Some(count),
                ..ExactDeviceRequest::default()
            }),
            ..DeviceRequest::default()
        };
        requests.extend(own.into_iter().chain(held.into_iter().flatten()).map(request));
    }
    requests.sort_by(|a, b| a.name.cmp(&b.name));
    (requests, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    /// `init` and `containers` as `gpus[:sidecar]`, where 0 asks for cpu only.
    fn check(init: &[&str], containers: &[&str], expected_requests: &str, expected_parts: &str) {
        let container = |text: &&str| {
            let (gpus, sidecar) = text.split_once(':').unwrap_or((text, ""));
            let mut container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
            if gpus != "0" {
                container["resources"]["requests"]["a.io/gpu"] = json!(gpus);
            }
            if !sidecar.is_empty() {
                container["restartPolicy"] = json!("Always");
            }
            container
        };
        let all = |list: &[&str]| list.iter().map(container).collect::<Vec<_>>();
        let spec = json!({"initContainers": all(init), "containers": all(containers)});
        let resources = Resources::from([("a.io/gpu".to_owned(), "gpu".to_owned())]);
        let (requests, parts) = requests(&asks(&json::from_value(spec).unwrap()), &resources);
        let short = |name: &str| name.replace("container-", "").replace("-request-0", "");
        let count = |request: &DeviceRequest| request.exactly.as_ref().unwrap().count.unwrap();
        let said: Vec<String> = requests.iter().map(|r| format!("{}={}", short(&r.name), count(r))).collect();
        assert_eq!(said.join(" "), expected_requests, "{init:?} {containers:?}");
        let said: Vec<String> = parts.iter().map(|(index, _, name)| format!("{index}<{}", short(name))).collect();
        assert_eq!(said.join(" "), expected_parts, "{init:?} {containers:?}");
    }

    #[test]
    fn containers_that_start_a_pod_use_devices_of_those_that_follow() {
        check(&[], &["0"], "", "");
        check(&[], &["1"], "0=1", "0<0");
        check(&[], &["1", "0", "2"], "0=1 2=2", "0<0 2<2");
        // Fewer than the container has, as many, and more.
        check(&["1"], &["2"], "1=2", "1<1 0<1");
        check(&["3"], &["1", "2"], "1=1 2=2", "1<1 2<2 0<1 0<2");
        check(&["5"], &["1", "2"], "0=2 1=1 2=2", "1<1 2<2 0<1 0<2 0<0");
        // The devices beyond are had in common, as many as the greediest needs.
        check(&["2", "4", "3"], &["1"], "1=3 3=1", "3<3 0<3 0<1 1<3 1<1 2<3 2<1");
        // A sidecar runs on, and those before it cannot have its devices for themselves alone.
        check(&["1:sidecar", "2"], &["1"], "0=1 1=1 2=1", "0<0 2<2 1<2 1<1");
        check(&["2", "1:sidecar"], &["1"], "1=1 2=1", "1<1 2<2 0<1 0<2");
        check(&["1"], &["0"], "0=1", "0<0");
    }

    #[test]
    fn requests_are_numbered_among_all_of_their_container_and_sorted() {
        let container = json!({"name": "c", "resources": {"requests": {"z.io/nic": "1", "cpu": "1", "b.io/gpu": "2",
            "deviceclass.resource.kubernetes.io/fpga": "1", "kubernetes.io/other": "1", "b.io/none": "0"}}});
        let spec: PodSpec = json::from_value(json!({"containers": [container]})).unwrap();
        let all = asks(&spec);
        let candidates: Vec<&str> = all[0].candidates().collect();
        assert_eq!(candidates, ["b.io/gpu", "deviceclass.resource.kubernetes.io/fpga", "z.io/nic"]);
        let resources = candidates.into_iter().map(|name| (name.to_owned(), "any".to_owned())).collect();
        let names: Vec<String> = requests(&all, &resources).0.into_iter().map(|request| request.name).collect();
        assert_eq!(names, ["container-0-request-0", "container-0-request-3", "container-0-request-5"]);
    }
}
