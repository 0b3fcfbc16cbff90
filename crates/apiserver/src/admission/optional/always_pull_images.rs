//! AlwaysPullImages: each Pod's images are pulled with its own credentials, also where another Pod has pulled them before. Those that are
//! mounted as volumes are images, too.

use api::{
    Value, meta,
    status::StatusError,
    validation::field::{FieldError, Path},
};
use json::json;

use crate::admission::{
    attributes::Attributes,
    plugin::{CONTAINERS, Plugin, containers, done, forbid, is_written_pod, items, text},
    reasons,
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
    for volume in pod["spec"].get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
            image.insert("pullPolicy", json!(ALWAYS));
        }
    }
}

/// The policies of a Pod, each with its place.
fn policies(pod: &Value) -> impl Iterator<Item = (Path, &str)> {
    let of_container =
        |(path, container): (Path, _)| (path.child("imagePullPolicy"), text(container, "/imagePullPolicy"));
    let volumes = items(pod, "/spec/volumes").enumerate();
    let of_volume = |(at, volume)| {
        let path = Path::new("spec").child("volumes").index(at).child("image").child("pullPolicy");
        meta::at(volume, "/image").map(|image| (path, text(image, "/pullPolicy")))
    };
    containers(pod).map(of_container).chain(volumes.filter_map(of_volume))
}

/// A webhook may have changed it since. As upstream, the refusals together are an error without a reason.
fn validate(attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let refused = |(path, policy): (Path, &str)| {
        (policy != ALWAYS).then(|| forbid(attributes, FieldError::not_supported(&path, policy, &[ALWAYS])).message)
    };
    let all: Vec<String> = policies(pod).filter_map(refused).collect();
    reasons::together(&all).map_or(Ok(()), |why| Err(StatusError::new(500, "", why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::attributes::Operation;
    use crate::tests::admission::{Write, context};

    fn pod(image: &str, policy: &str) -> Value {
        let container = json!({"name": "c", "image": image, "imagePullPolicy": policy});
        let volumes =
            json!([{"name": "v", "image": {"reference": image, "pullPolicy": policy}}, {"name": "e", "emptyDir": {}}]);
        json!({"metadata": {"name": "p"},
            "spec": {"initContainers": [container], "containers": [container], "volumes": volumes}})
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
        let why = |path: &str, policy: &str| {
            format!(
                "pods \"p\" is forbidden: spec.{path}: Unsupported value: \"{policy}\": supported values: \"Always\""
            )
        };
        let all = ["initContainers[0].imagePullPolicy", "containers[0].imagePullPolicy", "volumes[0].image.pullPolicy"];
        assert_eq!(refused, format!("[{}]", all.map(|path| why(path, "Never")).join(", ")));
        let mut one = pod("x", "Always");
        one["spec"]["volumes"][0]["image"].as_object_mut().unwrap().remove("pullPolicy");
        let refused = Write::create("pods", one).refused(&context, &late).await;
        assert_eq!((refused.code, refused.message), (500, why(all[2], "")));
        // Other kinds, and subresources of Pods, are left alone.
        for kind in [("", "foos", ""), ("", "pods", "exec")] {
            let write = Write { kind, ..Write::create("pods", pod("x", "Never")) };
            assert_eq!(write.through(&context, &PLUGIN).await.unwrap(), pod("x", "Never"));
        }
    }
}
