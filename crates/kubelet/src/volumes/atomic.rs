//! Writing a set of files so that a reader sees all of the old or all of the new, never a mixture.
//!
//! The files are in a folder with a new name; `..data` is a link to it that is replaced in one step; what users see are
//! links through `..data`. This is upstream's layout, which programs that watch for changes rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io::{self, Write},
    path::{Path, PathBuf},
};

use files::{Dir, beneath, modes};
use nix::unistd::{Gid, Uid, fchown};

use crate::volumes::error::{VolumeError, file_error};

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The user whose it is; the node's own when `None`.
    pub owner: Option<u32>,
}

impl File {
    pub fn new(data: Vec<u8>, mode: u32) -> Self {
        File { data, mode, owner: None }
    }
}

/// Files by their path inside the volume.
pub type Files = BTreeMap<String, File>;

const DATA: &str = "..data";
const NEXT: &str = "..data_tmp";

/// Brings the volume to exactly these files. Does nothing when it holds them already.
///
/// Containers see the volume read-only, but one that an older kubelet started may not: nothing here follows a link that it
/// could have put there.
pub fn write(volume: &Path, files: &Files, group: Option<u32>) -> Result<(), VolumeError> {
    let failed = file_error(volume);
    let root = Dir::open(volume).map_err(&failed)?;
    let previous = root.link_target(OsStr::new(DATA)).ok().filter(|name| is_ours(name));
    if previous.as_ref().is_some_and(|name| holds(&root, name, files, group).unwrap_or(false)) {
        return Ok(());
    }
    let name = format!("..{}", clock::now().strftime("%Y_%m_%d_%H_%M_%S.%f"));
    let folder = root.make_folders(Path::new(&name), modes::SEEN_FOLDER).map_err(&failed)?;
    hand_over(&folder, group).map_err(&failed)?;
    for (path, file) in files {
        write_file(&folder, Path::new(path), file, group).map_err(file_error(&volume.join(&name).join(path)))?;
    }
    // A leftover of an attempt that was cut off is in the way.
    root.remove(OsStr::new(NEXT)).map_err(&failed)?;
    root.link(Path::new(&name), OsStr::new(NEXT)).map_err(&failed)?;
    root.rename(OsStr::new(NEXT), OsStr::new(DATA)).map_err(&failed)?;
    links(&root, files).map_err(&failed)?;
    match previous {
        Some(previous) if previous != OsStr::new(&name) => root.remove(&previous).map_err(&failed),
        _ => Ok(()),
    }
}

/// Whether a link's target is the name that [`write`] gives a folder, and so lies in the volume itself.
fn is_ours(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(".."));
    digits.is_some_and(|d| !d.is_empty() && d.chars().all(|c| c.is_ascii_digit() || matches!(c, '_' | '.')) && d != ".")
}

fn mode_of(file: &File, group: Option<u32>) -> u32 {
    // A group that owns the volume may read it whatever the mode says.
    if group.is_some() { file.mode | 0o440 } else { file.mode }
}

/// Whether the folder holds exactly these files.
fn holds(root: &Dir, name: &OsStr, files: &Files, group: Option<u32>) -> io::Result<bool> {
    let folder = root.folder(Path::new(name))?;
    let mut found = BTreeSet::<PathBuf>::new();
    let mut modes_fit = true;
    folder.walk(|path, meta| {
        if !beneath::is_folder(meta) {
            let wanted = path.to_str().and_then(|path| files.get(path));
            modes_fit &= wanted.is_some_and(|file| {
                mode_of(file, group) & 0o777 == meta.st_mode & 0o777 && file.owner.is_none_or(|o| o == meta.st_uid)
            });
            found.insert(path.to_owned());
        }
    })?;
    let same = |(path, file): (&String, &File)| {
        let most = file.data.len() as u64 + 1;
        found.contains(Path::new(path)) && folder.read(Path::new(path), most).is_ok_and(|data| data == file.data)
    };
    Ok(modes_fit && found.len() == files.len() && files.iter().all(same))
}

/// Gives a folder of the volume to the group that owns the volume, with what will be made in it.
pub fn hand_over(folder: &Dir, group: Option<u32>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    folder.set_group(group)?;
    folder.set_mode(modes::SEEN_FOLDER | 0o2000)
}

fn write_file(folder: &Dir, path: &Path, file: &File, group: Option<u32>) -> io::Result<()> {
    for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
        hand_over(&folder.make_folders(parent, modes::SEEN_FOLDER)?, group)?;
    }
    let mut out = folder.create(path, modes::PRIVATE_FILE)?;
    out.write_all(&file.data)?;
    if group.is_some() || file.owner.is_some() {
        fchown(&out, file.owner.map(Uid::from_raw), group.map(Gid::from_raw))?;
    }
    let mode = nix::sys::stat::Mode::from_bits_truncate(mode_of(file, group));
    Ok(nix::sys::stat::fchmod(&out, mode)?)
}

/// The links that users see: one for each first part of a path; those that lead nowhere go.
fn links(root: &Dir, files: &Files) -> io::Result<()> {
    let wanted: BTreeSet<&str> = files.keys().filter_map(|p| p.split('/').next()).collect();
    for name in &wanted {
        let target = Path::new(DATA).join(name);
        if !root.link_target(OsStr::new(name)).is_ok_and(|held| Path::new(&held) == target) {
            root.remove(OsStr::new(name))?;
            root.link(&target, OsStr::new(name))?;
        }
    }
    for name in root.names()? {
        let is_wanted = name.to_str().is_some_and(|name| name.starts_with("..") || wanted.contains(name));
        if !is_wanted {
            root.remove(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
    };

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter().map(|(p, d)| ((*p).to_owned(), File::new(d.as_bytes().to_vec(), 0o644))).collect()
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

    #[test]
    fn what_a_container_put_there_leads_nowhere() {
        let world = tempfile::tempdir().unwrap();
        let (volume, outside) = (world.path().join("volume"), world.path().join("outside"));
        fs::create_dir(&volume).unwrap();
        let plant = |link: &str, target: &str| {
            let _ = fs::remove_file(volume.join(link));
            symlink(target, volume.join(link)).unwrap();
        };
        for target in ["../outside", "..", ".", "..2026/../../outside", "a", "../outside/..2026"] {
            fs::create_dir_all(outside.join("..2026")).unwrap();
            fs::write(outside.join("a"), "precious").unwrap();
            // In place of the link to the content, of a file, and of what a write begins with.
            plant(DATA, target);
            plant(NEXT, target);
            plant("a", "../outside/a");
            write(&volume, &files(&[("a", "1"), ("b/c", "2")]), None).unwrap();
            assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "1", "{target}");
            assert_eq!(fs::read_to_string(volume.join("b/c")).unwrap(), "2", "{target}");
            assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "precious", "{target}");
            assert!(outside.join("..2026").exists(), "{target}");
        }
    }

    #[test]
    fn files_have_their_modes_and_a_changed_mode_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o777;
        let with = |mode| Files::from([("a".to_owned(), File::new(b"1".to_vec(), mode))]);
        for wanted in [0o400, 0o644, 0o600] {
            write(dir.path(), &with(wanted), None).unwrap();
            assert_eq!(mode("a"), wanted);
        }
        assert_eq!(mode("..data"), 0o755);
    }

    #[test]
    fn the_group_of_a_pod_owns_folders_too() {
        let dir = tempfile::tempdir().unwrap();
        let group = nix::unistd::getgid().as_raw();
        write(dir.path(), &files(&[("a/b/c", "1")]), Some(group)).unwrap();
        for path in ["..data/", "a", "a/b"] {
            let meta = fs::metadata(dir.path().join(path)).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.gid()), (0o2755, group), "{path}");
        }
    }
}
