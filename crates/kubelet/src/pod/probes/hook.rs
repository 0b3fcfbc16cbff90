//! Lifecycle hooks: a command in the container, a GET, or a pause.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::{kubelet::Kubelet, pod::probes::ask};

pub async fn run(
    kubelet: &Kubelet,
    hook: &LifecycleHandler,
    container: &Container,
    id: &str,
    ip: &str,
) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let answer = kubelet.config.runtime.exec_sync(id, command, Duration::ZERO).await.map_err(|e| e.to_string())?;
        if answer.exit_code != 0 {
            let text = String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
            return Err(format!("command '{shown}' exited with {}: {text}", answer.exit_code));
        }
    } else if let Some(get) = &hook.http_get {
        ask::http_get(get, container, ip).await?;
    } else if let Some(sleep) = &hook.sleep {
        clock::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
    }
    Ok(())
}
