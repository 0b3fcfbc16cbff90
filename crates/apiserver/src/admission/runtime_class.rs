//! RuntimeClass: a Pod gets the overhead of its runtime, and goes only to nodes that have it.

use api::Value;
use api::status::StatusError;
use serde_json::json;

use super::{Operation, Plugin, Review, World, forbid, is, items, spec_list, text};

pub const PLUGIN: Plugin = Plugin {
    name: "RuntimeClass",
    concerns,
    admit: Some(|world, review| Box::pin(admit(world, review))),
    validate: Some(|world, review| Box::pin(validate(world, review))),
};

fn concerns(review: &Review<'_>) -> bool {
    review.operation == Operation::Create
        && is(review, "", "pods", "")
        && review.object.as_ref().is_some_and(|pod| {
            api::meta::at(pod, "/spec/runtimeClassName").is_some() || api::meta::at(pod, "/spec/overhead").is_some()
        })
}

async fn class(world: &World, review: &Review<'_>) -> Result<Option<std::sync::Arc<Value>>, StatusError> {
    let name = review.object.as_ref().map_or("", |pod| text(pod, "/spec/runtimeClassName"));
    if name.is_empty() {
        return Ok(None);
    }
    let found = world.objects.get("node.k8s.io", "runtimeclasses", "", name).await?;
    found.map(Some).ok_or_else(|| forbid(review, format!("pod rejected: RuntimeClass \"{name}\" not found")))
}

async fn admit(world: &World, review: &mut Review<'_>) -> Result<(), StatusError> {
    let Some(class) = class(world, review).await? else { return Ok(()) };
    let Some(pod) = &mut review.object else { return Ok(()) };
    if let Some(overhead) = api::meta::at(&class, "/overhead/podFixed") {
        match api::meta::at(pod, "/spec/overhead") {
            None => pod["spec"]["overhead"] = overhead.clone(),
            Some(given) if given == overhead => {}
            Some(_) => {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(forbid(review, why));
            }
        }
    }
    for (key, value) in
        api::meta::at(&class, "/scheduling/nodeSelector").and_then(Value::as_object).into_iter().flatten()
    {
        match api::meta::at(pod, "/spec/nodeSelector").and_then(|s| s.get(key)) {
            Some(given) if given != value => {
                let why = "conflict: runtimeClass.scheduling.nodeSelector and pod.spec.nodeSelector disagree";
                return Err(forbid(review, format!("{why} on {key}")));
            }
            _ => pod["spec"]["nodeSelector"][key] = value.clone(),
        }
    }
    let tolerations: Vec<Value> = items(&class, "/scheduling/tolerations").cloned().collect();
    if let Some(list) = spec_list(pod, "tolerations").filter(|_| !tolerations.is_empty()) {
        let new = tolerations.into_iter().filter(|t| !list.contains(t)).collect::<Vec<_>>();
        list.extend(new);
    }
    Ok(())
}

async fn validate(world: &World, review: &mut Review<'_>) -> Result<(), StatusError> {
    let class = class(world, review).await?;
    let given = review.object.as_ref().and_then(|pod| api::meta::at(pod, "/spec/overhead"));
    let empty = json!({});
    match (given, class.as_ref().and_then(|c| api::meta::at(c, "/overhead/podFixed"))) {
        (None, _) => Ok(()),
        (Some(given), None) if *given == empty => Ok(()),
        (Some(given), Some(defined)) if given == defined => Ok(()),
        (Some(_), None) => {
            Err(forbid(review, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
        }
        (Some(_), Some(_)) => {
            Err(forbid(review, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Write, world};
    use super::*;

    #[tokio::test]
    async fn the_class_brings_overhead_and_place() {
        let class = json!({
            "metadata": {"name": "vm"},
            "overhead": {"podFixed": {"memory": "64Mi"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]},
        });
        let world = world(vec![("runtimeclasses", class)]);
        let pod =
            |spec: Value| Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}));
        let out = pod(json!({"runtimeClassName": "vm"})).through(&world, &PLUGIN).await.unwrap();
        assert_eq!(out["spec"]["overhead"], json!({"memory": "64Mi"}));
        assert_eq!(out["spec"]["nodeSelector"], json!({"vm": "yes"}));
        assert_eq!(out["spec"]["tolerations"], json!([{"key": "vm", "operator": "Exists"}]));
        let missing = pod(json!({"runtimeClassName": "x"})).through(&world, &PLUGIN).await.unwrap_err();
        assert_eq!(missing, r#"pods "p" is forbidden: pod rejected: RuntimeClass "x" not found"#);
        assert!(pod(json!({"overhead": {"cpu": "1"}})).through(&world, &PLUGIN).await.is_err());
    }
}
