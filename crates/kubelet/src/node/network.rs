//! Whether the engine's network is ready for Pods. Upstream counterpart: `networkErrors` in pkg/kubelet/runtime.go.

use std::time::Duration;

use k8s_cri::v1::RuntimeCondition;
use tokio::sync::Mutex;

/// While it is not ready the engine is asked again after this pause, however many Pods wait for it.
pub const PAUSE: Duration = Duration::from_secs(1);

/// Why the engine's network is not ready.
pub fn trouble(conditions: &[RuntimeCondition]) -> Option<String> {
    unmet(conditions, "NetworkReady", "container runtime network")
}

/// Why a condition of the engine does not hold, in upstream's words.
pub fn unmet(conditions: &[RuntimeCondition], name: &str, what: &str) -> Option<String> {
    let said = match conditions.iter().find(|c| c.r#type == name) {
        Some(condition) if condition.status => return None,
        Some(RuntimeCondition { reason, message, .. }) => format!("{name}=false reason:{reason} message:{message}"),
        None => "nil".to_owned(),
    };
    Some(format!("{what} not ready: {said}"))
}

/// The engine's last statement about its network: when it was made, and why the network is not ready.
type Said = (clock::Instant, Option<String>);

/// The state of the engine's network, as far as it is known.
#[derive(Default)]
pub struct Network(Mutex<Option<Said>>);

impl Network {
    /// Takes in the statements of an engine that was asked for another reason.
    pub async fn note(&self, conditions: &[RuntimeCondition]) {
        *self.0.lock().await = Some((clock::Instant::now(), trouble(conditions)));
    }

    /// Why no Pod can have a network now. An engine that does not answer keeps nobody from asking it for one.
    pub async fn trouble(&self, engine: &dyn runtime::Runtime) -> Option<String> {
        let mut said = self.0.lock().await;
        match &*said {
            Some((_, None)) => return None,
            Some((at, why)) if at.elapsed() < PAUSE => return why.clone(),
            _ => {}
        }
        let status = engine.status().await.ok()?.status.unwrap_or_default();
        let why = trouble(&status.conditions);
        *said = Some((clock::Instant::now(), why.clone()));
        why
    }
}
