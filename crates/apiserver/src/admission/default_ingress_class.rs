//! DefaultIngressClass: an Ingress that names no class gets the default one, of several the newest.

use api::{meta, rules::volume, status::StatusError};
use json::json;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DefaultIngressClass",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create
        && is(attributes, "networking.k8s.io", "ingresses", "")
        && attributes.object.as_ref().is_some_and(|ingress| {
            meta::at(ingress, "/spec/ingressClassName").is_none()
                && meta::annotation(ingress, "kubernetes.io/ingress.class").is_none()
        })
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let all = context.objects.list("networking.k8s.io", "ingressclasses", "").await?;
    let is_default = |class: &&std::sync::Arc<api::Value>| {
        meta::annotation(class, "ingressclass.kubernetes.io/is-default-class") == Some("true")
    };
    // One whose metadata cannot be read is nobody's default.
    let metas: Vec<ObjectMeta> = all
        .iter()
        .filter(is_default)
        .filter_map(|class| json::from_value(class.get("metadata")?.clone()).ok())
        .collect();
    if let (Some(class), Some(ingress)) = (volume::newest(&metas), &mut attributes.object) {
        ingress["spec"]["ingressClassName"] = json!(class);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Value;

    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn the_newest_default_is_taken_when_none_is_named() {
        let class = |name: &str, time: &str, default: &str| {
            let annotations = json!({"ingressclass.kubernetes.io/is-default-class": default});
            let metadata = json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:0{time}Z"),
                "annotations": annotations});
            ("ingressclasses", json!({"metadata": metadata, "spec": {"controller": "a.io/b"}}))
        };
        let classes =
            vec![class("a", "1", "true"), class("c", "2", "true"), class("b", "2", "true"), class("d", "3", "")];
        let context = context(classes).await;
        let ingress = |spec: Value, annotations: Value| Write {
            kind: ("networking.k8s.io", "ingresses", ""),
            ..Write::create(
                "",
                json!({"metadata": {"name": "i", "namespace": "n", "annotations": annotations}, "spec": spec}),
            )
        };
        let check = async |spec: Value, annotations: Value, expected: Value| {
            let out = ingress(spec, annotations).through(&context, &PLUGIN).await.unwrap();
            assert_eq!(out["spec"]["ingressClassName"], expected);
        };
        check(json!({}), json!({}), json!("b")).await;
        check(json!({"ingressClassName": "x"}), json!({}), json!("x")).await;
        check(json!({"ingressClassName": ""}), json!({}), json!("")).await;
        check(json!({}), json!({"kubernetes.io/ingress.class": "y"}), json!(null)).await;
    }

    #[tokio::test]
    async fn without_a_default_an_ingress_stays_as_it_is() {
        let class = |name: &str, annotations: Value| {
            (
                "ingressclasses",
                json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"controller": "a.io/b"}}),
            )
        };
        let says = |text: &str| json!({"ingressclass.kubernetes.io/is-default-class": text});
        let context = context(vec![class("a", says("false")), class("b", json!({})), class("c", says(""))]).await;
        let ingress = json!({"metadata": {"name": "i", "namespace": "n"}, "spec": {}});
        let write = Write { kind: ("networking.k8s.io", "ingresses", ""), ..Write::create("", ingress.clone()) };
        assert_eq!(write.through(&context, &PLUGIN).await.unwrap(), ingress);
    }
}
