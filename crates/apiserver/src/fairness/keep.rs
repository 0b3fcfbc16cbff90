//! Keeps the objects in order: the ones that every cluster has are as they have to be, and each schema says whether its level is
//! there.
//!
//! Upstream counterpart: pkg/registry/flowcontrol/rest and the statuses of apf_controller.go.

use std::sync::Arc;

use api::{Value, kind::Target, meta, status::StatusError};
use clock::{Duration, Instant};
use json::json;

use super::Fairness;
use crate::{
    bootstrap::{
        self, flow_control,
        object::{BootstrapObject, asks_for_mending},
    },
    special::set_condition,
    storage::object_store::ObjectStore,
};

/// How often the objects are looked at; schemas are told of their levels at once.
const PERIOD: Duration = Duration::from_secs(60);
/// The wait after a failure.
const PAUSE: Duration = Duration::from_secs(1);

impl Fairness {
    /// Works for ever.
    pub async fn keep(self: Arc<Self>, objects: Arc<ObjectStore>) {
        let (mut looked, mut troubled): (Option<Instant>, bool) = (None, false);
        loop {
            let kept = async {
                if looked.is_none_or(|at| at.elapsed() >= PERIOD) {
                    keep_objects(&objects).await?;
                    looked = Some(Instant::now());
                }
                self.tell_all(&objects).await
            };
            match kept.await {
                Ok(()) if std::mem::take(&mut troubled) => {
                    tracing::info!("priority levels and flow schemas are kept in order again");
                }
                Ok(()) => {}
                Err(error) => {
                    // Once: while the store is away there is one for each attempt.
                    if !std::mem::replace(&mut troubled, true) {
                        tracing::warn!(%error, "priority levels and flow schemas could not be kept in order");
                    }
                    clock::sleep(PAUSE).await;
                }
            }
            let rest = looked.map_or(PAUSE, |at| PERIOD.saturating_sub(at.elapsed()));
            let _ = clock::timeout(rest, self.taken_in.notified()).await;
        }
    }

    /// Says in each schema whether its level is there.
    async fn tell_all(&self, objects: &ObjectStore) -> Result<(), StatusError> {
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

/// Makes and mends what every cluster has, and takes away what asks to be kept by the server and is none of it.
pub(super) async fn keep_objects(objects: &ObjectStore) -> Result<(), StatusError> {
    let all = flow_control::objects();
    for wanted in &all {
        bootstrap::ensure_one(objects, wanted).await?;
    }
    for plural in [flow_control::SCHEMAS, flow_control::LEVELS_PLURAL] {
        let definition = objects.definition(flow_control::GROUP, plural)?;
        for entry in objects.entries(&definition, "").await? {
            let mut swap = objects.swap(&definition, entry);
            let present = swap.object();
            let is_it = |one: &BootstrapObject| one.plural == plural && meta::name(&one.object) == meta::name(&present);
            if asks_for_mending(&present) == Some(true) && !all.iter().any(is_it) {
                // One that was changed meanwhile is looked at again.
                swap.remove().await?;
            }
        }
    }
    Ok(())
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
