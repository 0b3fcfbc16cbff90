//! A volume of a driver as a Pod uses it, and what a CSIDriver object says of how it is to be used. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::{CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, Pod, SecretReference},
    storage::v1::{CSIDriver, TokenRequest},
};

use crate::{
    csi::{
        messages::{Ability, AccessMode, AccessType, Empty, Mode, MountVolume, VolumeCapability},
        record::{Progress, Record, hex},
    },
    pod::spec::selinux,
};

/// A Secret by its namespace and its name.
pub type SecretName = (String, String);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Volume {
    /// Of the PersistentVolume, or of the Pod's own volume.
    pub name: String,
    pub driver: String,
    pub handle: String,
    /// It is a part of the Pod, and lives as long as the Pod does.
    pub is_inline: bool,
    pub is_block: bool,
    pub read_only: bool,
    pub fs_type: String,
    pub mount_options: Vec<String>,
    pub access_modes: Vec<String>,
    pub attributes: BTreeMap<String, String>,
    pub stage_secret: Option<SecretName>,
    pub publish_secret: Option<SecretName>,
    pub expand_secret: Option<SecretName>,
    /// The claim that it is bound to, by its namespace and its name.
    pub claim: Option<(String, String)>,
}

fn secret(reference: Option<&SecretReference>) -> Option<SecretName> {
    let reference = reference?;
    Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
}

impl Volume {
    /// A PersistentVolume, if it is one of a driver.
    pub fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Volume> {
        let spec = volume.spec.as_ref()?;
        let source: &CSIPersistentVolumeSource = spec.csi.as_ref()?;
        Some(Volume {
            name: volume.metadata.name.clone().unwrap_or_default(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            is_inline: false,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: secret(source.node_stage_secret_ref.as_ref()),
            publish_secret: secret(source.node_publish_secret_ref.as_ref()),
            expand_secret: secret(source.node_expand_secret_ref.as_ref()),
            claim: spec.claim_ref.as_ref().and_then(|claim| Some((claim.namespace.clone()?, claim.name.clone()?))),
        })
    }

    /// A volume that is a part of a Pod.
    pub fn inline(pod: &Pod, name: &str, source: &CSIVolumeSource) -> Volume {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        Volume {
            name: name.to_owned(),
            driver: source.driver.clone(),
            handle: format!("csi-{}", hex(&format!("{uid}{name}"))),
            is_inline: true,
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            publish_secret: source.node_publish_secret_ref.as_ref().map(|secret| (namespace, secret.name.clone())),
            ..Volume::default()
        }
    }

    /// The record that is written down of it.
    pub fn record(&self, node_name: &str) -> Record {
        let (driver, handle) = (&self.driver, &self.handle);
        Record {
            name: self.name.clone(),
            handle: handle.clone(),
            driver: driver.clone(),
            node_name: node_name.to_owned(),
            attachment: format!("csi-{}", hex(&format!("{handle}{driver}{node_name}"))),
            lifecycle: if self.is_inline { "Ephemeral" } else { "Persistent" }.to_owned(),
            volume_mode: if self.is_block { "Block" } else { "" }.to_owned(),
            progress: Progress::Nothing,
            attached_as: String::new(),
            label: String::new(),
        }
    }

    /// Its name in the node's status.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// The capability by which the driver is told how the volume is used. The group is for drivers that give the files
    /// to it themselves.
    pub fn capability(&self, abilities: &BTreeSet<Ability>, group: Option<u32>, label: &str) -> VolumeCapability {
        let option = (!label.is_empty()).then(|| selinux::option(label));
        let access_type = if self.is_block {
            AccessType::Block(Empty {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.iter().cloned().chain(option).collect(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            })
        };
        let mode = self.mode(abilities.contains(&Ability::SingleNodeMultiWriter)) as i32;
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
    }

    /// Of several access modes the first one counts, as upstream.
    fn mode(&self, several_writers: bool) -> Mode {
        match (self.access_modes.first().map_or("ReadWriteOnce", String::as_str), several_writers) {
            ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
            ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
            ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
            ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
            ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
            _ => Mode::Unknown,
        }
    }
}

/// The settings of a CSIDriver object, or those that hold without one.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub attach_required: bool,
    pub wants_pod: bool,
    pub republishes: bool,
    /// It can mount its volumes with an SELinux label.
    pub labels: bool,
    fs_group_policy: String,
    pub tokens: Vec<TokenRequest>,
    pub tokens_in_secrets: bool,
    /// `None` without an object.
    modes: Option<Vec<String>>,
}

impl Settings {
    pub fn of(driver: Option<CSIDriver>) -> Settings {
        let modes = driver.as_ref().map(|d| d.spec.volume_lifecycle_modes.clone().unwrap_or_default());
        let spec = driver.map(|d| d.spec).unwrap_or_default();
        Settings {
            attach_required: spec.attach_required != Some(false),
            wants_pod: spec.pod_info_on_mount == Some(true),
            republishes: spec.requires_republish == Some(true),
            labels: spec.se_linux_mount == Some(true),
            fs_group_policy: spec.fs_group_policy.unwrap_or_else(|| "ReadWriteOnceWithFSType".to_owned()),
            tokens: spec.token_requests.unwrap_or_default(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
            modes,
        }
    }

    /// Why the driver has no volumes of this lifecycle.
    pub fn lacks(&self, volume: &Volume) -> Option<String> {
        let (driver, mode) = (&volume.driver, if volume.is_inline { "Ephemeral" } else { "Persistent" });
        match &self.modes {
            None if volume.is_inline => {
                Some(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)"))
            }
            Some(modes) if !modes.iter().any(|m| m == mode) => {
                let known: Vec<String> = modes.iter().map(|m| format!("{m:?}")).collect();
                let known = known.join(" ");
                Some(format!("volume mode {mode:?} not supported by driver {driver} (only supports [{known}])"))
            }
            _ => None,
        }
    }

    /// Whether the files of a volume are given to the Pod's group here.
    pub fn gives(&self, volume: &Volume) -> bool {
        if volume.read_only || volume.is_block || self.fs_group_policy == "None" {
            return false;
        }
        let once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
        self.fs_group_policy == "File"
            || (!volume.fs_type.is_empty() && (volume.is_inline || volume.access_modes.iter().any(once)))
    }
}

/// The attributes of a Pod for a driver that asks for them.
pub fn pod_attributes(pod: &Pod, is_inline: bool) -> BTreeMap<String, String> {
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    [
        ("pod.name", pod.metadata.name.clone()),
        ("pod.namespace", pod.metadata.namespace.clone()),
        ("pod.uid", pod.metadata.uid.clone()),
        ("serviceAccount.name", account),
        ("ephemeral", Some(is_inline.to_string())),
    ]
    .map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value.unwrap_or_default()))
    .into()
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn volume(modes: &[&str], fs_type: &str) -> Volume {
        let access_modes = modes.iter().map(|m| (*m).to_owned()).collect();
        Volume { name: "pv".into(), fs_type: fs_type.into(), access_modes, ..Volume::default() }
    }

    fn settings(spec: Value) -> Settings {
        Settings::of(json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap())
    }

    #[test]
    fn access_modes_are_told_as_the_driver_knows_them() {
        use Mode::*;
        for (modes, plain, several) in [
            (&[][..], SingleNodeWriter, SingleNodeMultiWriter),
            (&["ReadWriteOnce", "ReadWriteMany"], SingleNodeWriter, SingleNodeMultiWriter),
            (&["ReadWriteOncePod"], SingleNodeWriter, SingleNodeSingleWriter),
            (&["ReadOnlyMany"], MultiNodeReaderOnly, MultiNodeReaderOnly),
            (&["ReadWriteMany"], MultiNodeMultiWriter, MultiNodeMultiWriter),
        ] {
            let volume = volume(modes, "");
            assert_eq!((volume.mode(false), volume.mode(true)), (plain, several), "{modes:?}");
        }
    }

    #[test]
    fn files_are_given_to_the_group_as_the_driver_wants_it() {
        let check = |policy: &str, modes: &[&str], fs_type: &str, expected: bool| {
            let settings = settings(json!({"fsGroupPolicy": policy}));
            assert_eq!(settings.gives(&volume(modes, fs_type)), expected, "{policy} {modes:?} {fs_type}");
            assert!(!settings.gives(&Volume { read_only: true, ..volume(modes, fs_type) }));
        };
        check("File", &["ReadWriteMany"], "", true);
        check("None", &["ReadWriteOnce"], "ext4", false);
        let once = "ReadWriteOnceWithFSType";
        check(once, &["ReadWriteOnce"], "ext4", true);
        check(once, &["ReadWriteMany", "ReadWriteOncePod"], "ext4", true);
        check(once, &["ReadWriteOnce"], "", false);
        check(once, &["ReadWriteMany"], "ext4", false);
        check(once, &[], "ext4", false);
        assert!(Settings::of(None).gives(&volume(&["ReadWriteOnce"], "ext4")));
        assert!(Settings::of(None).gives(&Volume { is_inline: true, ..volume(&[], "ext4") }));
    }

    #[test]
    fn a_driver_has_volumes_of_the_lifecycles_that_it_names() {
        let check = |settings: Settings, is_inline: bool, expected: Option<&str>| {
            let volume = Volume { is_inline, driver: "d".into(), ..Volume::default() };
            assert_eq!(settings.lacks(&volume).as_deref(), expected);
        };
        check(Settings::of(None), false, None);
        let none = "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)";
        check(Settings::of(None), true, Some(none));
        let persistent = || settings(json!({"volumeLifecycleModes": ["Persistent"]}));
        check(persistent(), false, None);
        let only = "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])";
        check(persistent(), true, Some(only));
        check(settings(json!({"volumeLifecycleModes": ["Ephemeral"]})), true, None);
    }

    #[test]
    fn an_attachment_has_the_name_that_the_controller_gives_it() {
        let volume = Volume { driver: "d".into(), handle: "h".into(), ..volume(&[], "") };
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
        let hash = "8e3bb36fda804646cae96ea9b03b4b77d9b692e45ea0ddda23cccc30a6b1c3fe";
        assert_eq!(volume.record("n1").attachment, format!("csi-{hash}"));
    }
}
