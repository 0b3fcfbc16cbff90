//! The folders of volumes: plain, in memory, or the node's own; made and removed.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::volumes::{VolumeError, file_error};

fn is_mount(path: &Path) -> bool {
    mounts_below(path).iter().any(|m| m == path)
}

/// Mount points at or below a path, deepest first.
pub fn mounts_below(path: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|l| l.split(' ').nth(1)).map(|p| PathBuf::from(p.replace("\\040", " ")));
    let mut below: Vec<PathBuf> = points.filter(|p| p.starts_with(path)).collect();
    below.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    below
}

fn in_memory_at(path: &Path, limit: Option<u64>) -> Result<(), VolumeError> {
    if is_mount(path) {
        return Ok(());
    }
    let options = limit.map(|bytes| format!("size={bytes}"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, options.as_deref()).map_err(|e| file_error(path)(e.into()))
}

/// An emptyDir. What is in it already stays.
pub fn empty(path: &Path, in_memory: bool, limit: Option<u64>, group: Option<u32>) -> Result<PathBuf, VolumeError> {
    let failed = file_error(path);
    fs::create_dir_all(path).map_err(&failed)?;
    if in_memory {
        in_memory_at(path, limit)?;
    }
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(&failed)?;
    if group.is_some() {
        chown(path, None, group).map_err(&failed)?;
    }
    Ok(path.to_owned())
}

/// The folder of a volume that the kubelet fills.
pub fn content(path: &Path, in_memory: bool) -> Result<(), VolumeError> {
    fs::create_dir_all(path).map_err(file_error(path))?;
    if in_memory {
        in_memory_at(path, None)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(file_error(path))
}

/// A path of the node, checked or made as its type says.
pub fn host_path(path: &Path, kind: &str) -> Result<PathBuf, VolumeError> {
    let make = file_error(path);
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            fs::create_dir_all(path).map_err(&make)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(&make)?;
        }
        "FileOrCreate" if !path.exists() => {
            fs::write(path, "").map_err(&make)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(&make)?;
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

/// Unmounts what is mounted at and below a folder, then removes it.
pub fn remove(path: &Path) -> Result<(), VolumeError> {
    for point in mounts_below(path) {
        umount2(&point, MntFlags::MNT_DETACH).map_err(|e| file_error(&point)(e.into()))?;
    }
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(file_error(path)(e)),
    }
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
