//! The definitions that the store has, and the kinds that follow from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    Value,
    custom::{
        Head, Stored,
        conditions::{self, InUse, Step},
        definitions,
    },
    kind::Definition,
};
use parking_lot::Mutex;
use store::Entry;
use tokio::sync::Notify;

use crate::storage::{informer::EventHandler, kinds::Kinds};

/// All definitions, each with what is served of it.
pub struct CustomKinds {
    kinds: Arc<Kinds>,
    /// Whether their status says of which generation it is.
    tracks: bool,
    held: Mutex<Held>,
    pub changed: Notify,
}

#[derive(Default)]
struct Held {
    all: BTreeMap<String, Custom>,
    work: Work,
}

/// The work that a change of the definitions makes.
#[derive(Default, Clone)]
pub struct Work {
    /// Groups whose names may be given anew.
    pub groups: BTreeSet<String>,
    /// Storage prefixes whose kind is not what it was.
    pub ended: BTreeSet<String>,
}

struct Custom {
    head: Arc<Head>,
    entry: Entry,
    definitions: Vec<Arc<Definition>>,
    /// Served before the conditions that say so are in the store.
    early: bool,
}

/// The traits that the served kinds depend on, besides whether they are about to go.
fn shape(head: &Head) -> (&str, i64, bool, Option<String>) {
    let names = head.status.accepted_names.as_ref().and_then(|names| serde_json::to_string(names).ok());
    let (uid, spec) = spec(head);
    (uid, spec, head.is_served(), names)
}

/// Changes with the spec.
fn spec(head: &Head) -> (&str, i64) {
    (&head.metadata.uid, head.metadata.generation)
}

/// The effect of a change on what is served.
#[derive(PartialEq, Eq)]
enum Effect {
    None,
    /// The same kinds, made from newer bytes.
    Renewed,
    Other,
}

impl Custom {
    fn stored(entry: &Entry) -> Stored {
        Arc::new(entry.value.clone())
    }

    fn new(head: Arc<Head>, entry: Entry, kinds: &Kinds) -> Self {
        let mut custom = Custom { head, entry, definitions: Vec::new(), early: false };
        custom.define(kinds);
        custom
    }

    fn define(&mut self, kinds: &Kinds) {
        self.definitions.clear();
        if !self.head.is_served() {
            return;
        }
        let mut all = definitions(&self.head, &Custom::stored(&self.entry), self.entry.created);
        // A kind that the server itself is made of is not given away.
        all.retain(|definition| !kinds.hide(definition));
        self.definitions = all;
    }

    /// Takes over what the definition is now.
    fn update(&mut self, head: Head, entry: Entry, kinds: &Kinds) -> Effect {
        let same = shape(&head) == shape(&self.head);
        let renewed = self.early || head.has("Terminating") != self.head.has("Terminating");
        self.head = Arc::new(head);
        self.entry = entry;
        self.early = false;
        if !same || renewed {
            self.define(kinds);
        }
        match (same, renewed) {
            (false, _) => Effect::Other,
            (true, true) => Effect::Renewed,
            (true, false) => Effect::None,
        }
    }
}

impl CustomKinds {
    pub fn new(kinds: Arc<Kinds>, tracks: bool) -> Self {
        CustomKinds { kinds, tracks, held: Mutex::default(), changed: Notify::new() }
    }

    /// The work that came up since this was last asked.
    pub fn work(&self) -> Work {
        std::mem::take(&mut self.held.lock().work)
    }

    /// Looks at groups once more: what was to be written of them may not have been.
    pub fn doubt(&self, work: &Work) {
        let mut guard = self.held.lock();
        let held = &mut *guard;
        held.work.groups.extend(work.groups.iter().cloned());
        for custom in held.all.values_mut().filter(|custom| work.groups.contains(&custom.head.spec.group)) {
            if let Ok(head) = Head::read(&custom.entry.value) {
                custom.head = Arc::new(head);
            }
        }
    }

    fn publish(&self, held: &Held) {
        self.kinds.replace(held.all.values().flat_map(|custom| custom.definitions.iter().cloned()).collect());
    }

    /// The steps for the definitions of a group: name, the revision that it was seen at, and the step. A kind that is
    /// accepted is served from here on, so that nobody reads of one that is not served.
    pub fn plan(&self, group: &str) -> Vec<(String, u64, Step)> {
        let mut guard = self.held.lock();
        let held = &mut *guard;
        let mut steps = Vec::new();
        let mut in_use = InUse::default();
        let own = held.all.values().filter(|custom| custom.head.spec.group == group);
        own.filter_map(|c| c.head.status.accepted_names.as_ref()).for_each(|names| in_use.add(names));
        for (name, custom) in held.all.iter_mut().filter(|(_, custom)| custom.head.spec.group == group) {
            let Some(step) = conditions::plan(&custom.head, &in_use, self.tracks) else { continue };
            in_use.add(&step.accepted);
            let served = custom.head.is_served();
            custom.head = Arc::new(after(&custom.head, &step));
            if custom.head.is_served() && !served {
                custom.define(&self.kinds);
                custom.early = true;
            }
            steps.push((name.clone(), custom.entry.modified, step));
        }
        if !steps.is_empty() {
            self.publish(held);
        }
        steps
    }

    /// The definitions that wait for their objects to go.
    pub fn leaving(&self) -> Vec<(String, Arc<Head>, Stored)> {
        let held = self.held.lock();
        let leaving = held.all.iter().filter(|(_, custom)| is_leaving(&custom.head));
        leaving.map(|(name, c)| (name.clone(), c.head.clone(), Custom::stored(&c.entry))).collect()
    }

    /// The group versions that are served.
    pub fn served(&self) -> BTreeSet<(String, String)> {
        let held = self.held.lock();
        let all = held.all.values().flat_map(|custom| &custom.definitions);
        all.map(|definition| (definition.group.clone(), definition.version.clone())).collect()
    }
}

/// The definition when its step is written.
fn after(head: &Head, step: &Step) -> Head {
    let mut object = json::json!({"status": head.status});
    conditions::write(&mut object, step, "1970-01-01T00:00:00Z");
    let status = json::from_value(object["status"].take()).unwrap_or_default();
    Head { status, ..head.clone() }
}

impl EventHandler for CustomKinds {
    fn stored(&self, name: &str, entry: &Entry) -> bool {
        let head = match Head::read(&entry.value) {
            Ok(head) => head,
            Err(error) => {
                tracing::warn!(name, %error, "a stored definition cannot be read");
                return true;
            }
        };
        let mut guard = self.held.lock();
        let held = &mut *guard;
        held.work.groups.insert(head.spec.group.clone());
        let changed = match held.all.get_mut(name) {
            Some(custom) => {
                let prefixes: BTreeSet<String> = custom.definitions.iter().map(|d| d.storage_prefix.clone()).collect();
                let effect = custom.update(head, entry.clone(), &self.kinds);
                if effect == Effect::Other {
                    held.work.ended.extend(prefixes);
                }
                effect != Effect::None
            }
            None => {
                let custom = Custom::new(Arc::new(head), entry.clone(), &self.kinds);
                let serves = !custom.definitions.is_empty();
                held.all.insert(name.to_owned(), custom);
                serves
            }
        };
        if changed {
            self.publish(held);
        }
        drop(guard);
        self.changed.notify_one();
        true
    }

    fn changed(&self, _: &Definition, _: &str, name: &str, _: Option<&Value>) {
        let mut guard = self.held.lock();
        let held = &mut *guard;
        if let Some(custom) = held.all.remove(name) {
            held.work.groups.insert(custom.head.spec.group.clone());
            held.work.ended.extend(custom.definitions.iter().map(|d| d.storage_prefix.clone()));
            self.publish(held);
        }
        drop(guard);
        self.changed.notify_one();
    }
}

/// Whether a definition waits for its objects to go.
fn is_leaving(head: &Head) -> bool {
    head.metadata.deletion_timestamp.is_some()
        && head.metadata.finalizers.iter().any(|f| f == api::kinds::custom_resource_definition::CLEANUP)
}
