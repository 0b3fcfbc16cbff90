//! Attaching and detaching: a CSI volume is attached to the node of a Pod that uses it, and detached when no Pod there does
//! and the node has let go of it.
//! Reads: Node, Pod, PersistentVolumeClaim, PersistentVolume, CSIDriver, VolumeAttachment.
//! Writes: VolumeAttachment (create, delete), Node/status (volumesAttached).
//! Upstream counterpart: pkg/controller/volume/attachdetach.
//!
//! The work itself is the driver's attacher's, which follows the VolumeAttachments. A volume that only one node may have
//! gets its attachment when every other one is gone. One that a node still has mounted is left to it: for six minutes after
//! its last Pod if the node is not ready (for ever, if nobody wants it otherwise: `--disable-force-detach-on-timeout`), for ever
//! if it is; not at all if somebody says that the node is off.

pub(super) mod figures;
mod observed;
#[cfg(test)]
mod tests;
pub(super) mod volume;

use std::{collections::HashMap, time::Duration};

use api::rules::pod::volume_claims;
use client::{Api, Caches, Change, Client, Key, events};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use json::json;
use k8s_openapi::api::{
    core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use parking_lot::Mutex;

use self::figures::UnderWay;
use self::observed::{DesiredVolume, Observed, Rival, concerned_by_claim, concerned_by_volume, node_key, users};
use super::claim_protection::{BY_CLAIM, by_claim};
use crate::node::{conditions, on_node};

/// How long a node that is not ready is given to unmount a volume.
const UNMOUNT: Duration = Duration::from_secs(360);

/// The number of seconds for which a request for an attachment may be under way.
const UNDER_WAY: i64 = 10;

/// On a Node whose kubelet leaves attaching to this controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The names of the indexes of attachments by node and by volume.
const BY_NODE: &str = "attachments by node";
const BY_VOLUME: &str = "attachments by volume";

#[derive(Default)]
pub struct AttachDetach {
    patience: Patience,
    /// Since when each attachment has been of no use. A new process gives nodes the time once more.
    unused: Mutex<HashMap<Key, Timestamp>>,
    /// The nodes that volumes for one node were last asked for, and when. As long as there is the volume: the caches may not
    /// show for long that it is there.
    asked: Mutex<HashMap<String, (String, Timestamp)>>,
    /// The events that were told of the attachments that there are, and of those that had to wait: each is told once.
    told: Mutex<HashMap<Key, String>>,
    under_way: UnderWay,
}

/// How long a node that is not ready, or is gone, may keep a volume that no Pod there uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Patience {
    #[default]
    SixMinutes,
    ForEver,
}

impl Patience {
    /// How much of it is left of a volume that has had no use for so long; none where that does not end.
    fn left(self, waited: Duration) -> Option<Duration> {
        (self == Patience::SixMinutes).then(|| UNMOUNT.saturating_sub(waited))
    }

    fn is_over(self, waited: Duration) -> bool {
        self.left(waited).is_some_and(|left| left.is_zero())
    }
}

impl Controller for AttachDetach {
    const NAME: &'static str = "persistentvolume-attach-detach-controller";
    type Object = Node;
    type Observed = Observed;

    fn concerns(change: &Change<Node>) -> bool {
        let facts = |node: &Node| {
            let (spec, status) = (node.spec.clone().unwrap_or_default(), node.status.clone().unwrap_or_default());
            (spec.taints, status.volumes_in_use, status.volumes_attached, is_ready(node), is_managed(node))
        };
        change.old.as_ref().map(|old| facts(old)) != change.new.as_ref().map(|new| facts(new))
    }

    fn watches(&self, watches: &mut Watches<Node>) {
        let caches = watches.caches();
        figures::follow(caches);
        on_node::index(&caches.of::<Pod>());
        caches.of::<Pod>().add_index(BY_CLAIM, by_claim);
        caches.of::<VolumeAttachment>().add_index(BY_NODE, |a| vec![a.spec.node_name.clone()]);
        caches
            .of::<VolumeAttachment>()
            .add_index(BY_VOLUME, |a| a.spec.source.persistent_volume_name.clone().into_iter().collect());
        watches.mapped::<Pod>(|pod, _| {
            node_key(pod).filter(|_| volume_claims(pod).next().is_some()).into_iter().collect()
        });
        watches.mapped::<PersistentVolumeClaim>(concerned_by_claim);
        watches.mapped::<PersistentVolume>(concerned_by_volume);
        watches.mapped::<VolumeAttachment>(|attachment, caches| {
            // The volume may be free for another node now.
            let name = attachment.spec.source.persistent_volume_name.as_deref().unwrap_or("");
            let volume = caches.of::<PersistentVolume>().get(&Key::new("", name));
            let mut keys = volume.map(|volume| concerned_by_volume(&volume, caches)).unwrap_or_default();
            keys.push(Key::new("", attachment.spec.node_name.as_str()));
            keys
        });
        watches.reads::<CSIDriver>();
    }

    fn observe(&self, node: &Node, listers: &Listers) -> Observed {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let mut observed = Observed::of(name, listers.caches);
        self.remember(&mut observed, name);
        self.under_way.look(name, Some(node), &observed, (clock::now(), self.patience));
        self.reserve(&mut observed, name, listers.caches);
        observed
    }

    /// Where the caches say too little, the server is asked whether another node still has a volume.
    async fn ask(&self, node: &Node, observed: &mut Observed, client: &Client) -> Result<(), client::Error> {
        let node = node.metadata.name.as_deref().unwrap_or("");
        for (name, wanted) in &mut observed.wanted {
            let Some(other) = wanted.perhaps_of.take() else { continue };
            let attachment = volume::attachment(&wanted.volume, &other).metadata.name.unwrap_or_default();
            let held = Api::<VolumeAttachment>::all(client.clone()).find(&attachment).await?.is_some();
            let mut asked = self.asked.lock();
            if held || asked.get(name).is_none_or(|(of, _)| *of != other) {
                wanted.rivals.push(Rival::default());
                observed.look_again = true;
            } else {
                asked.insert(name.clone(), (node.to_owned(), clock::now_seconds()));
            }
        }
        Ok(())
    }

    fn plan(&self, node: &Node, observed: &Observed, now: Timestamp) -> Plan {
        if !is_managed(node) {
            return Plan::default();
        }
        let mut plan = Plan::default();
        let mut attached = node.status.as_ref().and_then(|s| s.volumes_attached.clone()).unwrap_or_default();
        let before = attached.clone();
        let detached = detach(Some(node), observed, &mut attached, &mut plan, (now, self.patience));
        let succeeded = confirm(observed, &mut attached);
        if attached != before {
            plan.step(told_attached(node, &attached, !detached.is_empty()));
        }
        succeeded.into_iter().for_each(|note| _ = plan.tell(note));
        detached.into_iter().for_each(|write| _ = plan.step(write));
        attach(node, observed, &mut plan);
        if observed.look_again {
            plan.again_after(Duration::from_secs(1));
        }
        plan
    }

    /// Nobody will say that a node which is gone has unmounted anything, so its volumes wait out the time.
    fn plan_gone(&self, key: &Key, listers: &Listers, _: Timestamp) -> Plan {
        let mut observed = Observed::of(&key.name, listers.caches);
        self.remember(&mut observed, &key.name);
        self.under_way.look(&key.name, None, &observed, (clock::now(), self.patience));
        let mut plan = Plan::default();
        let when = (clock::now_seconds(), self.patience);
        let writes = detach(None, &observed, &mut Vec::new(), &mut plan, when);
        writes.into_iter().for_each(|write| _ = plan.step(write));
        plan
    }
}

/// Tells the node what it has. A node says that it has a volume in use before it looks whether it is attached: who takes one
/// away must have read all that the node has said, or a Pod that has just come runs with a volume that goes.
fn told_attached(node: &Node, attached: &[AttachedVolume], takes_away: bool) -> Write {
    let mut patch = json!({"status": {"volumesAttached": attached}});
    if takes_away {
        patch["metadata"] = json!({"resourceVersion": node.metadata.resource_version});
    }
    Write::merge_patch(node, "status", patch)
}

fn is_managed(node: &Node) -> bool {
    api::rules::volume::annotation(&node.metadata, MANAGED) == Some("true")
}

fn is_ready(node: &Node) -> bool {
    conditions::ready(node) == Some("True")
}

fn is_out_of_service(node: &Node) -> bool {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|taint| taint.key == OUT_OF_SERVICE)
}

fn has_mounted(node: &Node, volume: &PersistentVolume) -> bool {
    let name = volume::unique_name(volume);
    node.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten()).any(|held| *held == name)
}

impl AttachDetach {
    pub fn new(patience: Patience) -> Self {
        AttachDetach { patience, ..AttachDetach::default() }
    }

    /// Adds what is not in the caches: since when attachments are unused, and what was told already.
    fn remember(&self, observed: &mut Observed, node: &str) {
        let (mut unused, mut told) = (self.unused.lock(), self.told.lock());
        let now = clock::now_seconds();
        // The memory of a node is bounded by the number of its attachments and wanted volumes.
        unused.retain(|key, _| {
            key.namespace != node || observed.unused().any(|a| a.metadata.name.as_deref() == Some(&*key.name))
        });
        told.retain(|key, _| key.namespace != node || observed.wanted.contains_key(&key.name));
        for attachment in observed.unused() {
            let key = Key::new(node, attachment.metadata.name.as_deref().unwrap_or(""));
            unused.entry(key).or_insert(now);
        }
        observed.unused_since = unused
            .iter()
            .filter(|(key, _)| key.namespace == node)
            .map(|(key, since)| (key.name.clone(), *since))
            .collect();
        for (name, wanted) in &mut observed.wanted {
            let key = Key::new(node, name.as_str());
            let trouble = wanted.trouble();
            wanted.is_told = told.get(&key).is_some_and(|told| *told == trouble);
            told.insert(key, trouble);
        }
    }

    /// Of two nodes that want one volume at the same moment, the first gets it, before the caches show that it does.
    fn reserve(&self, observed: &mut Observed, node: &str, caches: &Caches) {
        let (mut asked, now) = (self.asked.lock(), clock::now_seconds());
        let volumes = caches.of::<PersistentVolume>();
        asked.retain(|name, _| volumes.get(&Key::new("", name.as_str())).is_some());
        for (name, wanted) in &mut observed.wanted {
            let is_free = wanted.attachment.is_none() && wanted.rivals.is_empty();
            if volume::is_shared(&wanted.volume) || !is_free {
                continue;
            }
            if let Some((other, since)) = asked.get(name).filter(|(other, _)| other != node) {
                let pods: Vec<Key> = users(&wanted.volume, other, caches).iter().map(|pod| Key::of(&**pod)).collect();
                if !pods.is_empty() || now.duration_since(*since).as_secs() < UNDER_WAY {
                    wanted.rivals.push(Rival { pods });
                    observed.look_again = true;
                } else {
                    wanted.perhaps_of = Some(other.clone());
                }
                continue;
            }
            asked.insert(name.clone(), (node.to_owned(), now));
        }
    }
}

/// Deletes the attachments that have to go now. Those volumes leave the node's status before.
fn detach(
    node: Option<&Node>,
    observed: &Observed,
    attached: &mut Vec<AttachedVolume>,
    plan: &mut Plan,
    (now, patience): (Timestamp, Patience),
) -> Vec<Write> {
    let mut writes = Vec::new();
    for (attachment, volume) in &observed.attachments {
        let name = attachment.metadata.name.as_deref().unwrap_or("");
        let Some(since) = observed.unused_since.get(name) else { continue };
        let waited = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        let stays = match node {
            Some(node) if is_out_of_service(node) => false,
            Some(node) => has_mounted(node, volume) && (is_ready(node) || !patience.is_over(waited)),
            None => !patience.is_over(waited),
        };
        if stays {
            // Later, nothing but news of the node makes a difference.
            if let Some(left) = patience.left(waited).filter(|left| !left.is_zero()) {
                plan.again_after(left);
            }
            continue;
        }
        let unique = volume::unique_name(volume);
        attached.retain(|held| held.name != unique);
        if attachment.metadata.deletion_timestamp.is_none() {
            writes.push(Write::delete(&**attachment));
        }
    }
    writes
}

/// Brings the node's status up to what is attached by now, and says so to the Pods that wait for it.
fn confirm(observed: &Observed, attached: &mut Vec<AttachedVolume>) -> Vec<Note> {
    // A volume that somebody else detached is no longer told of.
    let is_there = |name: &str| observed.attachments.iter().any(|(_, volume)| volume::unique_name(volume) == name);
    attached.retain(|held| !held.name.starts_with("kubernetes.io/csi/") || is_there(&held.name));
    let mut notes = Vec::new();
    for wanted in observed.wanted.values() {
        // One that is being detached may still say that it is attached.
        let stays = wanted.attachment.as_ref().filter(|a| a.metadata.deletion_timestamp.is_none());
        let done = stays.and_then(|a| a.status.as_ref()).is_some_and(|status| status.attached);
        let name = volume::unique_name(&wanted.volume);
        if !done || attached.iter().any(|held| held.name == name) {
            continue;
        }
        attached.push(AttachedVolume { name, device_path: String::new() });
        let message = format!("AttachVolume.Attach succeeded for volume {:?} ", wanted.name());
        let note = |pod: &std::sync::Arc<Pod>| {
            Note::normal("SuccessfulAttachVolume", message.clone()).about(events::reference(&**pod))
        };
        notes.extend(wanted.pods.iter().map(note));
    }
    notes
}

/// Asks for what is wanted and not there, unless another node has it.
fn attach(node: &Node, observed: &Observed, plan: &mut Plan) {
    let name = node.metadata.name.as_deref().unwrap_or("");
    for wanted in observed.wanted.values() {
        match (&wanted.attachment, wanted.rivals.as_slice()) {
            // It is being detached, and is attached anew when that is over.
            (Some(attachment), _) if attachment.metadata.deletion_timestamp.is_some() => {}
            (Some(_), _) => wanted.failure().into_iter().for_each(|why| warn(wanted, plan, |_| why.clone())),
            (None, []) => _ = plan.step(Write::create(&volume::attachment(&wanted.volume, name))),
            (None, rivals) => warn(wanted, plan, |pod| {
                let why = multi_attach(pod, rivals);
                format!("Multi-Attach error for volume {:?} {why}", wanted.name())
            }),
        }
    }
}

/// Tells each Pod that waits for the volume, once.
fn warn(wanted: &DesiredVolume, plan: &mut Plan, message: impl Fn(&Pod) -> String) {
    for pod in wanted.pods.iter().filter(|_| !wanted.is_told) {
        let note = Note::warning("FailedAttachVolume", message(pod));
        plan.tell(note.about(events::reference(&**pod)));
    }
}

/// The holders of the volume, as far as the Pod's user may know.
fn multi_attach(pod: &Pod, rivals: &[Rival]) -> String {
    let pods: Vec<&Key> = rivals.iter().flat_map(|rival| &rival.pods).collect();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let (near, far): (Vec<&Key>, Vec<&Key>) = pods.into_iter().partition(|key| key.namespace == namespace);
    let names = near.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join(", ");
    match (near.len(), far.len()) {
        (0, 0) => "Volume is already exclusively attached to one node and can't be attached to another".to_owned(),
        (0, far) => format!("Volume is already used by {far} pod(s) in different namespaces"),
        (_, 0) => format!("Volume is already used by pod(s) {names}"),
        (_, far) => format!("Volume is already used by pod(s) {names} and {far} pod(s) in different namespaces"),
    }
}
