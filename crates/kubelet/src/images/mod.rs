//! Images: with which credentials a Pod's image is pulled, how many at once, and who may use one that is on the node. The engine
//! is asked by `engine/image.rs`, and for pulls by `engine/pull.rs`.

pub mod counts;
pub mod keyring;
pub mod limits;
mod owners;
mod program;
mod providers;
pub mod records;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::features::Feature;
use k8s_openapi::api::core::v1::Pod;

use self::{
    counts::Counts,
    keyring::{Coordinates, Form, Keyring, Source, Tracked},
    limits::Limits,
    providers::Providers,
    records::{Known, Records},
};
use crate::{config::Config, configuration::pulls::Verification, volumes::sources::ApiSources};

/// No file with credentials of the node is longer.
const FILE_BYTES: u64 = 1 << 20;
/// A Pod's credentials come from so few Secrets that reading them stays small.
const SECRETS: usize = 64;

/// The rules about the images of this node: how they are pulled, and for whom they are.
pub struct Images {
    pub limits: Limits,
    pub records: Arc<Records>,
    pub counts: Arc<Counts>,
    /// `None` where nobody looks at records.
    verification: Option<Verification>,
    providers: Providers,
    sources: Arc<ApiSources>,
    /// Where the node's own credentials may be, in the forms of Docker.
    node_files: [(PathBuf, Form); 2],
}

/// The files of Docker in the kubelet's folder. Those of the user who started the node are not the node's: its Pods are not theirs.
fn node_files(root: &Path) -> [(PathBuf, Form); 2] {
    [(root.join("config.json"), Form::Json), (root.join(".dockercfg"), Form::Older)]
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes)).ok()?;
    Some(bytes)
}

impl Images {
    pub fn new(config: &Config, sources: Arc<ApiSources>) -> Self {
        let (pulls, counts) = (&config.settings.pulls, Arc::<Counts>::default());
        let verifies = config.features.enabled(Feature::KubeletEnsureSecretPulledImages);
        let sends_tokens = config.features.enabled(Feature::KubeletServiceAccountTokenForCredentialProviders);
        let mut programs = config.settings.credential_providers.clone();
        programs.retain(|program| sends_tokens || program.token.is_none());
        Images {
            limits: Limits::new(pulls),
            records: Arc::new(Records::new(&config.root_dir)),
            verification: verifies.then(|| pulls.verification.clone()),
            providers: Providers::new(&programs, sources.clone(), counts.clone()),
            counts,
            sources,
            node_files: node_files(&config.root_dir),
        }
    }

    /// Whether who may use an image on the node is looked up, and written down.
    pub fn verifies(&self) -> bool {
        self.verification.is_some()
    }

    /// The credentials that a Pod's image may be pulled with, in the order in which they are tried: those of its Secrets, then the
    /// node's, then those of programs. The image goes by its whole name without a tag.
    pub async fn credentials(&self, pod: &Pod, repository: &str) -> Result<Given, String> {
        let (keyring, unread) = self.of_secrets(pod).await?;
        let mut found = keyring.find(repository);
        let mut node = Keyring::default();
        // The first file that is there and can be read counts.
        let read = self.node_files.iter().find_map(|(path, form)| keyring::entries(&read(path)?, *form));
        node.add(&Source::Node, read.unwrap_or_default());
        found.extend(node.find(repository));
        found.extend(self.providers.keyring(pod, repository).await.find(repository));
        Ok(Given { found, unread })
    }

    /// The credentials of the Pod's Secrets, and the names of those that could not be read.
    async fn of_secrets(&self, pod: &Pod) -> Result<(Keyring, Vec<String>), String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let named = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let (mut keyring, mut unread) = (Keyring::default(), Vec::new());
        for reference in named.filter(|reference| !reference.name.is_empty()).take(SECRETS) {
            // One that is not there may not be needed: the pull tells.
            let Ok(Some(secret)) = self.sources.pull_secret(pod, &reference.name).await else {
                unread.push(reference.name.clone());
                continue;
            };
            let form = match secret.type_.as_deref() {
                Some("kubernetes.io/dockerconfigjson") => (Form::Json, ".dockerconfigjson"),
                Some("kubernetes.io/dockercfg") => (Form::Older, ".dockercfg"),
                _ => continue,
            };
            let data = secret.data.unwrap_or_default();
            let Some(text) = data.get(form.1).filter(|text| !text.0.is_empty()) else { continue };
            let entries = keyring::entries(&text.0, form.0);
            let name = &reference.name;
            let entries = entries.ok_or_else(|| {
                format!("the key {} of the image pull secret {namespace}/{name} is no configuration of Docker", form.1)
            })?;
            let uid = secret.metadata.uid.unwrap_or_default();
            let of = Coordinates { namespace: namespace.to_owned(), name: name.clone(), uid };
            keyring.add(&Source::Secret(of), entries);
        }
        Ok((keyring, unread))
    }

    /// Whether an image that is on the node has to be pulled once more for this Pod, to see that it may use it.
    pub async fn must_pull(&self, pod: &Pod, image: &Named<'_>, image_ref: &str) -> Result<bool, String> {
        if !self.verifies() {
            return Ok(false);
        }
        let (must, result) = self.verdict(pod, image, image_ref).await?;
        self.counts.checked(result);
        Ok(must)
    }

    async fn verdict(&self, pod: &Pod, image: &Named<'_>, image_ref: &str) -> Result<(bool, &'static str), String> {
        let Some(policy) = &self.verification else { return Ok((false, "credentialPolicyAllowed")) };
        let known = match self.records.known(image.given, image_ref) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(image = image.given, %error, "the record of an image cannot be read");
                return Ok((true, "error"));
            }
        };
        if !policy.requires(image.repository, known != Known::Nothing) {
            return Ok((false, "credentialPolicyAllowed"));
        }
        let Known::With(held) = known else { return Ok((true, "mustAuthenticate")) };
        if held.is_for_all() {
            return Ok((false, "credentialRecordFound"));
        }
        if held.is_for_nobody() {
            return Ok((true, "mustAuthenticate"));
        }
        let given = self.credentials(pod, image.repository).await.inspect_err(|_| self.counts.checked("error"))?;
        Ok(match self.records.admits(image.given, image_ref, &held, &given.found) {
            true => (false, "credentialRecordFound"),
            false => (true, "mustAuthenticate"),
        })
    }
}

/// The credentials for an image of a Pod.
pub struct Given {
    pub found: Vec<Tracked>,
    /// The Pod's Secrets that are not there, or could not be read.
    pub unread: Vec<String>,
}

/// An image by the name that a Pod gives it, and by its whole name without tag and digest.
#[derive(Debug, Clone, Copy)]
pub struct Named<'i> {
    pub given: &'i str,
    pub repository: &'i str,
}

#[cfg(test)]
mod broken_answers;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{self, pod_of};
    use json::json;

    #[tokio::test]
    async fn secrets_come_before_the_node_and_only_those_of_the_right_type_count() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, path| {
            use base64::Engine;
            let name = path.strip_prefix("/api/v1/namespaces/d/secrets/")?;
            let (kind, key) = match name {
                "new" => ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
                "broken" => ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
                "old" => ("kubernetes.io/dockercfg", ".dockercfg"),
                "opaque" => ("Opaque", ".dockerconfigjson"),
                _ => return None,
            };
            let registries = json!({"r.io": {"username": name, "password": "p"}});
            let text = match name {
                "broken" => "s3cret".to_owned(),
                "old" => registries.to_string(),
                _ => json!({"auths": registries}).to_string(),
            };
            let data = base64::engine::general_purpose::STANDARD.encode(text);
            Some(
                json!({"metadata": {"name": name, "namespace": "d", "uid": format!("u-{name}")}, "type": kind, "data": {key: data}}),
            )
        });
        files::modes::folder(&folder.path().join("kubelet"), files::modes::NODE_FOLDER).unwrap();
        let node = json!({"auths": {"https://r.io": {"username": "node"}}}).to_string();
        files::modes::write(&folder.path().join("kubelet/config.json"), files::modes::PRIVATE_FILE, node).unwrap();
        let of = async |secrets: &[&str], image: &str| {
            let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
            let pod = pod_of(json!({"spec": {"containers": [], "imagePullSecrets": secrets}})).pod;
            kubelet.images.credentials(&pod, image).await.map(|given| (given.found, given.unread))
        };
        let users = |found: Vec<Tracked>| found.into_iter().map(|t| t.entry.username).collect::<Vec<_>>();
        let (found, unread) = of(&["opaque", "old", "gone", "new"], "r.io/a").await.unwrap();
        assert_eq!(unread, ["gone"]);
        assert!(matches!(&found[0].source, Source::Secret(of) if of.uid == "u-old"));
        assert_eq!(users(found), ["old", "new", "node"]);
        assert!(users(of(&["new"], "other.io/a").await.unwrap().0).is_empty());
        let why = of(&["new", "broken"], "r.io/a").await.err().unwrap();
        assert_eq!(why, "the key .dockerconfigjson of the image pull secret d/broken is no configuration of Docker");
    }
}
