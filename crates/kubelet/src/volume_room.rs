//! How full volumes are: by their files, by the disk below them, or as their drivers say.
//! Upstream counterparts: metrics_du.go and metrics_statfs.go of pkg/volume.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

use clock::{Duration, Instant, Timestamp};
use files::Dir;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::node::machine;

/// The age from which a figure is measured again when somebody asks.
const FRESH: Duration = Duration::from_secs(60);
/// The time after which a measurement counts as broken off.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// The bytes and the inodes of a volume, as far as they are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    pub bytes: Option<Amounts>,
    pub inodes: Option<Amounts>,
}

/// The health of a volume, as its driver tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub is_abnormal: bool,
    pub message: String,
}

/// One volume of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    pub name: String,
    /// The claim that it comes from, by its namespace and name.
    pub claim: Option<(String, String)>,
    pub time: Timestamp,
    pub room: Room,
    /// Absent where nobody tells it.
    pub health: Option<Health>,
}

/// A volume that is a whole disk.
pub fn of_disk(path: &Path) -> Option<Room> {
    let disk = machine::disk(path)?;
    let amounts = |total: u64, free: u64| Some(Amounts { total, free, used: total.saturating_sub(free) });
    Some(Room { bytes: amounts(disk.size, disk.free), inodes: amounts(disk.inodes, disk.free_inodes) })
}

/// A volume that is a folder of a disk, which it shares with others. A file with several names counts once.
pub fn of_folder(path: &Path) -> io::Result<Option<Room>> {
    let folder = Dir::open(path)?;
    let (mut blocks, mut inodes) = (folder.meta()?.st_blocks, 1);
    let mut linked = BTreeSet::new();
    folder.each(|_, meta| {
        let is_folder = files::beneath::is_folder(meta);
        if is_folder || meta.st_nlink < 2 || linked.insert(meta.st_ino) {
            blocks += meta.st_blocks;
            inodes += 1;
        }
    })?;
    let bytes = u64::try_from(blocks).unwrap_or(0) * 512;
    Ok(of_disk(path).map(|disk| Room {
        bytes: disk.bytes.map(|amounts| Amounts { used: bytes, ..amounts }),
        inodes: disk.inodes.map(|amounts| Amounts { used: inodes, ..amounts }),
    }))
}

/// The volumes of Pods, by their uids.
pub type Measured = Arc<BTreeMap<String, Vec<VolumeUsage>>>;

#[derive(Default)]
struct State {
    measured: Measured,
    at: Option<Instant>,
    /// Since when somebody measures.
    under_way: Option<Instant>,
}

/// The figures that were measured last. However many ask, it is measured once at a time and once a minute.
#[derive(Default)]
pub struct VolumeUsages {
    state: Mutex<State>,
    done: Notify,
}

impl VolumeUsages {
    /// Whether the caller is to measure now: nobody else does, and what is known is too old.
    pub fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let is_old = |at: Option<Instant>, age: Duration| at.is_none_or(|at| at.elapsed() >= age);
        let begins = is_old(state.at, FRESH) && is_old(state.under_way, LONGEST);
        if begins {
            state.under_way = Some(Instant::now());
        }
        begins
    }

    pub fn end(&self, measured: BTreeMap<String, Vec<VolumeUsage>>) {
        *self.state.lock() = State { measured: Arc::new(measured), at: Some(Instant::now()), under_way: None };
        self.done.notify_waiters();
    }

    /// The figures that are known, after a moment for a measurement under way. A driver that hangs holds up nobody for
    /// longer.
    pub async fn known(&self, moment: Duration) -> Measured {
        let done = self.done.notified();
        if self.state.lock().under_way.is_some() {
            // The figures that are there by then are told.
            let _ = clock::timeout(moment, done).await;
        }
        self.state.lock().measured.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_is_as_large_as_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let empty = of_folder(dir.path()).unwrap().unwrap();
        fs::create_dir(dir.path().join("inner")).unwrap();
        fs::write(dir.path().join("inner/file"), [1; 100_000]).unwrap();
        fs::hard_link(dir.path().join("inner/file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        let full = of_folder(dir.path()).unwrap().unwrap();
        let grown = full.bytes.unwrap().used - empty.bytes.unwrap().used;
        assert!((98_304..200_000).contains(&grown), "{grown}");
        assert_eq!(full.inodes.unwrap().used, 4, "the folders, the file, and the link that nobody follows");
        let disk = of_disk(dir.path()).unwrap();
        assert_eq!(full.bytes.unwrap().total, disk.bytes.unwrap().total);
        assert!(of_folder(&dir.path().join("none")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_measured_once_a_minute_and_nobody_waits_for_long() {
        let usages = VolumeUsages::default();
        assert!(usages.begin());
        assert!(!usages.begin(), "somebody measures already");
        let begun = Instant::now();
        assert!(usages.known(Duration::from_secs(1)).await.is_empty());
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
        usages.end([("u".to_owned(), Vec::new())].into());
        assert!(usages.known(Duration::from_secs(1)).await.contains_key("u"));
        assert!(!usages.begin());
        clock::sleep(FRESH).await;
        assert!(usages.begin());
    }
}
