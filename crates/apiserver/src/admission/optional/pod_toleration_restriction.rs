//! PodTolerationRestriction: the Pods of a namespace get tolerations of the namespace, or of the settings, and only such as these
//! allow.

use api::k8s_openapi::api::core::v1::{Pod, Toleration};
use api::rules::{pod, taint};
use api::{Value, object::Object, status::StatusError};

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, is_written_pod, tolerate, tolerations_at},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodTolerationRestriction",
    concerns: is_written_pod,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

/// A namespace's own list, in JSON. An empty list, or no text at all, is one, too: it stands before the settings'.
async fn of_namespace(
    context: &Context,
    attributes: &Attributes<'_>,
    annotation: &str,
) -> Result<Option<Vec<Toleration>>, StatusError> {
    let found = context.objects.get("", "namespaces", "", attributes.namespace).await?;
    let namespace = found.ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace))?;
    let text = api::meta::annotation(&namespace, annotation);
    let parsed = text.map(|text| if text.is_empty() { Ok(Vec::new()) } else { json::from_text(text) }).transpose();
    parsed.map_err(|why| {
        let name = attributes.namespace;
        plain(format!("annotation {annotation} of namespace {name} is no list of tolerations: {why}"))
    })
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let mut more = Vec::new();
    if attributes.operation == Operation::Create {
        let default = of_namespace(context, attributes, DEFAULTS).await?;
        more = default.unwrap_or_else(|| context.optional.tolerations.default.clone());
    }
    if let Some(pod) = &mut attributes.object {
        if has_resources(pod) {
            more.push(on_short_memory());
        }
        tolerate(pod, &more);
    }
    validate(context, attributes).await
}

/// Only Pods that asked for nothing are kept from a node that is short of memory.
fn has_resources(pod: &Value) -> bool {
    Pod::from_value(pod).is_ok_and(|pod| pod::qos(&pod) != pod::BEST_EFFORT)
}

fn on_short_memory() -> Toleration {
    Toleration {
        key: Some("node.kubernetes.io/memory-pressure".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(taint::NO_SCHEDULE.to_owned()),
        ..Default::default()
    }
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let given = tolerations_at(pod, "/spec/tolerations");
    if given.is_empty() {
        return Ok(());
    }
    let (allowed, scope) = match of_namespace(context, attributes, ALLOWED).await? {
        Some(allowed) => (allowed, "namespace"),
        None => (context.optional.tolerations.allowed.clone(), "cluster"),
    };
    let is_allowed = |given: &Toleration| allowed.iter().any(|one| taint::covers(one, given));
    if allowed.is_empty() || given.iter().all(is_allowed) {
        return Ok(());
    }
    let why = "pod tolerations (possibly merged with namespace default tolerations) conflict with its";
    Err(plain(format!("{why} {scope} whitelist")))
}

/// Upstream's errors here are words alone, without a reason.
fn plain(why: String) -> StatusError {
    StatusError::new(500, "", why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::optional::settings::tolerations::Restriction;
    use crate::tests::admission::{Write, context};
    use api::validation::section::Section;
    use json::json;

    fn list(keys: &str) -> Value {
        let one = |key: &str| json!({"key": key, "operator": "Exists"});
        Value::Array(keys.split_whitespace().map(one).collect())
    }

    /// The settings and the namespace's annotations are lists of keys.
    async fn check(
        settings: (&str, &str),
        own: (Option<&str>, Option<&str>),
        keys: &str,
        expected: Result<&str, &str>,
    ) {
        let config = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
            "default": list(settings.0), "whitelist": list(settings.1)});
        let mut annotations = json!({});
        for (name, keys) in [(DEFAULTS, own.0), (ALLOWED, own.1)] {
            if let Some(keys) = keys {
                annotations[name] = json!(list(keys).to_string());
            }
        }
        let namespace = json!({"metadata": {"name": "n", "annotations": annotations}});
        let mut context = context(vec![("namespaces", namespace)]).await;
        context.optional.tolerations = Restriction::parse(&Section::of("", &config).unwrap()).unwrap();
        let pod =
            json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [], "tolerations": list(keys)}});
        let got = Write::create("pods", pod).through(&context, &PLUGIN).await;
        let got = got.map(|pod| pod["spec"]["tolerations"].clone());
        assert_eq!(
            got,
            expected.map(list).map_err(|scope| {
                format!(
                    "pod tolerations (possibly merged with namespace default tolerations) conflict \
                     with its {scope} whitelist"
                )
            }),
            "{settings:?} {own:?} {keys}"
        );
    }

    #[tokio::test]
    async fn tolerations_are_what_the_namespace_says() {
        check(("", ""), (None, None), "a", Ok("a")).await;
        check(("x", ""), (None, None), "a", Ok("a x")).await;
        check(("x", ""), (Some("y"), None), "a", Ok("a y")).await;
        check(("x", ""), (Some(""), None), "a", Ok("a")).await;
        check(("", "a"), (None, None), "a", Ok("a")).await;
        check(("", "a"), (None, None), "b", Err("cluster")).await;
        check(("", "a"), (None, Some("b")), "b", Ok("b")).await;
        check(("", "a"), (None, Some("b")), "a", Err("namespace")).await;
        check(("x", "a"), (None, None), "a", Err("cluster")).await;
    }

    /// Upstream: TestPodAdmission. The first is the settings', the second the namespace's own (`-` where it has none), the third the
    /// Pod's: values of one key, for which a Pod can have several tolerations.
    #[tokio::test]
    async fn the_namespaces_own_lists_stand_before_the_settings() {
        let list = |values: &str| {
            let one =
                |value: &str| json!({"key": "testKey", "operator": "Equal", "value": value, "effect": "NoSchedule"});
            Value::Array(values.split_whitespace().map(one).collect())
        };
        let memory = json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"});
        let resources = |qos: &str| match qos {
            "Guaranteed" => json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}),
            "Burstable" => json!({"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}),
            _ => json!({}),
        };
        let check = async |defaults: (&str, &str),
                           allowed: (&str, &str),
                           own: &str,
                           qos: &str,
                           expected: Option<&str>| {
            let config = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
                "default": list(defaults.0), "whitelist": list(allowed.0)});
            let mut annotations = json!({});
            for (name, values) in [(DEFAULTS, defaults.1), (ALLOWED, allowed.1)] {
                match values {
                    "-" => {}
                    "no text" => annotations[name] = json!(""),
                    values => annotations[name] = json!(list(values).to_string()),
                }
            }
            let namespace = json!({"metadata": {"name": "n", "annotations": annotations}});
            let mut context = context(vec![("namespaces", namespace)]).await;
            context.optional.tolerations = Restriction::parse(&Section::of("", &config).unwrap()).unwrap();
            let container = json!({"name": "c", "resources": resources(qos)});
            let spec = json!({"containers": [container], "tolerations": list(own)});
            let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
            let outcome = Write::create("pods", pod.clone()).through(&context, &PLUGIN).await;
            let expected = expected.map(|values| {
                let mut all = list(values);
                if qos != "BestEffort" {
                    all.as_array_mut().unwrap().push(memory.clone());
                }
                all
            });
            let what = format!("{defaults:?} {allowed:?} {own} {qos}");
            assert_eq!(outcome.as_ref().ok().map(|pod| &pod["spec"]["tolerations"]), expected.as_ref(), "{what}");
            // An update brings no defaults; all that it has must be allowed.
            let (operation, old) = (Operation::Update, Some(pod.clone()));
            let update =
                |object: &Value| Write { operation, old: old.clone(), ..Write::create("pods", object.clone()) };
            if let Ok(made) = outcome {
                assert_eq!(update(&made).through(&context, &PLUGIN).await.unwrap(), made, "{what}");
            }
        };
        let effortless = "BestEffort";
        check(("a", "-"), ("", "-"), "", effortless, Some("a")).await;
        check(("a", ""), ("", "-"), "a", effortless, Some("a")).await;
        check(("", "a"), ("", "-"), "a", effortless, Some("a")).await;
        check(("", "a"), ("", "-"), "", effortless, Some("a")).await;
        check(("", "a"), ("", "-"), "b", effortless, Some("b a")).await;
        check(("a", ""), ("", "-"), "b", effortless, Some("b")).await;
        check(("a", ""), ("", "-"), "", effortless, Some("")).await;
        check(("a", "no text"), ("", "-"), "", effortless, Some("")).await;
        check(("", "a"), ("", "a"), "", effortless, Some("a")).await;
        check(("", "a"), ("", "b"), "", effortless, None).await;
        check(("", "-"), ("b", ""), "a", effortless, Some("a")).await;
        check(("", "-"), ("b", "no text"), "a", effortless, Some("a")).await;
        check(("", "-"), ("b", "-"), "a", effortless, None).await;
        check(("", "a"), ("", ""), "", "Burstable", Some("a")).await;
        check(("", "a"), ("", ""), "", "Guaranteed", Some("a")).await;
    }

    #[tokio::test]
    async fn pods_with_resources_may_be_where_memory_is_short() {
        let context = context(vec![("namespaces", json!({"metadata": {"name": "n"}}))]).await;
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container]}});
        let pod = Write::create("pods", pod).through(&context, &PLUGIN).await.unwrap();
        let expected =
            json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]);
        assert_eq!(pod["spec"]["tolerations"], expected);
    }
}
