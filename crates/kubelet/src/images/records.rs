//! The records of pulls on disk, in upstream's form: an ImagePullIntent while an image is pulled, and an ImagePulledRecord with the
//! credentials that it could be pulled with, of which only digests are written. They outlive the kubelet, and so do the answers
//! that follow from them.
//! Upstream counterpart: pkg/kubelet/images/pullmanager.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use files::modes;
use json::{Value, json};
use k8s_cri::v1::Image;
use parking_lot::Mutex;
use runtime::reference;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    keyring::Tracked,
    owners::{OWNERS, OWNERS_BY_MATCH, PullCredentials},
};

const VERSIONS: [&str; 2] = ["kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const INTENT: &str = "ImagePullIntent";
const RECORD: &str = "ImagePulledRecord";
/// No file of ours is longer.
const FILE_BYTES: u64 = 1 << 20;
/// By then an engine has given up a pull that nobody waits for.
const GIVEN_UP: Duration = Duration::from_secs(2 * 3600);
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pulled {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    #[serde(default)]
    credential_mapping: BTreeMap<String, PullCredentials>,
}

/// The knowledge of the records about an image that is on the node.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// Nothing: the kubelet has never pulled it.
    Nothing,
    /// It was pulled, and under this name nobody knows with which credentials.
    Pulled,
    /// It was pulled with these.
    With(PullCredentials),
}

/// See the module.
pub struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    /// The pulls that are under way, by the name that the Pod gives the image. All work on the files is done under this lock.
    under_way: Mutex<BTreeMap<String, Flying>>,
}

/// The pulls of one image that are under way.
#[derive(Default)]
struct Flying {
    count: usize,
    /// An earlier pull was given up, and nobody knows whether the engine got the image. Only one that succeeds tells.
    is_doubtful: bool,
}

/// The mark of a pull that is under way. Where it is dropped without having come to its end, nobody knows whether the engine got the
/// image: the intent stays on disk, and whoever uses the image later has to show credentials.
pub struct Intent {
    records: Arc<Records>,
    image: String,
    has_ended: bool,
}

impl Drop for Intent {
    fn drop(&mut self) {
        let mut under_way = self.records.under_way.lock();
        let Some(flying) = under_way.get_mut(&self.image) else { return };
        flying.is_doubtful |= !self.has_ended;
        flying.count -= 1;
        if flying.count == 0 {
            under_way.remove(&self.image);
        }
    }
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", base16ct::lower::encode_string(&Sha256::digest(of)))
}

/// The fields of a file of ours.
fn read(path: &Path, kind: &str) -> io::Result<Value> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES).read_to_string(&mut text)?;
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    let value: Value = json::from_text(&text).map_err(|error| wrong(error.to_string()))?;
    let said = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    if said("kind") != kind || !VERSIONS.contains(&said("apiVersion")) {
        return Err(wrong(format!("it is no {kind}")));
    }
    Ok(value)
}

fn read_record(path: &Path) -> io::Result<Pulled> {
    let value = read(path, RECORD)?;
    let wrong = |error: json::Error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    json::from_value(value).map_err(wrong)
}

fn is_absent<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The files of ours in a folder.
fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sha256-"));
    entries.map(|entry| entry.path()).filter(ours).collect()
}

fn repository(image: &str) -> io::Result<String> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, format!("invalid image name {image:?}: {why}"));
    reference::parse(image).map(|name| name.repository).map_err(wrong)
}

fn write(folder: &Path, name: &str, value: &Value) -> io::Result<()> {
    modes::folder(folder, modes::PRIVATE_FOLDER)?;
    modes::replace(&folder.join(file_name(name)), modes::PRIVATE_FILE, value.to_string())
}

/// The image of that name among those of the engine.
fn find<'i>(images: &'i [Image], name: &str) -> Option<&'i Image> {
    let whole = |name: &str| reference::parse(name).map(|name| name.whole()).ok();
    let wanted = whole(name);
    images.iter().find(|found| {
        let mut names = found.repo_tags.iter().chain(&found.repo_digests);
        names.any(|held| *held == name || wanted.is_some() && whole(held) == wanted)
    })
}

impl Records {
    /// Makes nothing: the folders come with the first pull.
    pub fn new(root: &Path) -> Self {
        let folder = root.join("image_manager");
        Records { pulling: folder.join("pulling"), pulled: folder.join("pulled"), under_way: Mutex::default() }
    }

    /// Notes that an image is about to be pulled, under the name that a Pod gives it.
    pub fn intend(self: &Arc<Self>, image: &str) -> io::Result<Intent> {
        let mut under_way = self.under_way.lock();
        let is_left = self.pulling.join(file_name(image)).exists();
        let intent = json!({"kind": INTENT, "apiVersion": VERSIONS[0], "image": image});
        write(&self.pulling, image, &intent)?;
        let flying = under_way.entry(image.to_owned()).or_default();
        flying.is_doubtful |= is_left && flying.count == 0;
        flying.count += 1;
        Ok(Intent { records: self.clone(), image: image.to_owned(), has_ended: false })
    }

    /// Ends a pull that failed.
    pub fn failed(&self, mut intent: Intent) {
        intent.has_ended = true;
        let under_way = self.under_way.lock();
        if under_way.get(&intent.image).is_none_or(|flying| flying.count <= 1 && !flying.is_doubtful) {
            self.withdraw(&intent.image);
        }
        drop(under_way);
    }

    /// Ends a pull that succeeded with these credentials. Where that cannot be written the intent stays, and the next kubelet
    /// makes a record of it.
    pub fn succeeded(&self, mut intent: Intent, image_ref: &str, used: Option<&Tracked>) {
        let mut under_way = self.under_way.lock();
        match self.add(&intent.image, image_ref, Some((PullCredentials::of(used), OWNERS))) {
            Ok(()) => {
                intent.has_ended = true;
                if let Some(flying) = under_way.get_mut(&intent.image) {
                    flying.is_doubtful = false;
                }
                if under_way.get(&intent.image).is_none_or(|flying| flying.count <= 1) {
                    self.withdraw(&intent.image);
                }
            }
            Err(error) => tracing::warn!(image = intent.image, %error, "the record of a pull could not be written"),
        }
        drop(under_way);
    }

    /// Removes the intent's file.
    fn withdraw(&self, image: &str) {
        if let Err(error) = files::remove(&self.pulling.join(file_name(image))) {
            tracing::warn!(image, %error, "the intent to pull an image could not be removed");
        }
    }

    /// Takes credentials into the record of an image, which is made where there is none. Without any the image is known as pulled,
    /// and nobody as one who may use it.
    fn add(&self, image: &str, image_ref: &str, more: Option<(PullCredentials, usize)>) -> io::Result<()> {
        let repository = repository(image)?;
        let held = is_absent(read_record(&self.pulled.join(file_name(image_ref)))).unwrap_or_else(|error| {
            tracing::warn!(image, %error, "the record of an image is made anew");
            None
        });
        let is_new = held.is_none();
        let mut record = held.filter(|held| held.image_ref == image_ref).unwrap_or_else(|| Pulled {
            kind: RECORD.to_owned(),
            api_version: VERSIONS[0].to_owned(),
            last_updated_time: String::new(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        let changed = match more {
            Some((more, most)) => record.credential_mapping.entry(repository).or_default().add(more, most),
            None => false,
        };
        if !(is_new || changed) {
            return Ok(());
        }
        record.api_version = VERSIONS[0].to_owned();
        record.last_updated_time = clock::now_seconds().to_string();
        let value = json::to_value(&record).map_err(io::Error::other)?;
        write(&self.pulled, image_ref, &value)
    }

    /// The knowledge about an image on the node, by the name that a Pod gives it and by the engine's.
    pub fn known(&self, image: &str, image_ref: &str) -> io::Result<Known> {
        let under_way = self.under_way.lock();
        let record = is_absent(read_record(&self.pulled.join(file_name(image_ref))))?;
        let repository = repository(image)?;
        match record.filter(|record| record.image_ref == image_ref) {
            Some(mut record) => Ok(record.credential_mapping.remove(&repository).map_or(Known::Pulled, Known::With)),
            None if under_way.contains_key(image) => Ok(Known::Pulled),
            None => {
                let intent = is_absent(read(&self.pulling.join(file_name(image)), INTENT))?;
                Ok(if intent.is_some_and(|intent| intent["image"].as_str() == Some(image)) {
                    Known::Pulled
                } else {
                    Known::Nothing
                })
            }
        }
    }

    /// Whether a Pod with these credentials may use an image that was pulled with others. Those that are as good, or that took their
    /// place in a Secret, are written down.
    pub fn admits(&self, image: &str, image_ref: &str, held: &PullCredentials, given: &[Tracked]) -> bool {
        let Some(found) = held.find(given) else { return false };
        if let Some(more) = found {
            let _locked = self.under_way.lock();
            if let Err(error) = self.add(image, image_ref, Some((more, OWNERS_BY_MATCH))) {
                tracing::warn!(image, %error, "the record of an image could not be written");
            }
        }
        true
    }

    /// Makes records of the pulls that an earlier kubelet did not see the end of, as far as the images are there.
    pub fn settle(&self, images: &[Image]) {
        let _locked = self.under_way.lock();
        for path in list(&self.pulling) {
            let image = match read(&path, INTENT) {
                Ok(intent) => intent["image"].as_str().unwrap_or_default().to_owned(),
                Err(error) => {
                    tracing::warn!(%error, "an intent to pull an image cannot be read");
                    continue;
                }
            };
            let Some(found) = find(images, &image) else { continue };
            let made = self.add(&image, &found.id, None).and_then(|()| files::remove(&path));
            if let Err(error) = made {
                tracing::warn!(image, %error, "an intent to pull an image could not be made a record");
            }
        }
    }

    /// Whether an earlier kubelet has left pulls whose end it did not see.
    pub fn has_intents(&self) -> bool {
        !list(&self.pulling).is_empty()
    }

    /// Removes the records of images that are gone, and the intents of those that never came. Records that were written since that
    /// moment stay.
    pub fn prune(&self, images: &[Image], since: clock::Timestamp) {
        let under_way = self.under_way.lock();
        let remove = |path: &Path| {
            if let Err(error) = files::remove(path) {
                tracing::warn!(path = %path.display(), %error, "the record of an image that is gone could not be removed");
            }
        };
        for path in list(&self.pulled) {
            let Ok(record) = read_record(&path) else { continue };
            let is_old = record.last_updated_time.parse::<clock::Timestamp>().is_ok_and(|time| time < since);
            if is_old && !images.iter().any(|image| image.id == record.image_ref) {
                remove(&path);
            }
        }
        for path in list(&self.pulling) {
            let Ok(intent) = read(&path, INTENT) else { continue };
            let image = intent["image"].as_str().unwrap_or_default();
            let written = fs::metadata(&path).and_then(|of| of.modified()).ok();
            let written = written.and_then(|time| clock::Timestamp::try_from(time).ok());
            let given_up = written.and_then(|time| time.checked_add(GIVEN_UP).ok()).is_some_and(|end| end < since);
            if given_up && !under_way.contains_key(image) && find(images, image).is_none() {
                remove(&path);
            }
        }
    }

    /// How many intents and records there are.
    pub fn sizes(&self) -> (usize, usize) {
        (list(&self.pulling).len(), list(&self.pulled).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::keyring::{Coordinates, Entry, Source};
    use clock::Timestamp;

    fn by(secret: &str, password: &str) -> Tracked {
        let of = Coordinates { namespace: "d".into(), name: secret.into(), uid: format!("u-{secret}") };
        let entry = Entry { username: "u".into(), password: password.into(), ..Entry::default() };
        Tracked { entry, source: Source::Secret(of) }
    }

    fn image(id: &str, tag: &str) -> Image {
        Image { id: id.into(), repo_tags: vec![tag.into()], ..Image::default() }
    }

    /// Whether the records let a Pod with these credentials in.
    fn admits(records: &Records, name: &str, given: &[Tracked]) -> bool {
        match records.known(name, "sha256:1").unwrap() {
            Known::With(held) => held.is_for_all() || records.admits(name, "sha256:1", &held, given),
            Known::Pulled | Known::Nothing => false,
        }
    }

    #[test]
    fn files_are_those_of_upstream_and_hold_no_password() {
        let folder = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::new(folder.path()));
        let intent = records.intend("r.io/a:1").unwrap();
        let pulling = folder.path().join("image_manager/pulling").join(file_name("r.io/a:1"));
        let written = json::from_text::<Value>(&fs::read_to_string(&pulling).unwrap()).unwrap();
        let version = "kubelet.config.k8s.io/v1beta1";
        assert_eq!(written, json!({"kind": INTENT, "apiVersion": version, "image": "r.io/a:1"}));
        records.succeeded(intent, "sha256:1", Some(&by("s", "hidden")));
        assert!(!pulling.exists());
        let pulled = folder.path().join("image_manager/pulled").join(file_name("sha256:1"));
        let text = fs::read_to_string(&pulled).unwrap();
        let written = json::from_text::<Value>(&text).unwrap();
        let secrets =
            json!([{"uid": "u-s", "namespace": "d", "name": "s", "credentialHash": by("s", "hidden").hash()}]);
        assert_eq!(written["credentialMapping"], json!({"r.io/a": {"kubernetesSecrets": secrets}}));
        assert_eq!((&written["kind"], &written["apiVersion"]), (&json!(RECORD), &json!(version)));
        assert!(written["lastUpdatedTime"].as_str().unwrap().parse::<Timestamp>().is_ok() && !text.contains("hidden"));
        // A record of upstream's earlier version is read too.
        let older = text.replace("v1beta1", "v1alpha1");
        fs::write(&pulled, older).unwrap();
        assert!(admits(&records, "r.io/a:2", &[by("s", "hidden")]));
    }

    #[test]
    fn an_image_is_for_those_who_could_pull_it() {
        let folder = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::new(folder.path()));
        assert_eq!(records.known("r.io/a", "sha256:1").unwrap(), Known::Nothing);
        records.succeeded(records.intend("r.io/a").unwrap(), "sha256:1", Some(&by("s", "p")));
        assert!(!admits(&records, "r.io/a", &[]) && !admits(&records, "r.io/a", &[by("t", "q")]));
        // The same content in another Secret, and from then on that Secret whatever is in it.
        assert!(admits(&records, "r.io/a", &[by("t", "p")]) && admits(&records, "r.io/a", &[by("t", "q")]));
        // Another name of the same image is another matter.
        assert!(!admits(&records, "other.io/a", &[by("s", "p")]));
        records.succeeded(records.intend("r.io/a").unwrap(), "sha256:1", None);
        assert!(admits(&records, "r.io/a", &[]));
        assert_eq!(records.sizes(), (0, 1));
    }

    #[test]
    fn a_pull_whose_end_nobody_saw_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::new(folder.path()));
        drop(records.intend("r.io/a:1").unwrap());
        assert_eq!(records.known("r.io/a:1", "sha256:1").unwrap(), Known::Pulled);
        // Somebody without rights tries, and that must not make the image one that was always there.
        records.failed(records.intend("r.io/a:1").unwrap());
        assert_eq!(records.known("r.io/a:1", "sha256:1").unwrap(), Known::Pulled);
        // Nor does the next life of the kubelet forget it.
        let next = Arc::new(Records::new(folder.path()));
        assert!(next.has_intents());
        next.settle(&[image("sha256:9", "r.io/b:1")]);
        assert_eq!(next.known("r.io/a:1", "sha256:1").unwrap(), Known::Pulled);
        next.settle(&[image("sha256:1", "r.io/a:1")]);
        assert_eq!((next.known("r.io/a:1", "sha256:1").unwrap(), next.sizes()), (Known::Pulled, (0, 1)));
        // A pull that failed and was seen to leaves nothing.
        let (first, second) = (next.intend("r.io/c").unwrap(), next.intend("r.io/c").unwrap());
        next.failed(first);
        assert_eq!(next.known("r.io/c", "sha256:3").unwrap(), Known::Pulled);
        next.failed(second);
        assert_eq!(next.known("r.io/c", "sha256:3").unwrap(), Known::Nothing);
    }

    #[test]
    fn records_go_with_their_images_and_broken_ones_let_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::new(folder.path()));
        records.succeeded(records.intend("r.io/a").unwrap(), "sha256:1", None);
        drop(records.intend("r.io/never").unwrap());
        let after = |seconds| clock::now().checked_add(Duration::from_secs(seconds)).unwrap();
        let later = after(3 * 3600);
        records.prune(&[image("sha256:1", "r.io/a:latest")], after(5));
        records.prune(&[], Timestamp::UNIX_EPOCH);
        assert_eq!(records.sizes(), (1, 1));
        records.prune(&[image("sha256:1", "r.io/a:latest")], later);
        assert_eq!(records.sizes(), (0, 1));
        let file = folder.path().join("image_manager/pulled").join(file_name("sha256:1"));
        fs::write(&file, "{").unwrap();
        assert!(records.known("r.io/a", "sha256:1").is_err());
        records.succeeded(records.intend("r.io/a").unwrap(), "sha256:1", None);
        assert!(admits(&records, "r.io/a", &[]));
        records.prune(&[], later);
        assert_eq!(records.sizes(), (0, 0));
    }
}
