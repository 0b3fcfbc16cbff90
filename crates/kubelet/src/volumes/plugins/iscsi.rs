//! iscsi: a disk of an iSCSI target, of the Pod's own or behind a claim. It is formatted if it is empty, and mounted, or given
//! to containers as the device that it is.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, ISCSIVolumeSource, ObjectReference, Volume};

use crate::pod::spec::selinux;
use crate::volumes::{
    directory,
    error::{VolumeError, file_error},
    folder::blocking,
    group,
    plugin::{Mounted, Plugin, Request, Unmount},
    remote::{
        disk,
        iscsi::{self, Chap, Disk},
    },
};

pub(super) const NAME: &str = "iscsi";
const USUAL_INTERFACE: &str = "default";

pub struct Iscsi;

impl Plugin for Iscsi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.iscsi.is_some()
    }

    fn stays(&self, request: &Request<'_>) -> bool {
        super::is_still_mounted(request)
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let source = request.volume.iscsi.clone().unwrap_or_default();
            let namespace = request.pod.metadata.namespace.clone().unwrap_or_default();
            mount(request, Wish::of_pod(&request.volume.name, source, namespace)).await
        })
    }

    fn unmount<'a>(&'a self, what: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(unmount(what))
    }
}

/// How a disk is to be mounted, whoever names it.
#[derive(Debug, Default)]
pub(super) struct Wish {
    name: String,
    /// The PersistentVolume, where the disk is one.
    pub persistent: Option<ObjectReference>,
    disk: Disk,
    /// The target asks for secrets when it is asked for its disks, and when a session begins.
    chap: (bool, bool),
    /// Where they are: the namespace and the name of a Secret.
    secret: Option<(String, String)>,
    file_system: String,
    read_only: bool,
    pub options: Vec<String>,
    pub access_modes: Vec<String>,
    pub is_device: bool,
}

impl Wish {
    fn of_pod(name: &str, source: ISCSIVolumeSource, namespace: String) -> Wish {
        Wish {
            chap: (source.chap_auth_discovery == Some(true), source.chap_auth_session == Some(true)),
            secret: source.secret_ref.map(|secret| (namespace, secret.name)),
            file_system: source.fs_type.unwrap_or_default(),
            read_only: source.read_only == Some(true),
            ..Wish::new(
                name,
                [vec![source.target_portal], source.portals.unwrap_or_default()].concat(),
                (source.iqn, source.lun),
                (source.iscsi_interface, source.initiator_name),
            )
        }
    }

    pub fn persistent(name: &str, source: ISCSIPersistentVolumeSource, read_only: bool) -> Wish {
        let secret =
            source.secret_ref.map(|secret| (secret.namespace.unwrap_or_default(), secret.name.unwrap_or_default()));
        Wish {
            chap: (source.chap_auth_discovery == Some(true), source.chap_auth_session == Some(true)),
            secret,
            file_system: source.fs_type.unwrap_or_default(),
            read_only: read_only || source.read_only == Some(true),
            ..Wish::new(
                name,
                [vec![source.target_portal], source.portals.unwrap_or_default()].concat(),
                (source.iqn, source.lun),
                (source.iscsi_interface, source.initiator_name),
            )
        }
    }

    fn new(
        name: &str,
        portals: Vec<String>,
        (iqn, lun): (String, i32),
        (interface, initiator): (Option<String>, Option<String>),
    ) -> Wish {
        let own = initiator.map(|initiator| (format!("{}:{name}", portals[0]), initiator));
        let interface = interface.filter(|name| !name.is_empty()).unwrap_or_else(|| USUAL_INTERFACE.to_owned());
        Wish { name: name.to_owned(), disk: Disk { portals, iqn, lun, interface, own }, ..Wish::default() }
    }

    fn failed(&self, step: &'static str, why: String) -> VolumeError {
        VolumeError::Step { step, volume: self.name.clone(), why }
    }

    async fn chap(&self, request: &Request<'_>) -> Result<Chap, VolumeError> {
        let (discovery, session) = self.chap;
        if !discovery && !session {
            return Ok(Chap::default());
        }
        let failed = |why: String| self.failed("MountVolume.WaitForAttach", why);
        let missing = || failed("CHAP enabled but secretRef is empty".to_owned());
        let (namespace, name) = self.secret.as_ref().ok_or_else(missing)?;
        let found = request.means.sources.secret(namespace, name).await?;
        let data = found.ok_or_else(|| failed(format!("couldn't get secret {namespace}/{name}: not found")))?;
        let text = |(key, value): (String, Vec<u8>)| String::from_utf8(value).ok().map(|value| (key, value));
        let secrets = data.into_iter().map(text).collect::<Option<_>>();
        let secrets = secrets.ok_or_else(|| failed(format!("secret {namespace}/{name} holds what is no text")))?;
        Ok(Chap { discovery, session, secrets })
    }
}

/// Brings a disk into a Pod. Called again, it does nothing.
pub(super) async fn mount(request: &Request<'_>, wish: Wish) -> Result<Mounted, VolumeError> {
    let (volume, means) = (&request.volume.name, request.means);
    let path = request.folder.volume(NAME, volume);
    let label = means.labels.mount(request.pod, volume, &wish.access_modes);
    let label = label.map_err(|why| wish.failed("MountVolume.MountDevice", why))?;
    let mounted = Mounted {
        path: path.clone(),
        read_only: wish.read_only,
        is_device: wish.is_device,
        relabel: !wish.read_only && label.is_none(),
        ..Mounted::default()
    };
    if !wish.is_device && means.mounter.is_mounted(&path) {
        return Ok(mounted);
    }
    let disk = wish.disk.clone().checked().map_err(|why| wish.failed("MountVolume.WaitForAttach", why))?;
    let chap = wish.chap(request).await?;
    let device = means.remote.attach(request.folder.path(), volume, &disk, &chap).await;
    let device = device.map_err(|why| wish.failed("MountVolume.WaitForAttach", why))?;
    if wish.is_device {
        return Ok(Mounted { path: device, ..mounted });
    }
    let made = path.clone();
    blocking(move || directory::make(&made)).await?;
    let options: Vec<String> = wish.options.iter().cloned().chain(label.as_deref().map(selinux::option)).collect();
    let how = disk::Wish {
        file_system: &wish.file_system,
        options: &options,
        read_only: wish.read_only,
        ..disk::Wish::default()
    };
    if let Err(failure) = disk::share(&means.remote, &device, &path, how).await {
        wish.persistent.iter().for_each(|persistent| failure.tell(persistent, &means.tell));
        return Err(wish.failed("MountVolume.MountDevice", failure.to_string()));
    }
    if let Some(group) = request.fs_group().filter(|_| !wish.read_only) {
        let by_root = group::is_by_root(request.pod);
        blocking(move || group::give(&path, group, by_root).map_err(file_error(&path))).await?;
    }
    Ok(mounted)
}

/// Whether a volume of a Pod that was mounted once still is.
pub(super) fn stays(request: &Request<'_>) -> Option<bool> {
    let is_one = iscsi::is_known(request.folder.path(), &request.volume.name);
    is_one.then(|| match &request.held {
        Some(held) if held.is_device => held.path.exists(),
        _ => super::is_still_mounted(request),
    })
}

/// Takes a disk from a Pod, and from the node if it was the last one with it.
pub(super) async fn unmount(what: &Unmount<'_>) -> Result<(), VolumeError> {
    directory::remove(what.folder.volume(NAME, what.volume), what.mounter.clone()).await?;
    let done = what.remote.detach(what.folder.path(), what.volume).await;
    done.map_err(|why| VolumeError::Step { step: "UnmountDevice", volume: what.volume.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;
    use crate::volumes::{mounter::Mounter, remote::world::World};

    /// A target, as iscsiadm shows it.
    const TARGET: &str = r#"
case "$*" in
"-m session") exit 21 ;;
*--login) : >ip-10.0.0.1:3260-iscsi-iqn.2016-04.test:disk-lun-3 ;;
esac
"#;

    fn source() -> Value {
        json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2016-04.test:disk", "lun": 3, "fsType": "xfs",
            "chapAuthSession": true, "secretRef": {"name": "chap", "namespace": "d"}})
    }

    fn world() -> World {
        let world = World::new(json!({"iscsi": source(), "mountOptions": ["noatime"]}));
        world.fakes.add("iscsiadm", TARGET).add("blkid", "exit 2").add("mkfs.xfs", "").add("mount", "");
        world
    }

    /// The calls that are not about sessions.
    fn on_disk(world: &World) -> Vec<String> {
        world
            .fakes
            .calls()
            .into_iter()
            .filter(|call| !call.starts_with("iscsiadm") && !call.starts_with("blkid"))
            .collect()
    }

    fn device(world: &World) -> String {
        world.fakes.folder.path().join("ip-10.0.0.1:3260-iscsi-iqn.2016-04.test:disk-lun-3").display().to_string()
    }

    #[tokio::test]
    async fn an_empty_disk_is_formatted_mounted_and_given_back() {
        let world = world();
        let mut own = source();
        own["secretRef"] = json!({"name": "chap"});
        let mounted = world.mount(json!({"iscsi": own})).await.unwrap();
        assert_eq!(mounted, Mounted { path: world.path(NAME), relabel: true, ..Mounted::default() });
        let (device, path) = (device(&world), world.path(NAME));
        world.mounts.bind(&path, &path).unwrap();
        let expected = [format!("mkfs.xfs {device}"), format!("mount -t xfs -o defaults {device} {}", path.display())];
        assert_eq!(on_disk(&world), expected);
        assert!(world.fakes.calls().iter().any(|call| call.ends_with("-n node.session.auth.password -v s3cret")));
        world.unmount().await;
        assert!(world.mounts.points().is_empty() && !world.folder.path().exists());
        assert!(world.fakes.calls().iter().any(|call| call.ends_with("--logout")));
    }

    #[tokio::test]
    async fn a_disk_behind_a_claim_has_its_options_and_goes_with_its_pod() {
        let world = world();
        world.fakes.add("blkid", "echo TYPE=xfs");
        let claim = || json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}});
        let mounted = world.mount(claim()).await.unwrap();
        assert!(mounted.read_only && mounted.path == world.path(NAME));
        world.mounts.bind(&mounted.path, &mounted.path).unwrap();
        let calls = world.fakes.calls().len();
        world.mount(claim()).await.unwrap();
        assert_eq!(world.fakes.calls().len(), calls, "what is mounted stays");
        assert_eq!(
            on_disk(&world),
            [format!("mount -t xfs -o noatime,ro {} {}", device(&world), mounted.path.display())]
        );
        world.unmount().await;
        assert!(world.fakes.calls().iter().any(|call| call.ends_with("--logout")));
    }

    #[tokio::test]
    async fn two_pods_at_once_format_a_disk_once() {
        let world = world();
        world.fakes.add("blkid", "[ -e made ] || exit 2; echo TYPE=xfs").add("mkfs.xfs", ": >made").add("fsck", "");
        let claim = || json!({"persistentVolumeClaim": {"claimName": "c"}});
        let other = world.other();
        let (first, second) = tokio::join!(world.mount(claim()), world.mount_for(&other, claim()));
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        let made = on_disk(&world).into_iter().filter(|call| call.starts_with("mkfs"));
        assert_eq!(made.count(), 1);
    }

    #[tokio::test]
    async fn a_disk_with_another_file_system_is_told_of_its_volume() {
        let world = world();
        world.fakes.add("mount", "echo no; exit 32").add("blkid", "echo TYPE=ext4").add("fsck", "");
        let why = world.mount(json!({"persistentVolumeClaim": {"claimName": "c"}})).await.unwrap_err();
        let words = "failed to mount the volume as \"xfs\", it already contains ext4. Mount error: mount failed: exit status 32";
        assert!(why.contains(words), "{why}");
        let told = world.told();
        let event = "PersistentVolume pv FailedMountOnFilesystemMismatch: MountVolume failed for volume \"pv\" ";
        assert!(told.len() == 1 && told[0].starts_with(&format!("{event}{words}")), "{told:?}");
        // One of the Pod's own is no object that an event could be about.
        let mut own = source();
        own["secretRef"] = json!({"name": "chap"});
        assert!(world.mount_for(&world.other(), json!({"iscsi": own})).await.unwrap_err().contains(words));
        world.fakes.add("blkid", "echo TYPE=xfs");
        world.mount(json!({"persistentVolumeClaim": {"claimName": "c"}})).await.unwrap_err();
        assert_eq!(world.told().len(), 1, "other failures are the Pod's");
    }

    #[tokio::test]
    async fn a_failure_is_told_without_secrets_and_undone_with_the_pod() {
        let world = world();
        world.fakes.add("mount", "echo no; exit 32");
        let why = world.mount(json!({"persistentVolumeClaim": {"claimName": "c"}})).await.unwrap_err();
        assert!(
            why.starts_with("MountVolume.MountDevice failed for volume \"pv\" : mount failed: exit status 32"),
            "{why}"
        );
        world.fakes.add("iscsiadm", "case \"$*\" in *session) exit 21 ;; *) echo \"no s3cret\"; exit 9 ;; esac");
        let why = world.mount(json!({"persistentVolumeClaim": {"claimName": "c"}})).await.unwrap_err();
        assert!(
            why.starts_with("MountVolume.WaitForAttach failed for volume \"pv\"") && !why.contains("s3cret"),
            "{why}"
        );
        world.fakes.add("iscsiadm", TARGET);
        world.unmount().await;
        assert!(world.fakes.calls().iter().any(|call| call.ends_with("--logout")));
        let mut bad = source();
        bad["targetPortal"] = json!("../../dev");
        let why = world.mount(json!({"iscsi": bad})).await.unwrap_err();
        assert!(why.contains("is no portal of an iSCSI target"), "{why}");
    }
}
