//! The mount points of this process, as the kernel lists them.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
};

/// The mount points at and below a path, the deepest first.
pub fn at_and_below(path: &Path) -> Vec<PathBuf> {
    // The table has names without links in them.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    points(&fs::read("/proc/self/mountinfo").unwrap_or_default(), &path)
}

/// The mount points below a path, the deepest first, without one at the path itself.
pub fn below(path: &Path) -> Vec<PathBuf> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    at_and_below(path).into_iter().filter(|p| *p != real).collect()
}

fn points(table: &[u8], path: &Path) -> Vec<PathBuf> {
    let lines = table.split(|b| *b == b'\n');
    let all = lines.filter_map(|line| line.split(|b| *b == b' ').nth(4)).map(unescape);
    // A mount over another one stands later in the table, and goes first.
    let mut found: Vec<PathBuf> = all.filter(|p| p.starts_with(path)).collect();
    found.reverse();
    found.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    found
}

/// Spaces, tabs, line ends and backslashes are written as three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Whether something on a device of this number is mounted.
pub fn has_device(device: u64) -> bool {
    is_on(&fs::read("/proc/self/mountinfo").unwrap_or_default(), device)
}

fn is_on(table: &[u8], device: u64) -> bool {
    let wanted = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    table.split(|b| *b == b'\n').any(|line| line.split(|b| *b == b' ').nth(2) == Some(wanted.as_bytes()))
}

/// Whether something is mounted on this very folder, which is not the root of everything. The table is not read for it: that is as
/// long as the node has Pods.
pub fn is_mount(folder: &Path) -> bool {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let inner = open(folder, flags, Mode::empty());
    let mounts = inner.and_then(|inner| Ok((mount_of(&openat(&inner, "..", flags, Mode::empty())?), mount_of(&inner))));
    mounts.is_ok_and(|(above, here)| above != here)
}

/// The number of the mount that something is on which is held open.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_mounted_is_found() {
        let table = b"1 2 8:1 / /a rw - ext4 /dev/sda1 rw\n2 2 0:3 / /a/b rw - tmpfs t rw\n";
        let at = |major, minor| is_on(table, nix::sys::stat::makedev(major, minor));
        assert_eq!((at(8, 1), at(0, 3), at(8, 11), at(2, 8)), (true, true, false, false));
    }

    #[test]
    fn a_folder_on_which_something_is_mounted_is_told_from_one_below_it() {
        assert!(is_mount(Path::new("/proc")));
        for plain in ["/proc/self", "/proc/nothing", "/proc/version"] {
            assert!(!is_mount(Path::new(plain)), "{plain}");
        }
    }

    #[test]
    fn the_deepest_come_first_and_names_are_read_back() {
        let table = b"1 2 0:3 / /a rw - tmpfs t rw\n2 2 0:3 / /a/b rw - tmpfs t rw\n3 2 0:3 / /ab rw - tmpfs t rw\n\
            4 2 0:3 / /a/b/c\\040d\\134 rw - tmpfs t rw\n";
        let got: Vec<String> = points(table, Path::new("/a")).iter().map(|p| p.display().to_string()).collect();
        assert_eq!(got, ["/a/b/c d\\", "/a/b", "/a"]);
    }
}
