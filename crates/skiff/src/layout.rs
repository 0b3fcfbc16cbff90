//! Where things are in the data folder, its format version, and who holds it.

use std::{
    fs::{self, File},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use files::modes;
use kubelet::SharedLogs;
use nix::fcntl::{Flock, FlockArg};

use crate::flags::options::DATA_DIR;

/// The format of the data folder. A folder with a greater one was written by a newer skiff.
const FORMAT: u32 = 1;

/// Where agents look for the logs of Pods, and for older links to them.
const POD_LOGS: &str = "/var/log/pods";
const LOG_LINKS: &str = "/var/log/containers";

#[derive(Debug, Clone)]
pub struct Layout {
    pub root: PathBuf,
}

impl Layout {
    /// Where the folder is, whatever is called later from where: the engine, and `skiff down`.
    pub fn new(root: &Path) -> Self {
        // Only an empty path and a current folder that is gone are no places; opening them says so.
        Layout { root: std::path::absolute(root).unwrap_or_else(|_| root.to_owned()) }
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The keys that the store's values are encrypted with, where no flag names others. The ending makes it one of the keys
    /// that nobody else may open.
    pub fn encryption(&self) -> PathBuf {
        self.pki().join("encryption.key")
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.root.join("admin.kubeconfig")
    }

    /// The kubeconfig of this node, as a member of a cluster that runs elsewhere.
    pub fn agent_kubeconfig(&self) -> PathBuf {
        self.root.join("agent.kubeconfig")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("skiff.log")
    }

    /// The folder of the audit log, where no flag names another.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit")
    }

    /// The log of who asked for what, where no flag names another.
    pub fn audit_log(&self) -> PathBuf {
        self.audit().join("audit.log")
    }

    /// The private key of the node's encrypted ways to other nodes.
    pub fn wireguard_key(&self) -> PathBuf {
        self.pki().join("wireguard.key")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// The volumes that the node makes for claims. They are no part of the kubelet's folder, since they outlive it.
    pub fn local_volumes(&self) -> PathBuf {
        self.root.join("local-volumes")
    }

    /// The node's own folder of logs of Pods.
    pub fn pod_logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The folder that takes the place of the node's own: the one that a configuration names, or the machine's where the data folder
    /// is the usual one. Of nodes with other data folders there may be several on a machine, whose logs must not meet.
    pub fn shared_logs(&self, configured: Option<&Path>) -> anyhow::Result<Option<SharedLogs>> {
        let folder = match configured {
            Some(folder) if *folder == self.pod_logs() => return Ok(None),
            Some(folder) if folder.starts_with(&self.root) => bail!(
                "podLogsDir: {} is in the data folder, where logs can be in {} alone",
                folder.display(),
                self.pod_logs().display()
            ),
            Some(folder) => folder,
            None if self.root == Path::new(DATA_DIR) => Path::new(POD_LOGS),
            None => return Ok(None),
        };
        Ok(Some(SharedLogs { folder: folder.to_owned(), links: PathBuf::from(LOG_LINKS) }))
    }

    pub fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    /// The user's image archives, which are imported before the first Pod.
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The archives of it that were imported.
    pub fn image_imports(&self) -> PathBuf {
        self.root.join("image-imports.json")
    }

    /// Archives on their way into the engine.
    pub fn image_builds(&self) -> PathBuf {
        self.root.join("image-builds")
    }

    pub fn engine(&self) -> PathBuf {
        self.root.join("containerd")
    }

    /// The folders of our own containerd.
    pub fn engine_options(&self) -> runtime::containerd::Options {
        runtime::containerd::Options {
            cni_bin: self.cni_bin(),
            cni_conf: self.cni_conf(),
            ..runtime::containerd::Options::new(self.engine(), self.run())
        }
    }

    /// The folder of files that a reboot takes away; its name is short, because a socket's path is limited to 107 bytes.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The folders of this machine's further nodes, each a data folder of its own under the node's number.
    pub fn siblings(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// The file that holds the node's network namespace, where it has one of its own.
    pub fn network_namespace(&self) -> PathBuf {
        self.run().join("network-namespace")
    }

    pub fn cni_bin(&self) -> PathBuf {
        self.root.join("cni/bin")
    }

    pub fn cni_conf(&self) -> PathBuf {
        self.root.join("cni/conf")
    }

    pub fn cni_addresses(&self) -> PathBuf {
        self.root.join("cni/addresses")
    }

    fn pid_file(&self) -> PathBuf {
        self.root.join("skiff.pid")
    }

    /// It is there where this node's proxy wrote rules of iptables: chains of those names may be another proxy's.
    pub fn wrote_iptables(&self) -> PathBuf {
        self.root.join("proxy-iptables")
    }

    pub fn version_file(&self) -> PathBuf {
        self.root.join("version")
    }

    /// Makes the folder, or checks that it is one that this version understands.
    pub fn open(&self) -> anyhow::Result<()> {
        let root = self.root.display();
        if self.root.exists() && !self.root.is_dir() {
            bail!("{root} is not a folder; choose another --data-dir");
        }
        let made = modes::make(&self.root, modes::PASSED_FOLDER);
        made.with_context(|| format!("cannot make the data folder {root}; choose another with --data-dir"))?;
        let version = self.version_file();
        match fs::read_to_string(&version) {
            Ok(text) => match text.trim().parse::<u32>() {
                // An older skiff may have left it open to all, or closed it even to containers; now it is known to be ours.
                Ok(found) if found <= FORMAT => {
                    modes::passage(&self.root).with_context(|| format!("cannot change the mode of {root}"))
                }
                Ok(found) => bail!(
                    "the data folder {root} has format {found}, this skiff understands up to {FORMAT}; use the newer skiff that wrote it, or another --data-dir"
                ),
                Err(_) => bail!(
                    "{} does not hold a number; {root} is not a data folder of skiff, choose another --data-dir",
                    version.display()
                ),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                // Image archives may be there before the first start, and a number that the first one had no power to finish.
                let known = [self.log(), self.pid_file(), self.images(), self.root.join(".version.part")];
                let empty = fs::read_dir(&self.root)?.flatten().all(|entry| known.contains(&entry.path()));
                if !empty {
                    bail!("{root} is not empty and not a data folder of skiff; choose another --data-dir");
                }
                // Whatever the store keeps from now on is found again only in a folder that is known to be ours.
                let written = modes::replace_durably(&version, modes::PRIVATE_FILE, format!("{FORMAT}\n"))
                    .and_then(|()| modes::keep_name(&self.root))
                    .and_then(|()| modes::passage(&self.root));
                written.with_context(|| format!("cannot write {}; choose another --data-dir", version.display()))
            }
            Err(e) => Err(e).with_context(|| format!("cannot read {}", version.display())),
        }
    }

    /// Takes the folder for this process, until the value is dropped.
    pub fn hold(&self) -> anyhow::Result<Held> {
        let path = self.pid_file();
        let open = modes::update(&path, modes::PRIVATE_FILE);
        let file = open.with_context(|| format!("cannot write {}", path.display()))?;
        let Ok(mut lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            let pid = self.holder().map(|p| format!(" (process {p})")).unwrap_or_default();
            bail!("the data folder {} is in use by a running skiff{pid}", self.root.display());
        };
        // Written over in place, which needs no room; cut to its length afterwards.
        let text = format!("{}\n", std::process::id());
        let written = lock.rewind().and_then(|()| lock.write_all(text.as_bytes()));
        if let Err(error) = written.and_then(|()| lock.set_len(text.len() as u64)) {
            tracing::warn!("cannot write {}: {error}; `skiff down` will not find this process", path.display());
        }
        Ok(Held(lock))
    }

    /// The process that holds the folder, if one does.
    pub fn holder(&self) -> Option<i32> {
        let mut file = File::open(self.pid_file()).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => None,
            Err(_) => text.trim().parse().ok(),
        }
    }
}

/// Says that this process holds the data folder.
pub struct Held(#[allow(dead_code, reason = "the lock lasts as long as the file is open")] Flock<File>);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_is_held_once_and_only_in_a_known_format() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.images()).unwrap();
        fs::write(dir.path().join(".version.part"), "").unwrap();
        layout.open().unwrap();
        layout.open().unwrap();
        let held = layout.hold().unwrap();
        assert_eq!(layout.holder(), Some(std::process::id() as i32));
        let again = layout.hold().err().unwrap().to_string();
        assert!(again.contains("in use by a running skiff (process"), "{again}");
        drop(held);
        assert_eq!(layout.holder(), None);
        fs::write(dir.path().join("version"), "99\n").unwrap();
        let newer = layout.open().unwrap_err().to_string();
        assert!(newer.contains("has format 99") && newer.contains("another --data-dir"), "{newer}");
    }

    #[test]
    fn logs_are_where_a_configuration_says_or_on_the_machine_where_the_cluster_is_its_own() {
        let check = |root: &str, configured: Option<&str>, expected: Option<&str>| {
            let found = Layout::new(Path::new(root)).shared_logs(configured.map(Path::new)).unwrap();
            assert_eq!(found.as_ref().map(|shared| &*shared.folder), expected.map(Path::new), "{root} {configured:?}");
            assert!(found.is_none_or(|shared| shared.links == Path::new("/var/log/containers")));
        };
        check("/var/lib/skiff", None, Some("/var/log/pods"));
        check("/var/lib/skiff/", None, Some("/var/log/pods"));
        check("/var/lib/skiff/nodes/2", None, None);
        check("/tmp/x", None, None);
        for root in ["/tmp/x", "/var/lib/skiff"] {
            check(root, Some("/var/log/pods"), Some("/var/log/pods"));
            check(root, Some("/srv/logs"), Some("/srv/logs"));
            check(root, Some(&format!("{root}/logs")), None);
            let inside = format!("{root}/kubelet/pods");
            let refused = Layout::new(Path::new(root)).shared_logs(Some(Path::new(&inside))).unwrap_err().to_string();
            assert!(refused.contains("is in the data folder"), "{refused}");
        }
    }

    #[test]
    fn a_strangers_folder_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let said = Layout::new(dir.path()).open().unwrap_err().to_string();
        assert!(said.contains("is not empty and not a data folder"), "{said}");
        assert_eq!(mode(dir.path()), 0o755);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_looks_into_the_folder_also_if_an_older_skiff_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        let layout = Layout::new(&root);
        layout.open().unwrap();
        // Containers with users of their own pass through it.
        assert_eq!(mode(&root), 0o711);
        for older in [0o755, 0o700] {
            fs::set_permissions(&root, fs::Permissions::from_mode(older)).unwrap();
            layout.open().unwrap();
            assert_eq!(mode(&root), 0o711);
        }
        let _held = layout.hold().unwrap();
        for file in [layout.pid_file(), layout.version_file()] {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    }
}
