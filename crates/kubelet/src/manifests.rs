//! Static Pods from the files of a folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    api::core::v1::{Pod, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

/// Looking at the times of a handful of files costs microseconds.
const LOOK: Duration = Duration::from_secs(2);

/// Sends all Pods of the folder at the start and whenever a file has changed. For ever.
pub async fn watch(folder: PathBuf, node_name: String, to: mpsc::Sender<Vec<Arc<Pod>>>) {
    let mut last = None;
    loop {
        let stamp = stamp(&folder).unwrap_or_default();
        if last.as_ref() != Some(&stamp) {
            let pods = read(&folder, &node_name);
            if to.send(pods).await.is_err() {
                return;
            }
            last = Some(stamp);
        }
        clock::sleep(LOOK).await;
    }
}

type Stamp = Vec<(PathBuf, Option<SystemTime>, u64)>;

fn stamp(folder: &Path) -> io::Result<Stamp> {
    let mut stamp: Stamp = fs::read_dir(folder)?
        .flatten()
        .filter(|e| !e.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|e| Some((e.path(), e.metadata().ok()?.modified().ok(), e.metadata().ok()?.len())))
        .collect();
    stamp.sort();
    Ok(stamp)
}

fn read(folder: &Path, node_name: &str) -> Vec<Arc<Pod>> {
    let mut pods = Vec::new();
    for (path, ..) in stamp(folder).unwrap_or_default() {
        let parsed =
            fs::read_to_string(&path).map_err(|e| e.to_string()).and_then(|text| parse(&text, node_name, &path));
        match parsed {
            Ok(pod) => pods.push(Arc::new(pod)),
            // One broken file does not stop the others.
            Err(error) => tracing::error!(file = %path.display(), error, "a static Pod's manifest is not usable"),
        }
    }
    pods
}

/// A manifest as the Pod that runs: named after the node, with a uid that is the hash of its content.
fn parse(text: &str, node_name: &str, path: &Path) -> Result<Pod, String> {
    let mut pod: Pod = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    let name = pod.metadata.name.clone().ok_or("metadata.name is missing")?;
    let spec = pod.spec.as_mut().filter(|s| !s.containers.is_empty()).ok_or("spec.containers is missing")?;
    let digest = Sha256::digest(format!("{node_name}\0{}\0{text}", path.display()));
    let uid: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
    spec.node_name = Some(node_name.to_owned());
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    let everything =
        Toleration { effect: Some("NoExecute".to_owned()), operator: Some("Exists".to_owned()), ..Default::default() };
    spec.tolerations.get_or_insert_default().push(everything);
    let mut annotations = pod.metadata.annotations.take().unwrap_or_default();
    annotations.insert(api::pod::SOURCE_ANNOTATION.to_owned(), "file".to_owned());
    annotations.insert(api::pod::HASH_ANNOTATION.to_owned(), uid.clone());
    annotations.insert(api::pod::SEEN_ANNOTATION.to_owned(), clock::now().to_string());
    pod.metadata = ObjectMeta {
        name: Some(format!("{name}-{node_name}")),
        namespace: Some(pod.metadata.namespace.unwrap_or_else(|| "default".to_owned())),
        uid: Some(uid),
        annotations: Some(annotations),
        labels: pod.metadata.labels,
        ..Default::default()
    };
    pod.status = None;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node_and_its_hash_follows_its_text() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
        let pod = parse(text, "n1", Path::new("/m/web.yaml")).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        let other = parse(&text.replace("image: i", "image: j"), "n1", Path::new("/m/web.yaml")).unwrap();
        assert_ne!(pod.metadata.uid, other.metadata.uid);
        assert!(parse("kind: Pod", "n1", Path::new("/m/web.yaml")).is_err());
    }
}
