//! NamespaceAutoProvision: a namespace is made when something is first created in it.

use api::status::StatusError;
use json::json;

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is_inside},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NamespaceAutoProvision",
    concerns: |attributes| attributes.operation == Operation::Create && is_inside(attributes) && !attributes.dry_run,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let name = attributes.namespace;
    if context.objects.get("", "namespaces", "", name).await?.is_some() {
        return Ok(());
    }
    match context.objects.create(("", "namespaces"), json!({"metadata": {"name": name}})).await {
        // Somebody else was faster.
        Err(error) if error.reason == "AlreadyExists" => Ok(()),
        made => made.map_err(|error| forbid(attributes, error.message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn a_namespace_is_made_for_what_comes_first() {
        let context = context(Vec::new()).await;
        let write = |namespace: &str| {
            Write::create("configmaps", json!({"metadata": {"name": "c", "namespace": namespace}}))
                .through(&context, &PLUGIN)
        };
        for _ in 0..2 {
            assert!(write("made").await.is_ok());
        }
        let made = context.objects.live("", "namespaces", "", "made").await.unwrap().unwrap();
        assert_eq!(made["status"]["phase"], "Active");
        assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "made");
        // Upstream: TestIgnoreAdmission. Only a create makes one, and no dry run.
        let later = json!({"metadata": {"name": "c", "namespace": "late"}});
        let (operation, old) = (Operation::Update, Some(later.clone()));
        let update = Write { operation, old, ..Write::create("configmaps", later.clone()) };
        assert!(update.through(&context, &PLUGIN).await.is_ok());
        assert!(Write::create("configmaps", later).dry(&context, &PLUGIN).await.is_ok());
        assert!(context.objects.live("", "namespaces", "", "late").await.unwrap().is_none());
        let refused = write("No_Name").await.unwrap_err();
        assert!(refused.starts_with("configmaps \"c\" is forbidden: Namespace \"No_Name\" is invalid"), "{refused}");
    }
}
