//! DefaultStorageClass: a claim that names no class gets the default one.

use std::sync::Arc;

use api::status::StatusError;
use api::{Value, meta};
use serde_json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is, text},
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
    if let (Some(class), Some(claim)) = (default(&all), &mut attributes.object) {
        claim["spec"]["storageClassName"] = json!(meta::name(class));
    }
    Ok(())
}

/// Of several defaults the newest counts, and of those of the same second the first by name.
fn default(all: &[Arc<Value>]) -> Option<&Value> {
    let is_default = |class: &&Arc<Value>| {
        ["storageclass.kubernetes.io", "storageclass.beta.kubernetes.io"]
            .iter()
            .any(|prefix| api::meta::annotation(class, &format!("{prefix}/is-default-class")) == Some("true"))
    };
    let newest = |a: &&Arc<Value>, b: &&Arc<Value>| {
        let time = |o: &Value| text(o, "/metadata/creationTimestamp").to_owned();
        time(b).cmp(&time(a)).then_with(|| meta::name(a).cmp(meta::name(b)))
    };
    all.iter().filter(is_default).min_by(newest).map(|class| class.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn the_newest_default_is_taken_when_none_is_named() {
        let class = |name: &str, time: &str, default: &str| {
            let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
            (
                "storageclasses",
                json!({"metadata": {"name": name, "creationTimestamp": time, "annotations": annotations}}),
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
    }
}
