//! The APIServices of custom groups: there is one for each group version, and none for others that this server made.
//! Upstream counterpart: crdregistration and autoregister of kube-aggregator.

use api::{
    Value,
    kind::{Definition, Target},
    meta,
    status::StatusError,
};
use json::json;
use store::Entry;
use tokio::sync::Notify;

use super::held::CustomKinds;
use crate::{
    bootstrap::object::AUTOMANAGED,
    storage::{informer::EventHandler, object_store::ObjectStore},
};

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";

/// Says that an APIService was written or deleted, whichever it is.
#[derive(Default)]
pub struct Changed(pub Notify);

impl EventHandler for Changed {
    fn stored(&self, _name: &str, _entry: &Entry) -> bool {
        self.0.notify_one();
        true
    }

    fn changed(&self, _: &Definition, _: &str, _: &str, _: Option<&Value>) {
        self.0.notify_one();
    }
}

/// The priorities of custom groups and their versions.
const PRIORITIES: (i64, i64) = (1000, 100);

fn ours(service: &Value) -> bool {
    service["metadata"]["labels"][AUTOMANAGED] == "true"
}

/// Makes, mends and removes APIServices so that they are those of what is served now. One whose label was taken off is its author's.
pub async fn keep(objects: &ObjectStore, kinds: &CustomKinds) -> Result<(), StatusError> {
    let definition = objects.definition(GROUP, PLURAL)?;
    for (group, version) in kinds.served() {
        let service = json!({
            "metadata": {"name": format!("{version}.{group}"), "labels": {AUTOMANAGED: "true"}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": PRIORITIES.0, "versionPriority": PRIORITIES.1},
        });
        let put_back = |present: &mut Value| {
            let is_wrong = ours(present) && present["spec"] != service["spec"];
            if is_wrong {
                present["spec"] = service["spec"].clone();
            }
            Ok(is_wrong)
        };
        match objects.update(&definition, ("", meta::name(&service)), Target::Object, put_back).await {
            Err(error) if error.code == 404 => {}
            done => {
                done?;
                continue;
            }
        }
        match objects.create(&definition, service).await {
            Err(error) if error.code != 409 => return Err(error),
            _ => {}
        }
    }
    // Another server may have learnt of a kind earlier.
    objects.caught_up().await?;
    let served = kinds.served();
    for entry in objects.entries(&definition, "").await? {
        let service = crate::storage::object::of_entry(&definition, &entry);
        let text = |field: &str| service["spec"][field].as_str().unwrap_or_default().to_owned();
        let stays = served.contains(&(text("group"), text("version")));
        if ours(&service) && !stays && service["spec"]["service"].is_null() {
            match objects.swap(&definition, entry).remove().await {
                Err(error) if error.code != 404 => return Err(error),
                _ => tracing::debug!(name = meta::name(&service), "nothing is served in a group version any more"),
            }
        }
    }
    Ok(())
}
