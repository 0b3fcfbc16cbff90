//! ComponentStatus: how the parts of the control plane are, asked when somebody reads it. Deprecated, and still what
//! `kubectl get componentstatuses` shows.

use api::{Value, meta, status::StatusError};
use json::json;

use crate::{call::Call, pages::health::Checks, special::reader::Reader, storage::filter::Filter};

/// Reads `componentstatuses` from these checks and the store.
pub struct Components(pub Checks);

impl Reader for Components {
    const WARNING: Option<&'static str> = Some("v1 ComponentStatus is deprecated in v1.19+");

    async fn list(&self, call: &Call, _: &Filter) -> Result<Vec<Value>, StatusError> {
        Ok(self.all(call).await)
    }

    async fn get(&self, call: &Call) -> Result<Value, StatusError> {
        let found = self.all(call).await.into_iter().find(|one| meta::name(one) == call.info.name);
        found.ok_or_else(|| StatusError::not_found("", "componentstatus", &call.info.name))
    }
}

impl Components {
    async fn all(&self, call: &Call) -> Vec<Value> {
        let store = call.state.objects.store.revision().await.map(|_| ()).map_err(|error| error.to_string());
        let all = self.0.results().await.into_iter().chain([("etcd-0", store)]);
        all.map(|(name, result)| status(name, result)).collect()
    }
}

fn status(name: &str, result: Result<(), String>) -> Value {
    let condition = match result {
        Ok(()) => json!({"type": "Healthy", "status": "True", "message": "ok"}),
        Err(why) => json!({"type": "Healthy", "status": "False", "error": why}),
    };
    json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]})
}
