//! The end of released volumes that the binder itself looks after, as upstream's volume plugins do: a folder of the node
//! below `/tmp` is deleted, on this machine; volumes of nodes and of NFS are emptied by a Pod and are anybody's again.
//! Upstream counterpart: pkg/volume/util/recyclerclient, pkg/volume/hostpath, pkg/volume/nfs.
//!
//! Whoever may make Pods in the namespace of the recycler's could make one of its name that ends well without having emptied
//! anything. So only a Pod that this process made counts, by its UID, which is in the server's answer alone; one that is
//! found is deleted, and the volume is emptied anew.

use std::{collections::HashMap, fmt, io, sync::Arc};

use api::{object::Object, rules::quantity};
use client::{Api, Client, Key};
use json::{Value, json};
use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolume, Pod, Volume};
use parking_lot::Mutex;

const POD_PREFIX: &str = "recycler-for-";
const GIBIBYTE: i64 = 1 << 30;

/// The Pod that empties volumes of one sort, and how long it may take.
#[derive(Debug, Clone)]
pub struct Recycler {
    /// Its first volume is replaced by the one to empty.
    pub template: Arc<Pod>,
    pub minimum_seconds: i64,
    /// For each gibibyte of the volume.
    pub increment_seconds: i64,
}

/// Removes a folder below `/tmp` with all that is in it.
pub type RemoveFolder = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub struct Settings {
    pub host_path: Recycler,
    pub nfs: Recycler,
    /// Makes folders of a node for claims of classes that ask for them.
    pub provision_host_paths: bool,
    pub remove_folder: RemoveFolder,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("host_path", &self.host_path).field("nfs", &self.nfs).finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        let template = Arc::new(template());
        let recycler =
            |minimum_seconds| Recycler { template: template.clone(), minimum_seconds, increment_seconds: 30 };
        Settings {
            host_path: recycler(60),
            nfs: recycler(300),
            provision_host_paths: false,
            remove_folder: Arc::new(|_| Err(io::Error::from(io::ErrorKind::Unsupported))),
        }
    }
}

fn template() -> Pod {
    let empty = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
    let container = json!({"name": "pv-recycler", "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
        "command": ["/bin/sh"], "args": ["-c", empty], "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}]});
    let pod = json!({"metadata": {"generateName": "pv-recycler-", "namespace": "default"},
        "spec": {"activeDeadlineSeconds": 60, "restartPolicy": "Never", "volumes": [{"name": "vol"}],
            "containers": [container]}});
    Pod::from_value(&pod).expect("a constant")
}

/// A template of a user's own; it must have a volume to put the one to empty in its place.
pub fn checked(template: Value) -> Result<Pod, String> {
    let mut pod: Pod = Pod::from_value(&template).map_err(|error| error.to_string())?;
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.volumes.as_ref()).is_none_or(Vec::is_empty) {
        return Err("does not contain any volume(s)".to_owned());
    }
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    Ok(pod)
}

pub fn pod_name(volume: &PersistentVolume) -> String {
    format!("{POD_PREFIX}{}", volume.metadata.name.as_deref().unwrap_or(""))
}

/// The volume that a Pod empties, going by its name.
pub fn volume_of_pod(pod: &Pod) -> Option<Key> {
    Some(Key::new("", pod.metadata.name.as_deref()?.strip_prefix(POD_PREFIX)?))
}

/// The Pod that empties a volume; `None` for a volume of a sort that is not emptied.
pub fn pod_for(volume: &PersistentVolume, settings: &Settings) -> Option<Pod> {
    let spec = volume.spec.as_ref()?;
    let mut source = Volume::default();
    let recycler = if let Some(folder) = &spec.host_path {
        source.host_path = Some(HostPathVolumeSource { type_: None, ..folder.clone() });
        &settings.host_path
    } else {
        source.nfs = Some(spec.nfs.clone()?);
        &settings.nfs
    };
    let mut pod = (*recycler.template).clone();
    pod.metadata.name = Some(pod_name(volume));
    pod.metadata.generate_name = None;
    let size = spec.capacity.as_ref().and_then(|c| c.get("storage")).map(quantity::parse).unwrap_or_default().value();
    let seconds = (size / GIBIBYTE).saturating_mul(recycler.increment_seconds).max(recycler.minimum_seconds);
    let wanted = pod.spec.as_mut()?;
    wanted.active_deadline_seconds = Some(seconds);
    let first = wanted.volumes.as_mut()?.first_mut()?;
    source.name.clone_from(&first.name);
    *first = source;
    Some(pod)
}

/// How far a volume that was released is.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// Its folder is gone, or could not be removed.
    Removed(Result<(), String>),
    /// Pods of the claim that is gone are still there.
    Used(Vec<String>),
    /// Its Pod works.
    Emptying,
    /// It is empty; the Pod that did it goes.
    Empty(Box<Pod>),
    /// It is not empty, and what is left of the attempt goes.
    NotEmpty(Option<Box<Pod>>, String),
}

/// The Pods that this process made, by the volumes that they empty.
#[derive(Default)]
pub struct Own(Mutex<HashMap<String, String>>);

impl Own {
    /// Begins to empty a volume, or looks how far its Pod is.
    pub async fn empty(
        &self,
        volume: &PersistentVolume,
        pod: &Pod,
        client: &Client,
    ) -> Result<Progress, client::Error> {
        let name = pod_name(volume);
        let volume = volume.metadata.uid.clone().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
        let known = self.0.lock().get(&volume).cloned();
        let present = pods.find(&name).await?;
        let Some(uid) = known else {
            if let Some(old) = present {
                return Ok(Progress::NotEmpty(
                    Some(Box::new(old)),
                    "old recycler pod found, will retry later".to_owned(),
                ));
            }
            return Ok(match pods.create(pod).await {
                Ok(made) => {
                    self.0.lock().insert(volume, made.metadata.uid.unwrap_or_default());
                    Progress::Emptying
                }
                Err(error) => Progress::NotEmpty(None, format!("unexpected error creating recycler pod:  {error}")),
            });
        };
        let Some(pod) = present.filter(|pod| pod.metadata.uid.as_ref() == Some(&uid)) else {
            self.0.lock().remove(&volume);
            return Ok(Progress::NotEmpty(None, "recycler pod was deleted".to_owned()));
        };
        let status = pod.status.as_ref();
        let message = status.and_then(|s| s.message.clone()).filter(|message| !message.is_empty());
        Ok(match status.and_then(|s| s.phase.as_deref()) {
            Some("Succeeded") => Progress::Empty(Box::new(pod)),
            Some("Failed") => {
                self.0.lock().remove(&volume);
                let why = message.unwrap_or_else(|| "pod failed, pod.Status.Message unknown".to_owned());
                Progress::NotEmpty(Some(Box::new(pod)), why)
            }
            _ => Progress::Emptying,
        })
    }

    pub fn forget(&self, volume: &PersistentVolume) {
        self.0.lock().remove(volume.metadata.uid.as_deref().unwrap_or(""));
    }
}
