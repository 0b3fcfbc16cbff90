//! Keeps the objects in order: the ones that every cluster has are as they have to be, and each schema says whether its level is
//! there.
//!
//! Upstream counterpart: pkg/registry/flowcontrol/rest and the statuses of apf_controller.go.

use std::sync::Arc;

use api::{Value, kind::Target, meta, status::StatusError};
use clock::Duration;
use json::json;

use super::Fairness;
use crate::{
    bootstrap::{self, flow_control},
    special::set_condition,
    storage::object_store::ObjectStore,
};

/// How often is looked.
const PERIOD: Duration = Duration::from_secs(60);

impl Fairness {
    /// Works for ever.
    pub async fn keep(self: Arc<Self>, objects: Arc<ObjectStore>) {
        loop {
            if let Err(error) = self.keep_once(&objects).await {
                tracing::warn!(%error, "priority levels and flow schemas could not be kept in order");
            }
            clock::sleep(PERIOD).await;
        }
    }

    async fn keep_once(&self, objects: &ObjectStore) -> Result<(), StatusError> {
        for wanted in flow_control::objects() {
            bootstrap::ensure_one(objects, &wanted).await?;
        }
        let definition = objects.definition(flow_control::GROUP, flow_control::SCHEMAS)?;
        for (name, level, dangling) in self.dangling() {
            let say = |schema: &mut Value| Ok(tell(schema, &level, dangling));
            match objects.update(&definition, ("", &name), Target::Status, say).await {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Says whether the level is there; false when that is said already.
fn tell(schema: &mut Value, level: &str, dangling: bool) -> bool {
    let (status, reason, what) = match dangling {
        true => ("True", "NotFound", "but there is no such object"),
        false => ("False", "Found", "and it exists"),
    };
    let is_level = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {what}");
    let conditions = schema["status"]["conditions"].as_array();
    let said = conditions.into_iter().flatten().find(|condition| condition["type"] == "Dangling");
    if said.is_some_and(|said| said["status"] == status && said["message"].as_str() == Some(&is_level)) {
        return false;
    }
    let now = clock::now_seconds().to_string();
    let name = meta::name(schema).to_owned();
    tracing::debug!(schema = name, dangling, "a flow schema is told about its level");
    let condition = json!({"type": "Dangling", "status": status, "lastTransitionTime": now, "reason": reason,
        "message": is_level});
    set_condition(schema, condition);
    true
}
