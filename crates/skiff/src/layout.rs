//! Where things are in the data folder, its format version, and who holds it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};

/// The format of the data folder. A folder with a greater one was written by a newer skiff.
const FORMAT: u32 = 1;

#[derive(Debug, Clone)]
pub struct Layout {
    pub root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Self {
        Layout { root: root.to_owned() }
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
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

    pub fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub fn engine(&self) -> PathBuf {
        self.root.join("containerd")
    }

    /// What is gone after a reboot; short, because a socket's path is limited to 107 bytes.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
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

    pub fn version_file(&self) -> PathBuf {
        self.root.join("version")
    }

    /// Makes the folder, or checks that it is one that this version understands.
    pub fn open(&self) -> anyhow::Result<()> {
        let root = self.root.display();
        if self.root.exists() && !self.root.is_dir() {
            bail!("{root} is not a folder; choose another --data-dir");
        }
        let made = fs::create_dir_all(&self.root);
        made.with_context(|| format!("cannot make the data folder {root}; choose another with --data-dir"))?;
        let version = self.version_file();
        match fs::read_to_string(&version) {
            Ok(text) => match text.trim().parse::<u32>() {
                Ok(found) if found <= FORMAT => Ok(()),
                Ok(found) => bail!(
                    "the data folder {root} has format {found}, this skiff understands up to {FORMAT}; use the newer skiff that wrote it, or another --data-dir"
                ),
                Err(_) => bail!(
                    "{} does not hold a number; {root} is not a data folder of skiff, choose another --data-dir",
                    version.display()
                ),
            },
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let empty =
                    fs::read_dir(&self.root)?.flatten().all(|e| e.path() == self.log() || e.path() == self.pid_file());
                if !empty {
                    bail!("{root} is not empty and not a data folder of skiff; choose another --data-dir");
                }
                let written = fs::write(&version, format!("{FORMAT}\n"));
                written.with_context(|| format!("cannot write {}; choose another --data-dir", version.display()))
            }
            Err(e) => Err(e).with_context(|| format!("cannot read {}", version.display())),
        }
    }

    /// Takes the folder for this process, until the value is dropped.
    pub fn hold(&self) -> anyhow::Result<Held> {
        let path = self.pid_file();
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
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

    #[test]
    fn a_folder_is_held_once_and_only_in_a_known_format() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
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
    fn a_strangers_folder_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "precious").unwrap();
        let said = Layout::new(dir.path()).open().unwrap_err().to_string();
        assert!(said.contains("is not empty and not a data folder"), "{said}");
    }
}
