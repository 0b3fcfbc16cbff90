//! RuntimeClass: a Pod gets the overhead of its runtime, and goes only to nodes that have it.

use api::Value;
use api::status::StatusError;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, text, tolerate, tolerations_at},
};

pub const PLUGIN: Plugin = Plugin {
    name: "RuntimeClass",
    concerns,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create
        && is(attributes, "", "pods", "")
        && attributes.object.as_ref().is_some_and(|pod| {
            api::meta::at(pod, "/spec/runtimeClassName").is_some() || api::meta::at(pod, "/spec/overhead").is_some()
        })
}

async fn class(context: &Context, attributes: &Attributes<'_>) -> Result<Option<std::sync::Arc<Value>>, StatusError> {
    let name = attributes.object.as_ref().map_or("", |pod| text(pod, "/spec/runtimeClassName"));
    if name.is_empty() {
        return Ok(None);
    }
    let found = context.objects.get("node.k8s.io", "runtimeclasses", "", name).await?;
    found.map(Some).ok_or_else(|| forbid(attributes, format!("pod rejected: RuntimeClass \"{name}\" not found")))
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let Some(class) = class(context, attributes).await? else { return Ok(()) };
    let Some(pod) = &mut attributes.object else { return Ok(()) };
    if let Some(overhead) = api::meta::at(&class, "/overhead/podFixed") {
        match api::meta::at(pod, "/spec/overhead") {
            None => pod["spec"]["overhead"] = overhead.clone(),
            Some(given) if given == overhead => {}
            Some(_) => {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(forbid(attributes, why));
            }
        }
    }
    for (key, value) in
        api::meta::at(&class, "/scheduling/nodeSelector").and_then(Value::as_object).into_iter().flatten()
    {
        match api::meta::at(pod, "/spec/nodeSelector").and_then(|s| s.get(key)) {
            Some(given) if given != value => {
                let (class, pod) = (value.as_str().unwrap_or_default(), given.as_str().unwrap_or_default());
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {class}; pod.spec.nodeSelector[{key}] = {pod}"
                );
                return Err(forbid(attributes, why));
            }
            _ => pod["spec"]["nodeSelector"][key] = value.clone(),
        }
    }
    tolerate(pod, &tolerations_at(&class, "/scheduling/tolerations"));
    Ok(())
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let class = class(context, attributes).await?;
    let given = attributes.object.as_ref().and_then(|pod| api::meta::at(pod, "/spec/overhead"));
    let empty = json!({});
    match (given, class.as_ref().and_then(|c| api::meta::at(c, "/overhead/podFixed"))) {
        (None, _) => Ok(()),
        (Some(given), None) if *given == empty => Ok(()),
        (Some(given), Some(defined)) if given == defined => Ok(()),
        (Some(_), None) => Err(forbid(
            attributes,
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        )),
        (Some(_), Some(_)) => {
            Err(forbid(attributes, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn the_class_brings_overhead_and_place() {
        let class = json!({
            "metadata": {"name": "vm"},
            "overhead": {"podFixed": {"memory": "64Mi"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]},
        });
        let context = context(vec![("runtimeclasses", class)]).await;
        let pod =
            |spec: Value| Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}));
        let out = pod(json!({"runtimeClassName": "vm"})).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(out["spec"]["overhead"], json!({"memory": "64Mi"}));
        assert_eq!(out["spec"]["nodeSelector"], json!({"vm": "yes"}));
        assert_eq!(out["spec"]["tolerations"], json!([{"key": "vm", "operator": "Exists"}]));
        let missing = pod(json!({"runtimeClassName": "x"})).through(&context, &PLUGIN).await.unwrap_err();
        assert_eq!(missing, r#"pods "p" is forbidden: pod rejected: RuntimeClass "x" not found"#);
        let check = async |spec: Value, expected: &str| {
            let refused = pod(spec).through(&context, &PLUGIN).await.unwrap_err();
            assert_eq!(refused, format!("pods \"p\" is forbidden: {expected}"));
        };
        let without = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        check(json!({"overhead": {"cpu": "1"}}), without).await;
        let other = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
        check(json!({"runtimeClassName": "vm", "overhead": {"memory": "1Mi"}}), other).await;
        let conflict = "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no";
        check(json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}), conflict).await;
        let both = json!({"runtimeClassName": "vm", "overhead": {"memory": "64Mi"}, "nodeSelector": {"a": "b", "vm": "yes"},
            "tolerations": [{"key": "vm", "operator": "Exists"}, {"key": "x", "operator": "Exists"}]});
        let out = pod(both.clone()).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(out["spec"], both, "what the class says stands there already");
    }
}
