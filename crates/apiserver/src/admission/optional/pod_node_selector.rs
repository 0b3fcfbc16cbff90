//! PodNodeSelector: the Pods of a namespace go to the nodes that an annotation of the namespace selects, or the settings.

use api::{Value, status::StatusError};
use json::{Key, json};

use super::settings::node_selectors::{DEFAULT, Labels, labels};
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodNodeSelector",
    concerns: |attributes| {
        attributes.operation == Operation::Create && is(attributes, "", "pods", "") && attributes.object.is_some()
    },
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

fn of_pod(pod: &Value) -> Labels {
    let selector = pod["spec"]["nodeSelector"].as_object();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    selector.into_iter().flatten().map(|(key, value)| (key.as_str().to_owned(), text(value))).collect()
}

/// The labels of the Pod's namespace, none of which the Pod's own contradict.
async fn of_namespace(context: &Context, attributes: &Attributes<'_>) -> Result<Labels, StatusError> {
    let found = context.objects.get("", "namespaces", "", attributes.namespace).await?;
    let namespace = found.ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace))?;
    let wanted = match api::meta::annotation(&namespace, ANNOTATION) {
        // Upstream's error here is words alone, without a reason.
        Some(text) => labels(text).map_err(|why| StatusError::new(500, "", why))?,
        None => context.optional.node_selectors.of(DEFAULT),
    };
    let own = attributes.object.as_ref().map(of_pod).unwrap_or_default();
    if wanted.iter().any(|(key, value)| own.get(key).is_some_and(|other| other != value)) {
        return Err(forbid(attributes, "pod node label selector conflicts with its namespace node label selector"));
    }
    Ok(wanted)
}

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let wanted = of_namespace(context, attributes).await?;
    if let Some(spec) = attributes.object.as_mut().and_then(|pod| pod["spec"].as_object_mut())
        && !wanted.is_empty()
    {
        let selector = spec.entry(Key::of("nodeSelector")).or_insert(Value::Null);
        for (key, value) in wanted {
            selector[key.as_str()] = json!(value);
        }
    }
    check(context, attributes)
}

async fn validate(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    of_namespace(context, attributes).await?;
    check(context, attributes)
}

/// Refuses a Pod that selects other nodes than the settings allow in its namespace.
fn check(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let allowed = context.optional.node_selectors.of(attributes.namespace);
    let own = attributes.object.as_ref().map(of_pod).unwrap_or_default();
    if allowed.is_empty() || own.iter().all(|(key, value)| allowed.get(key) == Some(value)) {
        return Ok(());
    }
    Err(forbid(attributes, "pod node label selector labels conflict with its namespace whitelist"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::admission::optional::settings::node_selectors::Selectors;
    use crate::tests::admission::{Write, context};
    use api::validation::section::Section;

    /// The settings are `namespace a=b`, one a line; a Pod with a selector in a namespace with an annotation gets `expected`.
    async fn check(settings: &[(&str, &str)], annotation: Option<&str>, selector: &str, expected: Result<&str, &str>) {
        let config = json!({"podNodeSelectorPluginConfig": settings.iter().copied().collect::<BTreeMap<_, _>>()});
        let annotations = annotation.map(|text| json!({ANNOTATION: text}));
        let namespace = json!({"metadata": {"name": "n", "annotations": annotations.unwrap_or(json!({}))}});
        let mut context = context(vec![("namespaces", namespace)]).await;
        context.optional.node_selectors = Selectors::parse(&Section::of("", &config).unwrap()).unwrap();
        let spec = json!({"nodeSelector": labels(selector).unwrap()});
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        let got = Write::create("pods", pod).through(&context, &PLUGIN).await.map(|pod| of_pod(&pod));
        let expected = expected.map(|text| labels(text).unwrap());
        assert_eq!(got, expected.map_err(str::to_owned), "{settings:?} {annotation:?} {selector}");
    }

    #[tokio::test]
    async fn pods_go_where_their_namespace_says() {
        let conflict =
            "pods \"p\" is forbidden: pod node label selector conflicts with its namespace node label selector";
        let beyond = "pods \"p\" is forbidden: pod node label selector labels conflict with its namespace whitelist";
        check(&[], None, "a=b", Ok("a=b")).await;
        check(&[], Some("zone=x"), "a=b", Ok("a=b,zone=x")).await;
        check(&[], Some("a=b"), "a=b", Ok("a=b")).await;
        check(&[], Some("a=c"), "a=b", Err(conflict)).await;
        check(&[(DEFAULT, "env=test")], None, "a=b", Ok("a=b,env=test")).await;
        check(&[(DEFAULT, "env=test")], Some(""), "a=b", Ok("a=b")).await;
        check(&[("n", "a=b,c=d")], None, "a=b", Ok("a=b")).await;
        check(&[("n", "a=b,c=d")], None, "a=b,e=f", Err(beyond)).await;
        check(&[("n", "a=b")], Some("c=d"), "", Err(beyond)).await;
        check(&[("other", "a=b")], None, "e=f", Ok("e=f")).await;
        check(&[], None, "", Ok("")).await;
        check(&[(DEFAULT, "infra = false")], None, "", Ok("infra=false")).await;
        check(&[], Some(" infra = false "), "", Ok("infra=false")).await;
        check(&[(DEFAULT, "infra=false")], Some("infra=true"), "", Ok("infra=true")).await;
        check(&[(DEFAULT, "infra = false")], Some(""), "", Ok("")).await;
        check(&[(DEFAULT, "infra = false")], Some("infra=true"), "env=test", Ok("infra=true,env=test")).await;
        check(&[(DEFAULT, "env = test")], Some("infra=true"), "infra=false", Err(conflict)).await;
        check(&[(DEFAULT, "env=dev")], Some("infra=false, env = test"), "env=dev,color=blue", Err(conflict)).await;
        let allowed = |infra: &'static str| [(DEFAULT, "env=dev"), ("n", infra)];
        let merged = "infra=false,env=dev,color=blue";
        check(
            &allowed("env=dev, infra=false, color=blue"),
            Some("infra=false, env = dev"),
            "env=dev,color=blue",
            Ok(merged),
        )
        .await;
        check(
            &allowed("env=dev, infra=true, color=blue"),
            Some("infra=false, env = dev"),
            "env=dev,color=blue",
            Err(beyond),
        )
        .await;
        check(&[], Some("a in (b,c)"), "", Err("invalid selector: a in (b,c)")).await;
    }

    /// Upstream: TestHandles.
    #[tokio::test]
    async fn only_new_pods_are_looked_at() {
        let namespace = json!({"metadata": {"name": "n", "annotations": {ANNOTATION: "a=b"}}});
        let context = context(vec![("namespaces", namespace)]).await;
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeSelector": {"a": "c"}}});
        for (operation, subresource, refused) in [
            (Operation::Create, "", true),
            (Operation::Create, "binding", false),
            (Operation::Update, "", false),
            (Operation::Connect, "", false),
            (Operation::Delete, "", false),
        ] {
            let write = Write { operation, kind: ("", "pods", subresource), ..Write::create("", pod.clone()) };
            assert_eq!(write.through(&context, &PLUGIN).await.is_err(), refused, "{operation:?} {subresource}");
        }
    }
}
