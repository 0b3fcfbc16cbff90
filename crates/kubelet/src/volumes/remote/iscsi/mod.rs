//! Disks of iSCSI targets: the sessions with them, by the program iscsiadm, and which volumes of this node use which.
//! Upstream counterpart: pkg/volume/iscsi/iscsi_util.go.
//!
//! Each volume has a record in its Pod's folder, written before the node logs in and removed after it has logged out, so the
//! volumes of a target are known after any interruption. The last one of a target ends the session, if the session was
//! begun for a volume: one that the machine's administrator had before stays. Secrets are in no record.

mod multipath;
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
/// How long the device over all ways to a disk may take.
const MAPS: Duration = Duration::from_secs(10);
/// How often a portal is tried, and the pause between.
const TRIES: (u32, Duration) = (2, Duration::from_secs(1));
/// More portals of one target are not tried.
const MOST_PORTALS: usize = 16;
const DEFAULT_PORT: &str = "3260";
const MULTIPATH: &str = "multipath";

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
        // Whoever names more gets these ways to the disk.
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
        let mut portals = Vec::new();
        for portal in self.portals.iter().map(|portal| with_port(portal)) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        Ok(Disk { portals, ..self })
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
        sessions.make_interface().await?;
        let ways = self.ways(&sessions).await?;
        Ok(self.device(disk, ways).await)
    }

    /// The path of the disk by one of its portals.
    fn way(&self, disk: &Disk, portal: &str) -> PathBuf {
        self.disks.by_path.join(format!("ip-{portal}-iscsi-{}-lun-{}", disk.iqn, disk.lun))
    }

    /// All ways to the disk that there are, at least one.
    async fn ways(&self, sessions: &Sessions<'_>) -> Result<Vec<PathBuf>, String> {
        let disk = sessions.disk;
        let (mut missing, mut tries) = (disk.portals.clone(), 1);
        loop {
            let begun = sessions.begin(&missing).await?;
            let found = self.appear(disk, &begun).await;
            let there: Vec<PathBuf> =
                disk.portals.iter().map(|portal| self.way(disk, portal)).filter(|way| way.exists()).collect();
            match found {
                Err(why) if there.is_empty() => return Err(why),
                _ if there.len() == disk.portals.len() || tries == TRIES.0 => return Ok(there),
                _ => {}
            }
            missing.retain(|portal| !self.way(disk, portal).exists());
            tries += 1;
            clock::sleep(TRIES.1).await;
        }
    }

    /// The device over all ways to a disk, where the machine makes one, or else the first way.
    async fn device(&self, disk: &Disk, ways: Vec<PathBuf>) -> PathBuf {
        let waits = disk.portals.len() > 1 && self.programs.find(MULTIPATH).is_some();
        let end = clock::Instant::now() + if waits { MAPS } else { Duration::ZERO };
        loop {
            if let Some(map) = multipath::find(&self.disks, &ways) {
                return map.device;
            }
            if clock::Instant::now() >= end {
                return ways[0].clone();
            }
            clock::sleep(APPEARS.1).await;
        }
    }

    /// Waits until the disk has shown itself at all these portals.
    async fn appear(&self, disk: &Disk, portals: &[String]) -> Result<(), String> {
        let end = clock::Instant::now() + APPEARS.0;
        loop {
            if portals.iter().all(|portal| self.way(disk, portal).exists()) {
                return Ok(());
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
            self.give_up_device(&disk).await;
            Sessions { programs: &self.programs, disk: &disk, chap: &Chap::default() }.end().await?;
        }
        files::remove(&file).map_err(wrong)
    }

    /// The device over the ways to a disk must not wait for ways that are gone.
    async fn give_up_device(&self, disk: &Disk) {
        let ways: Vec<PathBuf> = disk.portals.iter().map(|portal| self.way(disk, portal)).collect();
        let Some(map) = multipath::find(&self.disks, &ways) else { return };
        if let Err(failed) = self.programs.run(MULTIPATH, &["-f", &map.name]).await {
            tracing::warn!(map = map.name, %failed, "Failed to flush multipath device map");
        }
    }
}
