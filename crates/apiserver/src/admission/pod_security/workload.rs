//! The part of an object that the checks look at: the annotations and the spec of a Pod, or of the template of one, in
//! the form that the kubelet reads them in.

use std::collections::BTreeMap;

use api::{
    Value,
    k8s_openapi::api::core::v1::{
        Container, ContainerPort, EphemeralContainer, Lifecycle, PodSecurityContext, PodSpec, Probe, SecurityContext,
    },
    meta,
    object::Object,
};
use serde::Deserialize;

#[derive(Default)]
pub struct Workload {
    pub annotations: BTreeMap<String, String>,
    pub spec: PodSpec,
}

impl Workload {
    /// Of a Pod or a template; both have `metadata` and `spec`. An error is a value that no kubelet could read either.
    pub fn read(pod: &Value) -> serde_json::Result<Workload> {
        let annotations = match meta::at(pod, "/metadata/annotations") {
            None | Some(Value::Null) => BTreeMap::new(),
            Some(map) => BTreeMap::deserialize(map)?,
        };
        let spec = match pod.get("spec") {
            None | Some(Value::Null) => PodSpec::default(),
            Some(spec) => PodSpec::from_value(spec)?,
        };
        Ok(Workload { annotations, spec })
    }

    pub fn security(&self) -> Option<&PodSecurityContext> {
        self.spec.security_context.as_ref()
    }

    /// Every container of any sort: there is no other way to them, so that no check forgets a sort.
    pub fn containers(&self) -> impl Iterator<Item = One<'_>> {
        let spec = &self.spec;
        let usual = spec.init_containers.iter().flatten().chain(&spec.containers).map(One::of);
        usual.chain(spec.ephemeral_containers.iter().flatten().map(One::of_ephemeral))
    }

    /// The names of the containers for which `bad` holds.
    pub fn named<'a>(&'a self, mut bad: impl FnMut(&One<'a>) -> bool) -> Vec<&'a str> {
        self.containers().filter(|one| bad(one)).map(|one| one.name).collect()
    }

    pub fn is_windows(&self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }

    /// Root of such a Pod is nobody on the node: a kubelet runs it in a user namespace or not at all.
    pub fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false)
    }
}

/// One container of any sort.
pub struct One<'a> {
    pub name: &'a str,
    security: Option<&'a SecurityContext>,
    pub ports: &'a [ContainerPort],
    pub probes: [Option<&'a Probe>; 3],
    pub lifecycle: Option<&'a Lifecycle>,
}

impl<'a> One<'a> {
    fn of(container: &'a Container) -> Self {
        One {
            name: &container.name,
            security: container.security_context.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            probes: [&container.liveness_probe, &container.readiness_probe, &container.startup_probe]
                .map(Option::as_ref),
            lifecycle: container.lifecycle.as_ref(),
        }
    }

    fn of_ephemeral(container: &'a EphemeralContainer) -> Self {
        One {
            name: &container.name,
            security: container.security_context.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            probes: [&container.liveness_probe, &container.readiness_probe, &container.startup_probe]
                .map(Option::as_ref),
            lifecycle: container.lifecycle.as_ref(),
        }
    }

    /// A field of the security context, when both are there.
    pub fn sets<T>(&self, field: impl FnOnce(&'a SecurityContext) -> &'a Option<T>) -> Option<&'a T> {
        self.security.and_then(|context| field(context).as_ref())
    }
}

/// `"a", "b"`.
pub fn quoted(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let each = items.into_iter().map(|item| format!("\"{}\"", item.as_ref()));
    each.collect::<Vec<_>>().join(", ")
}

/// One word or the other, after the count.
pub fn plural<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
pub fn containers(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quoted(names))
}

/// Names the parts that set something: `pod`, `container "a"`, `pod and containers "a", "b"`; empty when nobody does.
pub fn setters(pod: bool, names: &[&str]) -> String {
    let pod = pod.then(|| "pod".to_owned());
    let names = (!names.is_empty()).then(|| containers(names));
    pod.into_iter().chain(names).collect::<Vec<_>>().join(" and ")
}
