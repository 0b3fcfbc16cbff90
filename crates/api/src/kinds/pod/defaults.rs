//! Defaults of Pods and of the templates that Pods are made from. They are filled into the JSON where it stands: a Pod made
//! of it, and JSON made of that again, would cost as much as all else that is done to a new Pod.

use json::{Map, Value, json};
use k8s_openapi::{
    api::core::v1::{PodSpec, Volume},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::kinds::pod::volume;
use crate::object;
use crate::rules::image::pull_policy;
use crate::rules::pod::requests;
use crate::rules::quantity;

pub(crate) fn unset(text: &Option<String>) -> bool {
    text.as_deref().unwrap_or_default().is_empty()
}

pub(crate) fn fill(text: &mut Option<String>, value: &str) {
    if unset(text) {
        *text = Some(value.to_owned());
    }
}

/// A text; empty where there is none.
fn text<'m>(of: &'m Map, field: &str) -> &'m str {
    of.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Fills in a text that is missing or empty.
fn say(of: &mut Map, field: &'static str, value: &str) {
    if of.get(field).is_none_or(|given| given.is_null() || given.as_str() == Some("")) {
        of.insert(field, Value::from(value));
    }
}

/// Fills in a number or a flag that is missing.
fn set(of: &mut Map, field: &'static str, value: impl Into<Value>) {
    if of.get(field).is_none_or(Value::is_null) {
        of.insert(field, value.into());
    }
}

/// The fields of a part, where it is there.
fn part<'m>(of: &'m mut Map, field: &str) -> Option<&'m mut Map> {
    of.get_mut(field).and_then(Value::as_object_mut)
}

/// The fields of a part, which is made where it is missing.
fn made<'m>(of: &'m mut Map, field: &'static str) -> Option<&'m mut Map> {
    set(of, field, Map::new());
    part(of, field)
}

fn items<'m>(of: &'m mut Map, field: &str) -> impl Iterator<Item = &'m mut Map> {
    let list = of.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The containers that a Pod begins with.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// A Pod itself gets a little more than a template: requests that follow from limits, host ports.
pub fn pod(pod: &mut Value) {
    let Some(spec) = pod.as_object_mut().and_then(|pod| made(pod, "spec")) else { return };
    for list in CONTAINERS {
        items(spec, list).for_each(requests_from_limits);
    }
    pod_level_requests(spec);
    set(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork").and_then(Value::as_bool) == Some(true) {
        for list in CONTAINERS {
            items(spec, list).for_each(host_ports);
        }
    }
    pod_spec(spec);
}

/// Fills in the template at this path, in whichever kind it stands.
pub(crate) fn template_at(object: &mut Value, path: &[&str]) {
    let template = path.iter().try_fold(object, |value, name| value.get_mut(*name)).and_then(Value::as_object_mut);
    let Some(template) = template else { return };
    set(template, "metadata", Map::new());
    if let Some(spec) = made(template, "spec") {
        pod_spec(spec);
    }
}

fn requests_from_limits(container: &mut Map) {
    let Some(resources) = part(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).filter(|limits| !limits.is_empty()) else {
        return;
    };
    let asked = resources.get("requests").and_then(Value::as_object);
    let missing = |name: &str| asked.is_none_or(|asked| !asked.contains_key(name));
    let more: Map =
        limits.iter().filter(|(name, _)| missing(name)).map(|(name, at)| (name.clone(), at.clone())).collect();
    if let Some(requests) = made(resources, "requests") {
        requests.extend(more);
    }
}

/// With limits for the whole Pod, its requests follow from its containers, or else from those limits.
fn pod_level_requests(spec: &mut Map) {
    let limits = spec.get("resources").and_then(|resources| resources.get("limits")).and_then(Value::as_object);
    let Some(limits) = limits.filter(|limits| !limits.is_empty()).cloned() else { return };
    let Ok(typed) = object::decode::<PodSpec>(&Value::Object(spec.clone())) else { return };
    let known = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let asked = requests(&PodSpec { overhead: None, resources: None, ..typed }).into_iter();
    let of_containers = asked.map(|(name, amount)| (json::Key::of(&name), json!(Quantity::from(amount))));
    let all: Vec<_> = of_containers.chain(limits).filter(|(name, _)| known(name)).collect();
    if all.is_empty() {
        return;
    }
    let Some(requests) = part(spec, "resources").and_then(|resources| made(resources, "requests")) else { return };
    for (name, amount) in all {
        requests.entry(name).or_insert(amount);
    }
}

fn host_ports(container: &mut Map) {
    for port in items(container, "ports") {
        if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0
            && let Some(number) = port.get("containerPort").cloned()
        {
            port.insert("hostPort", number);
        }
    }
}

fn pod_spec(spec: &mut Map) {
    service_account(spec);
    say(spec, "dnsPolicy", "ClusterFirst");
    say(spec, "restartPolicy", "Always");
    say(spec, "schedulerName", "default-scheduler");
    set(spec, "securityContext", Map::new());
    set(spec, "terminationGracePeriodSeconds", 30);
    spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten().for_each(of_volume);
    for list in CONTAINERS {
        items(spec, list).for_each(container);
    }
    items(spec, "ephemeralContainers").for_each(any_container);
}

/// The old name of the field says what the new one says, or the other way round.
fn service_account(spec: &mut Map) {
    let [new, old] = ["serviceAccountName", "serviceAccount"];
    let name = [new, old].map(|field| text(spec, field)).into_iter().find(|name| !name.is_empty()).map(Value::from);
    match name {
        Some(name) => {
            spec.insert(old, name.clone());
            spec.insert(new, name);
        }
        None => {
            spec.remove(old);
            spec.remove(new);
        }
    }
}

/// Volumes have so many sorts that they are filled in as their type.
fn of_volume(value: &mut Value) {
    let Ok(mut typed) = object::decode::<Volume>(value) else { return };
    volume::default(&mut typed);
    if let Ok(filled) = json::to_value(typed) {
        *value = filled;
    }
}

fn container(container: &mut Map) {
    any_container(container);
    if let Some(resources) = part(container, "resources") {
        ["requests", "limits"].into_iter().for_each(|amounts| whole_milli(resources, amounts));
    }
    for port in items(container, "ports") {
        say(port, "protocol", "TCP");
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        part(container, name).into_iter().for_each(probe);
    }
    if let Some(lifecycle) = part(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            part(lifecycle, hook).and_then(|hook| part(hook, "httpGet")).into_iter().for_each(http_get);
        }
    }
}

/// Amounts finer than a thousandth are rounded up.
fn whole_milli(resources: &mut Map, amounts: &str) {
    for amount in part(resources, amounts).into_iter().flat_map(Map::values_mut) {
        if let Some(text) = amount.as_str().filter(|text| text.ends_with(['u', 'n'])) {
            let rounded = text.parse::<quantity::Quantity>().unwrap_or_default().rounded_to_milli();
            *amount = rounded.to_string().into();
        }
    }
}

/// Fills in a container of any sort. Debugging containers have no further fields that want it.
fn any_container(container: &mut Map) {
    say(container, "terminationMessagePath", "/dev/termination-log");
    say(container, "terminationMessagePolicy", "File");
    let policy = pull_policy(text(container, "image"));
    say(container, "imagePullPolicy", policy);
    set(container, "resources", Map::new());
    for variable in items(container, "env") {
        if let Some(field) = part(variable, "valueFrom").and_then(|from| part(from, "fieldRef")) {
            say(field, "apiVersion", "v1");
        }
    }
}

fn probe(probe: &mut Map) {
    for (field, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe.get(field).is_none_or(|given| given.is_null() || *given == 0) {
            probe.insert(field, Value::from(value));
        }
    }
    part(probe, "httpGet").into_iter().for_each(http_get);
    if let Some(grpc) = part(probe, "grpc") {
        set(grpc, "service", "");
    }
}

fn http_get(get: &mut Map) {
    say(get, "path", "/");
    say(get, "scheme", "HTTP");
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn check(spec: Value, expected: Value) {
        let mut object = json!({"metadata": {"name": "a"}, "spec": spec});
        pod(&mut object);
        assert_eq!(object["spec"], expected);
        let once = object.clone();
        pod(&mut object);
        assert_eq!(object, once, "defaults settle");
    }

    /// The fields that every Pod gets, with these.
    fn with(more: Value) -> Value {
        let mut spec = json!({"dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    }

    #[test]
    fn a_small_pod_becomes_whole() {
        check(
            json!({"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}}}]}),
            with(json!({"containers": [{"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent",
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]})),
        );
    }

    #[test]
    fn what_is_given_stays() {
        let settled = with(json!({"serviceAccount": "s", "serviceAccountName": "s", "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Never",
                "terminationMessagePath": "/x", "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
                "ports": [{"containerPort": 1, "protocol": "UDP"}]}]}));
        check(settled.clone(), settled);
    }

    #[test]
    fn all_sorts_of_containers_and_hooks() {
        let ended = json!({"imagePullPolicy": "Always", "resources": {}, "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File"});
        let of = |name: &str, more: Value| {
            let mut one = json!({"name": name});
            for fields in [&ended, &more] {
                one.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            }
            one
        };
        let node = |more: Value| json!([{"name": "N", "valueFrom": {"fieldRef": more}}]);
        let (bare, whole) = (node(json!({"fieldPath": "x"})), node(json!({"fieldPath": "x", "apiVersion": "v1"})));
        check(
            json!({"initContainers": [{"name": "i", "env": bare}], "ephemeralContainers": [{"name": "e", "env": bare}],
                "containers": [{"name": "c", "lifecycle": {"preStop": {"httpGet": {"port": 1}}},
                    "startupProbe": {"grpc": {"port": 2}, "periodSeconds": 0, "timeoutSeconds": 9}}]}),
            with(json!({"initContainers": [of("i", json!({"env": whole}))],
                "ephemeralContainers": [of("e", json!({"env": whole}))],
                "containers": [of("c", json!({
                    "lifecycle": {"preStop": {"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}}},
                    "startupProbe": {"grpc": {"port": 2, "service": ""}, "periodSeconds": 10, "timeoutSeconds": 9,
                        "successThreshold": 1, "failureThreshold": 3}}))]})),
        );
    }

    #[test]
    fn what_follows_from_the_whole_pod() {
        let container = |more: Value| {
            let mut one = json!({"name": "c", "image": "i:1", "imagePullPolicy": "IfNotPresent", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let ports = json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]);
        check(
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}],
                "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}]}),
            with(json!({"hostNetwork": true, "containers": [container(json!({"ports": ports}))],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}]})),
        );
        let asked = json!({"resources": {"requests": {"cpu": "500m"}}});
        check(
            json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi", "x.io/y": "1"}},
                "containers": [container(asked.clone())]}),
            with(json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi", "x.io/y": "1"},
                "requests": {"cpu": "500m", "memory": "1Gi"}}, "containers": [container(asked)]})),
        );
        check(
            json!({"containers": [container(json!({"resources": {"limits": {"cpu": "1500u"}}}))]}),
            with(
                json!({"containers": [container(json!({"resources": {"limits": {"cpu": "2m"}, "requests": {"cpu": "2m"}}}))]}),
            ),
        );
    }

    /// Validation says what is wrong with them.
    #[test]
    fn what_is_no_pod_is_left_alone() {
        for spec in [json!(1), json!({"containers": 1}), json!({"containers": [1, {"env": {}, "ports": [null]}]})] {
            let mut object = json!({"spec": spec});
            pod(&mut object);
            template_at(&mut object, &["spec", "containers"]);
        }
    }
}
