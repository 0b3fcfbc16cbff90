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

/// Whether the engine can make a mount of this Pod read-only with all that is mounted below it.
pub async fn makes_recursive(kubelet: &Kubelet, desired: &DesiredPod) -> Result<bool, String> {
    let handler = of(kubelet, desired).await?;
    Ok(features(kubelet, &handler).await?.is_some_and(|f| f.recursive_read_only_mounts))
}
