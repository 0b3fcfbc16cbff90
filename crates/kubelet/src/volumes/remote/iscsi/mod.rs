//! Disks of iSCSI targets: the sessions with them, by the program iscsiadm, and which volumes of this node use which.
//! Upstream counterpart: pkg/volume/iscsi/iscsi_util.go.
//!
//! Each volume has a record in its Pod's folder, written before the node logs in and removed after it has logged out, so the
//! volumes of a target are known after any interruption. The last one of a target ends the session, if the session was
//! begun for a volume: one that the machine's administrator had before stays. Secrets are in no record.

mod record;
mod sessions;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use files::modes;
use serde::{Deserialize, Serialize};

use crate::volumes::remote::Remote;
use record::Record;
use sessions::{PROGRAM, Sessions};

pub use record::is_known;

/// How long a disk may take to show itself, and how often it is looked for.
const APPEARS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(100));
/// More portals of one target are not tried.
const MOST_PORTALS: usize = 16;
const DEFAULT_PORT: &str = "3260";

/// One disk of a target, and the way to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: i32,
    pub interface: String,
    /// The name of an interface of the volume's own, and as whom it logs in.
    pub own: Option<(String, String)>,
}

/// The secrets of a target; none where it asks for none.
#[derive(Default)]
pub struct Chap {
    pub discovery: bool,
    pub session: bool,
    pub secrets: BTreeMap<String, String>,
}

impl Disk {
    /// A disk whose names can be names only: authors of Pods write them, and they become parts of paths.
    pub fn checked(mut self) -> Result<Disk, String> {
        let is_name = |text: &str, more: &str| {
            let all = text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
            !text.is_empty() && !text.starts_with(['-', '.']) && text.len() <= 223 && all
        };
        self.portals.truncate(MOST_PORTALS);
        if let Some(portal) = self.portals.iter().find(|portal| !is_name(portal, ".:[]-%")) {
            return Err(format!("{portal:?} is no portal of an iSCSI target: it must be an address or address:port"));
        }
        if !is_name(&self.iqn, ".:-_") {
            return Err(format!("{:?} is no name of an iSCSI target", self.iqn));
        }
        if !is_name(&self.interface, ".:-_") {
            return Err(format!("{:?} is no name of an iSCSI interface", self.interface));
        }
        self.portals.iter_mut().for_each(|portal| *portal = with_port(portal));
        Ok(self)
    }

    /// The interface that its session is on.
    fn interface(&self) -> &str {
        self.own.as_ref().map_or(&self.interface, |(name, _)| name)
    }

    fn shares_session(&self, other: &Disk) -> bool {
        self.iqn == other.iqn && self.interface() == other.interface()
    }
}

fn with_port(portal: &str) -> String {
    match portal.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && (host.ends_with(']') || !host.contains(':')) => {
            portal.to_owned()
        }
        _ if portal.contains(':') && !portal.starts_with('[') => format!("[{portal}]:{DEFAULT_PORT}"),
        _ => format!("{portal}:{DEFAULT_PORT}"),
    }
}

impl Remote {
    /// Brings the disk to this node for a volume of a Pod, and says where it is.
    pub async fn attach(&self, pod: &Path, volume: &str, disk: &Disk, chap: &Chap) -> Result<PathBuf, String> {
        if self.programs.find(PROGRAM).is_none() {
            return Err(format!(
                "{PROGRAM} is not on this node, and iSCSI volumes need it: install open-iscsi (Debian, Ubuntu, SUSE) or \
                 iscsi-initiator-utils (Fedora, Red Hat)"
            ));
        }
        let _turn = self.turn(&disk.iqn).await;
        let sessions = Sessions { programs: &self.programs, disk, chap };
        let file = record::file(pod, volume);
        let wrong = |error: io::Error| format!("{}: {error}", file.display());
        let held = record::read(&file).map_err(wrong)?.filter(|held| held.disk == *disk);
        if held.is_none() {
            let shared = record::others(pod.parent().unwrap_or(pod), &file);
            let shared = shared.iter().find(|other| other.disk.shares_session(disk));
            let begun = match shared {
                Some(other) => other.begun,
                None => !sessions.any().await?,
            };
            let record = Record { disk: disk.clone(), begun };
            let text = serde_json::to_vec(&record).map_err(|error| wrong(error.into()))?;
            modes::folder(&record::folder(pod), modes::PRIVATE_FOLDER).map_err(wrong)?;
            modes::replace(&file, modes::PRIVATE_FILE, text).map_err(wrong)?;
        }
        sessions.begin().await?;
        self.appears(disk).await
    }

    /// The first way to the disk that shows itself.
    async fn appears(&self, disk: &Disk) -> Result<PathBuf, String> {
        let path = |portal: &String| self.disks.join(format!("ip-{portal}-iscsi-{}-lun-{}", disk.iqn, disk.lun));
        let end = clock::Instant::now() + APPEARS.0;
        loop {
            if let Some(path) = disk.portals.iter().map(path).find(|path| path.exists()) {
                return Ok(path);
            }
            if clock::Instant::now() >= end {
                let seconds = APPEARS.0.as_secs();
                return Err(format!(
                    "failed to get any path for iscsi disk: no disk {} of target {} appeared within {seconds} s",
                    disk.lun, disk.iqn
                ));
            }
            clock::sleep(APPEARS.1).await;
        }
    }

    /// Gives the disk of a volume back. Succeeds when it was given back already.
    pub async fn detach(&self, pod: &Path, volume: &str) -> Result<(), String> {
        let file = record::file(pod, volume);
        let wrong = |error: io::Error| format!("{}: {error}", file.display());
        let Some(Record { disk, begun }) = record::read(&file).map_err(wrong)? else { return Ok(()) };
        let _turn = self.turn(&disk.iqn).await;
        let shared = record::others(pod.parent().unwrap_or(pod), &file);
        if begun && !shared.iter().any(|other| other.disk.shares_session(&disk)) {
            Sessions { programs: &self.programs, disk: &disk, chap: &Chap::default() }.end().await?;
        }
        files::remove(&file).map_err(wrong)
    }
}
