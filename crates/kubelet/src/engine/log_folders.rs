//! The folders in which logs of Pods are: the node's own, and others that it may share, where agents look for logs. A record in the
//! kubelet's folder says which Pods' folders in a shared one are of this node, since nothing else in it is ever removed. It is
//! written before a folder is made and ends after it, so that a crash leaves nothing that nobody knows.
//!
//! A Pod that may write to a shared folder, as collectors do, can put a link in the place of anything there: none is followed.
//! Upstream counterpart: pkg/kubelet/kubelet.go (setupDataDirs), pkg/kubelet/kuberuntime (evictPodLogsDirectories).

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use files::{Dir, modes};

use crate::{config::SharedLogs, engine::log_links, pod::desired::DesiredPod};

/// The record in the kubelet's folder: one folder for each shared one. In it are a link to that folder and one to the folder of
/// links, an empty file for each of the two that was made here, and an empty file for each Pod.
const RECORD: &str = "pod-logs";
const FOLDER: &str = "folder";
const LINKS: &str = "links";
const PODS: &str = "pods";
/// Added to the name of a link: what it leads to was not there before.
const MADE: &str = ".made";
/// Nobody changes the folder of logs as often as this.
const MOST: usize = 1000;

/// The folder of a Pod's logs, in whichever folder of logs that is.
pub fn name_of(namespace: &str, name: &str, uid: &str) -> String {
    format!("{namespace}_{name}_{uid}")
}

/// The name of the folder of a Pod's logs.
pub fn of(desired: &DesiredPod) -> String {
    name_of(desired.namespace(), desired.name(), desired.uid())
}

/// The Pod whose logs are in a folder of that name: `namespace_name_uid`.
pub fn uid_of(folder: &str) -> Option<&str> {
    let mut parts = folder.splitn(3, '_');
    parts.nth(2).filter(|uid| !uid.is_empty())
}

pub fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned())
}

/// A folder that may also hold what is not this node's.
#[derive(Debug)]
pub struct Shared {
    pub folder: PathBuf,
    pub links: PathBuf,
    record: PathBuf,
}

impl Shared {
    /// The folder itself, and no link in its place.
    fn open(&self) -> io::Result<Dir> {
        Dir::open_plain(&self.folder)
    }

    /// Makes it and the folder of links, as far as they are missing. One that is there is somebody's and stays as it is.
    fn make(&self) -> io::Result<()> {
        let make = |folder: &Path, mark: &str, mode| {
            if folder.symlink_metadata().is_ok() {
                return Ok(());
            }
            modes::write(&self.record.join(format!("{mark}{MADE}")), modes::PRIVATE_FILE, "")?;
            let (parent, name) = (files::folder_of(folder), folder.file_name().ok_or(ErrorKind::InvalidInput)?);
            modes::make(parent, mode)?;
            Dir::open(parent)?.make_folders(Path::new(name), mode).map(drop)
        };
        make(&self.folder, FOLDER, modes::NODE_FOLDER)?;
        if let Err(error) = make(&self.links, LINKS, modes::SEEN_FOLDER) {
            tracing::warn!(%error, "there are no links to the logs of containers");
        }
        if self.folder.is_symlink() {
            let why = "it is a symbolic link: podLogsDir has to name the folder that it leads to";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        self.open().map(drop)
    }

    /// This node's Pods in it.
    pub fn pods(&self) -> impl Iterator<Item = String> + use<> {
        names(&self.record.join(PODS)).filter(|name| uid_of(name).is_some())
    }

    pub fn has(&self, pod: &str) -> bool {
        uid_of(pod).is_some() && self.record.join(PODS).join(pod).symlink_metadata().is_ok()
    }

    fn note(&self, pod: &str) -> io::Result<()> {
        match Dir::open(&self.record.join(PODS))?.create(Path::new(pod), modes::PRIVATE_FILE) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn remove(&self, pod: &str) -> io::Result<()> {
        match self.open() {
            // In the place of a folder that was taken away may be a link: what it leads to is not ours.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            folder => folder?.remove(OsStr::new(pod))?,
        }
        let its_logs = self.folder.join(pod);
        log_links::remove(&self.links, |_, target| target.starts_with(&its_logs))?;
        Dir::open(&self.record.join(PODS))?.remove(OsStr::new(pod))
    }

    /// Removes all that is this node's in it; the folder too if this node made it and nobody else uses it.
    fn end(&self) -> io::Result<()> {
        let removed: Vec<_> = self.pods().map(|pod| self.remove(&pod)).collect();
        removed.into_iter().collect::<io::Result<()>>()?;
        for (mark, folder) in [(FOLDER, &self.folder), (LINKS, &self.links)] {
            if self.record.join(format!("{mark}{MADE}")).exists() {
                // It stays where somebody has something in it.
                let _ = fs::remove_dir(folder);
            }
        }
        files::remove(&self.record)
    }
}

/// The shared folders that a record knows.
fn known(record: &Path) -> Vec<Shared> {
    let shared = |name: String| {
        let record = record.join(name);
        let held = Dir::open(&record).ok()?;
        let target = |link: &str| held.link_target(OsStr::new(link)).ok().map(PathBuf::from);
        Some(Shared { folder: target(FOLDER)?, links: target(LINKS)?, record })
    };
    names(record).filter_map(shared).collect()
}

/// Writes a shared folder down.
fn begin(record: &Path, wanted: &SharedLogs) -> io::Result<Shared> {
    modes::folder(record, modes::PRIVATE_FOLDER)?;
    let free = |number: &usize| record.join(number.to_string()).symlink_metadata().is_err();
    let number = (0..MOST).find(free).ok_or(ErrorKind::QuotaExceeded)?;
    let record = record.join(number.to_string());
    modes::folder(&record.join(PODS), modes::PRIVATE_FOLDER)?;
    let held = Dir::open(&record)?;
    held.link(&wanted.links, OsStr::new(LINKS))?;
    held.link(&wanted.folder, OsStr::new(FOLDER))?;
    Ok(Shared { folder: wanted.folder.clone(), links: wanted.links.clone(), record })
}

/// Removes this node's logs from all the folders that it shares.
pub fn remove_shared(root_dir: &Path) -> io::Result<()> {
    let ended: Vec<_> = known(&root_dir.join(RECORD)).iter().map(Shared::end).collect();
    ended.into_iter().collect()
}

/// The folders of this node's logs.
#[derive(Debug)]
pub struct LogFolders {
    own: PathBuf,
    /// Those of earlier starts among them.
    pub shared: Vec<Shared>,
    /// The one that new containers write to. They write to the node's own where there is none.
    current: Option<usize>,
}

impl LogFolders {
    /// Finds the folders that have logs, and makes the one that gets them now where it is not the node's own.
    pub fn open(root_dir: &Path, own: &Path, wanted: Option<&SharedLogs>) -> io::Result<LogFolders> {
        let record = root_dir.join(RECORD);
        let is_wanted = |shared: &Shared| {
            wanted.is_some_and(|wanted| wanted.folder == shared.folder && wanted.links == shared.links)
        };
        let (over, mut shared): (Vec<_>, Vec<_>) =
            known(&record).into_iter().partition(|shared| !is_wanted(shared) && shared.pods().next().is_none());
        for shared in &over {
            if let Err(error) = shared.end() {
                tracing::warn!(folder = %shared.folder.display(), %error, "a folder of logs is still on record");
            }
        }
        let mut current = shared.iter().position(is_wanted);
        if let Some(wanted) = wanted.filter(|_| current.is_none()) {
            current = Some(shared.len());
            shared.push(begin(&record, wanted)?);
        }
        current.map_or(Ok(()), |at| shared[at].make())?;
        Ok(LogFolders { own: own.to_owned(), shared, current })
    }

    /// The shared folder that new containers write to.
    pub fn current(&self) -> Option<&Shared> {
        self.current.map(|at| &self.shared[at])
    }

    /// The folders as they are of a kubelet that shares none.
    #[cfg(test)]
    pub fn alone(own: &Path) -> LogFolders {
        LogFolders { own: own.to_owned(), shared: Vec::new(), current: None }
    }

    /// Makes folders below the one that gets logs now.
    fn made(&self, below: &Path) -> io::Result<Dir> {
        let Some(shared) = self.current() else {
            modes::folder(&self.own, modes::NODE_FOLDER)?;
            return Dir::open(&self.own)?.make_folders(below, modes::NODE_FOLDER);
        };
        let pod = below.iter().next().and_then(OsStr::to_str).ok_or(ErrorKind::InvalidInput)?;
        shared.note(pod)?;
        shared.make()?;
        shared.open()?.make_folders(below, modes::SEEN_FOLDER)
    }

    /// Makes the folder of a Pod's logs.
    pub fn make(&self, pod: &str) -> io::Result<()> {
        self.made(Path::new(pod)).map(drop)
    }

    /// Makes the folder of a log, which is named with its container's: whatever else stands in the log's place goes.
    pub fn make_for(&self, pod: &str, log: &Path) -> io::Result<()> {
        let (folder, name) = (files::folder_of(log), log.file_name().ok_or(ErrorKind::InvalidInput)?);
        let folder = self.made(&Path::new(pod).join(folder))?;
        match folder.meta_of(name) {
            Ok(meta) if !files::beneath::is_file(&meta) => folder.remove(name),
            _ => Ok(()),
        }
    }

    /// A folder of logs that the engine names. The node's own may be a link, which is the user's.
    pub fn open_folder(&self, folder: &Path) -> io::Result<Dir> {
        match folder {
            folder if folder == self.own => Dir::open(folder),
            folder if folder.is_absolute() => Dir::open_plain(folder),
            _ => Err(io::Error::new(ErrorKind::InvalidInput, "this is no path of a log")),
        }
    }

    /// The folders of a Pod's logs. It has several where the folder of logs was changed while it ran.
    pub fn of_pod(&self, pod: &str) -> Vec<Dir> {
        let shared = self.shared.iter().filter(|shared| shared.has(pod)).map(|shared| &shared.folder);
        let all = std::iter::once(&self.own).chain(shared);
        all.filter_map(|folder| self.open_folder(folder).ok()?.folder(Path::new(pod)).ok()).collect()
    }

    /// The names of the folders of this node's Pods.
    pub fn pods(&self) -> impl Iterator<Item = String> + use<'_> {
        let own = names(&self.own).filter(|name| uid_of(name).is_some());
        own.chain(self.shared.iter().flat_map(Shared::pods))
    }

    /// Removes all logs of a Pod and the links to them.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        let of_pod = |name: &String| uid_of(name) == Some(uid);
        let own = names(&self.own).filter(of_pod).map(|name| files::remove(&self.own.join(name)));
        let shared =
            |shared: &Shared| -> Vec<_> { shared.pods().filter(of_pod).map(|pod| shared.remove(&pod)).collect() };
        // One that cannot be removed keeps no other.
        let all: Vec<_> = own.chain(self.shared.iter().flat_map(shared)).collect();
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::logs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct World {
        folder: tempfile::TempDir,
        logs: LogFolders,
    }

    impl World {
        fn new() -> World {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let shared = SharedLogs { folder: path("pods"), links: path("containers") };
            let logs = LogFolders::open(&path("kubelet"), &path("logs"), Some(&shared)).unwrap();
            World { logs, folder }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn end(&self) {
            remove_shared(&self.path("kubelet")).unwrap();
        }
    }

    #[test]
    fn log_folders_name_their_pod() {
        for (folder, expected) in [
            ("default_web-1_0b5e-77", Some("0b5e-77")),
            ("kube-system_dns_u_v", Some("u_v")),
            ("default_web", None),
            ("lost+found", None),
        ] {
            assert_eq!(uid_of(folder), expected, "{folder}");
        }
    }

    #[test]
    fn folders_have_upstreams_modes_and_those_that_are_there_keep_theirs() {
        let world = World::new();
        world.logs.make_for("d_p_u", Path::new("c/0.log")).unwrap();
        let mode = |name: &str| fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(["pods", "containers", "pods/d_p_u", "pods/d_p_u/c"].map(mode), [0o750, 0o755, 0o755, 0o755]);
        fs::set_permissions(world.path("pods"), fs::Permissions::from_mode(0o755)).unwrap();
        world.logs.make("d_q_v").unwrap();
        assert_eq!(mode("pods"), 0o755);
        world.end();
        assert!(!world.path("pods").exists() && !world.path("containers").exists(), "it made them");
    }

    #[test]
    fn what_is_of_others_stays() {
        let world = World::new();
        fs::create_dir_all(world.path("pods/d_theirs_v/c")).unwrap();
        for pod in ["d_p_u", "d_q_w"] {
            world.logs.make(pod).unwrap();
        }
        assert_eq!(world.logs.pods().count(), 2);
        for uid in ["u", "v", "", "theirs_v"] {
            world.logs.remove(uid).unwrap();
        }
        let there = |name: &str| world.path(name).exists();
        assert!(!there("pods/d_p_u") && there("pods/d_q_w") && there("pods/d_theirs_v/c"));
        world.end();
        assert!(!there("pods/d_q_w") && there("pods/d_theirs_v/c") && !there("containers"));
        world.end();
    }

    /// Asserts that nothing outside is read, made or removed once something is put in the place of a name.
    fn planted(world: &World, name: &str, target: &Path) {
        let (log, link) = (world.path("pods/d_p_u/c/0.log"), world.path(name));
        let _ = fs::remove_dir_all(&link);
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        assert!(logs::open(&world.logs, &log).is_err(), "{name} is followed");
        let _ = logs::remove(&world.logs, &log);
        let _ = world.logs.make_for("d_p_u", Path::new("new/0.log"));
        world.logs.remove("u").unwrap();
        world.end();
    }

    #[test]
    fn no_link_in_the_place_of_a_folder_or_a_log_leads_out() {
        let outside = tempfile::tempdir().unwrap();
        let tree = outside.path().join("d_p_u/c");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("0.log"), "s3cret").unwrap();
        symlink("/nowhere", outside.path().join("p_d_c-0123456789.log")).unwrap();
        for (name, target) in [
            ("pods", outside.path().to_owned()),
            ("pods/d_p_u", outside.path().join("d_p_u")),
            ("pods/d_p_u/c", tree.clone()),
            ("pods/d_p_u/c/0.log", tree.join("0.log")),
        ] {
            let world = World::new();
            world.logs.make_for("d_p_u", Path::new("c/0.log")).unwrap();
            fs::write(world.path("pods/d_p_u/c/0.log"), "mine").unwrap();
            planted(&world, name, &target);
            assert_eq!(fs::read_to_string(tree.join("0.log")).unwrap(), "s3cret", "{name}");
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2, "{name}");
            assert_eq!(fs::read_dir(outside.path().join("d_p_u")).unwrap().count(), 1, "{name}");
        }
    }

    #[test]
    fn the_engine_finds_no_link_where_it_is_to_write_and_a_link_is_no_folder_of_logs() {
        let world = World::new();
        world.logs.make_for("d_p_u", Path::new("c/0.log")).unwrap();
        let (log, victim) = (world.path("pods/d_p_u/c/1.log"), world.path("victim"));
        symlink(&victim, &log).unwrap();
        world.logs.make_for("d_p_u", Path::new("c/1.log")).unwrap();
        assert!(!log.is_symlink() && !victim.exists());
        fs::write(&log, "mine").unwrap();
        world.logs.make_for("d_p_u", Path::new("c/1.log")).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "mine", "a log is written on");
        fs::rename(world.path("pods"), world.path("moved")).unwrap();
        symlink(world.path("moved"), world.path("pods")).unwrap();
        let why = world.logs.make_for("d_p_u", Path::new("c/0.log")).unwrap_err().to_string();
        assert!(why.contains("podLogsDir has to name the folder that it leads to"), "{why}");
    }
}
