//! RuntimeClass: a Pod gets the overhead of its runtime, and goes only to nodes that have it.

use std::collections::BTreeMap;

use api::{
    Value,
    k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    rules::{pod::Resources, quota::amounts},
    status::StatusError,
};
use serde::Deserialize;

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
        && attributes
            .object
            .as_ref()
            .and_then(|pod| pod.get("spec"))
            .is_some_and(|spec| spec.get("runtimeClassName").is_some() || spec.get("overhead").is_some())
}

/// The overhead of a Pod, and that of a class.
const GIVEN: &str = "/spec/overhead";
const DEFINED: &str = "/overhead/podFixed";
const OTHER_OVERHEAD: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

/// The amounts at a path: one can be written in several ways.
fn resources(object: Option<&Value>, path: &str) -> Resources {
    let list = object.and_then(|object| api::meta::at(object, path));
    amounts(list.and_then(|list| BTreeMap::<String, Quantity>::deserialize(list).ok()).as_ref())
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
    if let Some(overhead) = api::meta::at(&class, DEFINED) {
        let given = resources(Some(&*pod), GIVEN);
        if !given.is_empty() && given != resources(Some(&class), DEFINED) {
            return Err(forbid(attributes, OTHER_OVERHEAD));
        }
        pod["spec"]["overhead"] = overhead.clone();
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
    let given = resources(attributes.object.as_ref(), GIVEN);
    if given.is_empty() {
        return Ok(());
    }
    let Some(class) = class.filter(|class| api::meta::at(class, "/overhead").is_some()) else {
        let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        return Err(forbid(attributes, why));
    };
    let same = given == resources(Some(&class), DEFINED);
    if same { Ok(()) } else { Err(forbid(attributes, OTHER_OVERHEAD)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

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

    /// Upstream: TestSetOverhead, TestSetScheduling, TestValidateOverhead.
    #[tokio::test]
    async fn overhead_and_place_are_those_of_the_class() {
        let pod =
            |spec: Value| Write::create("pods", json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}));
        let check = async |class: Value, mut spec: Value, plugin: &Plugin, expected: Result<Value, &str>| {
            let mut class = class;
            class["metadata"] = json!({"name": "foo"});
            let context = context(vec![("runtimeclasses", class.clone())]).await;
            if class["handler"] != "none" {
                spec["runtimeClassName"] = json!("foo");
            }
            let outcome = pod(spec.clone()).through(&context, plugin).await;
            let outcome = outcome.map(|pod| {
                let mut spec = pod["spec"].clone();
                spec.as_object_mut().unwrap().remove("runtimeClassName");
                spec
            });
            let head = "pods \"p\" is forbidden: ";
            assert_eq!(outcome, expected.map_err(|why| format!("{head}{why}")), "{class} {spec}");
        };
        let late = Plugin { admit: None, ..PLUGIN };
        let none = || json!({"handler": "none"});
        let overhead = json!({"cpu": "100m", "memory": "1"});
        let with = |overhead: &Value| json!({"overhead": {"podFixed": overhead}});
        let of_pod = |overhead: &Value| json!({"overhead": overhead});
        let large = with(&json!({"cpu": "10", "memory": "10G"}));
        let without = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        // The class's overhead is the Pod's: one that says another is refused, and an amount can be written in several ways.
        check(with(&overhead), json!({}), &PLUGIN, Ok(of_pod(&overhead))).await;
        check(with(&overhead), of_pod(&json!({})), &PLUGIN, Ok(of_pod(&overhead))).await;
        check(with(&overhead), of_pod(&overhead), &PLUGIN, Ok(of_pod(&overhead))).await;
        let alike = json!({"cpu": "0.1", "memory": "1000m"});
        check(with(&overhead), of_pod(&alike), &PLUGIN, Ok(of_pod(&overhead))).await;
        check(with(&overhead), of_pod(&alike), &late, Ok(of_pod(&alike))).await;
        check(large.clone(), of_pod(&overhead), &PLUGIN, Err(OTHER_OVERHEAD)).await;
        check(large.clone(), of_pod(&overhead), &late, Err(OTHER_OVERHEAD)).await;
        check(json!({}), of_pod(&overhead), &PLUGIN, Err(without)).await;
        check(none(), of_pod(&overhead), &PLUGIN, Err(without)).await;
        check(none(), of_pod(&json!({})), &PLUGIN, Ok(of_pod(&json!({})))).await;
        check(none(), json!({}), &PLUGIN, Ok(json!({}))).await;
        check(large.clone(), of_pod(&json!({})), &late, Ok(of_pod(&json!({})))).await;
        check(large, json!({}), &late, Ok(json!({}))).await;
        // Its selector goes on top of the Pod's.
        let place = |selector: Value| json!({"scheduling": {"nodeSelector": selector}});
        let selecting = |selector: Value| json!({"nodeSelector": selector});
        let foo = || selecting(json!({"foo": "bar"}));
        check(json!({}), foo(), &PLUGIN, Ok(foo())).await;
        let conflict =
            "conflict: runtimeClass.scheduling.nodeSelector[foo] = conflict; pod.spec.nodeSelector[foo] = bar";
        check(place(json!({"foo": "conflict"})), foo(), &PLUGIN, Err(conflict)).await;
        check(place(json!({"foo": "bar"})), json!({}), &PLUGIN, Ok(foo())).await;
        check(place(json!({"foo": "bar"})), foo(), &PLUGIN, Ok(foo())).await;
        let merged = selecting(json!({"foo": "bar", "fizz": "buzz"}));
        check(place(json!({"foo": "bar", "fizz": "buzz"})), foo(), &PLUGIN, Ok(merged)).await;
        let tolerates = |keys: &[&str]| {
            let one = |key: &&str| json!({"key": key, "operator": "Equal", "value": "bar", "effect": "NoSchedule"});
            json!({"tolerations": keys.iter().map(one).collect::<Vec<_>>()})
        };
        let class = json!({"scheduling": tolerates(&["foo", "fizz"])});
        check(class, tolerates(&["foo"]), &PLUGIN, Ok(tolerates(&["foo", "fizz"]))).await;
    }
}
