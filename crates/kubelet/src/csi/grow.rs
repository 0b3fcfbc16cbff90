//! Volumes that have grown: their drivers let the file system, or the device, grow after them, when a Pod gets the volume and
//! while it has it.
//! Upstream counterpart: pkg/volume/util/operationexecutor/node_expander.go.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use api::rules::{
    quantity::{self, Quantity},
    volume::annotation,
};
use client::{Api, EventKind, events::reference};
use json::{Value, json};
use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret},
    apimachinery::pkg::{api::resource::Quantity as Amount, apis::meta::v1::Time},
};
use runtime::grpc::{self, Code, Status};

use crate::{
    csi::{
        Csi,
        drivers::is_final,
        held::Held,
        messages::{Ability, CapacityRange, EXPAND, ExpandRequest, ExpandResponse},
    },
    volumes::error::VolumeError,
};

/// How often volumes that Pods have are looked at.
const LOOK: Duration = Duration::from_secs(60);
const STORAGE: &str = "storage";
/// On a claim, from its resizer: the driver did all of it, and nodes have nothing to do.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// The conditions of a claim about a resize, of which nothing else is said.
const RESIZES: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// The treatment of a volume that is larger than its claim, or than it was here.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    Expand,
    /// The claim says so already: another node has it too, and was faster.
    ExpandToo,
}

fn amount(list: Option<&BTreeMap<String, Amount>>) -> Quantity {
    list.and_then(|list| list.get(STORAGE)).map(quantity::parse).unwrap_or_default()
}

/// Whether a claim that says that its volume has grown may leave a part of it to this node.
fn may_leave(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|mode| mode == "ReadWriteMany") && annotation(&claim.metadata, NOT_REQUIRED).is_none()
}

fn wanted(claim: &PersistentVolumeClaim) -> Quantity {
    amount(claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()))
}

fn state(claim: &PersistentVolumeClaim) -> Option<&str> {
    let status = claim.status.as_ref()?;
    status.allocated_resource_statuses.as_ref()?.get(STORAGE).map(String::as_str)
}

/// `known` is the size that the volume had on this node.
fn way(claim: &PersistentVolumeClaim, new: Quantity, known: Quantity) -> Way {
    let is_told = amount(claim.status.as_ref().and_then(|s| s.capacity.as_ref())) >= new;
    match state(claim) {
        None if is_told && known < new && may_leave(claim) => Way::ExpandToo,
        Some("NodeResizePending" | "NodeResizeInProgress") if !is_told => Way::Expand,
        _ => Way::Nothing,
    }
}

/// Whether the driver will never do it.
fn is_infeasible(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

/// The new conditions of a claim, as a strategic patch says them: the resize has failed, or is over.
fn conditions(claim: &PersistentVolumeClaim, error: Option<&str>, now: Time) -> Vec<Value> {
    if let Some(why) = error {
        let message = format!("failed to expand pvc with: {why}");
        return vec![
            json!({"type": "NodeResizeError", "status": "True", "lastTransitionTime": now, "message": message}),
        ];
    }
    let held = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let over = held.filter(|held| RESIZES.contains(&held.type_.as_str()));
    over.map(|held| json!({"$patch": "delete", "type": held.type_})).collect()
}

impl Csi {
    /// Lets a volume grow, if it is to. An error keeps a Pod from getting it.
    pub(super) async fn grow(&self, held: &Held) -> Result<(), VolumeError> {
        let Some((namespace, name)) = &held.volume.claim else { return Ok(()) };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let api = |error: client::Error| VolumeError::Api(error.to_string());
        let (volume, claim) = (volumes.find(&held.volume.name), claims.find(name));
        let (volume, claim) = futures::future::try_join(volume, claim).await.map_err(api)?;
        let (Some(volume), Some(claim)) = (volume, claim) else { return Ok(()) };
        let list = volume.spec.and_then(|spec| spec.capacity).unwrap_or_default();
        let (new, told) = (amount(Some(&list)), amount(claim.status.as_ref().and_then(|s| s.capacity.as_ref())));
        let key = held.volume.unique_name();
        let known = *self.sizes.lock().entry(key.clone()).or_insert(told);
        let way = way(&claim, new, known);
        if way == Way::Nothing || self.unable.lock().contains(&(key.clone(), new.value())) {
            return Ok(());
        }
        if held.volume.read_only {
            let text = "MountVolume.NodeExpandVolume failed";
            let text = format!("{text} for volume {:?} requested read-only file system", held.volume.name);
            self.say(held, &claim, EventKind::Warning, "FileSystemResizeFailed", &text);
            return Ok(());
        }
        let failed = |why: String| VolumeError::Expansion { volume: held.volume.name.clone(), why };
        let claim = match way {
            Way::Expand if state(&claim) != Some("NodeResizeInProgress") => {
                let status = json!({"allocatedResourceStatuses": {STORAGE: "NodeResizeInProgress"}});
                self.mark(&claims, &claim, status)
                    .await
                    .map_err(|why| failed(format!("failed to mark node expansion in progress: {why}")))?
            }
            _ => claim,
        };
        match self.expand(held, new).await {
            Ok(()) => {
                self.refused.lock().remove(&key);
                self.sizes.lock().insert(key, new);
                let text = format!(
                    "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
                    held.volume.name, self.node_name
                );
                self.say(held, &claim, EventKind::Normal, "FileSystemResizeSuccessful", &text);
                if way == Way::ExpandToo {
                    return Ok(());
                }
                let status = json!({"capacity": {STORAGE: list[STORAGE]}, "allocatedResourceStatuses": {STORAGE: Value::Null},
                    "conditions": conditions(&claim, None, Time(clock::now_seconds()))});
                let marked = self.mark(&claims, &claim, status).await;
                marked
                    .map(drop)
                    .map_err(|why| failed(format!("mountVolume.NodeExpandVolume update pvc status failed: {why}")))
            }
            Err(Failure::Unsupported(_)) if way == Way::ExpandToo => {
                self.sizes.lock().insert(key, new);
                Ok(())
            }
            Err(Failure::Unsupported(why)) => {
                self.mark_failed(&claims, &claim, &key, (new, false), &why).await;
                Err(failed(why))
            }
            Err(Failure::Call(status)) => {
                if is_final(&status) {
                    let size = (new, is_infeasible(&status));
                    self.mark_failed(&claims, &claim, &key, size, &grpc::words(&status)).await;
                }
                if status.code() == Code::FailedPrecondition {
                    // Not while it is in use, says the driver: not on this node, and no reason to keep the Pod from it.
                    self.unable.lock().insert((key, new.value()));
                    return Ok(());
                }
                Err(failed(format!("Expander.NodeExpand failed to expand the volume : {}", grpc::words(&status))))
            }
            Err(Failure::Unable(why)) => Err(failed(why)),
        }
    }

    /// Says on a claim that its volume did not grow, and whether that is the end of it: where the driver will never do it, and where
    /// the claim asks for another size by now. Then its resizer begins anew with that one.
    async fn mark_failed(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        claim: &PersistentVolumeClaim,
        key: &str,
        (new, is_infeasible): (Quantity, bool),
        why: &str,
    ) {
        let mut change = json!({"conditions": conditions(claim, Some(why), Time(clock::now_seconds()))});
        let is_again = !self.refused.lock().insert(key.to_owned());
        if is_infeasible || (is_again && wanted(claim) != new) {
            change["allocatedResourceStatuses"] = json!({STORAGE: "NodeResizeInfeasible"});
        }
        if let Err(error) = self.mark(claims, claim, change).await {
            tracing::warn!(claim = claim.metadata.name, error, "a claim does not say that its volume did not grow");
        }
    }

    async fn expand(&self, held: &Held, new: Quantity) -> Result<(), Failure> {
        let name = &held.volume.driver;
        let driver = self.drivers.get(name).map_err(Failure::Unable)?;
        let abilities = driver.abilities().await.map_err(|status| {
            Failure::Unable(format!(
                "Expander.NodeExpand failed to check if node supports expansion : {}",
                grpc::words(&status)
            ))
        })?;
        if !abilities.contains(&Ability::ExpandVolume) {
            let why = format!("NodeExpand is not supported by the CSI driver {name}");
            return Err(Failure::Unsupported(why));
        }
        let path = |path: &Path| path.display().to_string();
        let request = ExpandRequest {
            volume_id: held.volume.handle.clone(),
            volume_path: path(&held.target),
            capacity_range: Some(CapacityRange { required_bytes: new.value(), limit_bytes: 0 }),
            staging_target_path: held.staged.as_deref().map(path).unwrap_or_default(),
            volume_capability: Some(held.volume.capability(&abilities, None, &held.record.label)),
            secrets: self.expand_secrets(held).await.map_err(Failure::Unable)?,
        };
        driver.call::<_, ExpandResponse>(EXPAND, request).await.map(drop).map_err(Failure::Call)
    }

    async fn expand_secrets(&self, held: &Held) -> Result<BTreeMap<String, String>, String> {
        let Some((namespace, name)) = &held.volume.expand_secret else { return Ok(BTreeMap::new()) };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let failed = |why: String| format!("failed to get NodeExpandSecretRef {namespace}/{name}: {why}");
        let found = secrets.get(name).await.map_err(|error| failed(error.to_string()))?;
        let text = |data: ByteString| String::from_utf8_lossy(&data.0).into_owned();
        Ok(found.data.into_iter().flatten().map(|(key, data)| (key, text(data))).collect())
    }

    /// Changes the status of a claim, if nobody else has meanwhile.
    async fn mark(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        claim: &PersistentVolumeClaim,
        status: Value,
    ) -> Result<PersistentVolumeClaim, String> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let metadata = json!({"resourceVersion": claim.metadata.resource_version});
        let patch = json!({"metadata": metadata, "status": status});
        claims.strategic_patch(name, "status", patch).await.map_err(|error| error.to_string())
    }

    fn say(&self, held: &Held, claim: &PersistentVolumeClaim, kind: EventKind, reason: &str, text: &str) {
        (self.tell)(&held.pod, kind, reason, text);
        (self.tell)(&reference(claim), kind, reason, text);
    }

    /// Looks at the volumes that Pods have, for ever.
    pub async fn follow_sizes(self: Arc<Self>) {
        loop {
            clock::sleep(LOOK).await;
            let all: Vec<Arc<Held>> = self.held.lock().values().cloned().collect();
            // A driver that hangs keeps no other volume, and nobody's mount.
            futures::future::join_all(all.iter().map(|held| self.grow_in_use(held))).await;
        }
    }

    async fn grow_in_use(&self, held: &Held) {
        let _turn = self.turns.take(&held.record).await;
        if let Err(VolumeError::Expansion { volume, why }) = self.grow(held).await {
            let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {volume:?} : {why}");
            (self.tell)(&held.pod, EventKind::Warning, "VolumeResizeFailed", &text);
        }
    }
}

enum Failure {
    Call(Status),
    /// The driver has no such call.
    Unsupported(String),
    Unable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(capacity: &str, state: Option<&str>, conditions: &[&str]) -> PersistentVolumeClaim {
        let conditions: Vec<_> = conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
        let status = json!({"capacity": {"storage": capacity}, "allocatedResourceStatuses": {"storage": state},
            "conditions": conditions});
        let mut claim = json!({"metadata": {"name": "c"}, "status": status});
        if state.is_none() {
            claim["status"]["allocatedResourceStatuses"] = json!({});
        }
        json::from_value(claim).unwrap()
    }

    #[test]
    fn a_node_expands_what_the_controller_left_to_it() {
        let check = |capacity: &str, state: Option<&str>, known: &str, expected: Way| {
            let size = |text: &str| quantity::parse(&Amount(text.to_owned()));
            let way = way(&claim(capacity, state, &[]), size("2Gi"), size(known));
            assert_eq!(way, expected, "{capacity} {state:?} {known}");
        };
        check("1Gi", Some("NodeResizePending"), "1Gi", Way::Expand);
        check("1Gi", Some("NodeResizeInProgress"), "1Gi", Way::Expand);
        check("1Gi", Some("NodeResizeInfeasible"), "1Gi", Way::Nothing);
        check("1Gi", Some("ControllerResizeInProgress"), "1Gi", Way::Nothing);
        check("1Gi", None, "1Gi", Way::Nothing);
        check("2Gi", None, "2Gi", Way::Nothing);
        check("2Gi", None, "1Gi", Way::Nothing);
    }

    #[test]
    fn what_several_nodes_have_each_of_them_expands_unless_the_driver_did_all_of_it() {
        let check = |mode: &str, annotations: Value, known: &str, expected: Way| {
            let size = |text: &str| quantity::parse(&Amount(text.to_owned()));
            let claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": {"accessModes": [mode]},
                "status": {"capacity": {"storage": "2Gi"}}});
            assert_eq!(way(&json::from_value(claim).unwrap(), size("2Gi"), size(known)), expected, "{mode} {known}");
        };
        check("ReadWriteMany", json!({}), "1Gi", Way::ExpandToo);
        check("ReadWriteMany", json!({}), "2Gi", Way::Nothing);
        check("ReadWriteMany", json!({NOT_REQUIRED: "true"}), "1Gi", Way::Nothing);
        check("ReadWriteOnce", json!({}), "1Gi", Way::Nothing);
    }

    #[test]
    fn what_is_said_of_a_resize_goes_with_it_and_nothing_else_does() {
        let now = || Time(clock::now_seconds());
        let held = claim("1Gi", None, &["Resizing", "NodeResizeError", "ModifyVolumeError"]);
        let gone = |name: &str| json!({"$patch": "delete", "type": name});
        assert_eq!(conditions(&held, None, now()), [gone("Resizing"), gone("NodeResizeError")]);
        let failed = conditions(&held, Some("no"), now());
        assert_eq!((failed.len(), failed[0]["type"].as_str()), (1, Some("NodeResizeError")));
        assert_eq!(failed[0]["message"], "failed to expand pvc with: no");
    }
}
