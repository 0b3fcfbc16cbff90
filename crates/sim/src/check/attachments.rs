//! The checker of attachments: a volume that one node may have is never asked for on two, a Pod runs with its volumes
//! attached, and nothing is detached that a node has mounted, unless the node is given up.

use std::collections::{BTreeMap, BTreeSet};

use api::rules::pod::{is_deleted, is_terminal, phase};
use clock::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod},
    storage::v1::VolumeAttachment,
};

use crate::{
    check::{claims::Claims, news::is_news},
    mounts::unique_name,
    objects::set,
};

/// How long, in seconds, a node that is not ready has for letting go of a volume.
const UNMOUNT: i64 = 360;

/// The objects that this checker knows besides attachments.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    pub pods: &'a BTreeMap<String, Pod>,
    pub nodes: &'a BTreeMap<String, Node>,
    pub claims: &'a Claims,
}

#[derive(Default)]
pub struct Attachments {
    attachments: BTreeMap<String, VolumeAttachment>,
    /// By node and volume.
    uses: BTreeMap<(String, String), Use>,
    /// Whether each node is ready, and whether it is said to be off, since when.
    nodes: BTreeMap<String, (bool, bool, Timestamp)>,
    /// By node and the volume's name in its status: since when it is in use.
    mounted: BTreeMap<String, BTreeMap<String, Timestamp>>,
    /// By node that was removed: when, and the volumes that it had in use until then.
    removed: BTreeMap<String, (Timestamp, BTreeSet<String>)>,
    /// How often a volume was attached, and taken from a node that had not let go of it.
    pub attached: usize,
    pub forced: usize,
}

/// Whether Pods on a node use a volume.
#[derive(Debug, Clone, Copy)]
struct Use {
    used: bool,
    since: Timestamp,
    /// When the last use ended before this one began.
    ended: Option<Timestamp>,
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

fn name(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

fn volume_of(attachment: &VolumeAttachment) -> &str {
    attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default()
}

fn is_leaving(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.deletion_timestamp.is_some()
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    !is_leaving(attachment) && attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn is_for_one(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    !modes.is_empty() && modes.iter().all(|mode| mode.starts_with("ReadWriteOnce"))
}

/// A container of the Pod may run.
fn runs(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

/// The Pod needs its volumes on its node.
fn needs_volumes(pod: &Pod) -> bool {
    !node_of(pod).is_empty() && !is_terminal(pod) && (!is_deleted(pod) || runs(pod))
}

impl Cluster<'_> {
    fn users(&self, node: &str, volume: &str) -> impl Iterator<Item = &Pod> {
        let uses = move |pod: &&Pod| {
            node_of(pod) == node && needs_volumes(pod) && self.claims.volumes_of(pod).any(|held| name(held) == volume)
        };
        self.pods.values().filter(uses)
    }
}

impl Attachments {
    /// Notes a changed node.
    pub fn node(&mut self, name: &str, new: Option<&Node>, now: Timestamp) {
        let status = new.and_then(|node| node.status.as_ref());
        let ready = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
        let ready = ready.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let taints = new.and_then(|node| node.spec.as_ref()).and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let off = taints.iter().any(|taint| taint.key == "node.kubernetes.io/out-of-service");
        let state = self.nodes.entry(name.to_owned()).or_insert((ready, off, now));
        if (state.0, state.1) != (ready, off) {
            *state = (ready, off, now);
        }
        let mut before = self.mounted.remove(name).unwrap_or_default();
        if new.is_none() {
            self.removed.insert(name.to_owned(), (now, before.keys().cloned().collect()));
        }
        let in_use = status.and_then(|s| s.volumes_in_use.as_deref()).unwrap_or_default();
        let in_use = in_use.iter().map(|held| (held.clone(), before.remove(held).unwrap_or(now)));
        self.mounted.insert(name.to_owned(), in_use.collect());
    }

    /// Notes a Pod as it was and is; says if it began to run without its volumes.
    pub fn pod(&mut self, changed: [Option<&Pod>; 2], cluster: Cluster, now: Timestamp) -> Option<String> {
        for pod in changed.into_iter().flatten().filter(|pod| !node_of(pod).is_empty()) {
            for volume in cluster.claims.volumes_of(pod).filter(|volume| unique_name(volume).is_some()) {
                let used = cluster.users(node_of(pod), name(volume)).next().is_some();
                self.note_use((node_of(pod).to_owned(), name(volume).to_owned()), used, now);
            }
        }
        let [old, new] = changed;
        let new = new.filter(|new| runs(new) && !old.is_some_and(runs))?;
        let mut volumes = cluster.claims.volumes_of(new).filter(|volume| unique_name(volume).is_some());
        let missing = volumes
            .find(|volume| !self.of(name(volume)).any(|a| is_attached(a) && a.spec.node_name == node_of(new)))?;
        Some(format!("it runs on {}, to which {} is not attached", node_of(new), name(missing)))
    }

    fn note_use(&mut self, of: (String, String), used: bool, now: Timestamp) {
        let known = self.uses.entry(of).or_insert(Use { used, since: now, ended: None });
        if known.used == used {
            return;
        }
        // A use that was over before anybody could hear of it counts as none.
        let unheard = known.ended.filter(|_| known.used && is_news(known.since, now));
        *known = match (used, unheard) {
            (false, Some(ended)) => Use { used, since: ended, ended: None },
            (true, _) => Use { used, since: now, ended: Some(known.since) },
            (false, None) => Use { used, since: now, ended: None },
        };
    }

    fn of(&self, volume: &str) -> impl Iterator<Item = &VolumeAttachment> {
        self.attachments.values().filter(move |attachment| volume_of(attachment) == volume)
    }

    /// Notes a changed attachment; says what is wrong about it.
    pub fn attachment(
        &mut self,
        key: String,
        new: Option<VolumeAttachment>,
        cluster: Cluster,
        now: Timestamp,
    ) -> Option<String> {
        let old = self.attachments.get(&key);
        let wrong = match (old, &new) {
            (None, Some(new)) => self.asked_for_twice(new, cluster),
            (Some(old), new) if !is_leaving(old) && new.as_ref().is_none_or(is_leaving) => {
                let (forced, wrong) = self.let_go(old, cluster, now);
                self.forced += usize::from(forced);
                wrong
            }
            _ => None,
        };
        let was_attached = self.attachments.get(&key).is_some_and(is_attached);
        self.attached += usize::from(!was_attached && new.as_ref().is_some_and(is_attached));
        set(&mut self.attachments, key, new);
        wrong
    }

    fn asked_for_twice(&self, new: &VolumeAttachment, cluster: Cluster) -> Option<String> {
        let volume = cluster.claims.volume_named(volume_of(new)).filter(|volume| is_for_one(volume))?;
        let node = |attachment: &VolumeAttachment| attachment.spec.node_name.clone();
        let other = self.of(name(volume)).map(node).find(|other| *other != new.spec.node_name)?;
        Some(format!("{} is asked for on {} while {other} has it", name(volume), new.spec.node_name))
    }

    /// Whether a volume that begins to be detached is taken by force, and what is wrong about it.
    fn let_go(&self, old: &VolumeAttachment, cluster: Cluster, now: Timestamp) -> (bool, Option<String>) {
        let (node, volume) = (&old.spec.node_name, volume_of(old));
        let wrong = |what: &str| (true, Some(format!("{volume} is detached from {node}: {what}")));
        let ended = match self.uses.get(&(node.clone(), volume.to_owned())) {
            Some(known) if known.used && !is_news(known.since, now) => return wrong("a Pod needs it there"),
            Some(known) if known.used => known.ended,
            Some(known) => Some(known.since),
            None => None,
        };
        if cluster.users(node, volume).any(runs) {
            return wrong("a Pod runs with it there");
        }
        let Some(ended) = ended else { return (false, None) };
        let is_patient = now.as_second() - ended.as_second() >= UNMOUNT;
        let known_as = cluster.claims.volume_named(volume).and_then(unique_name);
        if !cluster.nodes.contains_key(node) {
            // A volume that the node had let go of may be on its way when the node is removed.
            let let_go = known_as.clone().zip(self.removed.get(node));
            let let_go = let_go.is_some_and(|(name, (at, held))| is_news(*at, now) && !held.contains(&name));
            return match () {
                () if is_patient => (true, None),
                () if let_go => (false, None),
                () => wrong("the node was there a moment ago"),
            };
        }
        let in_use = known_as.and_then(|name| self.mounted.get(node)?.get(&name).copied());
        let (Some(in_use), Some((ready, off, since))) = (in_use, self.nodes.get(node).copied()) else {
            return (false, None);
        };
        match () {
            // The node waits for what it asked for a moment ago.
            () if is_news(in_use, now) => (false, None),
            () if off || is_news(since, now) => (true, None),
            () if ready => wrong("the node has it mounted"),
            () if !is_patient => wrong("the node may still let go of it"),
            () => (true, None),
        }
    }

    /// Whether all that is asked for is attached, and all of it is used.
    pub fn settled(&self, cluster: Cluster) -> bool {
        self.unsettled(cluster).next().is_none()
    }

    fn unsettled(&self, cluster: Cluster) -> impl Iterator<Item = &VolumeAttachment> {
        let is_settled = move |a: &VolumeAttachment| {
            is_attached(a) && cluster.users(&a.spec.node_name, volume_of(a)).next().is_some()
        };
        self.attachments.values().filter(move |attachment| !is_settled(attachment))
    }

    /// Whether a volume is attached, or may be.
    pub fn holds(&self, volume: &str) -> bool {
        self.of(volume).next().is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.attachments.is_empty()
    }

    /// Whether a node has any volume.
    pub fn node_has_some(&self, node: &str) -> bool {
        self.attachments.values().any(|attachment| attachment.spec.node_name == node)
    }

    /// The attachments that are not as they should be, in one line, for a failure.
    pub fn summary(&self, cluster: Cluster) -> String {
        let unsettled = self.unsettled(cluster).map(|a| format!("{} at {}", volume_of(a), a.spec.node_name));
        format!("{} attachments, of no use or not done: {:?}", self.attachments.len(), unsettled.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    /// A claim `c` with the volume `v`, a Pod that runs with it, and nodes.
    struct Story {
        attachments: Attachments,
        claims: Claims,
        pods: BTreeMap<String, Pod>,
        nodes: BTreeMap<String, Node>,
        now: i64,
    }

    impl Story {
        fn new(mode: &str) -> Self {
            let mut claims = Claims::default();
            let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": [mode],
                "csi": {"driver": "d", "volumeHandle": "h"}}});
            claims.volume("persistentvolumes/v".into(), json::from_value(volume).unwrap());
            let claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"volumeName": "v"}});
            let key = "persistentvolumeclaims/d/c";
            claims.claim(key.into(), json::from_value(claim).unwrap(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
            let attachments = Attachments::default();
            Story { attachments, claims, pods: BTreeMap::new(), nodes: BTreeMap::new(), now: 1000 }
        }

        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.now).unwrap()
        }

        /// Words: ready, off, mounted; or removed.
        fn node(&mut self, name: &str, words: &str) {
            if words == "removed" {
                self.attachments.node(name, None, self.now());
                self.nodes.remove(name);
                return;
            }
            let status = if words.contains("ready") { "True" } else { "Unknown" };
            let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
            let node = json!({"metadata": {"name": name},
                "spec": {"taints": words.contains("off").then_some([taint])},
                "status": {"conditions": [{"type": "Ready", "status": status}],
                    "volumesInUse": words.contains("mounted").then_some(["kubernetes.io/csi/d^h"])}});
            let node: Node = json::from_value(node).unwrap();
            self.attachments.node(name, Some(&node), self.now());
            self.nodes.insert(name.to_owned(), node);
        }

        /// In the phase, or gone without one.
        fn pod(&mut self, node: &str, phase: &str) -> String {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
            let pod = json!({"metadata": {"name": "p", "namespace": "d"}, "status": {"phase": phase},
                "spec": {"nodeName": node, "containers": [], "volumes": volumes}});
            let new: Option<Pod> = (!phase.is_empty()).then(|| json::from_value(pod).unwrap());
            let old = self.pods.remove(node);
            set(&mut self.pods, node.to_owned(), new.clone());
            let cluster = Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims };
            let now = Timestamp::from_second(self.now).unwrap();
            self.attachments.pod([old.as_ref(), new.as_ref()], cluster, now).unwrap_or_default()
        }

        /// Words: attached, leaving; gone without any.
        fn attachment(&mut self, node: &str, words: &str) -> String {
            let left = words.contains("leaving").then_some("2026-01-01T00:00:00Z");
            let attachment = json!({"metadata": {"name": node, "deletionTimestamp": left},
                "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "v"}},
                "status": {"attached": words.contains("attached")}});
            let new = (!words.is_empty()).then(|| json::from_value(attachment).unwrap());
            let cluster = Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims };
            let now = Timestamp::from_second(self.now).unwrap();
            self.attachments.attachment(node.to_owned(), new, cluster, now).unwrap_or_default()
        }

        fn is_settled(&self) -> bool {
            self.attachments.settled(Cluster { pods: &self.pods, nodes: &self.nodes, claims: &self.claims })
        }
    }

    #[test]
    fn a_volume_for_one_node_is_on_one() {
        let mut story = Story::new("ReadWriteOnce");
        assert_eq!((story.attachment("n", "asked"), story.is_settled()), (String::new(), false));
        assert_eq!(story.pod("n", "Running"), "it runs on n, to which v is not attached");
        story.pod("n", "Pending");
        assert_eq!(story.attachment("n", "attached"), "");
        assert_eq!((story.pod("n", "Running"), story.is_settled()), (String::new(), true));
        assert_eq!(story.attachment("m", "asked"), "v is asked for on m while n has it");
        let mut shared = Story::new("ReadWriteMany");
        assert_eq!((shared.attachment("n", "asked"), shared.attachment("m", "asked")), Default::default());
    }

    #[test]
    fn nodes_let_go_before_volumes_are_detached() {
        // The words that the node says, the number of seconds for which no Pod has used the volume, and the objection.
        let check = |words: Option<&str>, seconds: i64, expected: &str| {
            let mut story = Story::new("ReadWriteOnce");
            for words in words.into_iter().flat_map(|last| ["ready mounted", last]) {
                story.node("n", words);
                story.now += 100;
            }
            story.attachment("n", "attached");
            story.pod("n", "Running");
            story.now += 100;
            story.pod("n", "Failed");
            story.now += seconds;
            let found = story.attachment("n", "attached leaving");
            assert_eq!(found.strip_prefix("v is detached from n: ").unwrap_or(&found), expected, "{words:?} {seconds}");
        };
        check(Some("ready"), 1, "");
        check(Some("ready mounted"), 1000, "the node has it mounted");
        check(Some("mounted"), 300, "the node may still let go of it");
        check(Some("mounted"), 360, "");
        check(Some("mounted off"), 1, "");
        check(None, 300, "the node was there a moment ago");
        // The node goes when the Pod does: with what it had let go of before, or with the volume still in use.
        for (words, expected) in
            [("ready", ""), ("ready mounted", "v is detached from n: the node was there a moment ago")]
        {
            let mut story = Story::new("ReadWriteOnce");
            story.node("n", "ready mounted");
            story.attachment("n", "attached");
            story.pod("n", "Running");
            story.pod("n", "Failed");
            story.node("n", words);
            story.node("n", "removed");
            assert_eq!(story.attachment("n", "attached leaving"), expected);
        }
        check(None, 360, "");
    }

    #[test]
    fn what_pods_need_stays() {
        let mut story = Story::new("ReadWriteOnce");
        story.attachment("n", "attached");
        story.pod("n", "Pending");
        story.now += 60;
        assert_eq!(story.attachment("n", "leaving"), "v is detached from n: a Pod needs it there");
        let mut story = Story::new("ReadWriteOnce");
        story.attachment("n", "attached");
        story.pod("n", "Running");
        assert_eq!(story.attachment("n", ""), "v is detached from n: a Pod runs with it there");
        let mut story = Story::new("ReadWriteOnce");
        story.node("n", "ready");
        story.attachment("n", "attached");
        story.pod("n", "Pending");
        assert_eq!(story.attachment("n", "leaving"), "", "nobody may know of the Pod yet");
    }
}
