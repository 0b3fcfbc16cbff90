//! The controller's half of the driver: volumes that it makes, copies, grows and removes, snapshots of them, and the nodes that may
//! have them. A volume is the image of a file system, or of a device, beside the folder of its nodes. All that is done may have
//! been done before.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use runtime::grpc::Status;

use crate::programs::run;

pub struct Images {
    data: PathBuf,
}

/// The first content of a volume, by the driver's name for it.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Volume(String),
    Snapshot(String),
}

pub fn failed(error: io::Error) -> Status {
    Status::internal(error.to_string())
}

/// A name that is one part of a path.
pub fn part(name: &str) -> io::Result<&str> {
    let is_part = !matches!(name, "" | "." | "..") && !name.contains('/');
    is_part.then_some(name).ok_or_else(|| io::Error::other(format!("{name:?} is no volume")))
}

/// Lets the file system in a device, or in an image that nobody has mounted, have all of its room.
fn fill(place: &str) -> io::Result<()> {
    run("resize2fs", &[place]).map(drop)
}

/// Looks whether a file system is whole, as one that grows has to be.
fn check(place: &str) -> io::Result<()> {
    // One that mended something says so by its status.
    run("sh", &["-c", "e2fsck -fy \"$0\" >/dev/null || [ $? = 1 ]", place]).map(drop)
}

/// Where a device is mounted, the oldest place first.
fn mounts(device: &str) -> Vec<String> {
    let found = run("findmnt", &["--noheadings", "--list", "--output", "TARGET", "--source", device]);
    found.unwrap_or_default().lines().map(str::to_owned).collect()
}

fn size(image: &Path) -> io::Result<u64> {
    Ok(fs::metadata(image)?.len())
}

fn absent_is_fine(removed: io::Result<()>) -> Result<(), Status> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

impl Images {
    pub fn new(data: &Path) -> io::Result<Images> {
        fs::create_dir_all(data)?;
        Ok(Images { data: data.canonicalize()? })
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn path(&self, volume: &str) -> io::Result<PathBuf> {
        Ok(self.data.join(format!("{}.img", part(volume)?)))
    }

    fn nodes(&self, volume: &str) -> io::Result<PathBuf> {
        Ok(self.data.join(format!("{}.nodes", part(volume)?)))
    }

    fn snapshot(&self, name: &str) -> io::Result<PathBuf> {
        Ok(self.data.join(format!("{}.snap", part(name)?)))
    }

    /// Whether this half of the driver made the volume. Others come to be when a node uses them first.
    pub fn is_made(&self, volume: &str) -> io::Result<bool> {
        Ok(self.nodes(volume)?.exists())
    }

    /// The device that a volume is, if it is one by now.
    pub fn device(&self, volume: &str) -> io::Result<Option<String>> {
        let image = self.path(volume)?.display().to_string();
        let devices = run("losetup", &["--noheadings", "--output", "NAME", "--associated", &image])?;
        Ok(devices.lines().next().map(|name| name.trim().to_owned()))
    }

    /// The device that a volume becomes now, if it is none.
    pub fn as_device(&self, volume: &str) -> io::Result<String> {
        if let Some(device) = self.device(volume)? {
            return Ok(device);
        }
        run("losetup", &["--find", "--show", &self.path(volume)?.display().to_string()])
    }

    /// Makes a volume; its file system is ext4.
    pub fn make(&self, volume: &str, bytes: u64, is_block: bool, source: Option<&Source>) -> Result<u64, Status> {
        let (image, nodes) = (self.path(volume).map_err(failed)?, self.nodes(volume).map_err(failed)?);
        if nodes.exists() {
            return size(&image).map_err(failed);
        }
        let from = match source {
            None => None,
            Some(Source::Volume(source)) => Some(self.path(source).map_err(failed)?),
            Some(Source::Snapshot(source)) => Some(self.snapshot(source).map_err(failed)?),
        };
        if let Some(from) = &from {
            let least = size(from).map_err(|_| Status::not_found(format!("{source:?} is not there")))?;
            if bytes < least {
                return Err(Status::out_of_range(format!("{bytes} bytes are less than the {least} of {source:?}")));
            }
        }
        let made = || -> io::Result<()> {
            let path = image.display().to_string();
            match (source, &from) {
                (Some(Source::Volume(source)), Some(from)) => self.copy(source, from, &image)?,
                (Some(_), Some(from)) => copy(from, &image)?,
                _ => drop(fs::File::create(&image)?),
            }
            fs::OpenOptions::new().write(true).open(&image)?.set_len(bytes)?;
            match from {
                None if !is_block => drop(run("mkfs.ext4", &["-q", "-F", "-m", "0", &path])?),
                Some(_) if !is_block => {
                    check(&path)?;
                    fill(&path)?;
                }
                _ => {}
            }
            fs::create_dir(&nodes)
        };
        made().map_err(failed)?;
        Ok(bytes)
    }

    /// Copies a volume as it is at one moment, although somebody may write to it.
    fn copy(&self, volume: &str, from: &Path, to: &Path) -> io::Result<()> {
        let Some(device) = self.device(volume)? else { return copy(from, to) };
        run("blockdev", &["--flushbufs", &device])?;
        let mounts = mounts(&device);
        let Some(mount) = mounts.first() else { return copy(from, to) };
        run("fsfreeze", &["--freeze", mount])?;
        let copied = copy(from, to);
        run("fsfreeze", &["--unfreeze", mount])?;
        copied
    }

    pub fn remove(&self, volume: &str) -> Result<(), Status> {
        let nodes = self.nodes(volume).map_err(failed)?;
        let users = fs::read_dir(&nodes).map(|files| files.count()).unwrap_or(0);
        if users > 0 {
            return Err(Status::failed_precondition(format!("{volume} is published to {users} nodes")));
        }
        absent_is_fine(fs::remove_file(self.path(volume).map_err(failed)?))?;
        absent_is_fine(fs::remove_dir(nodes))
    }

    /// Makes the image larger; the device and the file system grow on the node.
    pub fn grow(&self, volume: &str, bytes: u64) -> Result<u64, Status> {
        let image = self.path(volume).map_err(failed)?;
        let held = size(&image).map_err(|_| Status::not_found(format!("{volume} is not there")))?;
        if held < bytes {
            let grown = fs::OpenOptions::new().write(true).open(&image).and_then(|file| file.set_len(bytes));
            grown.map_err(failed)?;
        }
        Ok(held.max(bytes))
    }

    /// Lets the device, and the file system in it, grow after the image.
    pub fn grow_here(&self, volume: &str, bytes: u64, is_block: bool) -> Result<u64, Status> {
        let held = size(&self.path(volume).map_err(failed)?).map_err(failed)?;
        if held < bytes {
            return Err(Status::out_of_range(format!("{volume} has {held} bytes, not {bytes}")));
        }
        let device = self.device(volume).map_err(failed)?;
        let device = device.ok_or_else(|| Status::not_found(format!("{volume} is not staged")))?;
        run("losetup", &["--set-capacity", &device]).map_err(failed)?;
        if !is_block {
            self.fill_mounted(&device)?;
        }
        Ok(held)
    }

    /// A machine may have no right to let a mounted file system grow: this one leaves its places for that moment, which only works as
    /// long as no process uses it.
    fn fill_mounted(&self, device: &str) -> Result<(), Status> {
        let places = mounts(device);
        for (done, place) in places.iter().enumerate().rev() {
            if let Err(error) = run("umount", &[place]) {
                for place in &places[done + 1..] {
                    run("mount", &[device, place]).map_err(failed)?;
                }
                return Err(Status::failed_precondition(error.to_string()));
            }
        }
        let filled = check(device).and_then(|()| fill(device));
        for place in &places {
            run("mount", &[device, place]).map_err(failed)?;
        }
        filled.map_err(failed)
    }

    /// Makes a snapshot of a volume, and returns its size.
    pub fn snap(&self, name: &str, volume: &str) -> Result<u64, Status> {
        let (to, from) = (self.snapshot(name).map_err(failed)?, self.path(volume).map_err(failed)?);
        if !from.exists() {
            return Err(Status::not_found(format!("{volume} is not there")));
        }
        if !to.exists() {
            self.copy(volume, &from, &to).map_err(failed)?;
        }
        size(&to).map_err(failed)
    }

    /// The size of a snapshot that is there.
    pub fn snapped(&self, name: &str) -> Result<u64, Status> {
        let there = self.snapshot(name).and_then(|file| size(&file));
        there.map_err(|_| Status::not_found(format!("the snapshot {name} is not there")))
    }

    pub fn remove_snapshot(&self, name: &str) -> Result<(), Status> {
        absent_is_fine(fs::remove_file(self.snapshot(name).map_err(failed)?))
    }

    /// Lets a node have a volume, which no other one may have then.
    pub fn publish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let place = self.nodes(volume).map_err(failed)?;
        let files = fs::read_dir(&place).map_err(|_| Status::not_found(format!("{volume} is not there")))?;
        let other = files.flatten().map(|file| file.file_name()).find(|file| *file != *node);
        if let Some(other) = other {
            return Err(Status::failed_precondition(format!("{volume} is published to {}", other.display())));
        }
        fs::write(place.join(part(node).map_err(failed)?), "").map_err(failed)
    }

    pub fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let place = self.nodes(volume).map_err(failed)?;
        absent_is_fine(fs::remove_file(place.join(part(node).map_err(failed)?)))
    }

    pub fn is_published(&self, volume: &str, node: &str) -> io::Result<bool> {
        Ok(self.nodes(volume)?.join(part(node)?).exists())
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let text = |path: &Path| path.display().to_string();
    run("cp", &["--sparse=always", &text(from), &text(to)]).map(drop)
}

#[cfg(test)]
mod tests {
    use runtime::grpc::Code;

    use super::*;

    fn code<T>(answer: Result<T, Status>) -> Code {
        answer.err().map_or(Code::Ok, |status| status.code())
    }

    #[test]
    fn a_volume_is_for_one_node_and_stays_as_long_as_that_one_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::new(&folder.path().join("data")).unwrap();
        assert_eq!(code(images.publish("v", "one")), Code::NotFound);
        assert_eq!(images.make("v", 4096, true, None).unwrap(), 4096);
        assert_eq!(images.make("v", 9999, true, None).unwrap(), 4096);
        images.publish("v", "one").unwrap();
        images.publish("v", "one").unwrap();
        assert_eq!(code(images.publish("v", "two")), Code::FailedPrecondition);
        assert!(images.is_published("v", "one").unwrap() && !images.is_published("v", "two").unwrap());
        assert_eq!(code(images.remove("v")), Code::FailedPrecondition);
        images.unpublish("v", "two").unwrap();
        images.unpublish("v", "one").unwrap();
        images.publish("v", "two").unwrap();
        images.unpublish("v", "two").unwrap();
        images.remove("v").unwrap();
        images.remove("v").unwrap();
        assert!(!images.is_made("v").unwrap());
        for wrong in ["", ".", "..", "a/b", "/x"] {
            assert!(images.path(wrong).is_err() && images.snapshot(wrong).is_err(), "{wrong:?}");
            assert_eq!(code(images.make(wrong, 1, true, None)), Code::Internal, "{wrong:?}");
        }
    }

    #[test]
    fn snapshots_and_copies_hold_what_was_there_and_have_room_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::new(folder.path()).unwrap();
        images.make("v", 4096, true, None).unwrap();
        fs::write(images.path("v").unwrap(), "old".repeat(2000)).unwrap();
        assert_eq!(images.snap("s", "v").unwrap(), 6000);
        fs::write(images.path("v").unwrap(), "new".repeat(2000)).unwrap();
        assert_eq!((images.snap("s", "v").unwrap(), images.snapped("s").unwrap()), (6000, 6000));
        assert_eq!(code(images.snap("t", "other")), Code::NotFound);
        let (volume, snapshot) = (Source::Volume("v".to_owned()), Source::Snapshot("s".to_owned()));
        assert_eq!(code(images.make("a", 5999, true, Some(&volume))), Code::OutOfRange);
        images.make("a", 6000, true, Some(&volume)).unwrap();
        images.make("b", 6001, true, Some(&snapshot)).unwrap();
        let begins = |name: &str| fs::read(images.path(name).unwrap()).unwrap()[..3].to_vec();
        assert_eq!((begins("a"), begins("b")), (b"new".to_vec(), b"old".to_vec()));
        images.remove_snapshot("s").unwrap();
        assert_eq!(code(images.make("c", 9999, true, Some(&snapshot))), Code::NotFound);
        assert_eq!(images.grow("a", 7000).unwrap(), 7000);
        assert_eq!(images.grow("a", 10).unwrap(), 7000);
        assert_eq!(code(images.grow("c", 10)), Code::NotFound);
        assert_eq!(code(images.grow_here("a", 7001, true)), Code::OutOfRange);
    }
}
