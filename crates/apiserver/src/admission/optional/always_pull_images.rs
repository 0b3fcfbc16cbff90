//! AlwaysPullImages: each Pod's images are pulled with its own credentials, also where another Pod has pulled them before.

use api::{Value, status::StatusError, validation::field::FieldError};
use json::json;

use crate::admission::{
    attributes::Attributes,
    plugin::{CONTAINERS, Plugin, containers, done, forbid, is_written_pod, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "AlwaysPullImages",
    concerns: |attributes| is_written_pod(attributes) && has_new_image(attributes),
    admit: Some(|_, attributes| {
        if let Some(pod) = &mut attributes.object {
            pull(pod);
        }
        done(Ok(()))
    }),
    validate: Some(|_, attributes| done(validate(attributes))),
};

const ALWAYS: &str = "Always";

/// A Pod that is there keeps its images, pulled or not.
fn has_new_image(attributes: &Attributes<'_>) -> bool {
    let (Some(pod), Some(old)) = (&attributes.object, attributes.old) else { return true };
    let is_old = |image: &str| containers(old).any(|(_, container)| text(container, "/image") == image);
    containers(pod).any(|(_, container)| !is_old(text(container, "/image")))
}

fn pull(pod: &mut Value) {
    for list in CONTAINERS {
        for container in pod["spec"].get_mut(*list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["imagePullPolicy"] = json!(ALWAYS);
        }
    }
}

/// A webhook may have changed it since.
fn validate(attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let other = containers(pod).find(|(_, container)| text(container, "/imagePullPolicy") != ALWAYS);
    let Some((path, container)) = other else { return Ok(()) };
    let policy = text(container, "/imagePullPolicy");
    Err(forbid(attributes, FieldError::not_supported(&path.child("imagePullPolicy"), policy, &[ALWAYS])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::attributes::Operation;
    use crate::tests::admission::{Write, context};

    fn pod(image: &str, policy: &str) -> Value {
        let container = json!({"name": "c", "image": image, "imagePullPolicy": policy});
        json!({"metadata": {"name": "p"}, "spec": {"initContainers": [container], "containers": [container]}})
    }

    #[tokio::test]
    async fn new_images_are_pulled() {
        let context = context(Vec::new()).await;
        let out = Write::create("pods", pod("x", "Never")).through(&context, &PLUGIN).await.unwrap();
        assert_eq!(out, pod("x", "Always"));
        let update = |image: &str| Write {
            operation: Operation::Update,
            old: Some(pod("x", "Never")),
            ..Write::create("pods", pod(image, "Never"))
        };
        assert_eq!(update("x").through(&context, &PLUGIN).await.unwrap(), pod("x", "Never"));
        assert_eq!(update("y").through(&context, &PLUGIN).await.unwrap(), pod("y", "Always"));
        let late = Plugin { admit: None, ..PLUGIN };
        let refused = Write::create("pods", pod("x", "Never")).through(&context, &late).await.unwrap_err();
        let expected = "pods \"p\" is forbidden: spec.initContainers[0].imagePullPolicy: Unsupported value: \"Never\": \
                        supported values: \"Always\"";
        assert_eq!(refused, expected);
    }
}
