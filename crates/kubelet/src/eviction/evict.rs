//! Measures what is left of the node's memory, disks and process ids, and acts when it is too little: unused images go, then
//! one Pod at a time. Upstream counterpart: pkg/kubelet/eviction.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use client::EventKind;
use k8s_openapi::api::core::v1::Container;

use crate::{
    engine::image_gc,
    eviction::pressure::{self, Candidate, DISK, Measured, Measures, Shortage, Signal},
    kubelet::Node,
    node::machine,
    pod::wanted::{CONTAINER_NAME, POD_UID, Wanted},
};

/// Upstream's rhythm: reading a few numbers of the kernel.
const LOOK: Duration = Duration::from_secs(10);
/// Every so many looks unused images are looked for.
const LOOKS_PER_COLLECTION: u32 = 30;

/// For ever.
pub async fn run(node: std::sync::Arc<Node>) {
    let images = image_folder(&node).await;
    let mut looks: u32 = 0;
    loop {
        if looks.is_multiple_of(LOOKS_PER_COLLECTION) {
            image_gc::collect(&node, measure_disk(&images).map(|(space, _)| space), false).await;
        }
        looks = looks.wrapping_add(1);
        look(&node, &images).await;
        clock::sleep(LOOK).await;
    }
}

/// Where the engine keeps its images; beside the Pods' folders as long as it does not say.
async fn image_folder(node: &Node) -> PathBuf {
    let disks = node.config.runtime.image_filesystems().await.unwrap_or_default();
    let named = disks.into_iter().find_map(|d| d.fs_id).map(|id| PathBuf::from(id.mountpoint));
    named.filter(|path| path.exists()).unwrap_or_else(|| node.config.root_dir.clone())
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

fn measure(node: &Node, images: &Path) -> Measures {
    let memory = Measured { available: machine::meminfo("MemAvailable"), capacity: node.machine.memory };
    let mut measures = Measures::from([(Signal::MemoryAvailable, memory)]);
    for (path, space, inodes) in [
        (node.config.root_dir.as_path(), Signal::NodefsAvailable, Signal::NodefsInodesFree),
        (images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
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

/// What is short now, noted in the node's conditions.
fn shortages(node: &Node, images: &Path) -> Vec<Shortage> {
    let found = pressure::shortages(&node.config.eviction_hard, &measure(node, images));
    let mut pressures = node.pressures.lock();
    let before = [pressure::MEMORY, DISK, pressure::PID].map(|c| pressures.holds(c));
    pressures.note(&found, clock::now());
    if before != [pressure::MEMORY, DISK, pressure::PID].map(|c| pressures.holds(c)) {
        node.changed.notify_one();
    }
    found
}

/// One measurement before the node shows itself for the first time.
pub async fn first_look(node: &Node) {
    shortages(node, &image_folder(node).await);
}

async fn look(node: &Node, images: &Path) {
    let mut found = shortages(node, images);
    let Some(first) = found.first().copied() else { return };
    let text = format!("Attempting to reclaim {}", first.signal.resource());
    node.event(EventKind::Warning, "EvictionThresholdMet", &text);
    if first.signal.condition() == DISK {
        image_gc::collect(node, None, true).await;
        found = shortages(node, images);
    }
    let Some(shortage) = found.first() else { return };
    let mut candidates = candidates(node, shortage.signal).await;
    pressure::rank(&mut candidates);
    let Some(first) = candidates.first() else {
        tracing::warn!(resource = shortage.signal.resource(), "the node is short, and no Pod can be evicted");
        return;
    };
    tracing::warn!(uid = first.uid, resource = shortage.signal.resource(), "a Pod is evicted");
    node.evictions.lock().insert(first.uid.clone(), pressure::message(shortage, first));
    if let Some(look) = node.looks.lock().get(&first.uid) {
        look.notify_one();
    }
}

/// What each container takes, by Pod and name.
type Usage = BTreeMap<(String, String), i64>;

/// The Pods that could go, with what they take of the resource.
async fn candidates(node: &Node, signal: Signal) -> Vec<Candidate> {
    let pods: Vec<Wanted> = node.pods.lock().values().cloned().collect();
    let may_go = |w: &&Wanted| {
        let phase = node.statuses.lock().get(w.uid()).and_then(|s| s.phase.clone());
        let over = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        !(over || w.is_ending() || pressure::is_critical(&w.pod, w.is_static))
    };
    let usage = usage(node, signal).await;
    let resource = if signal.condition() == DISK { "ephemeral-storage" } else { "memory" };
    let asked = |c: &Container| {
        let requests = c.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource));
        requests.map_or(0, |q| api::rules::quantity::parse(q).value())
    };
    let candidate = |w: &Wanted| {
        let used = |c: &Container| usage.get(&(w.uid().to_owned(), c.name.clone())).copied().unwrap_or(0);
        let containers: Vec<_> = w.containers().map(|c| (c.name.clone(), used(c), asked(c))).collect();
        let beside = match signal.condition() {
            DISK => size_of(&node.config.pod_dir(w.uid())),
            pressure::PID => node.cgroups.processes(&node.cgroups.path(api::rules::pod::qos(&w.pod), w.uid())),
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
    pods.iter().filter(may_go).map(candidate).collect()
}

async fn usage(node: &Node, signal: Signal) -> Usage {
    let mut usage = Usage::new();
    for stats in node.config.runtime.container_stats().await.unwrap_or_default() {
        let labels = stats.attributes.map(|a| a.labels).unwrap_or_default();
        let (Some(uid), Some(name)) = (labels.get(POD_UID), labels.get(CONTAINER_NAME)) else { continue };
        let used = match signal.condition() {
            pressure::MEMORY => stats.memory.and_then(|m| m.working_set_bytes).map_or(0, |v| v.value),
            DISK => stats.writable_layer.and_then(|l| l.used_bytes).map_or(0, |v| v.value),
            _ => 0,
        };
        usage.insert((uid.clone(), name.clone()), number(used));
    }
    usage
}

/// The bytes below a folder on its own disk.
fn size_of(folder: &Path) -> i64 {
    let mut blocks = 0_i64;
    let counted = files::Dir::open(folder).and_then(|folder| {
        let device = folder.meta()?.st_dev;
        folder.walk(|_, meta| {
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
