//! DefaultStorageClass: a claim that names no class gets the default one.

use api::{rules::volume, status::StatusError};
use json::json;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DefaultStorageClass",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create
        && is(attributes, "", "persistentvolumeclaims", "")
        && attributes.object.as_ref().is_some_and(|claim| {
            api::meta::at(claim, "/spec/storageClassName").is_none()
                && api::meta::annotation(claim, "volume.beta.kubernetes.io/storage-class").is_none()
        })
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let all = context.objects.list("storage.k8s.io", "storageclasses", "").await?;
    // One whose metadata cannot be read is nobody's default.
    let metas: Vec<ObjectMeta> =
        all.iter().filter_map(|class| json::from_value(class.get("metadata")?.clone()).ok()).collect();
    if let (Some(class), Some(claim)) = (volume::default_class(&metas), &mut attributes.object) {
        claim["spec"]["storageClassName"] = json!(class);
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
            let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
            (
                "storageclasses",
                json!({"metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:0{time}Z"),
                    "annotations": annotations}}),
            )
        };
        let context = context(vec![class("a", "1", "true"), class("b", "2", "true"), class("c", "3", "false")]).await;
        let claim = |spec: Value| {
            Write::create("persistentvolumeclaims", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}))
        };
        let out = claim(json!({})).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(out["spec"]["storageClassName"], "b");
        let none = claim(json!({"storageClassName": ""})).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(none["spec"]["storageClassName"], "");
        let mut old = claim(json!({}));
        old.object.as_mut().unwrap()["metadata"]["annotations"] =
            json!({"volume.beta.kubernetes.io/storage-class": "x"});
        assert_eq!(
            old.through(&context, &PLUGIN).await.unwrap()["spec"],
            json!({}),
            "it names its class in the old way"
        );
    }

    #[tokio::test]
    async fn of_classes_of_one_age_the_name_decides_and_without_a_default_nothing_does() {
        let class = |name: &str, annotations: Value| {
            let metadata =
                json!({"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations});
            ("storageclasses", json!({"metadata": metadata}))
        };
        let says = |key: &str, text: &str| json!({format!("storageclass.{key}/is-default-class"): text});
        let default = |name: &str| class(name, says("kubernetes.io", "true"));
        let others = || {
            [class("c", says("kubernetes.io", "false")), class("d", json!({})), class("e", says("kubernetes.io", ""))]
        };
        let claim = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {}});
        for (defaults, expected) in [
            (vec![], Value::Null),
            (vec![default("b"), default("a")], json!("a")),
            (vec![class("f", says("beta.kubernetes.io", "true"))], json!("f")),
        ] {
            let context = context(defaults.into_iter().chain(others()).collect()).await;
            let out = Write::create("persistentvolumeclaims", claim.clone()).through(&context, &PLUGIN).await.unwrap();
            assert_eq!(out["spec"]["storageClassName"], expected);
        }
    }

    /// Upstream: TestAdmission.
    #[tokio::test]
    async fn a_claim_that_says_what_it_wants_keeps_it_however_many_defaults_there_are() {
        let class = |name: &str| {
            let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
            ("storageclasses", json!({"metadata": {"name": name, "annotations": annotations}}))
        };
        for defaults in [vec![class("a")], vec![class("a"), class("b")]] {
            let context = context(defaults).await;
            for own in ["", "foo"] {
                let claim = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"storageClassName": own}});
                let write = Write::create("persistentvolumeclaims", claim.clone());
                assert_eq!(write.through(&context, &PLUGIN).await.unwrap(), claim);
            }
            // Later it is too late.
            let claim = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {}});
            let old = Some(claim.clone());
            let write =
                Write { operation: Operation::Update, old, ..Write::create("persistentvolumeclaims", claim.clone()) };
            assert_eq!(write.through(&context, &PLUGIN).await.unwrap(), claim);
        }
    }
}
