//! The modes of all files and folders that a node makes. Each is made with its mode, whatever the umask is. A folder or file of
//! an older version that lets more people in is narrowed when it is opened or written again.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Folders with keys, objects and the engine's state: root alone.
pub const PRIVATE_FOLDER: u32 = 0o700;
/// Folders with nothing of their own that everybody may open, through which processes with users of their own get to the roots of
/// their containers.
pub const PASSED_FOLDER: u32 = 0o711;
/// Upstream's folders of the kubelet: the modes inside volumes are the Pods' own, so others do not get this far.
pub const NODE_FOLDER: u32 = 0o750;
/// Folders in which the user of a container, whichever it is, must find files. They lie below a [`NODE_FOLDER`].
pub const SEEN_FOLDER: u32 = 0o755;

pub const PRIVATE_FILE: u32 = 0o600;
/// Logs, as engines write those of containers.
pub const LOG_FILE: u32 = 0o640;
/// Files that every user of a container reads.
pub const SEEN_FILE: u32 = 0o644;
/// Files that every user of a container writes: termination messages.
pub const SHARED_FILE: u32 = 0o666;

/// Makes a folder with its missing parents, all with this mode. One that exists loses what the mode does not grant.
pub fn folder(path: &Path, mode: u32) -> io::Result<()> {
    make(path, mode)?;
    narrow(path, mode)
}

/// Makes a folder with its missing parents, all with this mode. One that exists is left as it is: it is the user's.
pub fn make(path: &Path, mode: u32) -> io::Result<()> {
    let is_there = |p: &Path| p.as_os_str().is_empty() || p.is_dir();
    let mut missing: Vec<&Path> = path.ancestors().take_while(|p| !is_there(p)).collect();
    while let Some(next) = missing.pop() {
        match DirBuilder::new().mode(mode).create(next) {
            Ok(()) => fs::set_permissions(next, Permissions::from_mode(mode))?,
            // Another one was faster.
            Err(_) if next.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a folder with its missing parents, through which everybody passes and in which nobody else looks around. One that exists becomes
/// such a folder.
pub fn passage(path: &Path) -> io::Result<()> {
    folder(path, PASSED_FOLDER)?;
    let now = fs::metadata(path)?.mode() & 0o7777;
    if now & 0o111 == 0o111 { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(now | 0o111)) }
}

/// Takes away what the mode does not grant, and gives nothing.
pub fn narrow(path: &Path, mode: u32) -> io::Result<()> {
    let now = fs::metadata(path)?.mode() & 0o7777;
    if now & 0o777 & !mode == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(now & (mode | 0o7000)))
}

fn open(path: &Path, mode: u32, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(mode).open(path)?;
    if file.metadata()?.mode() & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Writes a file over, or makes it.
pub fn write(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> io::Result<()> {
    open(path, mode, OpenOptions::new().write(true).create(true).truncate(true))?.write_all(content.as_ref())
}

/// Replaces a file as a whole: a reader finds all of the old content or all of the new. One writer at a time.
pub fn replace(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> io::Result<()> {
    let part = path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().display()));
    write(&part, mode, content)?;
    fs::rename(&part, path)
}

/// As [`replace`]; when it returns, the new content outlives a loss of power.
pub fn replace_durably(path: &Path, mode: u32, content: impl AsRef<[u8]>) -> io::Result<()> {
    let part = path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().display()));
    let mut file = open(&part, mode, OpenOptions::new().write(true).create(true).truncate(true))?;
    file.write_all(content.as_ref())?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    keep_name(path)
}

/// Has the name of a file or a folder outlive a loss of power.
pub fn keep_name(path: &Path) -> io::Result<()> {
    File::open(crate::folder_of(path))?.sync_all()
}

/// Opens a file for writing at its end, or makes it.
pub fn append(path: &Path, mode: u32) -> io::Result<File> {
    open(path, mode, OpenOptions::new().append(true).create(true))
}

/// Opens a file for reading and writing as it is, or makes it.
pub fn update(path: &Path, mode: u32) -> io::Result<File> {
    open(path, mode, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

/// Makes a file that is not there; nothing is followed or written over.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    open(path, mode, OpenOptions::new().write(true).create_new(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn folders_are_made_and_narrowed_but_never_opened_wider() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        folder(&deep, NODE_FOLDER).unwrap();
        assert_eq!((mode(&dir.path().join("a")), mode(&deep)), (0o750, 0o750));
        for (before, wanted, after) in
            [(0o755, 0o750, 0o750), (0o777, 0o700, 0o700), (0o700, 0o750, 0o700), (0o2755, 0o750, 0o2750)]
        {
            fs::set_permissions(&deep, Permissions::from_mode(before)).unwrap();
            folder(&deep, wanted).unwrap();
            assert_eq!(mode(&deep), after, "{before:o} {wanted:o}");
        }
        fs::set_permissions(&deep, Permissions::from_mode(0o755)).unwrap();
        make(&deep, PRIVATE_FOLDER).unwrap();
        assert_eq!(mode(&deep), 0o755, "a user's own folder");
        for before in [0o700, 0o755, 0o777] {
            fs::set_permissions(&deep, Permissions::from_mode(before)).unwrap();
            passage(&deep).unwrap();
            assert_eq!(mode(&deep), 0o711, "{before:o}");
        }
        passage(&dir.path().join("c/d")).unwrap();
        assert_eq!((mode(&dir.path().join("c")), mode(&dir.path().join("c/d"))), (0o711, 0o711));
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(folder(&dir.path().join("file/x"), NODE_FOLDER).is_err());
    }

    #[test]
    fn files_have_the_mode_that_was_said_also_when_they_were_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("f");
        fs::write(&at, "older and longer").unwrap();
        fs::set_permissions(&at, Permissions::from_mode(0o644)).unwrap();
        write(&at, PRIVATE_FILE, "new").unwrap();
        assert_eq!((mode(&at), fs::read_to_string(&at).unwrap().as_str()), (0o600, "new"));
        replace(&at, PRIVATE_FILE, "new").unwrap();
        assert_eq!((mode(&at), fs::read_to_string(&at).unwrap().as_str()), (0o600, "new"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        append(&at, LOG_FILE).unwrap().write_all(b"+").unwrap();
        assert_eq!((mode(&at), fs::read_to_string(&at).unwrap().as_str()), (0o640, "new+"));
        assert!(create_new(&at, PRIVATE_FILE).is_err());
        let shared = dir.path().join("shared");
        create_new(&shared, SHARED_FILE).unwrap();
        assert_eq!(mode(&shared), 0o666, "whatever the umask is");
    }
}
