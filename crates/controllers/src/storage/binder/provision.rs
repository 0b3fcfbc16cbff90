//! Ordering a volume from whoever makes those of a class. Nothing in this process makes volumes.

use api::rules::volume::{annotation, class_of_claim};
use controller::{Note, Plan, Write};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};

/// What is to make the claim's volume, under the name of today and the one that old provisioners look for.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
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

pub fn plan(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Plan {
    let mut plan = Plan::default();
    let Some(class) = class else {
        let why = format!("storageclass.storage.k8s.io {:?} not found", class_of_claim(claim));
        plan.tell(Note::warning("ProvisioningFailed", why));
        return plan;
    };
    let moved = MOVED.iter().find(|(old, _)| *old == class.provisioner);
    let provisioner = moved.map_or(class.provisioner.as_str(), |(_, driver)| driver);
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
    let mut ordered = claim.clone();
    let annotations = ordered.metadata.annotations.get_or_insert_default();
    for name in [OLD_PROVISIONER, PROVISIONER] {
        annotations.insert(name.to_owned(), provisioner.to_owned());
    }
    let failed = Note::warning("ProvisioningFailed", "Error saving claim: {error}");
    plan.step(Write::update(&ordered).on_success(waiting).on_failure(failed));
    plan
}
