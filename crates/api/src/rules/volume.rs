//! Volumes and claims: which volume suits which claim, and what the annotations on them say.
//! Rules of the binder, the scheduler, the kubelet and admission.
//! Upstream counterpart: k8s.io/component-helpers/storage/volume.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    node_affinity,
    quantity::{self, Quantity},
    selector::{Labels, Selector},
};

/// On a claim: both sides of its binding have been written once.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a volume or a claim: its reference to the other was written by a binder, not by a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a claim: the node of the Pod that it waits for, written by the scheduler.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a volume: the name of what made it for a claim.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume that has grown: the size of its file system, which is to grow after it.
pub const SIZE_BEFORE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// The provisioner of classes whose volumes somebody makes by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The class of claims and volumes before they had a field for it.
pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const FILESYSTEM: &str = "Filesystem";

/// An annotation's value.
pub fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The class that a claim names. Empty when it names none, or wants none.
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let field = || claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref());
    annotation(&claim.metadata, CLASS).or_else(field).unwrap_or("")
}

/// Whether a claim says itself which class it wants, even if that is none.
pub fn names_class(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata, CLASS).is_some() || claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_some())
}

pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let field = || volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref());
    annotation(&volume.metadata, CLASS).or_else(field).unwrap_or("")
}

/// The volume that a claim names; empty when it names none.
pub fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or("")
}

/// Upstream's name of the plugin of a driver's volumes, in metrics.
pub fn driver_plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// Upstream's name of a volume's plugin, in metrics. `N/A` where nobody knows one.
pub fn plugin_of(volume: &PersistentVolume) -> String {
    let Some(spec) = &volume.spec else { return "N/A".to_owned() };
    if let Some(source) = &spec.csi {
        return driver_plugin(&source.driver);
    }
    let name = match () {
        () if spec.local.is_some() => "kubernetes.io/local-volume",
        () if spec.host_path.is_some() => "kubernetes.io/host-path",
        () if spec.nfs.is_some() => "kubernetes.io/nfs",
        () if spec.iscsi.is_some() => "kubernetes.io/iscsi",
        () if spec.fc.is_some() => "kubernetes.io/fc",
        () => "N/A",
    };
    name.to_owned()
}

pub fn is_bind_completed(claim: &PersistentVolumeClaim) -> bool {
    annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// Claims of such a class get their volume when a Pod that uses them gets its node.
pub fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Whether claims that name no class may get this one.
pub fn is_default_class(class: &ObjectMeta) -> bool {
    DEFAULT_CLASS.iter().any(|name| annotation(class, name) == Some("true"))
}

/// The class of claims that name none: of several defaults the newest, and of those of the same second the first by name.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a ObjectMeta>) -> Option<&'a str> {
    newest(classes.into_iter().filter(|class| is_default_class(class)))
}

/// The newest of some objects, and of those of the same second the first by name.
pub fn newest<'a>(objects: impl IntoIterator<Item = &'a ObjectMeta>) -> Option<&'a str> {
    let newest_first = |object: &&ObjectMeta| {
        (std::cmp::Reverse(object.creation_timestamp.as_ref().map(|time| time.0)), object.name.clone())
    };
    objects.into_iter().min_by_key(newest_first)?.name.as_deref()
}

/// The wish of a claim for a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    namespace: String,
    name: String,
    uid: String,
    pub class: String,
    pub size: Quantity,
    pub access_modes: Vec<String>,
    mode: String,
    attributes: String,
    selector: Option<Selector>,
}

impl Wish {
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
        let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
        Wish {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            class: class_of_claim(claim).to_owned(),
            size: requests.and_then(|r| r.get("storage")).map(quantity::parse).unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            mode: spec.volume_mode.unwrap_or_else(|| FILESYSTEM.to_owned()),
            attributes: spec.volume_attributes_class_name.unwrap_or_default(),
            selector: spec.selector.as_ref().map(|s| Selector::of_object(Some(s)).unwrap_or(Selector::NOTHING)),
        }
    }

    /// Whether one Pod alone may use the claim.
    pub fn is_for_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

/// The offer of a volume to claims. Cheap to make.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    volume: &'a PersistentVolume,
    pub size: Quantity,
}

impl<'a> Offer<'a> {
    pub fn of(volume: &'a PersistentVolume) -> Self {
        let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
        Offer { volume, size: capacity.map(quantity::parse).unwrap_or_default() }
    }

    /// The claim that the volume is reserved for or bound to.
    pub fn claim(&self) -> Option<&'a ObjectReference> {
        self.volume.spec.as_ref()?.claim_ref.as_ref()
    }

    pub fn access_modes(&self) -> &'a [String] {
        self.volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default()
    }

    /// Any claim may have it.
    pub fn is_free(&self) -> bool {
        let phase = self.volume.status.as_ref().and_then(|s| s.phase.as_deref());
        self.claim().is_none() && phase == Some("Available") && !self.is_leaving()
    }

    fn is_leaving(&self) -> bool {
        self.volume.metadata.deletion_timestamp.is_some()
    }

    /// Whether the volume is reserved for the claim or bound to it. A reservation by name, without UID, is for whatever
    /// claim has the name.
    pub fn is_for(&self, wish: &Wish) -> bool {
        let text = |t: &'a Option<String>| t.as_deref().unwrap_or("");
        self.claim().is_some_and(|claim| {
            text(&claim.namespace) == wish.namespace
                && text(&claim.name) == wish.name
                && (text(&claim.uid).is_empty() || text(&claim.uid) == wish.uid)
        })
    }

    pub fn has_mode_of(&self, wish: &Wish) -> bool {
        self.volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref()).unwrap_or(FILESYSTEM) == wish.mode
    }

    /// The class of attributes that the volume has.
    fn attributes(&self) -> &'a str {
        self.volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref()).unwrap_or("")
    }

    fn gives_access(&self, wish: &Wish) -> bool {
        wish.access_modes.iter().all(|mode| self.access_modes().contains(mode))
    }

    /// Why a volume that nobody has cannot become that of a claim that names it.
    pub fn mismatch(&self, wish: &Wish) -> Option<String> {
        let why = match () {
            () if self.is_leaving() => {
                let name = self.volume.metadata.name.as_deref().unwrap_or("");
                return Some(format!("the volume is marked for deletion {name:?}"));
            }
            () if self.size < wish.size => "requested PV is too small",
            () if class_of_volume(self.volume) != wish.class => "storageClassName does not match",
            () if self.attributes() != wish.attributes => "volumeAttributesClassName does not match",
            () if !self.has_mode_of(wish) => "incompatible volumeMode",
            () if !self.gives_access(wish) => "incompatible accessMode",
            () => return None,
        };
        Some(why.to_owned())
    }

    /// Whether the volume can become that of a claim that names none.
    pub fn suits(&self, wish: &Wish) -> bool {
        let none = BTreeMap::new();
        let labels = self.volume.metadata.labels.as_ref().unwrap_or(&none);
        let open = self.is_free()
            && class_of_volume(self.volume) == wish.class
            && wish.selector.as_ref().is_none_or(|selector| selector.matches(labels));
        (open || (self.is_for(wish) && !self.is_leaving()))
            && self.size >= wish.size
            && self.has_mode_of(wish)
            && self.attributes() == wish.attributes
            && self.gives_access(wish)
    }

    /// Whether a Pod on this node can use the volume.
    pub fn reaches(&self, node: &str, labels: &impl Labels) -> bool {
        let affinity = self.volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
        affinity.and_then(|a| a.required.as_ref()).is_none_or(|nodes| node_affinity::matches(nodes, labels, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    /// `size:word:word`: a claim, or a volume, with the words rwx (else rwo), block, gold (a class), silver (an attributes
    /// class), blue (a label, or a selector for it), and for volumes also claimed, reserved, others, leaving, released.
    fn parts(text: &str) -> (&str, Vec<&str>) {
        let mut words = text.split(':');
        (words.next().unwrap(), words.collect())
    }

    fn wish(text: &str) -> Wish {
        let (size, words) = parts(text);
        let has = |word: &str| words.contains(&word);
        let claim = json!({"metadata": {"namespace": "d", "name": "c", "uid": "u"}, "spec": {
            "accessModes": [if has("rwx") { "ReadWriteMany" } else { "ReadWriteOnce" }],
            "volumeMode": has("block").then_some("Block"), "storageClassName": has("gold").then_some("gold"),
            "volumeAttributesClassName": has("silver").then_some("silver"),
            "selector": has("blue").then(|| json!({"matchLabels": {"colour": "blue"}})),
            "resources": {"requests": {"storage": size}}}});
        Wish::of(&json::from_value(claim).unwrap())
    }

    fn volume(text: &str) -> PersistentVolume {
        let (size, words) = parts(text);
        let has = |word: &str| words.contains(&word);
        let claim = match () {
            () if has("claimed") => json!({"namespace": "d", "name": "c", "uid": "u"}),
            () if has("reserved") => json!({"namespace": "d", "name": "c"}),
            () if has("others") => json!({"namespace": "d", "name": "c", "uid": "another"}),
            () => json!(null),
        };
        let volume = json!({"metadata": {"name": "v", "labels": {"colour": if has("blue") { "blue" } else { "red" }},
                "deletionTimestamp": has("leaving").then_some("2026-01-01T00:00:00Z")},
            "spec": {"capacity": {"storage": size}, "claimRef": claim, "storageClassName": has("gold").then_some("gold"),
                "accessModes": [if has("rwx") { "ReadWriteMany" } else { "ReadWriteOnce" }],
                "volumeAttributesClassName": has("silver").then_some("silver"),
                "volumeMode": has("block").then_some("Block")},
            "status": {"phase": if has("released") { "Released" } else { "Available" }}});
        json::from_value(volume).unwrap()
    }

    #[test]
    fn a_volume_suits_a_claim() {
        let check = |claim: &str, offered: &str, expected: bool| {
            assert_eq!(Offer::of(&volume(offered)).suits(&wish(claim)), expected, "{claim} on {offered}");
        };
        check("1Gi", "1Gi", true);
        check("1Gi", "1024Mi", true);
        check("1Gi", "1023Mi", false);
        check("1Gi", "2Gi:rwx", false);
        check("1Gi:block", "1Gi", false);
        check("1Gi:block", "1Gi:block", true);
        check("1Gi:gold", "1Gi", false);
        check("1Gi:gold", "1Gi:gold", true);
        check("1Gi:blue", "1Gi", false);
        check("1Gi:blue", "1Gi:blue", true);
        check("1Gi", "1Gi:silver", false);
        check("1Gi:silver", "1Gi:silver", true);
        check("1Gi", "1Gi:leaving", false);
        check("1Gi", "1Gi:released", false);
        // A volume that is reserved for the claim needs neither its class nor its labels, nor to be available yet.
        check("1Gi:gold:blue", "1Gi:reserved", true);
        check("1Gi", "1Gi:claimed:released", true);
        check("1Gi", "1Gi:others", false);
        check("2Gi", "1Gi:claimed", false);
        check("1Gi", "1Gi:claimed:leaving", false);
    }

    #[test]
    fn says_why_a_named_volume_does_not_do() {
        let check = |claim: &str, offered: &str, expected: &str| {
            assert_eq!(Offer::of(&volume(offered)).mismatch(&wish(claim)).unwrap_or_default(), expected);
        };
        check("1Gi", "1Gi", "");
        check("2Gi", "1Gi", "requested PV is too small");
        check("1Gi", "1Gi:gold", "storageClassName does not match");
        check("1Gi", "1Gi:silver", "volumeAttributesClassName does not match");
        check("1Gi:silver", "1Gi", "volumeAttributesClassName does not match");
        check("1Gi:silver", "1Gi:silver", "");
        check("1Gi", "1Gi:block", "incompatible volumeMode");
        check("1Gi", "1Gi:rwx", "incompatible accessMode");
        check("1Gi", "1Gi:leaving", "the volume is marked for deletion \"v\"");
    }

    #[test]
    fn the_newest_default_class_counts() {
        let class = |name: &str, time: &str, default: &str| -> ObjectMeta {
            let value = json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:{time}Z"),
                "annotations": {"storageclass.kubernetes.io/is-default-class": default}});
            json::from_value(value).unwrap()
        };
        let all =
            [class("a", "01", "true"), class("c", "02", "true"), class("b", "02", "true"), class("d", "03", "no")];
        assert_eq!(default_class(&all), Some("b"));
        assert_eq!(default_class(&all[3..]), None);
    }
}
