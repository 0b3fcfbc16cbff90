//! A disk's file system: found, made where the disk is empty, checked and mounted. Data that is on a disk is never written over.
//! Upstream counterpart: SafeFormatAndMount of k8s.io/mount-utils.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use client::EventKind;
use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    csi::Tell,
    volumes::{
        folder::blocking,
        remote::{self, Remote, programs::Programs},
    },
};

const USUAL: &str = "ext4";
/// blkid has found nothing on the disk.
const NOTHING: i32 = 2;
/// fsck has found errors that it could not correct.
const UNCORRECTED: i32 = 4;

/// The content of a disk.
#[derive(Debug, PartialEq)]
enum Content {
    Empty,
    FileSystem(String),
    /// Partitions, or something that is not known.
    Other,
}

/// How a disk is to be mounted.
#[derive(Default)]
pub struct Wish<'a> {
    /// `ext4` when empty.
    pub file_system: &'a str,
    pub options: &'a [String],
    pub read_only: bool,
    /// Somebody on the node has mounted it already: its file system is neither made nor checked.
    pub is_in_use: bool,
}

/// Why a disk could not be mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It has another file system, or something that is none.
    #[error("failed to mount the volume as {wanted:?}, it already contains {held}. Mount error: {why}")]
    Mismatch { wanted: String, held: String, why: String },
    #[error("{0}")]
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Failure::Other(why)
    }
}

impl Failure {
    /// The event about the PersistentVolume that the disk is.
    pub fn tell(&self, persistent: &ObjectReference, tell: &Tell) {
        if let Failure::Mismatch { .. } = self {
            let name = persistent.name.as_deref().unwrap_or_default();
            let text = format!("MountVolume failed for volume \"{name}\" {self}");
            tell(persistent, EventKind::Warning, "FailedMountOnFilesystemMismatch", &text);
        }
    }
}

/// Mounts a disk that other Pods of this node may have too, one Pod at a time: only the first one makes its file system, or checks it.
pub async fn share(remote: &Remote, disk: &Path, target: &Path, wish: Wish<'_>) -> Result<(), Failure> {
    let _turn = remote.turn(&disk.display().to_string()).await;
    let looked_at = disk.to_owned();
    let is_in_use = blocking(move || is_mounted(&looked_at)).await;
    mount(&remote.programs, disk, target, &Wish { is_in_use, ..wish }).await
}

/// Whether something on the node has mounted a disk.
fn is_mounted(disk: &Path) -> bool {
    let device = fs::metadata(disk).map(|meta| meta.rdev()).unwrap_or_default();
    device != 0 && files::mounts::has_device(device)
}

async fn mount(programs: &Programs, disk: &Path, target: &Path, wish: &Wish<'_>) -> Result<(), Failure> {
    let sort = if wish.file_system.is_empty() { USUAL } else { wish.file_system };
    // It becomes a part of a program's name, and authors of Pods write it.
    if sort.len() > 16 || !sort.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        return Err(format!("{sort:?} is no name of a file system").into());
    }
    let device = &disk.display().to_string();
    let found = content(programs, device).await?;
    match (&found, wish.read_only) {
        _ if wish.is_in_use => {}
        (Content::Empty, true) => {
            let why = format!("cannot mount unformatted disk {device} as we are manipulating it in read-only mode");
            return Err(why.into());
        }
        (Content::Empty, false) => make(programs, sort, device).await?,
        (Content::FileSystem(_), false) => check(programs, device).await?,
        (Content::FileSystem(_), true) | (Content::Other, _) => {}
    }
    let mounted = remote::mount(programs, (sort, device, target), wish.options, wish.read_only).await;
    mounted.map_err(|why| {
        let held = match found {
            Content::FileSystem(held) if held != sort => held,
            Content::Other => "unknown data, probably partitions".to_owned(),
            _ => return Failure::Other(why),
        };
        Failure::Mismatch { wanted: sort.to_owned(), held, why }
    })
}

async fn content(programs: &Programs, device: &str) -> Result<Content, String> {
    match programs.run("blkid", &["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device]).await {
        Ok(output) => Ok(read(&output)),
        Err(failed) if failed.code == Some(NOTHING) => Ok(Content::Empty),
        // Without certainty nothing is formatted.
        Err(failed) => Err(format!("cannot find out what is on disk {device}: blkid: {failed}")),
    }
}

fn read(output: &str) -> Content {
    let value = |name: &str| output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    match (value("TYPE"), value("PTTYPE")) {
        (_, Some(_)) | (None, None) => Content::Other,
        (Some(sort), None) => Content::FileSystem(sort.trim().to_owned()),
    }
}

async fn make(programs: &Programs, sort: &str, device: &str) -> Result<(), String> {
    let more: &[&str] = if matches!(sort, "ext3" | "ext4") { &["-F", "-m0", device] } else { &[device] };
    tracing::info!(device, file_system = sort, "an empty disk is formatted");
    let made = programs.run(&format!("mkfs.{sort}"), more).await;
    made.map(drop).map_err(|failed| format!("format of disk {device:?} failed: type:({sort:?}) {failed}"))
}

async fn check(programs: &Programs, device: &str) -> Result<(), String> {
    if programs.find("fsck").is_none() {
        tracing::warn!(device, "fsck is not on this node; the disk is mounted without a check");
        return Ok(());
    }
    match programs.run("fsck", &["-a", device]).await {
        Err(failed) if failed.code == Some(UNCORRECTED) => {
            Err(format!("'fsck' found errors on device {device} but could not correct them: {}", failed.output))
        }
        Err(failed) if failed.code != Some(1) => {
            tracing::warn!(device, %failed, "a disk could not be checked");
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::remote::programs::Fakes;

    /// The calls and the outcome of mounting a disk of which blkid says this.
    async fn mounted(blkid: &str, fsck: &str, wish: &Wish<'_>) -> (Vec<String>, Result<(), Failure>) {
        let fakes = Fakes::in_a_new_folder();
        fakes.add("blkid", blkid).add("fsck", fsck).add("mkfs.ext4", "").add("mkfs.xfs", "");
        fakes.add("mount", "[ \"$2\" != bad ] || { echo no; exit 32; }");
        let done = mount(&fakes.programs(), Path::new("/dev/d"), Path::new("/t"), wish).await;
        let calls = fakes.calls().into_iter().filter(|call| !call.starts_with("blkid"));
        (calls.collect(), done)
    }

    const EMPTY: &str = "exit 2";
    const EXT4: &str = "echo DEVNAME=/dev/d; echo TYPE=ext4";

    #[tokio::test]
    async fn only_an_empty_disk_is_formatted() {
        let check = async |blkid: &str, wish: Wish<'_>, expected: &[&str]| {
            let (calls, done) = mounted(blkid, "", &wish).await;
            assert_eq!(calls, expected);
            done
        };
        check(EMPTY, Wish::default(), &["mkfs.ext4 -F -m0 /dev/d", "mount -t ext4 -o defaults /dev/d /t"])
            .await
            .unwrap();
        let xfs = || Wish { file_system: "xfs", ..Wish::default() };
        check(EMPTY, xfs(), &["mkfs.xfs /dev/d", "mount -t xfs -o defaults /dev/d /t"]).await.unwrap();
        check(EXT4, Wish::default(), &["fsck -a /dev/d", "mount -t ext4 -o defaults /dev/d /t"]).await.unwrap();
        let read = || Wish { read_only: true, ..Wish::default() };
        check(EXT4, read(), &["mount -t ext4 -o ro /dev/d /t"]).await.unwrap();
        let why = check(EMPTY, read(), &[]).await.unwrap_err().to_string();
        assert!(why.contains("read-only mode"), "{why}");
        let why = check("exit 4", Wish::default(), &[]).await.unwrap_err().to_string();
        assert!(why.starts_with("cannot find out what is on disk /dev/d"), "{why}");
        let partitions = "echo PTTYPE=dos";
        check(partitions, Wish::default(), &["mount -t ext4 -o defaults /dev/d /t"]).await.unwrap();
    }

    #[tokio::test]
    async fn a_disk_that_somebody_has_mounted_is_only_mounted() {
        for content in [EXT4, EMPTY] {
            let (calls, done) = mounted(content, "", &Wish { is_in_use: true, ..Wish::default() }).await;
            assert_eq!((calls, done), (vec!["mount -t ext4 -o defaults /dev/d /t".to_owned()], Ok(())));
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!is_mounted(&file) && !is_mounted(&folder.path().join("none")), "neither is a disk");
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_disk_is_said() {
        let bad = Wish { file_system: "bad", ..Wish::default() };
        let why = mounted(EXT4, "", &bad).await.1.unwrap_err().to_string();
        assert!(why.starts_with("failed to mount the volume as \"bad\", it already contains ext4. Mount error: mount failed: exit status 32"), "{why}");
        let why = mounted("echo PTTYPE=dos", "", &bad).await.1.unwrap_err().to_string();
        assert!(why.contains("unknown data, probably partitions"), "{why}");
        let (calls, done) = mounted(EXT4, "echo broken; exit 4", &Wish::default()).await;
        let why = done.unwrap_err().to_string();
        assert_eq!(why, "'fsck' found errors on device /dev/d but could not correct them: broken");
        assert_eq!(calls, ["fsck -a /dev/d"]);
        mounted(EXT4, "exit 1", &Wish::default()).await.1.unwrap();
    }

    #[tokio::test]
    async fn a_file_system_is_no_path_of_a_program() {
        for name in ["../../tmp/evil", "ext4 -x", "EXT4", "a.b", "aaaaaaaaaaaaaaaaa"] {
            let (calls, done) = mounted(EMPTY, "", &Wish { file_system: name, ..Wish::default() }).await;
            assert!(done.is_err() && calls.is_empty(), "{name}");
        }
    }
}
