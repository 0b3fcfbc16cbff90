//! Local volumes: folders of nodes that are made for claims. Rules of their controllers, the kubelet and the control plane,
//! who speak with each other through annotations.
//!
//! A node writes onto its Node object where its volumes are and how much room there is. A controller writes onto it which
//! volumes are to be removed, and the node writes back which are gone. So a node needs no right on any volume.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use super::volume::{PROVISIONED_BY, annotation};

/// The provisioner that classes name. Its CSIDriver object says that it tells how much room there is; no driver answers
/// to that name.
pub const PROVISIONER: &str = "local.skiff.dev";
/// On a Node, by the node: where its local volumes are, and how much room there is. See [`Offer`].
const OFFERED: &str = "skiff.dev/local-volumes";
/// On a Node, by a controller: the volumes that are to be removed.
pub const TO_REMOVE: &str = "skiff.dev/local-volumes-to-remove";
/// On a Node, by the node: those of them that are gone.
pub const REMOVED: &str = "skiff.dev/local-volumes-removed";
/// On a volume: the Node object of the node that has it.
pub const NODE: &str = "skiff.dev/local-volume-node";
/// On a volume: its folder is to be removed before it goes.
pub const FINALIZER: &str = "skiff.dev/local-volume";
/// The label of a node that volumes and capacities point at.
pub const HOST_NAME: &str = "kubernetes.io/hostname";

/// The most volumes that a node is asked to remove at a time.
pub const MOST_REMOVALS: usize = 64;
/// A longer path of a folder is not believed: a volume's name must find room behind it.
const LONGEST_FOLDER: usize = 1024;

/// The offer of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The folder of all local volumes of the node.
    pub folder: String,
    /// The bytes of the file system with that folder.
    pub size: u64,
    /// The bytes of it that nothing uses.
    pub free: u64,
}

impl Offer {
    /// The offer of a node, if it makes one that can be understood.
    pub fn of(node: &Node) -> Option<Offer> {
        let offer: Offer = json::from_text(annotation(&node.metadata, OFFERED)?).ok()?;
        let path = &offer.folder;
        let is_plain = path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        let is_folder = path.starts_with('/') && path.len() <= LONGEST_FOLDER && is_plain;
        (is_folder && !path.contains(char::is_control)).then_some(offer)
    }

    /// The annotation that says it: its name and its value.
    pub fn annotation(&self) -> (&'static str, String) {
        (OFFERED, json::to_value(self).map(|value| value.to_string()).unwrap_or_default())
    }

    /// The room for further volumes when this much has been promised to others. Others than volumes use the disk too, so
    /// there is never more than is free.
    pub fn room(&self, promised: u64) -> u64 {
        self.size.saturating_sub(promised).min(self.free)
    }

    pub fn path(&self, volume: &str) -> String {
        format!("{}/{volume}", self.folder)
    }
}

/// The name of the volume that is made for a claim with this UID, and of its folder.
pub fn name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// Whether this can be the name of a local volume, and so of a folder: nothing else is ever made or removed.
pub fn is_name(name: &str) -> bool {
    name.strip_prefix("pvc-").is_some_and(|uid| {
        let is_part = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || byte == b'-';
        (1..=64).contains(&uid.len()) && uid.bytes().all(is_part)
    })
}

/// The names in an annotation, without those that no local volume can have.
pub fn names<'a>(meta: &'a ObjectMeta, list: &str) -> BTreeSet<&'a str> {
    let names = annotation(meta, list).unwrap_or("").split(',').filter(|name| is_name(name));
    names.take(MOST_REMOVALS).collect()
}

/// The value of an annotation with these names; nothing when there are none.
pub fn text<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// The Node of the node that has a volume, if it is a local one that was made for a claim.
pub fn node_of(volume: &PersistentVolume) -> Option<&str> {
    let is_local = annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
        && volume.metadata.name.as_deref().is_some_and(is_name);
    annotation(&volume.metadata, NODE).filter(|_| is_local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::{Value, json};

    fn node(annotations: Value) -> Node {
        json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
    }

    #[test]
    fn an_offer_survives_the_way_and_a_strange_one_is_none() {
        let offer = Offer { folder: "/var/lib/skiff/local-volumes".to_owned(), size: 100, free: 40 };
        let (name, text) = offer.annotation();
        assert_eq!(Offer::of(&node(json!({name: text}))), Some(offer.clone()));
        assert_eq!([0, 50, 70, 200].map(|promised| offer.room(promised)), [40, 40, 30, 0]);
        let check = |text: &str| assert_eq!(Offer::of(&node(json!({OFFERED: text}))), None, "{text}");
        for folder in ["", "relative", "/a/../etc", "/a//b", "/a/", "/./a", "/a\\nb", &format!("/{}", "x".repeat(1024))]
        {
            check(&format!("{{\"folder\": \"{folder}\", \"size\": 1, \"free\": 1}}"));
        }
        for text in ["", "x", "{}", "{\"folder\": \"/a\", \"size\": -1, \"free\": 1}", "[]"] {
            check(text);
        }
        check("{\"folder\": \"/a\", \"size\": 1, \"free\": 1, \"more\": 1}");
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let good = name("0b3ab2a8-9d3c-4d69-8f4c-8a4a5f2f8a11");
        assert!(is_name(&good));
        for bad in [
            "",
            "pvc-",
            "pvc-..",
            "pvc-a/b",
            "../pvc-a",
            "pvc-A",
            "data",
            "pvc-a\0",
            &format!("pvc-{}", "a".repeat(65)),
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
        let listed = node(json!({TO_REMOVE: format!("{good},../etc,pvc-b,,pvc-a/../..")}));
        let names: Vec<_> = names(&listed.metadata, TO_REMOVE).into_iter().collect();
        assert_eq!(names, [good.as_str(), "pvc-b"]);
        assert_eq!(text(names), Some(format!("{good},pvc-b")));
        assert_eq!(text([]), None);
    }

    #[test]
    fn a_list_of_removals_has_an_end() {
        let all: Vec<String> = (0..MOST_REMOVALS + 9).map(|i| format!("pvc-{i}")).collect();
        let listed = node(json!({TO_REMOVE: all.join(",")}));
        assert_eq!(names(&listed.metadata, TO_REMOVE).len(), MOST_REMOVALS);
    }

    #[test]
    fn only_volumes_of_this_provisioner_are_local_ones() {
        let check = |name: &str, by: &str, expected: Option<&str>| {
            let volume = json!({"metadata": {"name": name, "annotations": {PROVISIONED_BY: by, NODE: "n"}}});
            let volume: PersistentVolume = json::from_value(volume).unwrap();
            assert_eq!(node_of(&volume), expected, "{name} {by}");
        };
        check("pvc-1", PROVISIONER, Some("n"));
        check("pvc-1", "rancher.io/local-path", None);
        check("data", PROVISIONER, None);
    }
}
