//! Writing a set of files so that a reader sees all of the old or all of the new, never a mixture.
//!
//! The files are in a folder with a new name; `..data` is a link to it that is replaced in one step; what users see are
//! links through `..data`. This is upstream's layout, which programs that watch for changes rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink},
    path::Path,
};

use crate::volumes::{VolumeError, file_error};

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
}

/// Files by their path inside the volume.
pub type Files = BTreeMap<String, File>;

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Brings the volume to exactly these files. Does nothing when it holds them already.
pub fn write(volume: &Path, files: &Files, group: Option<u32>) -> Result<(), VolumeError> {
    let failed = file_error(volume);
    if holds(&volume.join(DATA), files) {
        return Ok(());
    }
    let previous = fs::read_link(volume.join(DATA)).ok();
    let name = format!("..{}", clock::now().strftime("%Y_%m_%d_%H_%M_%S.%f"));
    let folder = volume.join(&name);
    fs::create_dir(&folder).map_err(&failed)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(&failed)?;
    for (path, file) in files {
        write_file(&folder, path, file, group).map_err(file_error(&folder.join(path)))?;
    }
    // A leftover of an attempt that was cut off is in the way.
    let _ = fs::remove_file(volume.join(NEXT));
    symlink(&name, volume.join(NEXT)).map_err(&failed)?;
    fs::rename(volume.join(NEXT), volume.join(DATA)).map_err(&failed)?;
    links(volume, files).map_err(&failed)?;
    if let Some(previous) = previous
        && previous != Path::new(&name)
    {
        fs::remove_dir_all(volume.join(previous)).map_err(&failed)?;
    }
    Ok(())
}

/// Whether the folder holds exactly these files.
fn holds(folder: &Path, files: &Files) -> bool {
    let mut found = BTreeSet::new();
    if list(folder, "", &mut found).is_err() || found.len() != files.len() {
        return false;
    }
    files.iter().all(|(path, file)| {
        let place = folder.join(path);
        fs::read(&place).is_ok_and(|data| data == file.data)
            && fs::metadata(&place).is_ok_and(|m| m.mode() & 0o777 == file.mode & 0o777 || m.mode() & 0o040 != 0)
    })
}

fn list(folder: &Path, before: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{before}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{path}/"), found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

fn write_file(folder: &Path, path: &str, file: &File, group: Option<u32>) -> io::Result<()> {
    let place = folder.join(path);
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place)?;
    out.write_all(&file.data)?;
    // A group that owns the volume may read it whatever the mode says.
    let mode = if group.is_some() { file.mode | 0o440 } else { file.mode };
    out.set_permissions(fs::Permissions::from_mode(mode))?;
    if group.is_some() {
        chown(&place, None, group)?;
    }
    Ok(())
}

/// The links that users see: one for each first part of a path; those that lead nowhere go.
fn links(volume: &Path, files: &Files) -> io::Result<()> {
    let wanted: BTreeSet<&str> = files.keys().filter_map(|p| p.split('/').next()).collect();
    for name in &wanted {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(volume)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !wanted.contains(name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter().map(|(p, d)| ((*p).to_owned(), File { data: d.as_bytes().to_vec(), mode: 0o644 })).collect()
    }

    #[test]
    fn content_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let read = |p: &str| fs::read_to_string(dir.path().join(p)).ok();
        write(dir.path(), &files(&[("a", "1"), ("deep/b", "2")]), None).unwrap();
        assert_eq!((read("a").as_deref(), read("deep/b").as_deref()), (Some("1"), Some("2")));
        let before = fs::read_link(dir.path().join(DATA)).unwrap();
        write(dir.path(), &files(&[("a", "1"), ("deep/b", "2")]), None).unwrap();
        assert_eq!(fs::read_link(dir.path().join(DATA)).unwrap(), before, "the same content writes nothing");
        write(dir.path(), &files(&[("a", "3"), ("c", "4")]), None).unwrap();
        assert_eq!((read("a").as_deref(), read("deep/b"), read("c").as_deref()), (Some("3"), None, Some("4")));
        let old: Vec<_> =
            fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.file_type().unwrap().is_dir()).collect();
        assert_eq!(old.len(), 1, "the old content is gone");
    }
}
