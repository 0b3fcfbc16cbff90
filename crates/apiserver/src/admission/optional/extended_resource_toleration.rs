//! ExtendedResourceToleration: a Pod that asks for an extended resource may go to nodes that are kept for it, with a taint of its name.

use std::collections::BTreeSet;

use api::k8s_openapi::api::core::v1::Toleration;
use api::rules::{resource_name, taint};
use api::{Value, meta};

use crate::admission::plugin::{Plugin, done, is_written_pod, items, tolerate};

pub const PLUGIN: Plugin = Plugin {
    name: "ExtendedResourceToleration",
    concerns: is_written_pod,
    admit: Some(|_, attributes| {
        if let Some(pod) = &mut attributes.object {
            let tolerations: Vec<Toleration> = extended(pod).iter().map(|name| toleration(name)).collect();
            tolerate(pod, &tolerations);
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
    }
}
