//! The APIServices of custom groups: there is one for each group version, and none for others that this server made.
//! Upstream counterpart: crdregistration and autoregister of kube-aggregator.

use api::{Value, meta, status::StatusError};
use json::json;

use super::held::CustomKinds;
use crate::{bootstrap::object::AUTOMANAGED, storage::object_store::ObjectStore};

/// The priorities of custom groups and their versions.
const PRIORITIES: (i64, i64) = (1000, 100);

/// Makes and removes APIServices so that they are those of what is served now.
pub async fn keep(objects: &ObjectStore, kinds: &CustomKinds) -> Result<(), StatusError> {
    let definition = objects.definition("apiregistration.k8s.io", "apiservices")?;
    for (group, version) in kinds.served() {
        let service = json!({
            "metadata": {"name": format!("{version}.{group}"), "labels": {AUTOMANAGED: "true"}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": PRIORITIES.0, "versionPriority": PRIORITIES.1},
        });
        match objects.create(&definition, service).await {
            Err(error) if error.code != 409 => return Err(error),
            _ => {}
        }
    }
    // Another server may have learnt of a kind earlier.
    objects.caught_up().await?;
    let served = kinds.served();
    let ours = |service: &Value| service["metadata"]["labels"][AUTOMANAGED] == "true";
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
