//! The words about local volumes on the Node object: the node's own, and those of the control plane, which it does.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::rules::{
    local_volume::{Offer, REMOVED, TO_REMOVE, names, text},
    volume::annotation,
};
use client::{Api, Changes, Key};
use files::modes;
use json::{Value, json};
use k8s_openapi::api::core::v1::Node;

use super::LocalVolumes;
use crate::{
    kubelet::Kubelet,
    volumes::{folder::blocking, state},
};

/// How often the disk is looked at.
const EVERY: Duration = Duration::from_secs(60);
/// How soon a volume that could not be removed is tried again; then later and later. A Pod that is gone for the API server may
/// still be ending here.
const SOON: Duration = Duration::from_millis(500);

/// Keeps the annotations of the Node true for ever.
pub async fn run(kubelet: Arc<Kubelet>) {
    let Some(folder) = kubelet.local.0.clone() else { return std::future::pending().await };
    let made = blocking({
        let folder = folder.clone();
        move || modes::folder(&folder, modes::NODE_FOLDER)
    });
    if let Err(error) = made.await {
        // Pods that want such a volume say so, too.
        tracing::warn!(path = %folder.display(), %error, "the folder of local volumes cannot be made");
    }
    let api: Api<Node> = Api::all(kubelet.config.client.clone());
    let mut changes = kubelet.node.subscribe();
    let mut wait = EVERY;
    loop {
        if let Some(node) = kubelet.node.get(&Key::new("", &kubelet.config.node_name)) {
            let (local, root) = (kubelet.local.clone(), kubelet.config.root_dir.clone());
            let (patch, is_done) = blocking(move || news(&node, &local, &root)).await;
            wait = match is_done {
                true => EVERY,
                false if wait == EVERY => SOON,
                false => (wait * 2).min(EVERY / 2),
            };
            if let Some(patch) = patch
                && let Err(error) = api.merge_patch(&kubelet.config.node_name, "", patch).await
            {
                tracing::warn!(%error, "the node cannot tell about its local volumes, trying again");
            }
        }
        tokio::select! {
            () = clock::sleep(wait) => {}
            () = ordered(&mut changes) => {}
        }
    }
}

/// Until somebody asks for something else than before. Lost changes mean another look.
async fn ordered(changes: &mut Changes<Node>) {
    let order = |node: &Option<Arc<Node>>| {
        node.as_ref().and_then(|node| annotation(&node.metadata, TO_REMOVE).map(str::to_owned))
    };
    while let Ok(change) = changes.recv().await
        && change.old.is_some()
        && order(&change.old) == order(&change.new)
    {}
}

/// Does what the Node asks for; then what is to change on it, if anything is, and whether all that was asked for is done.
fn news(node: &Node, local: &LocalVolumes, kubelet_root: &Path) -> (Option<Value>, bool) {
    let asked = names(&node.metadata, TO_REMOVE);
    let gone = match asked.is_empty() {
        true => asked.clone(),
        false => local.remove(&asked, &in_use(kubelet_root)),
    };
    let is_done = gone.len() == asked.len();
    let told = Offer::of(node);
    let (nothing, gone) = (json!({}), text(gone));
    let mut changed = nothing.clone();
    if gone.as_deref() != annotation(&node.metadata, REMOVED) {
        changed[REMOVED] = json!(gone);
    }
    if let Some(offer) = local.offer(told.clone()).filter(|offer| told.as_ref() != Some(offer)) {
        let (name, value) = offer.annotation();
        changed[name] = json!(value);
    }
    let patch = (changed != nothing).then(|| json!({"metadata": {"annotations": changed}}));
    (patch, is_done)
}

/// The paths of all volumes that Pods of this node have mounted.
fn in_use(kubelet_root: &Path) -> BTreeSet<PathBuf> {
    state::of_all_pods(kubelet_root).into_iter().filter_map(|record| Some(record.mounted?.path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_node_does_what_it_is_told_and_says_so_once() {
        let dir = tempfile::tempdir().unwrap();
        let (root, folder) = (dir.path().join("kubelet"), dir.path().join("volumes"));
        for name in ["pvc-1", "pvc-2", "pvc-3"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        // A Pod that is still here has the third.
        fs::create_dir_all(root.join("pods/u")).unwrap();
        let record = json!({"data": {"plugin": "persistent-claim", "mounted": {"path": folder.join("pvc-3"), "read_only": false}}});
        fs::write(root.join("pods/u/volumes.json"), record.to_string()).unwrap();
        let local = LocalVolumes::new(Some(folder.clone()));
        let mut annotations = json!({});
        let mut tell = |order: Option<&str>| {
            annotations[TO_REMOVE] = json!(order);
            // A patch with a null takes an annotation away.
            let left = |value: &Value| !value.is_null();
            let held = annotations.as_object().unwrap().iter().filter(|(_, value)| left(value));
            let held: std::collections::BTreeMap<String, Value> =
                held.map(|(name, value)| (name.to_string(), value.clone())).collect();
            let node: Node = json::from_value(json!({"metadata": {"name": "n", "annotations": held}})).unwrap();
            let offer = Offer::of(&node);
            let (patch, is_done) = news(&node, &local, &root);
            assert_eq!(
                is_done,
                !order.is_some_and(|order| order.contains("pvc-3")) || !in_use(&root).contains(&folder.join("pvc-3"))
            );
            let patch = patch?;
            let changed = patch["metadata"]["annotations"].clone();
            for (name, value) in changed.as_object().unwrap() {
                annotations[name] = value.clone();
            }
            assert!(offer.is_none() || changed.as_object().unwrap().len() == 1, "the offer is made once");
            changed.get(REMOVED).cloned()
        };
        assert_eq!(tell(None), None);
        assert_eq!(tell(Some("pvc-1,pvc-3,/etc")), Some(json!("pvc-1")));
        assert_eq!(tell(Some("pvc-1,pvc-3,/etc")), None, "it is said once");
        let there: Vec<bool> = ["pvc-1", "pvc-2", "pvc-3"].iter().map(|name| folder.join(name).exists()).collect();
        assert_eq!(there, [false, true, true]);
        fs::remove_file(root.join("pods/u/volumes.json")).unwrap();
        assert_eq!(tell(Some("pvc-1,pvc-3")), Some(json!("pvc-1,pvc-3")));
        assert_eq!(tell(Some("pvc-3")), Some(json!("pvc-3")));
        assert_eq!(tell(None), Some(json!(null)));
    }
}
