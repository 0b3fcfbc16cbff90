//! Ordering a volume from whoever makes those of a class. Only folders of a node are made here, where that is wanted
//! (`--enable-hostpath-provisioner`): the node makes the folder when the volume is used first.
//! Upstream counterpart: `provisionClaim` of the binder, and pkg/volume/hostpath.

use api::rules::volume::{BOUND_BY_CONTROLLER, PROVISIONED_BY, annotation, class_of_claim};
use client::events;
use controller::{Note, Plan, Write};
use k8s_openapi::api::{
    core::v1::{HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec},
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The provisioner that is to make the claim's volume, under the name of today and the one that old provisioners look
/// for.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// Provisioners that were part of the controller manager, and the CSI drivers that took their places.
const MOVED: &[(&str, &str)] = &[
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// Makes folders of a node, for tests and clusters of one node.
pub const HOST_PATH: &str = "kubernetes.io/host-path";
/// Below it are the folders that it makes.
const FOLDERS: &str = "/tmp/hostpath_pv";

pub fn plan(claim: &PersistentVolumeClaim, class: Option<&StorageClass>, host_paths: bool) -> Plan {
    let mut plan = Plan::default();
    let Some(class) = class else {
        let why = format!("storageclass.storage.k8s.io {:?} not found", class_of_claim(claim));
        plan.tell(Note::warning("ProvisioningFailed", why));
        return plan;
    };
    let moved = MOVED.iter().find(|(old, _)| *old == class.provisioner);
    let provisioner = moved.map_or(class.provisioner.as_str(), |(_, driver)| driver);
    if provisioner == HOST_PATH && host_paths {
        return make(claim, class);
    }
    if provisioner.starts_with("kubernetes.io/") {
        let why = format!("no volume plugin matched name: {provisioner}");
        plan.tell(Note::warning("ProvisioningFailed", why));
        return plan;
    }
    let waiting = Note::normal(
        "ExternalProvisioning",
        format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        ),
    );
    if annotation(&claim.metadata, PROVISIONER) == Some(provisioner) {
        plan.tell(waiting);
        return plan;
    }
    plan.step(order(claim, provisioner).on_success(waiting));
    plan
}

/// Writes onto the claim who is to make its volume.
fn order(claim: &PersistentVolumeClaim, provisioner: &str) -> Write {
    let mut ordered = claim.clone();
    let annotations = ordered.metadata.annotations.get_or_insert_default();
    for name in [OLD_PROVISIONER, PROVISIONER] {
        annotations.insert(name.to_owned(), provisioner.to_owned());
    }
    Write::update(&ordered).on_failure(Note::warning("ProvisioningFailed", "Error saving claim: {error}"))
}

/// Makes a volume, reserved for the claim, out of a folder that nobody else has.
fn make(claim: &PersistentVolumeClaim, class: &StorageClass) -> Plan {
    let mut plan = Plan::default();
    let name = class.metadata.name.as_deref().unwrap_or("");
    let spec = claim.spec.clone().unwrap_or_default();
    let options = class.mount_options.as_deref().unwrap_or_default();
    let wrong = if spec.data_source.is_some() {
        let only = "Only CSI plugin can provision a claim with a datasource";
        Some(format!("plugin {HOST_PATH:?} is not a CSI plugin. {only}"))
    } else if !options.is_empty() {
        let all = options.join(" ");
        Some(format!(
            "Mount options are not supported by the provisioner but StorageClass {name:?} has mount options [{all}]"
        ))
    } else if spec.volume_mode.as_deref() == Some("Block") {
        let why = format!("{HOST_PATH} does not support block volume provisioning");
        Some(format!("Failed to provision volume with StorageClass {name:?}: {why}"))
    } else {
        None
    };
    if let Some(wrong) = wrong {
        plan.tell(Note::warning("ProvisioningFailed", wrong));
        return plan;
    }
    if annotation(&claim.metadata, PROVISIONER) != Some(HOST_PATH) {
        plan.step(order(claim, HOST_PATH));
        return plan;
    }
    let uid = claim.metadata.uid.as_deref().unwrap_or("");
    let annotations = [
        (BOUND_BY_CONTROLLER, "yes"),
        (PROVISIONED_BY, HOST_PATH),
        ("kubernetes.io/createdby", "hostpath-dynamic-provisioner"),
    ];
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(format!("pvc-{uid}")),
            annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some(requests.into_iter().filter(|(resource, _)| resource == "storage").collect()),
            claim_ref: Some(ObjectReference {
                resource_version: claim.metadata.resource_version.clone(),
                ..events::reference(claim)
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            host_path: Some(HostPathVolumeSource {
                path: format!("{FOLDERS}/{uid}"),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    let made = format!("Successfully provisioned volume pvc-{uid} using {HOST_PATH}");
    let failed = "Error creating provisioned PV object for claim: {error}. Deleting the volume.";
    plan.step(
        Write::create(&volume)
            .on_success(Note::normal("ProvisioningSucceeded", made))
            .on_failure(Note::warning("ProvisioningFailed", failed))
            .tolerate(&["AlreadyExists"]),
    );
    plan
}
