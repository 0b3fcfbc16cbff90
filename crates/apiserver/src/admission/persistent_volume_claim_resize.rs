//! PersistentVolumeClaimResize: only a bound claim of a class that says its volumes can grow may ask for more.

use api::{Value, rules::quantity::Quantity, status::StatusError};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PersistentVolumeClaimResize",
    concerns,
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

fn size(claim: Option<&Value>) -> Quantity {
    claim.map_or("", |claim| text(claim, "/spec/resources/requests/storage")).parse().unwrap_or_default()
}

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Update
        && is(attributes, "", "persistentvolumeclaims", "")
        && size(attributes.object.as_ref()) > size(attributes.old)
}

fn class(claim: &Value) -> &str {
    let old = api::meta::annotation(claim, "volume.beta.kubernetes.io/storage-class");
    old.unwrap_or_else(|| text(claim, "/spec/storageClassName"))
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let (Some(new), Some(old)) = (&attributes.object, attributes.old) else { return Ok(()) };
    if text(old, "/status/phase") != "Bound" {
        return Err(forbid(attributes, "Only bound persistent volume claims can be expanded"));
    }
    let name = class(new);
    let found = match name {
        "" => None,
        name if name != class(old) => None,
        name => context.objects.get("storage.k8s.io", "storageclasses", "", name).await?,
    };
    let grows = found.is_some_and(|class| api::meta::at(&class, "/allowVolumeExpansion") == Some(&Value::Bool(true)));
    if grows {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
               resize";
    Err(forbid(attributes, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn a_claim_grows_where_its_class_lets_it() {
        let class = |name: &str, grows: Value| {
            ("storageclasses", json!({"metadata": {"name": name}, "allowVolumeExpansion": grows}))
        };
        let context = context(vec![class("grows", json!(true)), class("stays", json!(false))]).await;
        let claim = |class: &str, size: &str, phase: &str| {
            json!({"metadata": {"name": "c", "namespace": "d"}, "status": {"phase": phase}, "spec": {
                "storageClassName": class, "resources": {"requests": {"storage": size}}}})
        };
        let check = async |class: &str, size: &str, phase: &str, expected: &str| {
            let (old, new) = (claim(class, "1Gi", phase), claim(class, size, phase));
            let write =
                Write { operation: Operation::Update, old: Some(old), ..Write::create("persistentvolumeclaims", new) };
            let refused = write.through(&context, &PLUGIN).await.err().unwrap_or_default();
            assert!(if expected.is_empty() { refused.is_empty() } else { refused.ends_with(expected) }, "{refused}");
        };
        check("grows", "2Gi", "Bound", "").await;
        check("grows", "1024Mi", "Pending", "").await;
        check("grows", "2Gi", "Pending", "Only bound persistent volume claims can be expanded").await;
        check("stays", "2Gi", "Bound", "the storageclass that provisions the pvc must support resize").await;
        check("", "2Gi", "Bound", "must support resize").await;
        check("gone", "2Gi", "Bound", "must support resize").await;
        check("stays", "512Mi", "Bound", "").await;
        check("stays", "1Gi", "Pending", "").await;
        check("stays", "2Gi", "Pending", "Only bound persistent volume claims can be expanded").await;
        // The class is the one that the claim had before, and may be named in the old way.
        let grown = async |old: Value, new: Value, subresource: &'static str| {
            let of = |spec: Value, size: &str| {
                let mut claim = json!({"metadata": {"name": "c", "namespace": "d"}, "status": {"phase": "Bound"}});
                claim["metadata"]["annotations"] = spec["annotations"].clone();
                claim["spec"] =
                    json!({"storageClassName": spec["class"], "resources": {"requests": {"storage": size}}});
                claim
            };
            let (operation, old) = (Operation::Update, Some(of(old, "1Gi")));
            let kind = ("", "persistentvolumeclaims", subresource);
            let write = Write { operation, kind, old, ..Write::create("", of(new, "2Gi")) };
            write.through(&context, &PLUGIN).await.is_ok()
        };
        let (grows, stays) = (json!({"class": "grows"}), json!({"class": "stays"}));
        let annotated = json!({"class": null, "annotations": {"volume.beta.kubernetes.io/storage-class": "grows"}});
        assert!(!grown(stays.clone(), grows.clone(), "").await);
        assert!(!grown(json!({"class": null}), grows, "").await);
        assert!(!grown(json!({"class": null}), json!({"class": null}), "").await);
        assert!(grown(annotated.clone(), annotated, "").await);
        assert!(grown(stays.clone(), stays, "status").await, "a status is none of it");
    }
}
