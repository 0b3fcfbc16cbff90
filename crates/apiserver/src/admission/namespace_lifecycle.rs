//! NamespaceLifecycle: nothing is written into a namespace that doesn't exist, nothing new into one that is going, and
//! the namespaces of the system itself stay.

use std::sync::Arc;

use api::status::StatusError;
use api::{Value, k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, is_inside, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "NamespaceLifecycle",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

fn concerns(attributes: &Attributes<'_>) -> bool {
    if is(attributes, "", "namespaces", "") {
        return attributes.operation == Operation::Delete;
    }
    let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
    // Asking for one's own rights must work in any namespace.
    let review_of_access = attributes.definition.group == "authorization.k8s.io";
    writes && is_inside(attributes) && !review_of_access
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    if is(attributes, "", "namespaces", "") {
        if IMMORTAL.contains(&attributes.name) {
            return Err(forbid(attributes, "this namespace may not be deleted"));
        }
        context.deletions.add(attributes.name);
        return Ok(());
    }
    let creates = attributes.operation == Operation::Create;
    let mut namespace = context.objects.get("", "namespaces", "", attributes.namespace).await?;
    let seems_alive = namespace.as_ref().is_some_and(|namespace| !terminating(namespace));
    if creates && seems_alive && context.deletions.contain(attributes.namespace) {
        namespace = context.objects.live("", "namespaces", "", attributes.namespace).await?.map(Arc::new);
    }
    let namespace = namespace.ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace))?;
    if creates && terminating(&namespace) {
        let name = attributes.namespace;
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut error = forbid(attributes, why);
        if let Some(details) = &mut error.details {
            details.causes = Some(vec![StatusCause {
                reason: Some("NamespaceTerminating".to_owned()),
                message: Some(format!("namespace {name} is being terminated")),
                field: Some("metadata.namespace".to_owned()),
            }]);
        }
        return Err(error);
    }
    Ok(())
}

fn terminating(namespace: &Value) -> bool {
    text(namespace, "/status/phase") == "Terminating"
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::storage::loopback::Loopback;
    use crate::tests::{
        admission::{Write, context},
        objects,
    };

    #[tokio::test]
    async fn writes_need_a_living_namespace() {
        let namespace =
            |name: &str, phase: &str| ("namespaces", json!({"metadata": {"name": name}, "status": {"phase": phase}}));
        let context = context(vec![namespace("a", "Active"), namespace("b", "Terminating")]).await;
        let write = |namespace: &str| {
            Write::create("pods", json!({"metadata": {"name": "p", "namespace": namespace}})).through(&context, &PLUGIN)
        };
        assert!(write("a").await.is_ok());
        assert_eq!(write("c").await.unwrap_err(), r#"namespaces "c" not found"#);
        let expected =
            r#"pods "p" is forbidden: unable to create new content in namespace b because it is being terminated"#;
        assert_eq!(write("b").await.unwrap_err(), expected);
        let delete = |name: &str| {
            let old = Some(json!({"metadata": {"name": name}}));
            let write =
                Write { operation: Operation::Delete, old, object: None, ..Write::create("namespaces", json!({})) };
            write.through(&context, &PLUGIN)
        };
        let expected = r#"namespaces "default" is forbidden: this namespace may not be deleted"#;
        assert_eq!(delete("default").await.unwrap_err(), expected);
        assert!(delete("a").await.is_ok());
        assert!(context.deletions.contain("a") && !context.deletions.contain("default"));
        assert!(write("a").await.is_ok(), "it is not going yet");
        // Only the namespaces of the API itself are none of a namespace.
        let kind = ("example.com", "namespaces", "");
        let custom = json!({"metadata": {"name": "x", "namespace": "b"}});
        assert!(Write { kind, ..Write::create("", custom) }.through(&context, &PLUGIN).await.is_err());
        for immortal in IMMORTAL {
            assert!(delete(immortal).await.is_err());
        }
        // Objects that are there may still change, and go; rights can be asked about anywhere.
        let pod = |operation, namespace: &str| {
            let pod = json!({"metadata": {"name": "p", "namespace": namespace}});
            Write { operation, old: Some(pod.clone()), ..Write::create("pods", pod) }.through(&context, &PLUGIN)
        };
        for (operation, namespace, lives) in [
            (Operation::Update, "b", true),
            (Operation::Delete, "b", true),
            (Operation::Update, "c", false),
            (Operation::Delete, "c", true),
        ] {
            assert_eq!(pod(operation, namespace).await.is_ok(), lives, "{operation:?} {namespace}");
        }
        let review = json!({"metadata": {"namespace": "c"}});
        let kind = ("authorization.k8s.io", "localsubjectaccessreviews", "");
        assert!(Write { kind, ..Write::create("", review) }.through(&context, &PLUGIN).await.is_ok());
        let refused = Write::create("pods", json!({"metadata": {"name": "p", "namespace": "b"}}));
        let cause = refused.refused(&context, &PLUGIN).await.details.unwrap().causes.unwrap().remove(0);
        let told = [cause.reason, cause.message, cause.field].map(Option::unwrap);
        assert_eq!(told, ["NamespaceTerminating", "namespace b is being terminated", "metadata.namespace"]);
    }

    /// The live copy may not have heard of it yet. Upstream: TestAdmissionNamespaceForceLiveLookup.
    #[tokio::test]
    async fn nothing_new_comes_into_a_namespace_from_its_deletion_on() {
        let namespace = |phase: &str| json!({"metadata": {"name": "a"}, "status": {"phase": phase}});
        for _ in 0..20 {
            let store = objects::store(vec![("namespaces", namespace("Active"))]).await;
            let copied = Loopback::new(store.clone(), &[("", "namespaces")]).await.unwrap();
            let context = Context { objects: Arc::new(copied), ..context(Vec::new()).await };
            let pod = || Write::create("pods", json!({"metadata": {"name": "p", "namespace": "a"}}));
            assert!(pod().through(&context, &PLUGIN).await.is_ok());
            let (operation, old) = (Operation::Delete, Some(namespace("Active")));
            let delete = Write { operation, old, object: None, ..Write::create("namespaces", json!({})) };
            delete.through(&context, &PLUGIN).await.unwrap();
            objects::put(&store, "namespaces", ("", "a"), Some(namespace("Terminating"))).await;
            assert!(pod().through(&context, &PLUGIN).await.is_err());
        }
    }
}
