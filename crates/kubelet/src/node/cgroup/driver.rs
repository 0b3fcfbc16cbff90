//! The maker of cgroups on this node: everybody who needs one, in the kernel's files, or systemd. The engine decides, since it makes
//! those of containers; one that does not say what it does has to fit the kubelet's configuration.

use std::{fs, io, path::Path};

use runtime::CgroupDriver;

use super::{Cgroups, systemd::Systemd};
use crate::config::Config;

const MOUNT: &str = "/sys/fs/cgroup";
/// The file in the kubelet's folder that is there while systemd makes cgroups.
const MARK: &str = "cgroups-of-systemd";

/// The driver that is in force, and its cgroups.
pub async fn find(config: &Config) -> Result<(CgroupDriver, Cgroups), String> {
    let told = config.runtime.cgroup_driver().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the engine does not tell who makes cgroups");
        None
    });
    let asked = config.settings.cgroup_driver;
    let driver = told.unwrap_or(asked);
    if driver != asked {
        tracing::info!(driver = driver.name(), configured = asked.name(), "the engine's driver of cgroups is used");
    }
    let cgroups = Cgroups::new(Path::new(MOUNT), &config.cgroup_root);
    let systemd = Systemd::of_this_machine();
    remember(&config.root_dir, driver)
        .map_err(|error| format!("cannot write below {}: {error}", config.root_dir.display()))?;
    match (driver, systemd) {
        (CgroupDriver::Cgroupfs, _) => Ok((driver, cgroups)),
        (CgroupDriver::Systemd, Some(systemd)) => Ok((driver, cgroups.kept_by(systemd))),
        (CgroupDriver::Systemd, None) => Err("the engine or cgroupDriver asks for cgroups of systemd, which is not this machine's first process: \
            set `SystemdCgroup = false` (containerd) or `cgroup_manager = \"cgroupfs\"` (CRI-O), and cgroupDriver: cgroupfs"
            .to_owned()),
    }
}

fn remember(root_dir: &Path, driver: CgroupDriver) -> io::Result<()> {
    let mark = root_dir.join(MARK);
    match driver {
        CgroupDriver::Systemd => {
            files::modes::folder(root_dir, files::modes::NODE_FOLDER)?;
            files::modes::write(&mark, files::modes::PRIVATE_FILE, "")
        }
        CgroupDriver::Cgroupfs => match fs::remove_file(mark) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// The cgroups of the kubelet that had this folder.
pub fn of_last(root_dir: &Path, cgroup_root: &str) -> Cgroups {
    let cgroups = Cgroups::new(Path::new(MOUNT), cgroup_root);
    match Systemd::of_this_machine().filter(|_| root_dir.join(MARK).exists()) {
        Some(systemd) => cgroups.kept_by(systemd),
        None => cgroups,
    }
}
