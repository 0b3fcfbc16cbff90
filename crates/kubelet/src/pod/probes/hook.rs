//! Lifecycle hooks: a command in the container, a GET, or a pause. Why a hook failed is for the node's log and, of a first one, the
//! container's status: an answer may hold secrets, and events are kept by others than the Pod.

use std::time::Duration;

use client::EventKind;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::{
    kubelet::Kubelet,
    pod::{desired::DesiredPod, probes::ask},
};

/// This many bytes of a command's output are told.
const MOST: usize = 4 << 10;

/// The container that a hook is of.
pub struct Of<'a> {
    pub desired: &'a DesiredPod,
    pub container: &'a Container,
    pub id: &'a str,
    pub ip: &'a str,
}

impl Of<'_> {
    /// A failure in upstream's words.
    fn failed(&self, hook: &str, why: &str) -> String {
        let pod = self.desired.name_in_messages();
        format!("{hook} for Container {:?} in Pod {pod:?} failed - error: {why}", self.container.name)
    }
}

/// The error says why, in upstream's words.
pub async fn run(kubelet: &Kubelet, hook: &LifecycleHandler, of: Of<'_>) -> Result<(), String> {
    if let Some(exec) = &hook.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let failed = |why: &str, text: &str| {
            let error = of.failed(&format!("Exec lifecycle hook ([{shown}])"), why);
            format!("{error}, message: {text:?}")
        };
        let answer = kubelet.config.runtime.exec_sync(of.id, command, Duration::ZERO).await;
        let answer = answer.map_err(|error| failed(&error.to_string(), ""))?;
        if answer.exit_code != 0 {
            let [said, all] = [answer.stderr.clone(), [answer.stdout, answer.stderr].concat()]
                .map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned());
            return Err(failed(&format!("command '{shown}' exited with {}: {said}", answer.exit_code), &all));
        }
    } else if let Some(get) = &hook.http_get {
        let path = get.path.as_deref().unwrap_or_default();
        let asked = ask::http_get(get, of.container, of.ip).await;
        let fell_back = asked.map_err(|why| of.failed(&format!("HTTP lifecycle hook ({path})"), &why))?;
        if let Some(host) = fell_back {
            let text = format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
            kubelet.events.pod(of.desired, EventKind::Warning, "LifecycleHTTPFallback", &text);
            kubelet.figures.hook_fell_back();
        }
    } else if let Some(sleep) = &hook.sleep {
        clock::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
    } else {
        // The API takes a connection as a hook, which nobody has ever run.
        return Err("Cannot run handler: invalid handler".to_owned());
    }
    Ok(())
}
