//! ImagePolicyWebhook: a server of the administrator's says whether the images of Pods may be used.
//! Upstream counterpart: plugin/pkg/admission/imagepolicy.

use api::{Value, meta, status::StatusError};
use json::{Map, json};

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, is, items, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "ImagePolicyWebhook",
    concerns: |attributes| {
        matches!(attributes.operation, Operation::Create | Operation::Update)
            && (is(attributes, "", "pods", "") || is(attributes, "", "pods", DEBUGGING))
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const DEBUGGING: &str = "ephemeralcontainers";
/// The part of a key that marks annotations as meant for the server.
const MEANT: &str = ".image-policy.k8s.io/";
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io";

/// The question to the server about a Pod.
fn spec(attributes: &Attributes<'_>, pod: &Value) -> Value {
    let lists: &[&str] = if attributes.subresource.is_empty() {
        &["/spec/containers", "/spec/initContainers"]
    } else {
        &["/spec/ephemeralContainers"]
    };
    let containers = lists.iter().flat_map(|list| items(pod, list));
    let images: Vec<Value> = containers.map(|container| json!({"image": text(container, "/image")})).collect();
    let given = meta::at(pod, "/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let meant = given.filter(|(key, _)| key.contains(MEANT));
    let annotations: Map = meant.map(|(key, value)| (key.to_string(), value.clone())).collect();
    let mut spec = json!({"containers": images, "namespace": attributes.namespace});
    if !annotations.is_empty() {
        spec["annotations"] = Value::Object(annotations);
    }
    spec
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let policy = &context.optional.image_policy;
    let said = match policy.ask(spec(attributes, pod)).await {
        Ok(said) => said,
        Err(_) if policy.is_open() => {
            attributes.trail.annotate(format!("{AUDIT}/failed-open"), "true");
            return Ok(());
        }
        Err(why) => return Err(forbid(attributes, why)),
    };
    for (key, value) in &said.annotations {
        attributes.trail.annotate(format!("{AUDIT}/{key}"), value.clone());
    }
    match (said.allowed, &*said.reason) {
        (true, _) => Ok(()),
        (false, "") => Err(forbid(attributes, "one or more images rejected by webhook backend")),
        (false, reason) => {
            Err(forbid(attributes, format!("image policy webhook backend denied one or more images: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Configuration;
    use crate::tests::{
        admission::{Write, context},
        hook::{Hook, Mood},
    };

    fn judging(review: &Value) -> Value {
        let bad = |container: &Value| container["image"].as_str().is_some_and(|image| image.starts_with("evil"));
        let found = review["spec"]["containers"].as_array().unwrap().iter().any(bad);
        let status = if found {
            json!({"allowed": false, "reason": "it is evil"})
        } else {
            json!({"allowed": true, "auditAnnotations": {"a": "b"}})
        };
        json!({"kind": "ImageReview", "apiVersion": review["apiVersion"], "status": status})
    }

    async fn scene(hook: &Hook, more: &str) -> (tempfile::TempDir, Context) {
        let (folder, file) = hook.kubeconfig("/", "");
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{{name: ImagePolicyWebhook, \
             configuration: {{imagePolicy: {{kubeConfigFile: {}{more}}}}}}}]}}",
            file.display()
        );
        let configuration = Configuration::load(std::path::Path::new("f"), |_| Ok(text.clone())).unwrap();
        (folder, Context { optional: configuration.optional, ..context(Vec::new()).await })
    }

    fn pod(image: &str) -> Write {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "annotations": {"a.image-policy.k8s.io/b": "c", "other": "x"}},
            "spec": {"containers": [{"name": "c", "image": "fine"}], "initContainers": [{"name": "i", "image": image}],
                "ephemeralContainers": [{"name": "e", "image": "evil/debugger"}]}});
        Write { kind: ("", "pods", ""), ..Write::create("", pod) }
    }

    #[tokio::test]
    async fn images_are_used_as_the_server_says() {
        let hook = Hook::start().await;
        hook.be("/", Mood::Lying(judging));
        let (_folder, context) = scene(&hook, "").await;
        for _ in 0..2 {
            pod("fine").through(&context, &PLUGIN).await.unwrap();
        }
        let asked = hook.questions();
        assert_eq!(asked.len(), 1, "what was allowed is remembered");
        let spec = json!({"containers": [{"image": "fine"}, {"image": "fine"}], "namespace": "ns",
            "annotations": {"a.image-policy.k8s.io/b": "c"}});
        assert_eq!((&asked[0].2["kind"], &asked[0].2["spec"]), (&json!("ImageReview"), &spec));
        let refused = pod("evil/one").through(&context, &PLUGIN).await.unwrap_err();
        assert!(refused.contains("image policy webhook backend denied one or more images: it is evil"), "{refused}");
        let debugging = Write { kind: ("", "pods", DEBUGGING), ..pod("fine") };
        assert!(debugging.through(&context, &PLUGIN).await.is_err());
    }

    #[tokio::test]
    async fn a_server_that_fails_is_open_or_closed_as_the_file_says() {
        let hook = Hook::start().await;
        for (mood, why) in [
            (Mood::Text(200, "{}"), "not an ImageReview"),
            (Mood::Text(403, ""), "403"),
            (Mood::Endless, "has more than"),
            (Mood::Redirecting, "307"),
            (
                Mood::Lying(
                    |_| json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": {"allowed": "yes"}}),
                ),
                "neither true nor false",
            ),
        ] {
            hook.be("/", mood);
            let (_folder, closed) = scene(&hook, "").await;
            let said = pod("fine").through(&closed, &PLUGIN).await.unwrap_err();
            assert!(said.contains(why), "{said}");
            let (_folder, open) = scene(&hook, ", defaultAllow: true").await;
            pod("fine").through(&open, &PLUGIN).await.unwrap();
        }
    }
}
