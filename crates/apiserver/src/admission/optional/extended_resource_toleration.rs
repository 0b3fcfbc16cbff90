//! ExtendedResourceToleration: a Pod that asks for an extended resource may go to nodes that are kept for it, with a taint of its name.

use std::collections::BTreeSet;

use api::k8s_openapi::api::core::v1::Toleration;
use api::rules::{resource_name, taint};
use api::{Value, meta};

use crate::admission::plugin::{Plugin, done, is_written_pod, items, spec_list, tolerations_at};

pub const PLUGIN: Plugin = Plugin {
    name: "ExtendedResourceToleration",
    concerns: is_written_pod,
    admit: Some(|_, attributes| {
        if let Some(pod) = &mut attributes.object {
            extended(pod).iter().for_each(|name| add(pod, &toleration(name)));
        }
        done(Ok(()))
    }),
    validate: None,
};

fn extended(pod: &Value) -> BTreeSet<String> {
    let of_list = |list: &'static str| items(pod, list);
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter().flat_map(of_list);
    let requests = containers.filter_map(|container| meta::at(container, "/resources/requests")?.as_object());
    let names = requests.flat_map(|requests| requests.keys().map(|name| name.as_str().to_owned()));
    names.filter(|name| resource_name::is_extended(name)).collect()
}

fn toleration(name: &str) -> Toleration {
    Toleration {
        key: Some(name.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(taint::NO_SCHEDULE.to_owned()),
        ..Default::default()
    }
}

/// Adds one, also where another one covers it: only of the same taint there is no second one, which may be for some time alone.
fn add(pod: &mut Value, more: &Toleration) {
    let mut all = tolerations_at(pod, "/spec/tolerations");
    let is_same = |one: &Toleration| Toleration { toleration_seconds: None, ..one.clone() } == *more;
    match all.iter().position(is_same) {
        Some(at) => all[at] = more.clone(),
        None => all.push(more.clone()),
    }
    if let (Some(list), Ok(Value::Array(all))) = (spec_list(pod, "tolerations"), json::to_value(all)) {
        *list = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn who_asks_for_a_device_tolerates_its_taint() {
        let context = context(Vec::new()).await;
        let container = |requests: Value| json!({"name": "c", "resources": {"requests": requests}});
        let of = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
        let check = async |init: Value, main: Value, tolerations: Value, expected: Value| {
            let spec = json!({"initContainers": [container(init)], "containers": [container(main)], "tolerations": tolerations});
            let write = Write::create("pods", json!({"metadata": {"name": "p"}, "spec": spec}));
            assert_eq!(write.through(&context, &PLUGIN).await.unwrap()["spec"]["tolerations"], expected);
        };
        check(json!({"cpu": "1"}), json!({"memory": "1Gi"}), json!([]), json!([])).await;
        check(json!({"b.io/x": "1"}), json!({"a.io/x": "1"}), json!([]), json!([of("a.io/x"), of("b.io/x")])).await;
        check(json!({}), json!({"a.io/x": "1"}), json!([of("a.io/x")]), json!([of("a.io/x")])).await;
        let device = json!({"a.io/x": "1"});
        for other in [
            json!({"key": "foo", "operator": "Equal", "value": "bar", "effect": "NoSchedule"}),
            json!({"key": "a.io/x", "operator": "Equal", "value": "foo", "effect": "NoExecute"}),
            json!({"operator": "Exists"}),
        ] {
            check(json!({}), device.clone(), json!([other]), json!([other, of("a.io/x")])).await;
        }
        let mut short = of("a.io/x");
        short["tolerationSeconds"] = json!(5);
        check(device, json!({}), json!([short]), json!([of("a.io/x")])).await;
    }
}
