//! NamespaceLifecycle: nothing is written into a namespace that doesn't exist, nothing new into one that is going, and
//! the namespaces of the system itself stay.

use api::status::StatusError;
use api::{Value, k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause};

use super::{Operation, Plugin, Review, World, forbid, is, text};

pub const PLUGIN: Plugin = Plugin {
    name: "NamespaceLifecycle",
    concerns,
    admit: Some(|world, review| Box::pin(admit(world, review))),
    validate: None,
};

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

fn concerns(review: &Review<'_>) -> bool {
    if is(review, "", "namespaces", "") {
        return review.operation == Operation::Delete && IMMORTAL.contains(&review.name);
    }
    let writes = matches!(review.operation, Operation::Create | Operation::Update);
    // Asking for one's own rights must work in any namespace.
    let review_of_access = review.definition.group == "authorization.k8s.io";
    writes && !review.namespace.is_empty() && review.definition.plural != "namespaces" && !review_of_access
}

async fn admit(world: &World, review: &mut Review<'_>) -> Result<(), StatusError> {
    if is(review, "", "namespaces", "") {
        return Err(forbid(review, "this namespace may not be deleted"));
    }
    let namespace = world.objects.get("", "namespaces", "", review.namespace).await?;
    let namespace = namespace.ok_or_else(|| StatusError::not_found("", "namespaces", review.namespace))?;
    if review.operation == Operation::Create && terminating(&namespace) {
        let name = review.namespace;
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut error = forbid(review, why);
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
    use serde_json::json;

    use super::super::fake::{Write, world};
    use super::*;

    #[tokio::test]
    async fn writes_need_a_living_namespace() {
        let namespace =
            |name: &str, phase: &str| ("namespaces", json!({"metadata": {"name": name}, "status": {"phase": phase}}));
        let world = world(vec![namespace("a", "Active"), namespace("b", "Terminating")]);
        let write = |namespace: &str| {
            Write::create("pods", json!({"metadata": {"name": "p", "namespace": namespace}})).through(&world, &PLUGIN)
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
            write.through(&world, &PLUGIN)
        };
        let expected = r#"namespaces "default" is forbidden: this namespace may not be deleted"#;
        assert_eq!(delete("default").await.unwrap_err(), expected);
        assert!(delete("a").await.is_ok());
    }
}
