//! Reads static Pods from the files of a folder. The kernel says whenever one of them changes.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::{
    codec::decode::{self, Gvk, Validation},
    object::Object,
    rules::pod_references,
};
use k8s_openapi::{
    api::core::v1::{Pod, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::{
    changes::Changes,
    sources::{Heard, Home, Source},
};

/// A folder that is not there is looked for again after this pause.
const MISSING: Duration = Duration::from_secs(20);

/// Sends all Pods of the folder at the start and whenever a file has changed. Runs for ever.
pub async fn watch(folder: PathBuf, home: Home, to: mpsc::Sender<Heard>) {
    let mut files = Files { home, ..Default::default() };
    let mut sent = None;
    loop {
        // First the watch, then the look: nothing happens between the two unseen.
        let changes = Changes::of(&folder, &[]);
        loop {
            files.read(&folder);
            let pods = files.pods();
            let uids: Vec<_> = pods.iter().map(|p| p.metadata.uid.clone()).collect();
            if sent.as_ref() != Some(&uids) {
                if to.send(Heard { source: Source::Files, pods }).await.is_err() {
                    return;
                }
                sent = Some(uids);
            }
            match &changes {
                Ok(changes) if changes.next().await => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "the folder of static Pods cannot be watched");
                    clock::sleep(MISSING).await;
                    break;
                }
            }
        }
    }
}

/// The manifests as they were read last. A file that is broken keeps the Pod that it described before: an editor that
/// writes in two steps, or a slip of the pen, ends no Pod.
#[derive(Default)]
struct Files {
    home: Home,
    pods: BTreeMap<PathBuf, Arc<Pod>>,
    /// The complaints about broken files, so that each is made once.
    broken: BTreeMap<PathBuf, String>,
}

impl Files {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.values().cloned().collect()
    }

    fn read(&mut self, folder: &Path) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let visible = entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.'));
        let paths: Vec<PathBuf> = visible.map(|e| e.path()).filter(|p| p.is_file()).collect();
        self.pods.retain(|path, _| paths.contains(path));
        self.broken.retain(|path, _| paths.contains(path));
        for path in paths {
            let text = read(&path).map_err(|e| e.to_string());
            match text.and_then(|text| parse(&text, &self.home, (&path, Source::Files))) {
                Ok(pod) => {
                    self.broken.remove(&path);
                    // A text that has not changed is the Pod of before, with the time at which it was first seen.
                    if self.pods.get(&path).is_none_or(|held| held.metadata.uid != pod.metadata.uid) {
                        self.pods.insert(path, Arc::new(pod));
                    }
                }
                Err(error) => {
                    if self.broken.get(&path) != Some(&error) {
                        let kept = self.pods.contains_key(&path);
                        tracing::error!(
                            file = %path.display(), error, kept, "a static Pod's manifest is not usable; it is read again when it changes"
                        );
                        self.broken.insert(path, error);
                    }
                }
            }
        }
    }
}

/// A manifest's text, of at most the length that upstream reads.
fn read(path: &Path) -> io::Result<String> {
    const MOST: u64 = 10 << 20;
    let mut text = String::new();
    let read = fs::File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if read as u64 > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("a manifest has at most {MOST} bytes")));
    }
    Ok(text)
}

/// A manifest as the Pod that runs: with all defaults, named after the node, with a uid that is the hash of its content.
pub fn parse(text: &str, home: &Home, (path, source): (&Path, Source)) -> Result<Pod, String> {
    let node_name = &home.node_name;
    let definition = api::kinds::built_in().find("", "v1", "pods").ok_or("Pods are not known")?;
    let gvk = Gvk { group: "", version: "v1", kind: "Pod" };
    let decoded = decode::decode(&definition.ty, gvk, text.as_bytes(), "application/yaml", Validation::Ignore);
    let mut value = decoded.map_err(|status| status.message)?.value;
    let namespace = value.pointer("/metadata/namespace").and_then(|n| n.as_str()).filter(|n| !n.is_empty());
    let namespace = namespace.unwrap_or("default").to_owned();
    if let Some(metadata) = value.get_mut("metadata").and_then(|m| m.as_object_mut()) {
        metadata.insert("namespace".to_owned(), namespace.clone().into());
    }
    definition.strategy.default(&mut value);
    let errors = definition.strategy.validate(&value);
    if !errors.is_empty() {
        return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    let mut pod: Pod = Pod::from_value(&value).map_err(|e| e.to_string())?;
    let name = pod.metadata.name.clone().ok_or("metadata.name is missing")?;
    let digest = Sha256::digest(format!("{node_name}\0{}\0{text}", path.display()));
    let uid = base16ct::lower::encode_string(&digest[..16]);
    let spec = pod.spec.as_mut().ok_or("spec is missing")?;
    if let Some(kind) = pod_references::first(spec).filter(|_| !home.may_refer) {
        return Err(format!("static pods may not reference {kind}"));
    }
    spec.node_name = Some(node_name.clone());
    let everything =
        Toleration { effect: Some("NoExecute".to_owned()), operator: Some("Exists".to_owned()), ..Default::default() };
    spec.tolerations.get_or_insert_default().push(everything);
    let mut annotations = pod.metadata.annotations.take().unwrap_or_default();
    annotations.insert(api::rules::pod::SOURCE_ANNOTATION.to_owned(), source.word().to_owned());
    annotations.insert(api::rules::pod::HASH_ANNOTATION.to_owned(), uid.clone());
    annotations.insert(api::rules::pod::SEEN_ANNOTATION.to_owned(), clock::now().to_string());
    pod.metadata = ObjectMeta {
        name: Some(format!("{name}-{node_name}")),
        namespace: Some(namespace),
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

    const TEXT: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i, ports: [{containerPort: 80}]}]}\n";

    fn parsed(text: &str) -> Result<Pod, String> {
        parse(text, &Home { node_name: "n1".into(), may_refer: false }, (Path::new("/m/web.yaml"), Source::Files))
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node_with_all_defaults_and_its_hash_follows_its_text() {
        let pod = parsed(TEXT).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        let spec = pod.spec.unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.restart_policy.as_deref()), (Some("n1"), Some("Always")));
        assert_eq!(spec.containers[0].ports.as_ref().unwrap()[0].protocol.as_deref(), Some("TCP"));
        assert!(spec.tolerations.unwrap().iter().any(|t| t.effect.as_deref() == Some("NoExecute")));
        let other = parsed(&TEXT.replace("image: i", "image: j")).unwrap();
        assert_ne!(pod.metadata.uid, other.metadata.uid);
    }

    #[test]
    fn what_is_wrong_with_a_manifest_is_said() {
        for (text, expected) in [
            ("kind: Pod", "spec.containers: Required value"),
            ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}", "ConfigMap"),
            (&TEXT[..60], ""),
            (&TEXT.replace("name: c", "name: C_"), "spec.containers[0].name: Invalid value"),
            (&TEXT.replace("{name: web}", "{}"), "metadata.name"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}", "spec.containers: Required value"),
            (
                &TEXT.replace("spec: {", "spec: {serviceAccountName: s, "),
                "static pods may not reference serviceaccounts",
            ),
            (&TEXT.replace("spec: {", "spec: {serviceAccount: s, "), "static pods may not reference serviceaccounts"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let refers = TEXT.replace("spec: {", "spec: {serviceAccountName: s, ");
        let free = Home { node_name: "n1".into(), may_refer: true };
        assert!(parse(&refers, &free, (Path::new("/m/web.yaml"), Source::Files)).is_ok());
    }

    #[test]
    fn a_broken_file_keeps_its_pod_and_a_hidden_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let mut files = Files { home: Home { node_name: "n1".into(), may_refer: false }, ..Default::default() };
        let mut check = |expected: &[&str], broken: usize| {
            files.read(folder.path());
            let names: Vec<_> = files.pods().iter().map(|p| p.metadata.name.clone().unwrap()).collect();
            assert_eq!(names, expected);
            assert_eq!(files.broken.len(), broken);
        };
        put("a.yaml", TEXT);
        put(".b.yaml.swp", &TEXT.replace("web", "hidden"));
        check(&["web-n1"], 0);
        put("a.yaml", &TEXT[..70]);
        put("c.yaml", "nonsense: [");
        check(&["web-n1"], 2);
        put("a.yaml", &TEXT.replace("web", "new"));
        check(&["new-n1"], 1);
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        fs::remove_file(folder.path().join("c.yaml")).unwrap();
        check(&[], 0);
    }

    #[tokio::test]
    async fn changes_of_the_folder_are_sent_when_they_happen() {
        let folder = tempfile::tempdir().unwrap();
        let (to, mut sent) = mpsc::channel(4);
        let watcher =
            tokio::spawn(watch(folder.path().to_owned(), Home { node_name: "n1".into(), may_refer: false }, to));
        assert_eq!(sent.recv().await.unwrap().pods, []);
        let at = folder.path().join("a.yaml");
        fs::write(&at, TEXT).unwrap();
        assert_eq!(sent.recv().await.unwrap().pods.len(), 1);
        fs::rename(&at, folder.path().join("b.yaml")).unwrap();
        let moved = sent.recv().await.unwrap().pods;
        fs::write(folder.path().join("b.yaml"), TEXT.replace("web", "new")).unwrap();
        let changed = sent.recv().await.unwrap().pods;
        assert_ne!(moved[0].metadata.name, changed[0].metadata.name);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert_eq!(sent.recv().await.unwrap().pods, []);
        watcher.abort();
    }
}
