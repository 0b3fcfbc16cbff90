//! Work below a folder that a container, or anybody else, may change at the same moment.
//!
//! The rule: a path that was looked at is not used again. The folder is opened once, and all else is asked of the kernel
//! relative to what is open, with no link followed on the way; a name that was swapped for a link in between is refused
//! by the kernel (`openat2`, Linux 5.6), not by a check before it.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat, renameat},
    sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat},
    unistd::{Gid, UnlinkatFlags, fchown, symlinkat, unlinkat},
};

/// A folder that is held open.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// No link at all, and nothing above.
const NO_LINKS: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS);

/// The path by which this process names something that it holds open: it leads to that thing, whatever has its name now.
pub fn path_of(fd: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

pub fn is_folder(meta: &FileStat) -> bool {
    kind(meta) == SFlag::S_IFDIR
}

/// A plain file.
pub fn is_file(meta: &FileStat) -> bool {
    kind(meta) == SFlag::S_IFREG
}

fn kind(meta: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT
}

/// The length up to which a folder is opened by its path: with one more name (255 bytes) it is still below the kernel's bound
/// (PATH_MAX, 4096).
const LONG: usize = 3072;

/// How many times a folder that is being removed is looked through: once for each of its levels.
const PASSES: usize = 1 << 20;

impl Dir {
    /// Opens a folder whose path nobody else can change.
    pub fn open(path: &Path) -> io::Result<Dir> {
        Ok(Dir(nix::fcntl::open(path, FOLDER, Mode::empty())?))
    }

    /// Opens a folder in whose place somebody may have put a link, which is no folder then. Links above it are followed.
    pub fn open_plain(path: &Path) -> io::Result<Dir> {
        Ok(Dir(nix::fcntl::open(path, FOLDER | OFlag::O_NOFOLLOW, Mode::empty())?))
    }

    fn open2(&self, path: &Path, flags: OFlag, mode: Mode, resolve: ResolveFlag) -> io::Result<OwnedFd> {
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
        loop {
            match openat2(&self.0, path, how) {
                // The kernel says so when something was renamed meanwhile.
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                opened => return Ok(opened?),
            }
        }
    }

    /// A folder below this one.
    pub fn folder(&self, path: &Path) -> io::Result<Dir> {
        self.open2(path, FOLDER, Mode::empty(), NO_LINKS).map(Dir)
    }

    /// A folder below this one on the same mount.
    fn folder_here(&self, path: &Path) -> io::Result<Dir> {
        self.open2(path, FOLDER, Mode::empty(), NO_LINKS | ResolveFlag::RESOLVE_NO_XDEV).map(Dir)
    }

    /// Holds what a path leads to, of whatever kind, without opening it. Links are followed as far as they stay below this
    /// folder; one that leads out fails with `EXDEV`.
    pub fn hold(&self, path: &Path) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        self.open2(path, OFlag::O_PATH, Mode::empty(), resolve)
    }

    /// Holds what a path without links in it leads to.
    pub fn hold_plain(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open2(path, OFlag::O_PATH, Mode::empty(), NO_LINKS)
    }

    /// Opens a plain file for reading: no link, and nothing that would block or do something by being opened.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(self.open2(path, flags, Mode::empty(), NO_LINKS)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        Ok(file)
    }

    /// Lets a group read and write a plain file.
    pub fn share(&self, path: &Path, group: u32) -> io::Result<()> {
        let file = self.file(path)?;
        fchown(&file, None, Some(Gid::from_raw(group)))?;
        let mode = fstat(&file)?.st_mode & 0o7777;
        Ok(fchmod(&file, Mode::from_bits_truncate(mode | 0o660))?)
    }

    /// The first bytes of a plain file.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.file(path)?.take(most).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Makes a file that is not there, with this mode whatever the umask is.
    pub fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let file = self.open2(path, flags, Mode::from_bits_truncate(0o600), NO_LINKS)?;
        fchmod(&file, Mode::from_bits_truncate(mode))?;
        Ok(File::from(file))
    }

    /// Makes the folders of a path one by one, each below the one that is held, and opens the last. Those that exist stay as
    /// they are; a link in the place of one of them is refused.
    pub fn make_folders(&self, path: &Path, mode: u32) -> io::Result<Dir> {
        let mut at = Dir(self.0.try_clone()?);
        for part in path.components() {
            let name = match part {
                Component::Normal(name) => Path::new(name),
                Component::CurDir => continue,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "this path leads out of its folder")),
            };
            match mkdirat(&at.0, name, Mode::from_bits_truncate(mode & 0o777)) {
                Ok(()) => {
                    at = at.folder_here(name)?;
                    fchmod(&at.0, Mode::from_bits_truncate(mode))?;
                }
                Err(Errno::EEXIST) => at = at.folder(name)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(at)
    }

    pub fn meta(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.0)?)
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.0, Mode::from_bits_truncate(mode))?)
    }

    /// Takes away what the mode does not grant, and gives nothing.
    pub fn narrow(&self, mode: u32) -> io::Result<()> {
        let now = self.meta()?.st_mode & 0o7777;
        if now & 0o777 & !mode == 0 { Ok(()) } else { self.set_mode(now & (mode | 0o7000)) }
    }

    pub fn set_group(&self, group: u32) -> io::Result<()> {
        Ok(fchown(&self.0, None, Some(Gid::from_raw(group)))?)
    }

    /// The metadata of the entry with a name in this folder, a link itself being looked at.
    pub fn meta_of(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// Where a link leads.
    pub fn link_target(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(readlinkat(&self.0, name)?)
    }

    pub fn link(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.0, name)?)
    }

    /// Gives something of this folder another name in it.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// The names in this folder.
    pub fn names(&self) -> io::Result<impl Iterator<Item = OsString> + use<>> {
        Ok(fs::read_dir(path_of(self))?.flatten().map(|entry| entry.file_name()))
    }

    /// Calls for everything below this folder and on its mount, by its path. An entry that lies so deep that no path names it,
    /// and one that goes away meanwhile, are passed over.
    pub fn walk(&self, mut see: impl FnMut(&Path, &FileStat)) -> io::Result<()> {
        self.each(|path, meta| {
            if let Some(path) = path {
                see(path, meta);
            }
        })
    }

    /// Calls for everything below this folder and on its mount, however deep it lies: otherwise a program could put as much as it
    /// likes where nobody counts it. What lies deeper than a path of [`LONG`] bytes has no path. An entry that goes away meanwhile is
    /// passed over.
    pub fn each(&self, mut see: impl FnMut(Option<&Path>, &FileStat)) -> io::Result<()> {
        // The folders to look through, each by its path below one that is held open. The latter is this one as far as a path
        // leads there; below that, a further one is held for each long path that follows.
        let mut waiting = vec![(Rc::new(Dir(self.0.try_clone()?)), PathBuf::new(), true)];
        while let Some((mut held, mut path, mut has_path)) = waiting.pop() {
            let opened =
                if path.as_os_str().is_empty() { held.0.try_clone().map(Dir) } else { held.folder_here(&path) };
            let Ok(folder) = opened else { continue };
            let folder = Rc::new(folder);
            if path.as_os_str().len() > LONG {
                (held, path, has_path) = (folder.clone(), PathBuf::new(), false);
            }
            for name in folder.names()? {
                let Ok(meta) = folder.meta_of(&name) else { continue };
                let below = path.join(&name);
                see(has_path.then_some(&*below), &meta);
                if is_folder(&meta) {
                    waiting.push((held.clone(), below, has_path));
                }
            }
        }
        Ok(())
    }

    /// Removes what has this name, with all that is in it. Succeeds when nothing has.
    ///
    /// However deep it is, two folders are open at a time: what is found in a folder of the one that goes is moved up into
    /// the latter, so nothing is deeper than its second level. Links are removed, not followed; at a mount point it fails.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        if self.unlink(name)? == Unlinked::Gone {
            return Ok(());
        }
        let top = self.folder_here(Path::new(name))?;
        let moved = format!(".{}", clock::name_suffix(12));
        let mut serial = 0_u64;
        for _ in 0..PASSES {
            let mut seen = false;
            for name in top.names()? {
                seen = true;
                if top.unlink(&name)? == Unlinked::Gone {
                    continue;
                }
                let inner = top.folder_here(Path::new(&name))?;
                for name in inner.names()? {
                    if inner.unlink(&name)? == Unlinked::Full {
                        serial += 1;
                        renameat(&inner.0, name.as_os_str(), &top.0, format!("{moved}.{serial}").as_str())?;
                    }
                }
                // Names that were moved away in front of the reader may have hidden others: the next pass finds those.
                top.unlink(&name)?;
            }
            if !seen {
                break;
            }
        }
        match self.unlink(name)? {
            Unlinked::Gone => Ok(()),
            Unlinked::Full => Err(Errno::ENOTEMPTY.into()),
        }
    }

    fn unlink(&self, name: &OsStr) -> io::Result<Unlinked> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(Unlinked::Gone),
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(&self.0, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(Unlinked::Gone),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(Unlinked::Full),
            // It is a file after all, and may not be removed.
            Err(Errno::ENOTDIR) => Err(Errno::EPERM.into()),
            Err(error) => Err(error.into()),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Unlinked {
    Gone,
    /// A folder with something in it.
    Full,
}

/// Where something that is held open lies now.
pub fn place(fd: &impl AsFd) -> io::Result<PathBuf> {
    let target = nix::fcntl::readlink(&path_of(fd))?;
    Ok(PathBuf::from(OsString::from_vec(target.into_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn world() -> (tempfile::TempDir, Dir, PathBuf) {
        let world = tempfile::tempdir().unwrap();
        let (inside, outside) = (world.path().join("inside"), world.path().join("outside"));
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "s3cret").unwrap();
        fs::write(inside.join("a/b/file"), "mine").unwrap();
        let dir = Dir::open(&inside).unwrap();
        (world, dir, outside)
    }

    #[test]
    fn no_link_leads_out() {
        let (world, dir, outside) = world();
        let inside = world.path().join("inside");
        symlink(&outside, inside.join("absolute")).unwrap();
        symlink("../outside", inside.join("relative")).unwrap();
        symlink("a/b", inside.join("within")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        for path in ["absolute/secret", "relative/secret", "../outside/secret", "/etc/passwd", "magic/etc/passwd"] {
            let path = Path::new(path);
            assert!(dir.file(path).is_err(), "{path:?}");
            assert!(dir.folder(path.parent().unwrap()).is_err(), "{path:?}");
            assert_eq!(dir.hold(path).unwrap_err().raw_os_error(), Some(Errno::EXDEV as i32), "{path:?}");
            assert!(dir.create(path, 0o600).is_err(), "{path:?}");
            assert!(dir.make_folders(path, 0o755).is_err(), "{path:?}");
        }
        assert_eq!(dir.read(Path::new("a/b/file"), 2).unwrap(), b"mi");
        assert!(dir.file(Path::new("within/file")).is_err(), "files are opened without any link");
        assert!(
            dir.hold(Path::new("within/file")).is_ok(),
            "what is only held may lie behind a link that stays inside"
        );
        assert!(dir.hold_plain(Path::new("within/file")).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
        let refused = Dir::open_plain(&inside.join("absolute")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
        assert_eq!(Dir::open_plain(&inside.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(
            Dir::open_plain(&inside.join("within/../b")).is_ok() && Dir::open_plain(&inside.join("a/b/file")).is_err()
        );
    }

    #[test]
    fn what_is_held_stays_what_it_was_when_its_name_is_swapped_for_a_link() {
        let (world, dir, outside) = world();
        let inside = world.path().join("inside");
        let held = dir.hold(Path::new("a/b")).unwrap();
        let opened = dir.folder(Path::new("a")).unwrap();
        // The swap between check and use.
        fs::rename(inside.join("a"), inside.join("kept")).unwrap();
        symlink(&outside, inside.join("a")).unwrap();
        assert_eq!(place(&held).unwrap(), inside.join("kept/b").canonicalize().unwrap());
        opened.make_folders(Path::new("new/deep"), 0o755).unwrap();
        assert!(inside.join("kept/new/deep").is_dir());
        assert_eq!(dir.make_folders(Path::new("a/new"), 0o755).unwrap_err().raw_os_error(), Some(Errno::ELOOP as i32));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
    }

    #[test]
    fn folders_are_made_with_their_mode_and_a_dangling_link_is_not_made_true() {
        let (world, dir, outside) = world();
        let inside = world.path().join("inside");
        dir.make_folders(Path::new("x/./y"), 0o2777).unwrap();
        for made in ["x", "x/y"] {
            assert_eq!(fs::metadata(inside.join(made)).unwrap().mode() & 0o7777, 0o2777, "{made}");
        }
        symlink(outside.join("new"), inside.join("dangling")).unwrap();
        assert!(dir.make_folders(Path::new("dangling"), 0o755).is_err());
        assert!(dir.create(Path::new("dangling"), 0o644).is_err());
        assert!(!outside.join("new").exists());
    }

    #[test]
    fn only_plain_files_are_read() {
        let (world, dir, _) = world();
        nix::unistd::mkfifo(&world.path().join("inside/fifo"), Mode::from_bits_truncate(0o600)).unwrap();
        assert!(dir.file(Path::new("fifo")).is_err(), "a pipe would keep its reader waiting for ever");
        assert!(dir.file(Path::new("a")).is_err());
    }

    #[test]
    fn removal_takes_links_for_what_they_are() {
        let (world, dir, outside) = world();
        let inside = world.path().join("inside");
        symlink(&outside, inside.join("a/out")).unwrap();
        symlink(outside.join("secret"), inside.join("a/b/out")).unwrap();
        dir.remove(OsStr::new("a")).unwrap();
        dir.remove(OsStr::new("a")).unwrap();
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "s3cret");
        symlink(&outside, inside.join("link")).unwrap();
        crate::remove(&inside.join("link")).unwrap();
        assert!(outside.join("secret").exists() && !inside.join("link").exists());
        crate::remove(&inside.join("none/at/all")).unwrap();
    }

    #[test]
    fn removal_does_not_care_how_deep_or_wide_a_tree_is() {
        let (world, dir, _) = world();
        let inside = world.path().join("inside");
        // Deeper than any path or stack can be, as a program makes it that goes down step by step.
        let mut at = dir.make_folders(Path::new("deep"), 0o755).unwrap();
        for _ in 0..600 {
            at = at.make_folders(Path::new("deeper-and-deeper"), 0o755).unwrap();
            at.create(Path::new("file"), 0o644).unwrap();
        }
        let (mut counted, mut named) = (0, 0);
        dir.each(|_, _| counted += 1).unwrap();
        dir.walk(|path, _| named += i32::from(path.as_os_str().len() < 4096)).unwrap();
        // Those of `a/b/file` with them.
        assert_eq!(counted, 3 + 1 + 600 * 2);
        assert!((100..counted).contains(&named), "{named}");
        for number in 0..50 {
            dir.make_folders(Path::new(&format!("deep/{number}/x/y")), 0o755).unwrap();
        }
        dir.remove(OsStr::new("deep")).unwrap();
        assert!(!inside.join("deep").exists());
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
    }

    #[test]
    fn removal_stops_at_a_mount_point_and_leaves_what_is_mounted() {
        use nix::mount::{MntFlags, MsFlags, mount, umount2};
        let (world, dir, outside) = world();
        let point = world.path().join("inside/a/b");
        let bound = mount(Some(&outside), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        if let Err(error) = bound {
            eprintln!("SKIPPED: needs root and the right to mount: {error}");
            return;
        }
        let removed = dir.remove(OsStr::new("a"));
        let stayed = outside.join("secret").exists();
        umount2(&point, MntFlags::MNT_DETACH).unwrap();
        assert!(removed.is_err() && stayed, "{removed:?}");
    }
}
