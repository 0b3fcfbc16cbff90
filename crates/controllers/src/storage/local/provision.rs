//! A volume for each claim that waits for a local one, on the node that the scheduler chose for its Pod.

use std::sync::Arc;

use api::rules::{
    local_volume::{self, HOST_NAME, Offer, PROVISIONER},
    quantity,
    volume::{PROVISIONED_BY, SELECTED_NODE, annotation, class_of_claim, volume_of, waits_for_consumer},
};
use client::{Change, Key, events};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{BY_NODE, by_node, room};
use crate::storage::binder::PROVISIONER as ORDERED_FROM;

pub struct Provision;

#[derive(Default)]
pub struct Observed {
    class: Option<Arc<StorageClass>>,
    /// The node that the scheduler chose.
    node: Option<Arc<Node>>,
    /// The local volumes that this node has.
    volumes: Vec<Arc<PersistentVolume>>,
    /// There is a volume of the claim's name.
    is_made: bool,
}

/// Whether the binder has ordered the claim's volume here, and it has none.
fn is_ordered(claim: &PersistentVolumeClaim) -> bool {
    let is_here = annotation(&claim.metadata, ORDERED_FROM) == Some(PROVISIONER);
    is_here && volume_of(claim).is_empty() && claim.metadata.deletion_timestamp.is_none()
}

fn uid(claim: &PersistentVolumeClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or("")
}

impl Controller for Provision {
    const NAME: &'static str = "local-volume-provisioner-controller";
    type Object = PersistentVolumeClaim;
    type Observed = Observed;

    fn concerns(change: &Change<PersistentVolumeClaim>) -> bool {
        change.new.as_ref().is_some_and(|claim| is_ordered(claim))
    }

    fn watches(&self, watches: &mut Watches<PersistentVolumeClaim>) {
        watches.caches().of::<PersistentVolume>().add_index(BY_NODE, by_node);
        watches.reads::<PersistentVolume>().reads::<StorageClass>().reads::<Node>();
    }

    fn observe(&self, claim: &PersistentVolumeClaim, listers: &Listers) -> Observed {
        if !is_ordered(claim) {
            return Observed::default();
        }
        let (volumes, node) =
            (listers.caches.of::<PersistentVolume>(), annotation(&claim.metadata, SELECTED_NODE).unwrap_or(""));
        Observed {
            class: listers.caches.of::<StorageClass>().get(&Key::new("", class_of_claim(claim))),
            node: listers.caches.of::<Node>().get(&Key::new("", node)),
            volumes: volumes.by_index(BY_NODE, node),
            is_made: volumes.get(&Key::new("", local_volume::name(uid(claim)))).is_some(),
        }
    }

    fn plan(&self, claim: &PersistentVolumeClaim, observed: &Observed, _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let class = observed.class.as_deref().filter(|class| class.provisioner == PROVISIONER);
        let Some(class) = class.filter(|_| is_ordered(claim) && !observed.is_made) else { return plan };
        let node = annotation(&claim.metadata, SELECTED_NODE);
        if node.is_none() && waits_for_consumer(class) {
            return plan;
        }
        let class_name = class.metadata.name.as_deref().unwrap_or("");
        let failed = |why: &str| {
            let why = format!("failed to provision volume with StorageClass {class_name:?}: {why}");
            Note::warning("ProvisioningFailed", why)
        };
        if let Some(why) = fault(claim, class) {
            plan.tell(failed(&why));
            return plan;
        }
        let Some(node) = node else {
            let why = "local volumes are made on the node of the first Pod that uses the claim; set volumeBindingMode: \
                       WaitForFirstConsumer in the class";
            plan.tell(failed(why));
            return plan;
        };
        match place(claim, node, observed) {
            Ok(place) => {
                let key = Key::of(claim).to_string();
                let begun = format!("External provisioner is provisioning volume for claim {key:?}");
                let made = format!("Successfully provisioned volume {}", local_volume::name(uid(claim)));
                plan.tell(Note::normal("Provisioning", begun));
                plan.step(
                    Write::create(&volume(claim, class, &place))
                        .on_success(Note::normal("ProvisioningSucceeded", made))
                        .on_failure(failed("{error}"))
                        .tolerate(&["AlreadyExists"]),
                );
            }
            Err(why) => {
                plan.tell(failed(&why));
                // The scheduler chooses again.
                let mut free = claim.clone();
                free.metadata.annotations.get_or_insert_default().remove(SELECTED_NODE);
                plan.step(Write::update(&free));
            }
        }
        plan
    }
}

/// The wishes of a claim and a class that no folder of a node fulfils.
fn fault(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<String> {
    let spec = claim.spec.clone().unwrap_or_default();
    let modes = spec.access_modes.unwrap_or_default();
    let shared = modes.iter().find(|mode| !matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"));
    if let Some(mode) = shared {
        return Some(format!(
            "the claim asks for the access mode {mode}, and a local volume is on one node; it gives ReadWriteOnce and \
             ReadWriteOncePod"
        ));
    }
    let is_some = |what: &[String]| !what.is_empty();
    match () {
        () if spec.volume_mode.as_deref() == Some("Block") => Some("a local volume is a folder, not a block device"),
        () if spec.selector.is_some() => Some("the claim has a selector, and a new volume has no labels"),
        () if spec.data_source.is_some() || spec.data_source_ref.is_some() => {
            Some("a local volume begins empty, and the claim has a data source")
        }
        () if class.mount_options.as_deref().is_some_and(is_some) => {
            Some("a local volume is not mounted, and the class has mountOptions")
        }
        () if class.parameters.as_ref().is_some_and(|parameters| !parameters.is_empty()) => {
            Some("local volumes have no parameters, and the class has some")
        }
        () => None,
    }
    .map(str::to_owned)
}

/// The place of a new volume.
struct Place<'a> {
    node: &'a str,
    host: &'a str,
    offer: Offer,
}

/// Where the volume of the claim is to be, or why it cannot be on the node that was chosen. Of two claims that are looked at
/// in one moment each finds the room that is there for one: nothing here holds a disk's end.
fn place<'a>(claim: &PersistentVolumeClaim, name: &'a str, observed: &'a Observed) -> Result<Place<'a>, String> {
    let node = observed.node.as_deref().ok_or_else(|| format!("node {name:?} not found"))?;
    let offer = Offer::of(node).ok_or_else(|| format!("node {name:?} makes no local volumes"))?;
    let host = node.metadata.labels.as_ref().and_then(|labels| labels.get(HOST_NAME));
    let host = host.ok_or_else(|| format!("node {name:?} has no label {HOST_NAME}"))?;
    let room = room(&offer, observed.volumes.iter().map(|volume| &**volume));
    let asked = quantity::parse(&wanted(claim)).value().unsigned_abs();
    if asked > room {
        return Err(format!("not enough free storage on node {name:?}: {asked} bytes are asked for, {room} are left"));
    }
    Ok(Place { node: name, host, offer })
}

fn wanted(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).cloned().unwrap_or_default()
}

/// The volume, reserved for the claim.
fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, place: &Place) -> PersistentVolume {
    let name = local_volume::name(uid(claim));
    let affinity = json::json!({"key": HOST_NAME, "operator": "In", "values": [place.host]});
    let volume = json::json!({
        "metadata": {
            "name": name, "finalizers": [local_volume::FINALIZER],
            "annotations": {PROVISIONED_BY: PROVISIONER, local_volume::NODE: place.node},
        },
        "spec": {
            "accessModes": claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
            "capacity": {"storage": wanted(claim)},
            "claimRef": events::reference(claim),
            "local": {"path": place.offer.path(&name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [affinity]}]}},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "volumeMode": "Filesystem",
        },
    });
    json::from_value(volume).expect("the fields of a volume")
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller::Step;
    use json::{Value, json};

    fn claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
        let mut wanted = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": "local"});
        for (name, value) in spec.as_object().unwrap() {
            wanted[name] = value.clone();
        }
        let meta = json!({"name": "data", "namespace": "d", "uid": "1-a", "annotations": annotations});
        json::from_value(json!({"metadata": meta, "spec": wanted})).unwrap()
    }

    fn ordered(node: Option<&str>) -> Value {
        match node {
            Some(node) => json!({ORDERED_FROM: PROVISIONER, SELECTED_NODE: node}),
            None => json!({ORDERED_FROM: PROVISIONER}),
        }
    }

    fn class(mode: &str, more: Value) -> StorageClass {
        let mut class = json!({"metadata": {"name": "local"}, "provisioner": PROVISIONER, "volumeBindingMode": mode,
            "reclaimPolicy": "Delete"});
        for (name, value) in more.as_object().unwrap() {
            class[name] = value.clone();
        }
        json::from_value(class).unwrap()
    }

    fn observed(class: StorageClass, free_gib: u64) -> Observed {
        let offer = Offer { folder: "/v".to_owned(), size: 25 << 30, free: free_gib << 30 };
        let (name, text) = offer.annotation();
        let node = json!({"metadata": {"name": "n", "labels": {HOST_NAME: "host"}, "annotations": {name: text}}});
        Observed {
            class: Some(Arc::new(class)),
            node: Some(Arc::new(json::from_value(node).unwrap())),
            volumes: Vec::new(),
            is_made: false,
        }
    }

    /// The reasons of events, with the writes between them.
    fn told(plan: &Plan) -> String {
        let of = |step: &Step| match step {
            Step::Tell(note) => format!("{}: {}", note.reason, note.message),
            _ => String::new(),
        };
        let notes: Vec<String> = plan.steps.iter().map(of).filter(|text| !text.is_empty()).collect();
        format!("{plan} | {}", notes.join(", "))
    }

    fn late() -> StorageClass {
        class("WaitForFirstConsumer", json!({}))
    }

    #[test]
    fn a_volume_is_made_where_the_scheduler_has_put_the_pod() {
        let plan = Provision.plan(&claim(ordered(Some("n")), json!({})), &observed(late(), 20), Timestamp::UNIX_EPOCH);
        let text = "create persistentvolumes pvc-1-a | Provisioning: External provisioner is provisioning volume for claim \"d/data\"";
        assert_eq!(told(&plan), text);
        let write = plan.writes().next().unwrap();
        let body = write.body();
        let made = write.on_success.as_ref().unwrap();
        assert_eq!(
            (made.reason.as_str(), made.message.as_str()),
            ("ProvisioningSucceeded", "Successfully provisioned volume pvc-1-a")
        );
        assert_eq!(body["spec"]["local"]["path"], "/v/pvc-1-a");
        assert_eq!(body["spec"]["claimRef"]["uid"], "1-a");
        assert_eq!(body["spec"]["persistentVolumeReclaimPolicy"], "Delete");
        let affinity = &body["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!((&affinity["key"], &affinity["values"]), (&json!(HOST_NAME), &json!(["host"])));
        assert_eq!(body["metadata"]["annotations"], json!({PROVISIONED_BY: PROVISIONER, local_volume::NODE: "n"}));
        assert_eq!(body["metadata"]["finalizers"], json!([local_volume::FINALIZER]));
    }

    #[test]
    fn nothing_is_made_that_nobody_ordered_here_or_that_is_there() {
        let check = |claim: PersistentVolumeClaim, observed: Observed| {
            let plan = Provision.plan(&claim, &observed, Timestamp::UNIX_EPOCH);
            assert_eq!(told(&plan), " | ");
        };
        check(claim(json!({SELECTED_NODE: "n"}), json!({})), observed(late(), 20));
        check(claim(json!({ORDERED_FROM: "other.io", SELECTED_NODE: "n"}), json!({})), observed(late(), 20));
        check(claim(ordered(None), json!({})), observed(late(), 20));
        check(claim(ordered(Some("n")), json!({"volumeName": "v"})), observed(late(), 20));
        check(claim(ordered(Some("n")), json!({})), Observed { is_made: true, ..observed(late(), 20) });
        check(claim(ordered(Some("n")), json!({})), Observed { class: None, ..observed(late(), 20) });
        let foreign = class("WaitForFirstConsumer", json!({"provisioner": "other.io"}));
        check(claim(ordered(Some("n")), json!({})), observed(foreign, 20));
    }

    #[test]
    fn a_node_without_room_is_given_back_to_the_scheduler() {
        let check = |observed: Observed, why: &str| {
            let plan = Provision.plan(&claim(ordered(Some("n")), json!({})), &observed, Timestamp::UNIX_EPOCH);
            let expected = format!(
                "update persistentvolumeclaims data | ProvisioningFailed: failed to provision volume with StorageClass \"local\": {why}"
            );
            assert_eq!(told(&plan), expected);
            let written = plan.writes().next().unwrap().body();
            assert_eq!(written["metadata"]["annotations"], json!({ORDERED_FROM: PROVISIONER}));
        };
        let full = "not enough free storage on node \"n\": 10737418240 bytes are asked for, ";
        check(observed(late(), 9), &format!("{full}{} are left", 9_u64 << 30));
        let volumes = ["pvc-8", "pvc-9"].map(|name| Arc::new(super::super::example(name, "n", "Bound"))).to_vec();
        check(Observed { volumes, ..observed(late(), 20) }, &format!("{full}{} are left", 5_u64 << 30));
        check(Observed { node: None, ..observed(late(), 20) }, "node \"n\" not found");
        let plain: Node = json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let observed = Observed { node: Some(Arc::new(plain)), ..observed(late(), 20) };
        check(observed, "node \"n\" makes no local volumes");
    }

    #[test]
    fn wishes_that_no_folder_fulfils_are_told() {
        let check = |spec: Value, more: Value, word: &str| {
            let class = class("WaitForFirstConsumer", more);
            let plan = Provision.plan(&claim(ordered(Some("n")), spec), &observed(class, 20), Timestamp::UNIX_EPOCH);
            let told = told(&plan);
            assert!(told.starts_with(" | ProvisioningFailed") && told.contains(word), "{told}");
        };
        check(json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}), json!({}), "ReadWriteMany");
        check(json!({"volumeMode": "Block"}), json!({}), "block device");
        check(json!({"selector": {}}), json!({}), "selector");
        check(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}), json!({}), "data source");
        check(json!({}), json!({"mountOptions": ["ro"]}), "mountOptions");
        check(json!({}), json!({"parameters": {"path": "/etc"}}), "parameters");
        let plan = Provision.plan(
            &claim(ordered(None), json!({})),
            &observed(class("Immediate", json!({})), 20),
            Timestamp::UNIX_EPOCH,
        );
        assert!(told(&plan).contains("volumeBindingMode: WaitForFirstConsumer"), "{}", told(&plan));
    }
}
