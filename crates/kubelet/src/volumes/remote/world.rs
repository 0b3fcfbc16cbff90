//! A node whose programs are scripts, and a Pod `u` on it with the volume `v`, for tests.

use std::sync::Arc;

use json::{Value, json};
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;

use super::{Disks, Remote, programs::Fakes};
use crate::{
    csi,
    pod::fixture,
    volumes::{
        self,
        folder::PodFolder,
        mounter::Recorded,
        plugin::{Means, Mounted},
    },
};

pub struct World {
    root: tempfile::TempDir,
    pub fakes: Fakes,
    pub mounts: Arc<Recorded>,
    pub means: Means,
    told: Arc<Mutex<Vec<String>>>,
    pub folder: PodFolder,
}

impl World {
    /// The spec is that of the PersistentVolume `pv`, to which the claim `c` is bound.
    pub fn new(spec: Value) -> World {
        let root = tempfile::tempdir().unwrap();
        let mut persistent = json!({"metadata": {"name": "pv"}, "spec": spec});
        persistent["spec"]["claimRef"] = json!({"uid": "cu"});
        let answer = move |_: &http::Method, path: &str| match path {
            "/api/v1/namespaces/d/persistentvolumeclaims/c" => Some(json!({"metadata": {"name": "c", "uid": "cu"},
                "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})),
            "/api/v1/persistentvolumes/pv" => Some(persistent.clone()),
            "/api/v1/namespaces/d/secrets/chap" => Some(json!({"metadata": {"name": "chap"},
                "data": {"node.session.auth.password": "czNjcmV0"}})),
            _ => None,
        };
        let kubelet = fixture::kubelet(root.path(), runtime::fake::Fake::default(), answer);
        let (fakes, mounts) = (Fakes::in_a_new_folder(), Arc::<Recorded>::default());
        let remote = Arc::new(Remote::new(fakes.programs(), Disks::below(fakes.folder.path())));
        let told = Arc::<Mutex<Vec<String>>>::default();
        let heard = told.clone();
        let tell: Box<csi::Tell> = Box::new(Box::new(move |object: &ObjectReference, _, reason: &str, text: &str| {
            let name = |part: &Option<String>| part.clone().unwrap_or_default();
            heard.lock().push(format!("{} {} {reason}: {text}", name(&object.kind), name(&object.name)));
        }));
        let means = Means { remote, mounter: mounts.clone(), tell: tell.into(), ..kubelet.volume_means() };
        let folder = PodFolder::new(&root.path().join("kubelet"), "u");
        World { root, fakes, mounts, means, told, folder }
    }

    /// The events, as `Kind name Reason: message`.
    pub fn told(&self) -> Vec<String> {
        self.told.lock().clone()
    }

    /// Another Pod on the node.
    pub fn other(&self) -> PodFolder {
        PodFolder::new(&self.root.path().join("kubelet"), "w")
    }

    /// Mounts the volume `v` of this source.
    pub async fn mount(&self, source: Value) -> Result<Mounted, String> {
        self.mount_for(&self.folder, source).await
    }

    /// The same for a Pod of this folder.
    pub async fn mount_for(&self, folder: &PodFolder, source: Value) -> Result<Mounted, String> {
        files::modes::folder(folder.path(), files::modes::NODE_FOLDER).unwrap();
        let mut volume = json!({"name": "v"});
        for (name, value) in source.as_object().unwrap() {
            volume[name] = value.clone();
        }
        // One that was added to look into the Pod is not asked whether it uses the volume as what it is.
        let added = json!([{"name": "e", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
        let spec = json!({"containers": [], "ephemeralContainers": added, "volumes": [volume]});
        let pod = fixture::pod_of(json!({ "spec": spec })).pod;
        let mounted = volumes::mount(&pod, folder, &self.means).await;
        mounted.map(|mounted| mounted["v"].clone()).map_err(|failed| failed[0].to_string())
    }

    pub fn path(&self, plugin: &str) -> std::path::PathBuf {
        self.folder.volume(plugin, "v")
    }

    /// Undoes all that was mounted for the Pod.
    pub async fn unmount(&self) {
        let Means { csi, remote, figures, mounter, .. } = &self.means;
        volumes::unmount(&self.folder, mounter, (csi, remote), figures).await.unwrap();
    }
}
