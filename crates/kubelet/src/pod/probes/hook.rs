//! Lifecycle hooks: a command in the container, a GET, or a pause. Why a hook failed is for the node's log alone: an answer may hold
//! secrets, and events are read by others than those who may look into the container.

use std::time::Duration;

use client::EventKind;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::{
    kubelet::Kubelet,
    pod::{desired::DesiredPod, probes::ask},
};

/// The container that a hook is of.
pub struct Of<'a> {
    pub desired: &'a DesiredPod,
    pub container: &'a Container,
    pub id: &'a str,
    pub ip: &'a str,
}

pub async fn run(kubelet: &Kubelet, hook: &LifecycleHandler, of: Of<'_>) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let answer =
            kubelet.config.runtime.exec_sync(of.id, command, Duration::ZERO).await.map_err(|e| e.to_string())?;
        if answer.exit_code != 0 {
            let text = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
            return Err(format!("command '{shown}' exited with {}: {text}", answer.exit_code));
        }
    } else if let Some(get) = &hook.http_get {
        if let Some(host) = ask::http_get(get, of.container, of.ip).await? {
            let text = format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
            kubelet.events.pod(of.desired, EventKind::Warning, "LifecycleHTTPFallback", &text);
            kubelet.figures.hook_fell_back();
        }
    } else if let Some(sleep) = &hook.sleep {
        clock::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
    } else {
        // The API takes a connection as a hook, which nobody has ever run.
        return Err("invalid handler".to_owned());
    }
    Ok(())
}
