//! NodeDeclaredFeatureValidator: a change of a Pod needs features of the Pod's node, which the node must declare. It does
//! something where the feature NodeDeclaredFeatures is on.
//! Upstream counterpart: plugin/pkg/admission/nodedeclaredfeatures.

use api::features::Feature;
use api::k8s_openapi::api::core::v1::Pod;
use api::rules::declared_feature;
use api::status::StatusError;
use api::{Value, object::Object};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeDeclaredFeatureValidator",
    concerns: |attributes| {
        attributes.operation == Operation::Update
            && (is(attributes, "", "pods", "") || is(attributes, "", "pods", "resize"))
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let (Some(new), Some(old)) = (&attributes.object, attributes.old) else { return Ok(()) };
    let name = text(new, "/spec/nodeName");
    if !context.features.enabled(Feature::NodeDeclaredFeatures) || name.is_empty() || new.get("spec") == old.get("spec")
    {
        return Ok(());
    }
    let read = |object: &Value| {
        Pod::from_value(object).map_err(|error| StatusError::bad_request(format!("failed to convert pod: {error}")))
    };
    let needed = declared_feature::to_change(&read(old)?, &read(new)?);
    if needed.is_empty() {
        return Ok(());
    }
    let Some(node) = context.objects.get("", "nodes", "", name).await? else {
        return Err(forbid(attributes, format!("node {name:?} not found")));
    };
    let missing = declared_feature::missing(&needed, &declared_feature::of_node(&node));
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(forbid(attributes, format!("pod update requires features {missing} which are not available on node {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use api::features::Features;
    use json::json;

    fn pod(node: &str, cpu: &str, image: &str) -> Value {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        let container = json!({"name": "c", "image": image, "resources": {"requests": amounts, "limits": amounts}});
        let meta = json!({"name": "web", "namespace": "ns"});
        json!({"metadata": meta, "spec": {"nodeName": node, "containers": [container]}, "status": {"qosClass": "Guaranteed"}})
    }

    #[tokio::test]
    async fn a_node_must_declare_what_a_change_needs() {
        let node = |name: &str, features: &[&str]| {
            ("nodes", json!({"metadata": {"name": name}, "status": {"declaredFeatures": features}}))
        };
        let off =
            context(vec![node("able", &[declared_feature::GUARANTEED_CPU_RESIZE]), node("plain", &["Other"])]).await;
        let change = |subresource: &'static str, old: Value, new: Value| Write {
            operation: Operation::Update,
            kind: ("", "pods", subresource),
            old: Some(old),
            ..Write::create("pods", new)
        };
        let grown = |node: &str| change("resize", pod(node, "1", "a"), pod(node, "2", "a"));
        assert!(grown("plain").through(&off, &PLUGIN).await.is_ok(), "the feature is off");
        let on = Context { features: Features::default().with(Feature::NodeDeclaredFeatures, true), ..off };
        let told = grown("plain").through(&on, &PLUGIN).await.unwrap_err();
        let why = "pod update requires features GuaranteedQoSPodCPUResize which are not available on node \"plain\"";
        assert_eq!(told, format!("pods \"web\" is forbidden: {why}"));
        let told = grown("gone").through(&on, &PLUGIN).await.unwrap_err();
        assert_eq!(told, "pods \"web\" is forbidden: node \"gone\" not found");
        for fine in [
            grown("able"),
            grown(""),
            change("", pod("plain", "1", "a"), pod("plain", "1", "b")),
            change("status", pod("plain", "1", "a"), pod("plain", "2", "a")),
            Write::create("pods", pod("plain", "2", "a")),
        ] {
            fine.through(&on, &PLUGIN).await.unwrap();
        }
    }
}
