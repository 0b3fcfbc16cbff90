//! The binder's half for claims: finds or orders a volume for each, and ties the two.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::rules::{
    pod::{is_terminal, volume_claims},
    volume::{
        self, BIND_COMPLETED, BOUND_BY_CONTROLLER, Offer, SELECTED_NODE, SIZE_BEFORE_RESIZE, Wish, annotation,
        class_of_claim, is_bind_completed, names_class, volume_of, waits_for_consumer,
    },
};
use client::{Api, Caches, Client, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use parking_lot::Mutex;

use super::{
    BY_CLAIM, by_claim, claim_key, claim_ref, phase,
    provision::{self, PROVISIONER},
    took::Took,
    volumes::with_phase,
};
use crate::storage::claim_protection::{BY_CLAIM as PODS_BY_CLAIM, by_claim as pods_by_claim};

/// The names of the indexes of free volumes by class, of claims without volume by class, and of claims by volume.
const FREE: &str = "free volumes by class";
const WITHOUT_VOLUME: &str = "claims without volume by class";
const BY_VOLUME: &str = "claims by volume";

/// How soon a claim is looked at again when others have chosen what would do.
const CONTENDED: Duration = Duration::from_secs(1);

pub struct Claims {
    /// The volume that was chosen for a claim, and its version then. Until the cache shows another version, other claims
    /// leave it alone, which spares them a refused write.
    chosen: Mutex<HashMap<Key, (String, String)>>,
    /// Whether volumes of classes that ask for folders of a node are made here.
    host_paths: bool,
    /// How long volumes take to be made for claims.
    took: Took,
}

#[derive(Default)]
pub struct Observed {
    pub class: Option<Arc<StorageClass>>,
    /// The class for a claim that names none.
    pub default_class: Option<String>,
    /// The volume that the claim names; for a claim that names none, the one that is best for it.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The volume that the claim names is not in the cache but at the server.
    pub cache_is_late: bool,
    /// A volume would do that was chosen for another claim a moment ago, and may yet become this one's.
    pub contended: bool,
    /// Pods that use the claim and have no node.
    pub waiting: Vec<String>,
    /// Volumes of classes that ask for folders of a node are made here.
    pub host_paths: bool,
}

/// It has no volume and names none.
fn is_free(claim: &PersistentVolumeClaim) -> bool {
    !is_bind_completed(claim) && volume_of(claim).is_empty()
}

fn waits(caches: &Caches, class: &str) -> bool {
    caches.of::<StorageClass>().get(&Key::new("", class)).is_some_and(|class| waits_for_consumer(&class))
}

fn has_no_node(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("").is_empty()
}

impl Claims {
    pub fn new(host_paths: bool) -> Self {
        Claims { host_paths, chosen: Mutex::default(), took: Took::new("provision") }
    }

    /// The best volume for a claim that names none: one that is reserved for it, else of those that give no more access
    /// than needed the smallest. A claim that waits for its Pod gets a reserved one only: the scheduler reserves it.
    /// The second answer says whether one would do that is another claim's choice.
    fn choose(&self, claim: &PersistentVolumeClaim, caches: &Caches) -> (Option<Arc<PersistentVolume>>, bool) {
        let (key, wish) = (Key::of(claim), Wish::of(claim));
        let volumes = caches.of::<PersistentVolume>();
        let mut all = volumes.by_index(BY_CLAIM, &key.to_string());
        if !waits(caches, &wish.class) {
            all.extend(volumes.by_index(FREE, &wish.class));
        }
        let version = |volume: &PersistentVolume| {
            (
                volume.metadata.name.clone().unwrap_or_default(),
                volume.metadata.resource_version.clone().unwrap_or_default(),
            )
        };
        let mut chosen = self.chosen.lock();
        chosen.remove(&key);
        let taken: HashSet<&(String, String)> = chosen.values().collect();
        let suiting = all.into_iter().filter(|volume| Offer::of(volume).suits(&wish));
        let (taken, left): (Vec<_>, Vec<_>) = suiting.partition(|volume| taken.contains(&version(volume)));
        let best = left.into_iter().min_by_key(|volume| {
            let offer = Offer::of(volume);
            (!offer.is_for(&wish), offer.access_modes().len(), offer.size, volume.metadata.name.clone())
        });
        if let Some(best) = &best {
            chosen.insert(key, version(best));
        }
        (best, !taken.is_empty())
    }

    fn forget(&self, key: &Key) {
        self.chosen.lock().remove(key);
        self.took.forget(key);
    }
}

impl Controller for Claims {
    const NAME: &'static str = "persistentvolume-binder-controller";
    type Object = PersistentVolumeClaim;
    type Observed = Observed;

    fn watches(&self, watches: &mut Watches<PersistentVolumeClaim>) {
        let caches = watches.caches();
        caches.of::<PersistentVolume>().add_index(BY_CLAIM, by_claim);
        caches.of::<PersistentVolume>().add_index(FREE, |v| {
            Offer::of(v).is_free().then(|| volume::class_of_volume(v).to_owned()).into_iter().collect()
        });
        caches.of::<PersistentVolumeClaim>().add_index(WITHOUT_VOLUME, |claim| {
            is_free(claim).then(|| class_of_claim(claim).to_owned()).into_iter().collect()
        });
        caches.of::<PersistentVolumeClaim>().add_index(BY_VOLUME, |claim| vec![volume_of(claim).to_owned()]);
        caches.of::<Pod>().add_index(PODS_BY_CLAIM, pods_by_claim);
        watches.changed::<PersistentVolume>(volume_changed);
        watches.changed::<StorageClass>(|change, caches| {
            let claims = caches.of::<PersistentVolumeClaim>();
            let mut concerned = claims.by_index(WITHOUT_VOLUME, &change.key.name);
            if change.new.as_ref().is_some_and(|class| volume::is_default_class(&class.metadata)) {
                let all = claims.by_index(WITHOUT_VOLUME, "");
                concerned.extend(all.into_iter().filter(|claim| !names_class(claim)));
            }
            concerned.iter().map(|claim| Key::of(&**claim)).collect()
        });
        // A Pod that waits for a node is named in the event of a claim that waits for the Pod.
        watches.changed::<Pod>(|change, caches| {
            let new = change.new.as_ref().filter(|pod| change.old.is_none() && has_no_node(pod));
            let Some(pod) = new else { return Vec::new() };
            let (namespace, claims) = (&change.key.namespace, caches.of::<PersistentVolumeClaim>());
            let used = volume_claims(pod).map(|claim| Key::new(namespace.as_str(), claim.name));
            let waiting = used.filter(|key| {
                claims.get(key).is_some_and(|claim| is_free(&claim) && waits(caches, class_of_claim(&claim)))
            });
            waiting.collect()
        });
    }

    fn observe(&self, claim: &PersistentVolumeClaim, listers: &Listers) -> Observed {
        let (caches, named, key) = (listers.caches, volume_of(claim), Key::of(claim));
        if !is_free(claim) {
            self.chosen.lock().remove(&key);
            if is_bind_completed(claim) {
                self.took.end(&key, clock::now());
            }
            let volume = caches.of::<PersistentVolume>().get(&Key::new("", named)).filter(|_| !named.is_empty());
            return Observed { volume, ..Observed::default() };
        }
        let classes = caches.of::<StorageClass>();
        let default_class = || {
            let all = classes.list();
            volume::default_class(all.iter().map(|class| &class.metadata)).map(str::to_owned)
        };
        let pods = caches.of::<Pod>().by_index(PODS_BY_CLAIM, &key.to_string());
        let waiting = pods.iter().filter(|pod| has_no_node(pod) && !is_terminal(pod));
        let (volume, contended) = self.choose(claim, caches);
        let class = classes.get(&Key::new("", class_of_claim(claim)));
        if let Some(class) = class.as_ref().filter(|_| annotation(&claim.metadata, PROVISIONER).is_some()) {
            self.took.begin(key, &class.provisioner, clock::now());
        }
        Observed {
            host_paths: self.host_paths,
            class,
            default_class: if names_class(claim) { None } else { default_class() },
            volume,
            contended,
            cache_is_late: false,
            waiting: waiting.filter_map(|pod| pod.metadata.name.clone()).collect(),
        }
    }

    /// A bound claim whose volume is gone has lost its data, so a cache that is only late must not say it.
    async fn ask(
        &self,
        claim: &PersistentVolumeClaim,
        observed: &mut Observed,
        client: &Client,
    ) -> Result<(), client::Error> {
        let named = volume_of(claim);
        if is_bind_completed(claim) && !named.is_empty() && observed.volume.is_none() && !is(claim, "Lost") {
            let volumes: Api<PersistentVolume> = Api::all(client.clone());
            observed.cache_is_late = volumes.find(named).await?.is_some();
        }
        Ok(())
    }

    fn plan(&self, claim: &PersistentVolumeClaim, observed: &Observed, now: Timestamp) -> Plan {
        match (is_bind_completed(claim), volume_of(claim)) {
            (false, "") => without_volume(claim, observed, now),
            (false, named) => with_named_volume(claim, named, observed.volume.as_deref(), now),
            (true, _) if observed.cache_is_late => Plan::default(),
            (true, named) => bound(claim, named, observed.volume.as_deref(), now),
        }
    }

    fn plan_gone(&self, key: &Key, _: &Listers, _: Timestamp) -> Plan {
        self.forget(key);
        Plan::default()
    }
}

/// The claims that a change of a volume concerns: the one that it is for, those that name it, and those that it suits now.
fn volume_changed(change: &client::Change<PersistentVolume>, caches: &Caches) -> Vec<Key> {
    let claims = caches.of::<PersistentVolumeClaim>();
    let mut keys: Vec<Key> =
        [&change.old, &change.new].into_iter().flatten().filter_map(|volume| claim_key(volume)).collect();
    keys.extend(claims.by_index(BY_VOLUME, &change.key.name).iter().map(|claim| Key::of(&**claim)));
    let Some(new) = change.new.as_ref().filter(|volume| Offer::of(volume).is_free()) else { return keys };
    let class = volume::class_of_volume(new);
    if !waits(caches, class) {
        let suited = claims.by_index(WITHOUT_VOLUME, class).into_iter().filter(|claim| {
            let wish = Wish::of(claim);
            Offer::of(new).suits(&wish) && !change.old.as_ref().is_some_and(|old| Offer::of(old).suits(&wish))
        });
        keys.extend(suited.map(|claim| Key::of(&*claim)));
    }
    keys
}

fn without_volume(claim: &PersistentVolumeClaim, observed: &Observed, now: Timestamp) -> Plan {
    if let Some(volume) = &observed.volume {
        return bind(claim, volume, now);
    }
    let mut plan = Plan::default();
    if observed.contended {
        plan.again_after(CONTENDED);
        return plan;
    }
    if let Some(class) = &observed.default_class {
        let mut classed = claim.clone();
        classed.spec.get_or_insert_default().storage_class_name = Some(class.clone());
        plan.step(Write::update(&classed));
        return plan;
    }
    let waits = observed.class.as_deref().is_some_and(waits_for_consumer);
    if waits && annotation(&claim.metadata, SELECTED_NODE).is_none() {
        plan.tell(waits_for_pods(&observed.waiting));
    } else if !class_of_claim(claim).is_empty() {
        return provision::plan(claim, observed.class.as_deref(), observed.host_paths);
    } else {
        let why = "no persistent volumes available for this claim and no storage class is set";
        plan.tell(Note::normal("FailedBinding", why));
    }
    pending(claim, &mut plan);
    plan
}

fn waits_for_pods(pods: &[String]) -> Note {
    match pods {
        [] => Note::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [pod] => Note::normal("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => Note::normal("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", pods.join(","))),
    }
}

/// The claim's author, or a plan that was interrupted, says which volume it is.
fn with_named_volume(
    claim: &PersistentVolumeClaim,
    named: &str,
    volume: Option<&PersistentVolume>,
    now: Timestamp,
) -> Plan {
    let (mut plan, wish) = (Plan::default(), Wish::of(claim));
    let Some(volume) = volume else {
        pending(claim, &mut plan);
        return plan;
    };
    let offer = Offer::of(volume);
    if offer.is_for(&wish) {
        return bind(claim, volume, now);
    }
    match offer.mismatch(&wish) {
        _ if offer.claim().is_some() => {
            let why = format!("volume {named:?} already bound to a different claim.");
            plan.tell(Note::warning("FailedBinding", why));
        }
        Some(why) => {
            let why = format!("Cannot bind to requested volume {named:?}: {why}");
            plan.tell(Note::warning("VolumeMismatch", why));
        }
        None => return bind(claim, volume, now),
    }
    pending(claim, &mut plan);
    plan
}

/// Both sides have been tied once. A missing part is written again; a volume that is gone or another claim's is lost.
fn bound(claim: &PersistentVolumeClaim, named: &str, volume: Option<&PersistentVolume>, now: Timestamp) -> Plan {
    if named.is_empty() {
        let why = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost(claim, "ClaimLost", why);
    }
    let Some(volume) = volume else {
        return lost(claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
    };
    match claim_ref(volume) {
        Some(other) if other.uid != claim.metadata.uid => {
            let why = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(claim, "ClaimMisbound", why)
        }
        _ => bind(claim, volume, now),
    }
}

/// Ties the two: the volume's side first. The rest is planned when the cache shows that it is written.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if let Some(reserved) = reserved(claim, volume) {
        plan.step(Write::update(&reserved));
        return plan;
    }
    if phase(volume) != "Bound" {
        plan.step(Write::update_part(&with_phase(volume, "Bound", "", now), "status"));
    }
    match naming(claim, volume) {
        Some(named) => _ = plan.step(Write::update(&named)),
        None => _ = plan.set_status(claim, &with_bound_status(claim, volume)),
    }
    plan
}

/// The volume with its reference to the claim; `None` when it has it.
fn reserved(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<PersistentVolume> {
    let (meta, held) = (&claim.metadata, claim_ref(volume));
    if held.is_some_and(|held| held.uid.is_some() && held.uid == meta.uid) {
        return None;
    }
    let mut reserved = volume.clone();
    if held.is_none() {
        let annotations = reserved.metadata.annotations.get_or_insert_default();
        annotations.entry(BOUND_BY_CONTROLLER.to_owned()).or_insert_with(|| "yes".to_owned());
    }
    reserved.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        kind: Some("PersistentVolumeClaim".to_owned()),
        api_version: Some("v1".to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    });
    Some(reserved)
}

/// The claim with the volume's name; `None` when it has it.
fn naming(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<PersistentVolumeClaim> {
    let name = volume.metadata.name.as_deref().unwrap_or("");
    if volume_of(claim) == name && is_bind_completed(claim) {
        return None;
    }
    let mut named = claim.clone();
    let annotations = named.metadata.annotations.get_or_insert_default();
    if volume_of(claim) != name {
        annotations.entry(BOUND_BY_CONTROLLER.to_owned()).or_insert_with(|| "yes".to_owned());
    }
    annotations.insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
    named.spec.get_or_insert_default().volume_name = Some(name.to_owned());
    Some(named)
}

fn is(claim: &PersistentVolumeClaim, phase: &str) -> bool {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase)
}

/// The size and access modes of a claim are told when it becomes bound. Later the file system may be smaller than the
/// volume, on purpose.
fn with_bound_status(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> PersistentVolumeClaim {
    let (mut told, spec) = (claim.clone(), volume.spec.clone().unwrap_or_default());
    let status = told.status.get_or_insert_default();
    status.access_modes = spec.access_modes;
    if !is(claim, "Bound") {
        let before = annotation(&volume.metadata, SIZE_BEFORE_RESIZE)
            .filter(|text| text.parse::<api::rules::quantity::Quantity>().is_ok());
        match before {
            Some(size) => {
                let capacity = status.capacity.get_or_insert_default();
                capacity.insert("storage".to_owned(), Quantity(size.to_owned()));
            }
            None => status.capacity = spec.capacity,
        }
        status.current_volume_attributes_class_name = spec.volume_attributes_class_name;
        status.phase = Some("Bound".to_owned());
    }
    told
}

fn with_bare_status(claim: &PersistentVolumeClaim, phase: &str) -> PersistentVolumeClaim {
    let mut told = claim.clone();
    let status = told.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    (status.access_modes, status.capacity, status.current_volume_attributes_class_name) = (None, None, None);
    told
}

fn pending(claim: &PersistentVolumeClaim, plan: &mut Plan) {
    plan.set_status(claim, &with_bare_status(claim, "Pending"));
}

fn lost(claim: &PersistentVolumeClaim, reason: &str, why: &str) -> Plan {
    let mut plan = Plan::default();
    if !is(claim, "Lost") {
        let write = Write::update_part(&with_bare_status(claim, "Lost"), "status");
        plan.step(write.on_success(Note::warning(reason, why)));
    }
    plan
}
