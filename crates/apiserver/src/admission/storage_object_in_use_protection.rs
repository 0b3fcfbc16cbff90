//! StorageObjectInUseProtection: volumes, claims and attributes classes are born with the finalizer that lets them outlive
//! their deletion while they are in use, so that there is no moment without it. Controllers take it off.

use api::Value;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done, is},
};

pub const PLUGIN: Plugin = Plugin {
    name: "StorageObjectInUseProtection",
    concerns: |attributes| finalizer(attributes).is_some(),
    admit: Some(|_, attributes| {
        admit(attributes);
        done(Ok(()))
    }),
    validate: None,
};

fn finalizer(attributes: &Attributes<'_>) -> Option<&'static str> {
    let kinds = [
        ("", "persistentvolumes", "kubernetes.io/pv-protection"),
        ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
        ("storage.k8s.io", "volumeattributesclasses", "kubernetes.io/vac-protection"),
    ];
    let of = kinds.iter().find(|(group, plural, _)| is(attributes, group, plural, ""));
    of.filter(|_| attributes.operation == Operation::Create).map(|(.., finalizer)| *finalizer)
}

fn admit(attributes: &mut Attributes<'_>) {
    let (finalizer, Some(object)) = (finalizer(attributes), &mut attributes.object) else { return };
    let list = &mut object["metadata"]["finalizers"];
    if list.is_null() {
        *list = json!([]);
    }
    if let (Some(finalizer), Some(list)) = (finalizer, list.as_array_mut())
        && !list.iter().any(|held| held == finalizer)
    {
        list.push(Value::from(finalizer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn what_may_be_in_use_is_born_protected() {
        let context = context(Vec::new()).await;
        let check = async |group: &'static str, plural: &'static str, held: Value, expected: Value| {
            let object = json!({"metadata": {"name": "x", "finalizers": held}});
            let write = Write { kind: (group, plural, ""), ..Write::create(plural, object) };
            let out = write.through(&context, &PLUGIN).await.unwrap();
            assert_eq!(out["metadata"]["finalizers"], expected, "{plural}");
        };
        let (volume, claim) = ("kubernetes.io/pv-protection", "kubernetes.io/pvc-protection");
        check("", "persistentvolumes", Value::Null, json!([volume])).await;
        check("", "persistentvolumes", json!(["other"]), json!(["other", volume])).await;
        check("", "persistentvolumeclaims", json!([claim]), json!([claim])).await;
        let class = json!(["kubernetes.io/vac-protection"]);
        check("storage.k8s.io", "volumeattributesclasses", Value::Null, class.clone()).await;
        check("storage.k8s.io", "volumeattributesclasses", class.clone(), class).await;
        check("", "persistentvolumes", json!([volume]), json!([volume])).await;
        check("", "persistentvolumeclaims", Value::Null, json!([claim])).await;
        check("", "pods", Value::Null, Value::Null).await;
        // A controller takes the finalizer off later, and it stays off.
        let object = json!({"metadata": {"name": "x"}});
        let (operation, old) = (Operation::Update, Some(object.clone()));
        let write = Write { operation, old, ..Write::create("persistentvolumes", object.clone()) };
        assert_eq!(write.through(&context, &PLUGIN).await.unwrap(), object);
    }
}
