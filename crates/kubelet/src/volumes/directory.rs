//! The folders of volumes: plain, in memory, or the node's own; made and removed.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use files::{Dir, modes};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use crate::volumes::{VolumeError, file_error};

fn in_memory_at(path: &Path, limit: Option<u64>) -> Result<(), VolumeError> {
    if files::mounts::is_mount(path) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let size = limit.map(|bytes| format!("size={bytes}"));
    let mount = |more: Option<&str>| {
        let options: Vec<&str> = size.as_deref().into_iter().chain(more).collect();
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.join(",").as_str()))
    };
    // Kernels from 6.4 on can keep it out of swap as well.
    let mounted = mount(Some("noswap")).or_else(|error| if error == Errno::EINVAL { mount(None) } else { Err(error) });
    mounted.map_err(|e| file_error(path)(e.into()))
}

/// Makes the folder of a volume. Those above it let nobody in but the node: the modes inside are the Pod's.
fn made(path: &Path) -> Result<(), VolumeError> {
    let parent = path.parent().unwrap_or(path);
    modes::folder(parent, modes::NODE_FOLDER).map_err(file_error(parent))?;
    modes::make(path, modes::SEEN_FOLDER).map_err(file_error(path))
}

/// An emptyDir. What is in it already stays.
pub fn empty(path: &Path, in_memory: bool, limit: Option<u64>, group: Option<u32>) -> Result<PathBuf, VolumeError> {
    let failed = file_error(path);
    made(path)?;
    if in_memory {
        in_memory_at(path, limit)?;
    }
    let folder = Dir::open(path).map_err(&failed)?;
    if let Some(group) = group {
        folder.set_group(group).map_err(&failed)?;
    }
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    folder.set_mode(mode).map_err(&failed)?;
    Ok(path.to_owned())
}

/// The folder of a volume that the kubelet fills.
pub fn content(path: &Path, in_memory: bool) -> Result<(), VolumeError> {
    made(path)?;
    if in_memory {
        in_memory_at(path, None)?;
    }
    Dir::open(path).and_then(|folder| folder.set_mode(modes::SEEN_FOLDER)).map_err(file_error(path))
}

/// A path of the node, checked or made as its type says.
pub fn host_path(path: &Path, kind: &str) -> Result<PathBuf, VolumeError> {
    let make = file_error(path);
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            modes::make(path, modes::SEEN_FOLDER).map_err(&make)?;
        }
        "FileOrCreate" if !path.exists() => {
            modes::create_new(path, modes::SEEN_FILE).map_err(&make)?;
        }
        _ => {}
    }
    let found = fs::metadata(path).ok().map(|m| m.file_type());
    let (wanted, fits) = match kind {
        "" => ("", true),
        "Directory" | "DirectoryOrCreate" => ("a directory", found.is_some_and(|t| t.is_dir())),
        "File" | "FileOrCreate" => ("a file", found.is_some_and(|t| t.is_file())),
        "Socket" => ("a socket file", found.is_some_and(|t| t.is_socket())),
        "CharDevice" => ("a character device", found.is_some_and(|t| t.is_char_device())),
        "BlockDevice" => ("a block device", found.is_some_and(|t| t.is_block_device())),
        other => return Err(VolumeError::Unsupported(format!("hostPath type {other}"))),
    };
    if fits { Ok(path.to_owned()) } else { Err(VolumeError::HostPath { path: path.display().to_string(), wanted }) }
}

/// Unmounts what is mounted at and below a folder, then removes it. What could not be unmounted is not emptied.
pub fn remove(path: &Path) -> Result<(), VolumeError> {
    for point in files::mounts::at_and_below(path) {
        let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
        umount2(&point, flags).map_err(|e| file_error(&point)(e.into()))?;
    }
    files::remove(path).map_err(file_error(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_what_their_type_says() {
        let dir = tempfile::tempdir().unwrap();
        let (new, file) = (dir.path().join("new"), dir.path().join("file"));
        assert!(host_path(&new, "Directory").is_err());
        host_path(&new, "DirectoryOrCreate").unwrap();
        host_path(&new, "Directory").unwrap();
        host_path(&file, "FileOrCreate").unwrap();
        host_path(&file, "").unwrap();
        let wrong = host_path(&file, "Socket").unwrap_err().to_string();
        assert!(wrong.ends_with("is not a socket file"), "{wrong}");
    }
}
