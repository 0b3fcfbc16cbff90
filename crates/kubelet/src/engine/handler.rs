//! Which of the engine's handlers a Pod's sandbox runs with, and what that handler can do.

use client::Api;
use k8s_cri::v1::RuntimeHandlerFeatures;
use k8s_openapi::api::node::v1::RuntimeClass;

use crate::{kubelet::Kubelet, pod::desired::DesiredPod};

/// The handler that the Pod's RuntimeClass names. An empty name is the engine's default.
pub async fn of(kubelet: &Kubelet, desired: &DesiredPod) -> Result<String, String> {
    let Some(name) = desired.spec().runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    let api: Api<RuntimeClass> = Api::all(kubelet.config.client.clone());
    let class = api.find(name).await.map_err(|e| client::rest::message(&e))?;
    class.map(|class| class.handler).ok_or_else(|| format!("RuntimeClass.node.k8s.io \"{name}\" not found"))
}

/// The abilities of a handler; `None` where the engine tells nothing of it.
pub async fn features(kubelet: &Kubelet, handler: &str) -> Result<Option<RuntimeHandlerFeatures>, String> {
    let status = kubelet.config.runtime.status().await.map_err(|e| e.to_string())?;
    let found = status.runtime_handlers.into_iter().find(|h| h.name == handler);
    Ok(found.map(|h| h.features.unwrap_or_default()))
}

/// The first versions of engines that mount a part of an image. An older one mounts the whole image and says nothing.
const PARTS_OF_IMAGES: [(&str, (u64, u64)); 2] = [("containerd", (2, 2)), ("cri-o", (1, 33))];

/// Whether the engine can mount a part of an image.
pub async fn mounts_parts_of_images(kubelet: &Kubelet) -> Result<bool, String> {
    let engine = kubelet.config.runtime.version().await.map_err(|e| e.to_string())?;
    Ok(knows_parts_of_images(&engine.runtime_name, &engine.runtime_version))
}

fn knows_parts_of_images(engine: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map_while(|number| number.parse::<u64>().ok());
    let version = numbers.next().zip(numbers.next());
    let first = PARTS_OF_IMAGES.iter().find(|(name, _)| *name == engine).map(|(_, first)| *first);
    // Of an engine, or a version, that is not known here nothing bad is assumed.
    version.zip(first).is_none_or(|(version, first)| version >= first)
}

/// Whether the engine can leave a container without the groups that its image gives it.
pub async fn keeps_groups(kubelet: &Kubelet) -> Result<bool, String> {
    let status = kubelet.config.runtime.status().await.map_err(|e| e.to_string())?;
    Ok(status.features.is_some_and(|features| features.supplemental_groups_policy))
}

/// Whether the engine can make a mount of this Pod read-only with all that is mounted below it.
pub async fn makes_recursive(kubelet: &Kubelet, desired: &DesiredPod) -> Result<bool, String> {
    let handler = of(kubelet, desired).await?;
    Ok(features(kubelet, &handler).await?.is_some_and(|f| f.recursive_read_only_mounts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_would_mount_the_whole_image_is_known_by_its_version() {
        for (engine, version, expected) in [
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "2.1.9+unknown", false),
            ("containerd", "v2.2.0", true),
            ("containerd", "10.0.1", true),
            ("cri-o", "1.32.4", false),
            ("cri-o", "1.35.0-dev", true),
            ("other", "0.1.0", true),
            ("containerd", "unknown", true),
        ] {
            assert_eq!(knows_parts_of_images(engine, version), expected, "{engine} {version}");
        }
    }
}
