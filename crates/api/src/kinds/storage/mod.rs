//! StorageClass, the CSI kinds, VolumeAttachment and VolumeAttributesClass: where volumes come from.

mod validate;

use json::Value;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
};
use serde::Deserialize;

use crate::kind::cell;
use crate::kind::{Column, Generation, Kind, StatusMetadata, age, col, flag, int, name};

pub const CSI_DRIVER: Kind<CSIDriver> = Kind {
    unconditional_update: false,
    generation: Generation::CountsLaterChangesOf("spec"),
    default: Some(default_driver),
    validate: Some(validate::driver),
    validate_update: Some(|new, old, _| validate::driver_update(new, old)),
    columns: &[
        name(),
        flag("AttachRequired", "Whether volumes are attached before they are mounted.", |d, _| {
            Value::from(d.spec.attach_required.unwrap_or(true))
        }),
        flag("PodInfoOnMount", "Whether the driver hears about the Pod.", |d, _| {
            Value::from(d.spec.pod_info_on_mount.unwrap_or(false))
        }),
        flag("StorageCapacity", "Whether the driver tells how much room there is.", |d, _| {
            Value::from(d.spec.storage_capacity.unwrap_or(false))
        }),
        col("TokenRequests", "The audiences of the tokens that the driver gets.", |d, _| {
            let list =
                d.spec.token_requests.as_deref().map(|l| l.iter().map(|t| t.audience.as_str()).collect::<Vec<_>>());
            cell::shown_or(list.map(|l| l.join(",")), "<unset>")
        }),
        flag("RequiresRepublish", "Whether volumes are published again and again.", |d, _| {
            Value::from(d.spec.requires_republish.unwrap_or(false))
        }),
        col("Modes", "The lifecycles of its volumes.", |d, _| {
            let modes = d.spec.volume_lifecycle_modes.as_ref().filter(|m| !m.is_empty());
            cell::shown_or(modes.map(|m| m.join(",")), "<none>")
        }),
        age(),
    ],
    ..Kind::BASE
};

fn default_driver(driver: &mut CSIDriver) {
    let spec = &mut driver.spec;
    spec.attach_required.get_or_insert(true);
    spec.pod_info_on_mount.get_or_insert(false);
    spec.storage_capacity.get_or_insert(false);
    spec.fs_group_policy.get_or_insert_with(|| "ReadWriteOnceWithFSType".to_owned());
    if spec.volume_lifecycle_modes.as_ref().is_none_or(Vec::is_empty) {
        spec.volume_lifecycle_modes = Some(vec!["Persistent".to_owned()]);
    }
    spec.requires_republish.get_or_insert(false);
    spec.se_linux_mount.get_or_insert(false);
}

pub const CSI_NODE: Kind<CSINode> = Kind {
    unconditional_update: false,
    validate: Some(validate::node),
    validate_update: Some(|new, old, _| validate::node_update(new, old)),
    columns: &[
        name(),
        int("Drivers", "Drivers indicates the number of CSI drivers registered on the node", |n, _| {
            Value::from(n.spec.drivers.len())
        }),
        age(),
    ],
    ..Kind::BASE
};

pub const CSI_STORAGE_CAPACITY: Kind<CSIStorageCapacity> = Kind {
    unconditional_update: false,
    validate: Some(validate::capacity),
    validate_update: Some(|new, old, _| validate::capacity_update(new, old)),
    warnings: Some(|capacity, _| validate::capacity_warnings(capacity)),
    columns: &[
        name(),
        col("StorageClassName", "The storage class that the room is for.", |c, _| {
            Value::from(c.storage_class_name.as_str())
        }),
        col("Capacity", "How much room there is.", |c, _| cell::shown_or(c.capacity.as_ref().map(|q| &q.0), "<unset>")),
    ],
    ..Kind::BASE
};

pub const STORAGE_CLASS: Kind<StorageClass> = Kind {
    short: &["sc"],
    default: Some(|class| {
        class.reclaim_policy.get_or_insert_with(|| "Delete".to_owned());
        class.volume_binding_mode.get_or_insert_with(|| "Immediate".to_owned());
    }),
    validate: Some(validate::class),
    validate_update: Some(|new, old, _| validate::class_update(new, old)),
    warnings: Some(|class, _| validate::class_warnings(class)),
    columns: &[
        Column { cell: |c, _| Value::from(class_name(c)), ..name() },
        col("Provisioner", "Who makes the volumes.", |c, _| Value::from(c.provisioner.as_str())),
        col("ReclaimPolicy", "What happens to a volume when its claim goes.", |c, _| {
            cell::text_or(c.reclaim_policy.as_ref(), "Delete")
        }),
        col("VolumeBindingMode", "When a claim gets its volume.", |c, _| {
            cell::text_or(c.volume_binding_mode.as_ref(), "Immediate")
        }),
        col("AllowVolumeExpansion", "Whether volumes can grow.", |c, _| {
            cell::shown_or(Some(c.allow_volume_expansion.unwrap_or(false)), "")
        }),
        age(),
    ],
    ..Kind::BASE
};

/// The class that claims get when they name none is marked.
fn class_name(class: &StorageClass) -> String {
    let name = class.metadata.name.clone().unwrap_or_default();
    if crate::rules::volume::is_default_class(&class.metadata) { format!("{name} (default)") } else { name }
}

pub const VOLUME_ATTACHMENT: Kind<VolumeAttachment> = Kind {
    unconditional_update: false,
    status: true,
    status_metadata: StatusMetadata::Stays,
    validate: Some(validate::attachment),
    validate_status: Some(|new, _| {
        VolumeAttachment::deserialize(new).map(|a| validate::attachment(&a)).unwrap_or_default()
    }),
    validate_create: Some(validate::new_attachment),
    validate_update: Some(|new, old, _| validate::attachment_update(new, old)),
    columns: &[
        name(),
        Column {
            format: "name",
            ..col("Attacher", "The driver that attaches the volume.", |a, _| Value::from(a.spec.attacher.as_str()))
        },
        col("PV", "The volume.", |a, _| cell::text(a.spec.source.persistent_volume_name.as_ref())),
        col("Node", "The node that it is attached to.", |a, _| Value::from(a.spec.node_name.as_str())),
        flag("Attached", "Whether it is attached.", |a, _| Value::from(a.status.as_ref().is_some_and(|s| s.attached))),
        age(),
    ],
    ..Kind::BASE
};

pub const VOLUME_ATTRIBUTES_CLASS: Kind<VolumeAttributesClass> = Kind {
    short: &["vac"],
    validate: Some(validate::attributes_class),
    validate_update: Some(|new, old, _| validate::attributes_class_update(new, old)),
    columns: &[
        name(),
        col("DriverName", "The driver of the volumes.", |c, _| Value::from(c.driver_name.as_str())),
        age(),
    ],
    ..Kind::BASE
};
