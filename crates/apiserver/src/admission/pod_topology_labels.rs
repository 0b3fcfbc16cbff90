//! PodTopologyLabels: a Pod that gets a node has the labels of the node's zone and region, where its containers can read them.

use api::features::Feature;
use api::{Value, status::StatusError};
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodTopologyLabels",
    concerns: |attributes| attributes.operation == Operation::Create && !node(attributes).is_empty(),
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

const LABELS: &[&str] = &["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The node that a Pod gets, now or when it is bound: the labels of a binding go on to its Pod.
fn node<'a>(attributes: &'a Attributes<'_>) -> &'a str {
    let Some(object) = &attributes.object else { return "" };
    if is(attributes, "", "pods", "") {
        text(object, "/spec/nodeName")
    } else if is(attributes, "", "pods", "binding") && text(object, "/target/kind") == "Node" {
        text(object, "/target/name")
    } else {
        ""
    }
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if !context.features.enabled(Feature::PodTopologyLabelsAdmission) {
        return Ok(());
    }
    let Some(node) = context.objects.get("", "nodes", "", node(attributes)).await? else { return Ok(()) };
    let Some(object) = &mut attributes.object else { return Ok(()) };
    for label in LABELS {
        let Some(value) = node["metadata"]["labels"].get(*label).and_then(Value::as_str) else { continue };
        let labels = &mut object["metadata"]["labels"];
        if labels.is_null() {
            *labels = json!({});
        }
        // The node's label counts, also where the Pod or the binding has another one.
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(*label, json!(value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use api::features::Features;

    #[tokio::test]
    async fn zone_and_region_come_with_the_node() {
        let labels = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o",
            "topology.kubernetes.io/arbitrary": "a", "sub.topology.kubernetes.io/zone": "s", "topology.kubernetes.io": "t"});
        let node = ("nodes", json!({"metadata": {"name": "n1", "labels": labels}}));
        let context = context(vec![node]).await;
        let check = async |subresource: &'static str, mut object: Value, labels: Value, expected: Value| {
            object["metadata"] = json!({"name": "p", "namespace": "n", "labels": labels});
            let write = Write { kind: ("", "pods", subresource), ..Write::create("pods", object) };
            let out = write.through(&context, &PLUGIN).await.unwrap();
            assert_eq!(out["metadata"]["labels"], expected);
        };
        let both = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
        check("binding", json!({"target": {"kind": "Node", "name": "n1"}}), json!(null), both.clone()).await;
        check("binding", json!({"target": {"kind": "Node", "name": "gone"}}), json!(null), json!(null)).await;
        for kind in ["", "Pod"] {
            check("binding", json!({"target": {"kind": kind, "name": "n1"}}), json!(null), json!(null)).await;
        }
        check("", json!({"spec": {}}), json!(null), json!(null)).await;
        check("", json!({"spec": {"nodeName": "n1"}}), json!(null), both).await;
        let own = json!({"topology.kubernetes.io/zone": "mine", "app": "x"});
        let expected = json!({"topology.kubernetes.io/zone": "z", "app": "x", "topology.kubernetes.io/region": "r"});
        check("", json!({"spec": {"nodeName": "n1"}}), own.clone(), expected.clone()).await;
        check("binding", json!({"target": {"kind": "Node", "name": "n1"}}), own, expected).await;
    }

    /// Upstream: TestPodTopology.
    #[tokio::test]
    async fn nothing_comes_later_or_without_the_feature() {
        let labels = json!({"topology.kubernetes.io/region": "r", "sub.topology.kubernetes.io/zone": "s"});
        let node = ("nodes", json!({"metadata": {"name": "n1", "labels": labels}}));
        let on = context(vec![node.clone()]).await;
        let features = Features::default().with(Feature::PodTopologyLabelsAdmission, false);
        let off = Context { features, ..context(vec![node]).await };
        let pod = || json!({"metadata": {"name": "p", "namespace": "n", "labels": null}, "spec": {"nodeName": "n1"}});
        for (context, operation, expected) in [
            (&on, Operation::Create, json!({"topology.kubernetes.io/region": "r"})),
            (&on, Operation::Update, json!(null)),
            (&off, Operation::Create, json!(null)),
        ] {
            let out = Write { operation, ..Write::create("pods", pod()) }.through(context, &PLUGIN).await.unwrap();
            assert_eq!(out["metadata"]["labels"], expected, "{operation:?}");
        }
    }
}
