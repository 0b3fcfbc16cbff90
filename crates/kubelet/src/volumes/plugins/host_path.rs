//! hostPath: a path of the node, checked or made as its type says. Nothing of it goes with the Pod.

use std::{fs, os::unix::fs::FileTypeExt, path::Path};

use files::modes;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

use crate::volumes::{
    error::{VolumeError, file_error},
    folder::blocking,
    plugin::{Mounted, Plugin, Request, Unmount},
};

pub struct HostPath;

impl Plugin for HostPath {
    fn name(&self) -> &'static str {
        "host-path"
    }

    fn takes(&self, volume: &Volume) -> bool {
        volume.host_path.is_some()
    }

    fn mount<'a>(&'a self, request: &'a Request<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        let source = request.volume.host_path.clone().unwrap_or_default();
        Box::pin(blocking(move || mount(&source)))
    }

    fn unmount<'a>(&'a self, _: &'a Unmount<'a>) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async { Ok(()) })
    }
}

/// The path that a volume is, of the Pod's own or behind a claim.
pub(super) fn mount(source: &HostPathVolumeSource) -> Result<Mounted, VolumeError> {
    check(Path::new(&source.path), source.type_.as_deref().unwrap_or_default())?;
    Ok(Mounted { path: source.path.clone().into(), ..Mounted::default() })
}

fn check(path: &Path, kind: &str) -> Result<(), VolumeError> {
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
    if fits { Ok(()) } else { Err(VolumeError::HostPath { path: path.display().to_string(), wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_what_their_type_says() {
        let dir = tempfile::tempdir().unwrap();
        let (new, file) = (dir.path().join("new"), dir.path().join("file"));
        assert!(check(&new, "Directory").is_err());
        check(&new, "DirectoryOrCreate").unwrap();
        check(&new, "Directory").unwrap();
        check(&file, "FileOrCreate").unwrap();
        check(&file, "").unwrap();
        let wrong = check(&file, "Socket").unwrap_err().to_string();
        assert!(wrong.ends_with("is not a socket file"), "{wrong}");
    }
}
