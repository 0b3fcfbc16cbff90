//! The mounts that volumes need of the kernel. They stand behind a trait, so that all else is tested without root.

use std::{
    io,
    path::Path,
    sync::mpsc::{RecvTimeoutError, sync_channel},
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

pub trait Mounter: Send + Sync {
    /// Mounts an empty file system in memory, unless something is mounted there. `size` is its most bytes.
    fn in_memory(&self, path: &Path, size: Option<u64>) -> io::Result<()>;
    /// Mounts an empty file system in memory that only the node may enter and only the machine's memory bounds, unless something is
    /// mounted there.
    fn in_all_memory(&self, path: &Path) -> io::Result<()>;
    /// Mounts an empty file system in huge pages of that many bytes each, unless something is mounted there.
    fn in_huge_pages(&self, path: &Path, page: i64) -> io::Result<()>;
    /// Lets `target` show what is at `source`.
    fn bind(&self, source: &Path, target: &Path) -> io::Result<()>;
    /// Whether something is mounted at this very path. What is mounted there is not asked: its server may not answer.
    fn is_mounted(&self, path: &Path) -> bool;
    /// Unmounts what is mounted at and below a path.
    fn unmount(&self, path: &Path) -> io::Result<()>;
}

/// How often it is looked whether a mount has gone while the kernel still has to do with its server.
const PATIENCE: Duration = Duration::from_secs(1);

/// The mounts of this machine.
pub struct Kernel;

impl Mounter for Kernel {
    fn in_memory(&self, path: &Path, size: Option<u64>) -> io::Result<()> {
        // Programs of a Pod that may make devices, or run as their owner, may do so here as on the node's disk.
        tmpfs(path, MsFlags::empty(), size.map(|bytes| format!("size={bytes}")).as_deref())
    }

    fn in_all_memory(&self, path: &Path) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        tmpfs(path, flags, Some(&format!("size=100%,nr_inodes=0,mode={:o}", files::modes::NODE_FOLDER)))
    }

    fn in_huge_pages(&self, path: &Path, page: i64) -> io::Result<()> {
        if files::mounts::is_mount(path) {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let options = format!("pagesize={page}");
        Ok(mount(Some("nodev"), path, Some("hugetlbfs"), flags, Some(options.as_str()))?)
    }

    fn bind(&self, source: &Path, target: &Path) -> io::Result<()> {
        Ok(mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    }

    fn is_mounted(&self, path: &Path) -> bool {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let real = parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name);
        files::mounts::below(parent).contains(&real)
    }

    fn unmount(&self, path: &Path) -> io::Result<()> {
        for point in files::mounts::at_and_below(path) {
            let failed =
                |errno: Errno| io::Error::new(io::Error::from(errno).kind(), format!("{}: {errno}", point.display()));
            detach(&point).map_err(failed)?;
        }
        Ok(())
    }
}

fn tmpfs(path: &Path, flags: MsFlags, options: Option<&str>) -> io::Result<()> {
    if files::mounts::is_mount(path) {
        return Ok(());
    }
    let mount = |more: Option<&str>| {
        let options: Vec<&str> = options.into_iter().chain(more).collect();
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.join(",").as_str()))
    };
    // Kernels from 6.4 on can keep it out of swap as well.
    let outcome = match mount(Some("noswap")) {
        Err(Errno::EINVAL) => mount(None),
        outcome => outcome,
    };
    Ok(outcome?)
}

/// Takes a mount away. The kernel does so at once, and then tells the server of a network's file system that nobody is there any more,
/// for as long as that takes: such a server may be gone, and the call is left to itself.
fn detach(point: &Path) -> Result<(), Errno> {
    let (ended, end) = sync_channel(1);
    let place = point.to_owned();
    std::thread::spawn(move || {
        let _ = ended.send(umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW));
    });
    loop {
        match end.recv_timeout(PATIENCE) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO),
            Err(RecvTimeoutError::Timeout) if !files::mounts::at_and_below(point).iter().any(|one| one == point) => {
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The mounts of a kubelet without any: what a Pod writes there stays on its node's disk.
pub struct Nothing;

impl Mounter for Nothing {
    fn in_memory(&self, _: &Path, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    fn in_all_memory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn in_huge_pages(&self, _: &Path, _: i64) -> io::Result<()> {
        Ok(())
    }

    fn bind(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn is_mounted(&self, _: &Path) -> bool {
        false
    }

    fn unmount(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Mounts that only a record knows of, for tests without root.
#[cfg(test)]
#[derive(Default)]
pub struct Recorded(parking_lot::Mutex<std::collections::BTreeSet<std::path::PathBuf>>);

#[cfg(test)]
impl Recorded {
    /// Where something is mounted.
    pub fn points(&self) -> Vec<std::path::PathBuf> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
impl Mounter for Recorded {
    fn in_memory(&self, path: &Path, _: Option<u64>) -> io::Result<()> {
        self.0.lock().insert(path.to_owned());
        Ok(())
    }

    fn in_all_memory(&self, path: &Path) -> io::Result<()> {
        self.in_memory(path, None)
    }

    fn in_huge_pages(&self, path: &Path, _: i64) -> io::Result<()> {
        self.in_memory(path, None)
    }

    fn bind(&self, _: &Path, target: &Path) -> io::Result<()> {
        self.0.lock().insert(target.to_owned());
        Ok(())
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.0.lock().contains(path)
    }

    fn unmount(&self, path: &Path) -> io::Result<()> {
        self.0.lock().retain(|point| !point.starts_with(path));
        Ok(())
    }
}
