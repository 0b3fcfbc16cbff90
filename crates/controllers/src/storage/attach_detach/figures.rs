//! The numbers of attached volumes, and how long attaching and detaching took, under upstream's names.
//! Upstream counterparts: pkg/controller/volume/attachdetach/metrics and pkg/volume/util/metrics.go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use api::rules::volume::{driver_plugin, plugin_of};
use client::{Cache, Caches, Key};
use clock::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use meter::{Metric, Metrics, STORAGE, labels, told};
use parking_lot::Mutex;

use super::{Patience, is_out_of_service, is_ready, observed::Observed, volume};
use crate::{node::on_node, storage::figures::counted};

static IN_USE: Metric =
    Metric::gauge("storage_count_attachable_volumes_in_use", "[ALPHA] Measure number of volumes in use");
static TOTAL: Metric =
    Metric::gauge("attachdetach_controller_total_volumes", "[ALPHA] Number of volumes in A/D Controller");
static FORCED: Metric = Metric::counter(
    "attachdetach_controller_forced_detaches",
    "[ALPHA] Number of times the A/D Controller performed a forced detach",
);
static TOOK: Metric =
    Metric::histogram("storage_operation_duration_seconds", "[ALPHA] Storage operation duration", STORAGE);

static METRICS: Metrics = Metrics::new();

/// The caches of the controller that runs in this process.
struct Followed {
    pods: Weak<Cache<Pod>>,
    claims: Weak<Cache<PersistentVolumeClaim>>,
    volumes: Weak<Cache<PersistentVolume>>,
    drivers: Weak<Cache<CSIDriver>>,
    attachments: Weak<Cache<VolumeAttachment>>,
}

static FOLLOWED: Mutex<Followed> = Mutex::new(Followed {
    pods: Weak::new(),
    claims: Weak::new(),
    volumes: Weak::new(),
    drivers: Weak::new(),
    attachments: Weak::new(),
});

/// From now on the page tells of what is in these caches, for as long as they are.
pub(super) fn follow(caches: &Caches) {
    *FOLLOWED.lock() = Followed {
        pods: Arc::downgrade(&caches.of()),
        claims: Arc::downgrade(&caches.of()),
        volumes: Arc::downgrade(&caches.of()),
        drivers: Arc::downgrade(&caches.of()),
        attachments: Arc::downgrade(&caches.of()),
    };
}

/// The lines of the page: no gauges where no controller runs.
pub fn render() -> String {
    let world = {
        let followed = FOLLOWED.lock();
        let (pods, claims, volumes) = (followed.pods.upgrade(), followed.claims.upgrade(), followed.volumes.upgrade());
        pods.zip(claims).zip(volumes).zip(followed.drivers.upgrade()).zip(followed.attachments.upgrade())
    };
    let gauges = world.map(|((((pods, claims), volumes), drivers), attachments)| {
        let bound = |pod: &Pod| volume::volumes(pod, &claims, &volumes);
        let attached = |attachment: &VolumeAttachment| {
            let name = attachment.spec.source.persistent_volume_name.as_deref()?;
            volumes.get(&Key::new("", name))
        };
        gauges(&pods.list(), bound, |volume| volume::is_attachable(volume, &drivers), &attachments.list(), attached)
    });
    METRICS.render() + &gauges.unwrap_or_default()
}

fn gauges(
    pods: &[Arc<Pod>],
    bound: impl Fn(&Pod) -> Vec<Arc<PersistentVolume>>,
    is_attachable: impl Fn(&PersistentVolume) -> bool,
    attachments: &[Arc<VolumeAttachment>],
    attached: impl Fn(&VolumeAttachment) -> Option<Arc<PersistentVolume>>,
) -> String {
    let (mut in_use, mut desired) = (Vec::new(), BTreeMap::new());
    for pod in pods.iter().filter(|pod| !on_node::node_of(pod).is_empty()) {
        let node = on_node::node_of(pod);
        let used = |plugin: &str| labels(&[("node", node), ("volume_plugin", plugin)]);
        let own = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter_map(|v| v.csi.as_ref());
        in_use.extend(own.map(|source| used(&driver_plugin(&source.driver))));
        for volume in bound(pod).into_iter().filter(|volume| volume::handle(volume).is_some()) {
            in_use.push(used(&plugin_of(&volume)));
            if !volume::is_over(pod) && is_attachable(&volume) {
                desired.insert((node.to_owned(), volume.metadata.name.clone()), plugin_of(&volume));
            }
        }
    }
    let is_attached = |a: &&Arc<VolumeAttachment>| a.status.as_ref().is_some_and(|status| status.attached);
    let actual = attachments.iter().filter(is_attached).filter_map(|a| Some(plugin_of(&*attached(a)?)));
    let of_state = |state: &str, plugin: &str| labels(&[("plugin_name", plugin), ("state", state)]);
    let total = actual.map(|plugin| of_state("actual_state_of_world", &plugin));
    let total = total.chain(desired.values().map(|plugin| of_state("desired_state_of_world", plugin)));
    told(&IN_USE, counted(in_use.into_iter())) + &told(&TOTAL, counted(total))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Attaching,
    Attached,
    Detaching,
}

impl State {
    fn of(attachment: &VolumeAttachment) -> State {
        match &attachment.status {
            _ if attachment.metadata.deletion_timestamp.is_some() => State::Detaching,
            Some(status) if status.attached => State::Attached,
            _ => State::Attaching,
        }
    }

    fn operation(self) -> &'static str {
        if self == State::Attaching { "volume_attach" } else { "volume_detach" }
    }
}

/// An attachment as it was seen last.
struct Seen {
    state: State,
    /// When the operation was seen to begin, or to begin once more after a failure.
    since: Timestamp,
    plugin: String,
    /// The failure that was counted last: when it happened.
    failed: Option<Timestamp>,
}

/// The attachments of all nodes, as they were seen last, by node and name.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<HashMap<Key, Seen>>);

impl UnderWay {
    /// Counts what has come to its end, or failed, since a node was looked at before. What an earlier process saw begin counts from now on.
    pub fn look(&self, key: &str, node: Option<&Node>, observed: &Observed, (now, patience): (Timestamp, Patience)) {
        let mut all = self.0.lock();
        let mut there = BTreeSet::new();
        for (attachment, volume) in &observed.attachments {
            let name = attachment.metadata.name.as_deref().unwrap_or("");
            there.insert(name);
            let (state, plugin) = (State::of(attachment), plugin_of(volume));
            let seen = all.entry(Key::new(key, name)).or_insert(Seen { state, since: now, plugin, failed: None });
            if seen.state != state {
                if (seen.state, state) == (State::Attaching, State::Attached) {
                    seen.count(true, now);
                }
                if state == State::Detaching {
                    force(node, observed, name, (now, patience));
                }
                (seen.state, seen.since) = (state, now);
            }
            let failure = failure(attachment);
            if failure.is_some() && failure != seen.failed {
                seen.count(false, now);
                seen.since = now;
            }
            seen.failed = failure;
        }
        all.retain(|of, seen| {
            let stays = of.namespace != key || there.contains(&*of.name);
            if !stays && seen.state != State::Attaching {
                if seen.state == State::Attached {
                    // It went without being seen to go.
                    seen.since = now;
                    force(node, observed, &of.name, (now, patience));
                }
                seen.state = State::Detaching;
                seen.count(true, now);
            }
            stays
        });
    }
}

impl Seen {
    fn count(&self, succeeded: bool, now: Timestamp) {
        let status = if succeeded { "success" } else { "fail-unknown" };
        let of = [
            ("migrated", "false"),
            ("operation_name", self.state.operation()),
            ("status", status),
            ("volume_plugin", &*self.plugin),
        ];
        METRICS.observe(&TOOK, &of, now.duration_since(self.since).as_secs_f64().max(0.0));
    }
}

/// When the attacher last failed at what it is doing.
fn failure(attachment: &VolumeAttachment) -> Option<Timestamp> {
    let status = attachment.status.as_ref()?;
    let error = if attachment.metadata.deletion_timestamp.is_some() {
        status.detach_error.as_ref()
    } else {
        status.attach_error.as_ref().filter(|_| !status.attached)
    };
    error?.time.as_ref().map(|time| time.0)
}

/// Counts a volume that is taken from a node without its consent.
fn force(node: Option<&Node>, observed: &Observed, attachment: &str, (now, patience): (Timestamp, Patience)) {
    let Some(since) = observed.unused_since.get(attachment) else { return };
    let is_late = patience.is_over(now.duration_since(*since).unsigned_abs());
    let reason = match node {
        _ if is_late && !node.is_some_and(is_ready) => "timeout",
        Some(node) if is_out_of_service(node) => "out-of-service",
        _ => return,
    };
    METRICS.count(&FORCED, &[("reason", reason)]);
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn all<T: serde::de::DeserializeOwned>(list: Vec<Value>) -> Vec<Arc<T>> {
        list.into_iter().map(|object| Arc::new(json::from_value(object).unwrap())).collect()
    }

    fn volume(driver: &str) -> Arc<PersistentVolume> {
        let source = json!({"driver": driver, "volumeHandle": "h"});
        Arc::new(json::from_value(json!({"metadata": {"name": "v"}, "spec": {"csi": source}})).unwrap())
    }

    #[test]
    fn volumes_are_counted_by_node_and_driver() {
        let pod = |node: &str, phase: &str, volumes: Value| {
            json!({"metadata": {"name": "p", "namespace": "d"}, "status": {"phase": phase},
                "spec": {"nodeName": node, "containers": [], "volumes": volumes}})
        };
        let claim = || json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pods = all::<Pod>(vec![
            pod("n1", "Running", claim()),
            pod("n1", "Pending", claim()),
            pod("n2", "Failed", claim()),
            pod("", "Pending", claim()),
            pod("n2", "Running", json!([{"name": "own", "csi": {"driver": "inline"}}, {"name": "e", "emptyDir": {}}])),
        ]);
        let bound = |pod: &Pod| {
            let claims = api::rules::pod::volume_claims(pod).count();
            vec![volume("disks"); claims]
        };
        let attachment = |attached: bool| {
            json!({"metadata": {"name": "a"}, "spec": {"attacher": "disks", "nodeName": "n1", "source": {}},
                "status": {"attached": attached}})
        };
        let attachments = all::<VolumeAttachment>(vec![attachment(true), attachment(false)]);
        let page = gauges(&pods, bound, |_| true, &attachments, |_| Some(volume("disks")));
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "storage_count_attachable_volumes_in_use{node=\"n1\",volume_plugin=\"kubernetes.io/csi:disks\"} 2",
            "storage_count_attachable_volumes_in_use{node=\"n2\",volume_plugin=\"kubernetes.io/csi:disks\"} 1",
            "storage_count_attachable_volumes_in_use{node=\"n2\",volume_plugin=\"kubernetes.io/csi:inline\"} 1",
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:disks\",state=\"actual_state_of_world\"} 1",
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:disks\",state=\"desired_state_of_world\"} 1",
        ];
        assert_eq!(lines, expected);
        let page = gauges(&pods, bound, |_| false, &[], |_| None);
        assert!(!page.contains("attachdetach_controller_total_volumes"), "{page}");
    }

    fn attachment(words: &str) -> Arc<VolumeAttachment> {
        let at = |word: &str| {
            words
                .contains(word)
                .then(|| json!({"message": "no", "time": format!("2026-01-01T00:0{}:00Z", words.len() % 10)}))
        };
        let leaving = words.contains("leaving").then_some("2026-01-01T00:00:00Z");
        let attachment = json!({"metadata": {"name": "a", "deletionTimestamp": leaving},
            "spec": {"attacher": "d", "nodeName": "n", "source": {}},
            "status": {"attached": words.contains("attached"), "attachError": at("failed"), "detachError": at("stuck")}});
        Arc::new(json::from_value(attachment).unwrap())
    }

    /// The counts for a driver's volume that is seen like this, one after another, ten seconds apart. `-` is no attachment.
    fn counts(driver: &str, seen: &[&str], node: Option<&Node>, (unused, patience): (u64, Patience)) -> Vec<String> {
        let under_way = UnderWay::default();
        let mut now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        for words in seen {
            let mut observed = Observed::default();
            if *words != "-" {
                observed.attachments.push((attachment(words), volume(driver)));
            }
            let since = now.checked_sub(std::time::Duration::from_secs(unused)).unwrap();
            observed.unused_since.insert("a".to_owned(), since);
            under_way.look("n", node, &observed, (now, patience));
            now = now.checked_add(std::time::Duration::from_secs(10)).unwrap();
        }
        let page = METRICS.render();
        let own = |line: &&str| line.contains(&format!("\"kubernetes.io/csi:{driver}\"")) && !line.contains("_bucket");
        let short = |line: &str| {
            let value =
                |name: &str| line.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned();
            let what = if line.contains("_sum{") { "seconds" } else { "times" };
            let number = line.rsplit(' ').next().unwrap();
            format!("{} {} {what} {number}", value("operation_name"), value("status"))
        };
        page.lines().filter(own).map(short).collect()
    }

    #[test]
    fn attaching_and_detaching_are_counted_with_the_time_that_they_took() {
        let usual = (0, Patience::SixMinutes);
        let seen = ["-", "", "", "attached", "attached", "leaving", "leaving", "-"];
        let expected = [
            "volume_attach success seconds 20",
            "volume_attach success times 1",
            "volume_detach success seconds 20",
            "volume_detach success times 1",
        ];
        assert_eq!(counts("whole", &seen, None, usual), expected);
        // An earlier process saw that one begin and end.
        assert_eq!(counts("earlier", &["attached", "attached"], None, usual), [""; 0]);
        let seen = ["", "failed", "failed", "failed more", "attached", "leaving stuck", "-"];
        let expected = [
            "volume_attach fail-unknown seconds 30",
            "volume_attach fail-unknown times 2",
            "volume_attach success seconds 10",
            "volume_attach success times 1",
            "volume_detach fail-unknown seconds 0",
            "volume_detach fail-unknown times 1",
            "volume_detach success seconds 10",
            "volume_detach success times 1",
        ];
        assert_eq!(counts("failing", &seen, None, usual), expected);
    }

    #[test]
    fn volumes_that_are_taken_from_nodes_are_counted_by_the_reason() {
        let node = |ready: &str, taint: Option<&str>| -> Node {
            let taints = taint.map(|key| json!([{"key": key, "effect": "NoExecute"}]));
            let conditions = json!([{"type": "Ready", "status": ready}]);
            json::from_value(
                json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}),
            )
            .unwrap()
        };
        let forced = || ["timeout", "out-of-service"].map(|reason| METRICS.series(&FORCED, &[("reason", reason)]));
        let numbers = || {
            let page = METRICS.render();
            let of = |reason: &str| {
                let name = format!("attachdetach_controller_forced_detaches{{reason=\"{reason}\"}} ");
                page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok()).unwrap_or(0)
            };
            (of("timeout"), of("out-of-service"))
        };
        forced();
        let seen = ["attached", "leaving", "-"];
        let off = "node.kubernetes.io/out-of-service";
        for (node, unused, patience, expected) in [
            (Some(node("True", None)), 1000, Patience::SixMinutes, (0, 0)),
            (Some(node("Unknown", None)), 10, Patience::SixMinutes, (0, 0)),
            (Some(node("Unknown", None)), 360, Patience::SixMinutes, (1, 0)),
            (None, 360, Patience::SixMinutes, (1, 0)),
            (None, 360, Patience::ForEver, (0, 0)),
            (Some(node("Unknown", Some(off))), 10, Patience::SixMinutes, (0, 1)),
            (Some(node("Unknown", Some(off))), 360, Patience::SixMinutes, (1, 0)),
            (Some(node("Unknown", Some(off))), 360, Patience::ForEver, (0, 1)),
        ] {
            let before = numbers();
            counts("forced", &seen, node.as_ref(), (unused, patience));
            let after = numbers();
            assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{node:?} {unused} {patience:?}");
        }
    }
}
