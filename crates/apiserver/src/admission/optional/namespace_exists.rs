//! NamespaceExists: nothing is written, or deleted, in a namespace that does not exist. (Of NamespaceLifecycle, which is on,
//! this is the part for clusters that turn it off.)

use api::status::StatusError;

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is_inside},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NamespaceExists",
    concerns: |attributes| attributes.operation != Operation::Connect && is_inside(attributes),
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let found = context.objects.get("", "namespaces", "", attributes.namespace).await?;
    found.map(|_| ()).ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn the_namespace_is_there() {
        let context = context(vec![("namespaces", json!({"metadata": {"name": "a"}}))]).await;
        let write = |operation, namespace: &str| {
            let object = json!({"metadata": {"name": "c", "namespace": namespace}});
            Write { operation, ..Write::create("configmaps", object) }.through(&context, &PLUGIN)
        };
        for operation in [Operation::Create, Operation::Update, Operation::Delete] {
            assert!(write(operation, "a").await.is_ok());
            assert_eq!(write(operation, "b").await.unwrap_err(), "namespaces \"b\" not found");
        }
        assert!(write(Operation::Create, "").await.is_ok());
        assert!(write(Operation::Connect, "b").await.is_ok());
        // Only the namespaces of the API itself are none of a namespace.
        let kind = ("example.com", "namespaces", "");
        let custom = json!({"metadata": {"name": "x", "namespace": "b"}});
        assert!(Write { kind, ..Write::create("", custom) }.through(&context, &PLUGIN).await.is_err());
    }
}
