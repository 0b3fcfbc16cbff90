//! Measures what is left of the node's memory, disks and process ids, and acts when it is too little: unused images go, then
//! one Pod at a time. Upstream counterpart: pkg/kubelet/eviction.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::EventKind;
use files::{Dir, beneath::path_of};
use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;

use crate::{
    engine::{image_gc::ImageGc, log_folders},
    eviction::{
        limits::{AT_ONCE, Due, Watch},
        local_storage::{self, Taken},
        pressure::{self, Candidate, DISK, Measured, Measures, Pressures, Signal},
    },
    kubelet::Kubelet,
    node::machine,
    pod::{admit::is_critical, desired::DesiredPod},
    usage,
    volumes::folder::blocking,
};

/// Upstream's rhythm. Each look reads a few numbers of the kernel.
const LOOK: Duration = Duration::from_secs(10);
/// Image GC runs on every 30th look.
const LOOKS_PER_COLLECTION: u32 = 30;

/// Owns what is known of the node's shortages and of its images.
pub struct EvictionManager {
    kubelet: Arc<Kubelet>,
    pressures: watch::Sender<Pressures>,
    watch: Watch,
    image_gc: ImageGc,
    /// Where the engine keeps its images; beside the Pods' folders as long as it does not say.
    images: PathBuf,
}

impl EvictionManager {
    pub fn new(kubelet: Arc<Kubelet>, pressures: watch::Sender<Pressures>) -> Self {
        let images = kubelet.config.root_dir.clone();
        EvictionManager { kubelet, pressures, watch: Watch::default(), image_gc: ImageGc::default(), images }
    }

    /// Runs for ever.
    pub async fn run(mut self) {
        let disks = self.kubelet.config.runtime.image_filesystems().await.unwrap_or_default();
        let named = disks.into_iter().find_map(|d| d.fs_id).map(|id| PathBuf::from(id.mountpoint));
        if let Some(path) = named.filter(|path| path.exists()) {
            self.images = path;
        }
        // The node waits for one measurement before it shows itself for the first time.
        self.shortages();
        self.pressures.send_modify(|_| ());
        let mut looks: u32 = 0;
        loop {
            if looks.is_multiple_of(LOOKS_PER_COLLECTION) {
                let disk = measure_disk(&self.images).map(|(space, _)| space);
                self.image_gc.collect(&self.kubelet, disk, false).await;
            }
            looks = looks.wrapping_add(1);
            self.look().await;
            clock::sleep(LOOK).await;
        }
    }

    fn measure(&self) -> Measures {
        let memory =
            Measured { available: machine::meminfo("MemAvailable"), capacity: self.kubelet.host.machine.memory };
        let mut measures = Measures::from([(Signal::MemoryAvailable, memory)]);
        for (path, space, inodes) in [
            (&self.kubelet.config.root_dir, Signal::NodefsAvailable, Signal::NodefsInodesFree),
            (&self.images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
        ] {
            if let Some((bytes, files)) = measure_disk(path) {
                measures.insert(space, bytes);
                // File systems that make inodes as they need them count none.
                if files.capacity > 0 {
                    measures.insert(inodes, files);
                }
            }
        }
        if let Some((running, most)) = machine::processes() {
            measures.insert(Signal::PidAvailable, Measured { available: most - running, capacity: most });
        }
        measures
    }

    /// Measures what is short now, and returns that for which a Pod has to go. Whoever follows the pressures is told when one
    /// begins or ends.
    fn shortages(&mut self) -> Vec<Due> {
        let (limits, now) = (&self.kubelet.config.evictions, clock::now());
        let (short, due) = self.watch.note(limits, &self.measure(), now);
        self.pressures.send_if_modified(|pressures| pressures.note(&short, limits.transition, now));
        due
    }

    /// Sends those away that take more of the disk than they may.
    async fn hold_to_limits(&self) {
        if !self.kubelet.config.settings.local_storage {
            return;
        }
        let lives = self.kubelet.pods.all().into_iter().filter(|pod| !pod.is_over() && !pod.is_refused);
        let limited: Vec<_> = lives
            .map(|pod| (pod.desired(), pod))
            .filter(|(desired, _)| !desired.is_ending() && local_storage::is_limited(desired.spec()))
            .collect();
        if limited.is_empty() {
            return;
        }
        let layers = usage(&self.kubelet, Signal::NodefsAvailable).await;
        for (desired, pod) in limited {
            let taken = taken(&self.kubelet, &desired, &layers).await;
            if let Some(why) = local_storage::excess(desired.spec(), &taken) {
                tracing::warn!(pod = desired.full_name(), why, "a Pod is evicted");
                self.kubelet.figures.evicted("ephemeral-storage");
                pod.evict(why, AT_ONCE);
            }
        }
    }

    async fn look(&mut self) {
        self.hold_to_limits().await;
        let mut found = self.shortages();
        let Some(first) = found.first().copied() else { return };
        let signal = first.shortage.signal;
        let text = format!("Attempting to reclaim {}", signal.resource());
        self.kubelet.events.node(EventKind::Warning, "EvictionThresholdMet", &text);
        if signal.condition() == DISK {
            self.image_gc.collect(&self.kubelet, None, true).await;
            found = self.shortages();
        }
        let Some(Due { shortage, most }) = found.first() else { return };
        let mut candidates = candidates(&self.kubelet, shortage.signal).await;
        pressure::rank(&mut candidates);
        let Some(first) = candidates.first() else {
            tracing::warn!(resource = shortage.signal.resource(), "the node is short, and no Pod can be evicted");
            return;
        };
        tracing::warn!(uid = first.uid, resource = shortage.signal.resource(), "a Pod is evicted");
        if let Some(pod) = self.kubelet.pods.get(&first.uid) {
            self.kubelet.figures.evicted(shortage.signal.name());
            pod.evict(pressure::message(shortage, first), *most);
        }
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Bytes and inodes of the file system that holds a path.
fn measure_disk(path: &Path) -> Option<(Measured, Measured)> {
    let disk = machine::disk(path)?;
    let space = Measured { available: number(disk.free), capacity: number(disk.size) };
    Some((space, Measured { available: number(disk.free_inodes), capacity: number(disk.inodes) }))
}

/// The usage of each container, by Pod and name.
type Usage = BTreeMap<(String, String), i64>;

/// The Pods that could go, with what they take of the resource.
async fn candidates(kubelet: &Kubelet, signal: Signal) -> Vec<Candidate> {
    let may_go = |w: &DesiredPod| !(w.is_ending() || is_critical(&w.pod, w.is_static));
    let lives: Vec<_> = kubelet.pods.all().into_iter().filter(|pod| !pod.is_over()).map(|pod| pod.desired()).collect();
    let (usage, cgroups) = (usage(kubelet, signal).await, &kubelet.host.cgroups);
    let resource = if signal.condition() == DISK { "ephemeral-storage" } else { "memory" };
    let asked = |c: &Container| {
        let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
        requests.map_or(0, |q| api::rules::quantity::parse(q).value())
    };
    let candidate = |w: &DesiredPod| {
        let used = |c: &Container| usage.get(&(w.uid().to_owned(), c.name.clone())).copied().unwrap_or(0);
        let containers: Vec<_> = w.containers().map(|c| (c.name.clone(), used(c), asked(c))).collect();
        let beside = match signal.condition() {
            DISK => size_of(&kubelet.config.pod_dir(w.uid())),
            pressure::PID => cgroups.processes(&cgroups.path(api::rules::pod::qos(&w.pod), w.uid())),
            _ => 0,
        };
        let requested = api::rules::pod::requests(w.spec()).get(resource).map_or(0, |q| q.value());
        Candidate {
            uid: w.uid().to_owned(),
            priority: api::rules::pod::priority(&w.pod),
            requested: if signal == Signal::PidAvailable { 0 } else { requested },
            used: containers.iter().map(|(_, used, _)| used).sum::<i64>() + beside,
            containers,
        }
    };
    lives.iter().filter(|w| may_go(w)).map(candidate).collect()
}

/// The bytes that a Pod's emptyDirs and containers take.
async fn taken(kubelet: &Kubelet, desired: &DesiredPod, layers: &Usage) -> Taken {
    let folder = kubelet.pod_folder(desired.uid());
    let empty = desired.spec().volumes.iter().flatten().filter(|volume| volume.empty_dir.is_some());
    let volumes: Vec<_> = empty.map(|v| (v.name.clone(), folder.volume("empty-dir", &v.name))).collect();
    let logs = kubelet.logs.of_pod(&log_folders::of(desired));
    let containers: Vec<_> = desired
        .containers()
        .map(|c| {
            let layer = layers.get(&(desired.uid().to_owned(), c.name.clone())).copied().unwrap_or(0);
            (c.name.clone(), layer)
        })
        .collect();
    blocking(move || Taken {
        volumes: volumes.into_iter().map(|(name, path)| (name, size_of(&path))).collect(),
        containers: containers.into_iter().map(|(name, layer)| (name.clone(), layer + of_logs(&logs, &name))).collect(),
    })
    .await
}

async fn usage(kubelet: &Kubelet, signal: Signal) -> Usage {
    let measured = usage::containers(kubelet).await.unwrap_or_default().into_iter().map(|container| {
        let used = match signal.condition() {
            pressure::MEMORY => container.sample.memory.working_set,
            DISK => container.layer.map(|layer| layer.bytes),
            _ => None,
        };
        ((container.pod_uid, container.name), number(used.unwrap_or(0)))
    });
    measured.collect()
}

/// The bytes of a container's logs in the folders of its Pod's.
fn of_logs(pod: &[Dir], container: &str) -> i64 {
    let folders = pod.iter().filter_map(|folder| folder.folder(Path::new(container)).ok());
    folders.map(|folder| size_of(&path_of(&folder))).sum()
}

/// The bytes below a folder on its own disk.
fn size_of(folder: &Path) -> i64 {
    let mut blocks = 0_i64;
    let counted = files::Dir::open(folder).and_then(|folder| {
        let device = folder.meta()?.st_dev;
        folder.each(|_, meta| {
            if meta.st_dev == device && !files::beneath::is_folder(meta) {
                blocks = blocks.saturating_add(meta.st_blocks);
            }
        })
    });
    // A folder that is gone takes nothing.
    counted.map_or(0, |()| blocks.saturating_mul(512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_takes_what_its_files_take_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/f"), vec![1; 8192]).unwrap();
        let alone = size_of(folder.path());
        assert!(alone >= 8192, "{alone}");
        std::os::unix::fs::symlink("/", folder.path().join("deep/link")).unwrap();
        assert!(size_of(folder.path()) - alone <= 4096);
        assert_eq!(size_of(&folder.path().join("none")), 0);
    }
}
