//! The memory of a class between cycles: its tallies, the verdicts that hold until a node changes, and why it fitted
//! nowhere. All of it can be worked out from the cache at any time.

use std::sync::Arc;

use crate::{
    batch::Batch,
    cache::{Cache, Counted},
    class::{Class, ClassId},
    failure::Failure,
    node::Group,
    profile::{Part, Profile},
    tally::{Counts, Tally},
    topology::KeyId,
};

/// The fixed filter that turned a node away, by its place in the list, and its reason, by its place in the plugin's list.
pub type Refused = Option<(u8, u8)>;

/// By node: the version of the node, and the verdict on it.
pub type Fixed = [Option<(u32, Refused)>];

/// The memory of one class.
#[derive(Default)]
pub struct Memo {
    /// The class with the constraints that it has by default.
    class: Option<Arc<Class>>,
    /// The version of the selectors that those follow from.
    selectors: u64,
    pub tallies: Vec<Tally>,
    /// The structure of the cache that the tallies were made for.
    structure: Option<u64>,
    pub fixed: Vec<Option<(u32, Refused)>>,
    /// Why the class fitted nowhere, as of this generation of the cache.
    pub failure: Option<(u64, Arc<Failure>)>,
    /// The nodes that the last search found.
    pub batch: Option<Batch>,
    used: u64,
}

impl Memo {
    /// The class with the constraints that it has by default.
    pub fn class(&self) -> &Arc<Class> {
        self.class.as_ref().expect("a memo that was taken has its class")
    }
}

/// The memos of the most recently scheduled classes.
#[derive(Default)]
pub struct Memos {
    by_class: Vec<Option<Box<Memo>>>,
    held: Vec<ClassId>,
    clock: u64,
}

/// How many classes are remembered.
const MEMOS: usize = 64;

/// All tallies that the plugins need for a class. Empty for most classes.
fn needed(profile: &Profile, class: &Class, cache: &Cache) -> Vec<Tally> {
    let mut wanted: Vec<(KeyId, Counts)> = Vec::new();
    let plugins = profile.plugins.iter().filter(|p| p.has(Part::Filter) || p.has(Part::Score));
    for tally in plugins.flat_map(|p| (p.plugin.tallies)(class, cache, &profile.args)) {
        if !wanted.contains(&tally) {
            wanted.push(tally);
        }
    }
    wanted.into_iter().map(|(key, counts)| Tally::new(key, counts, class, cache)).collect()
}

impl Memos {
    /// Takes out what is remembered about a class, ready for a cycle. Give it back with [`Memos::put`].
    pub fn take(&mut self, id: ClassId, profile: &Profile, cache: &Cache) -> Box<Memo> {
        let mut memo = self.remove(id).unwrap_or_default();
        let selectors = cache.selectors.version(&cache.class(id).namespace);
        if memo.structure != Some(cache.structure) || memo.selectors != selectors {
            let class = cache.with_defaults(id);
            memo.tallies = needed(profile, &class, cache);
            memo.class = Some(class);
            (memo.structure, memo.selectors) = (Some(cache.structure), selectors);
        }
        memo.tallies.iter_mut().for_each(Tally::refresh);
        memo.fixed.resize(cache.nodes.len(), None);
        memo
    }

    pub fn put(&mut self, id: ClassId, mut memo: Box<Memo>) {
        self.clock += 1;
        memo.used = self.clock;
        if self.held.len() >= MEMOS {
            let used = |id: &ClassId| self.by_class[id.index()].as_ref().map(|memo| memo.used);
            let oldest = *self.held.iter().min_by_key(|id| used(id)).expect("there are some");
            self.remove(oldest);
        }
        if self.by_class.len() <= id.index() {
            self.by_class.resize_with(id.index() + 1, || None);
        }
        self.held.push(id);
        self.by_class[id.index()] = Some(memo);
    }

    /// The memory of a class, made anew where it is not up to date.
    pub fn renewed(&mut self, id: ClassId, profile: &Profile, cache: &Cache) -> &Memo {
        let held = self.by_class.get(id.index()).and_then(Option::as_ref);
        if held.is_none_or(|memo| memo.structure != Some(cache.structure)) {
            let memo = self.take(id, profile, cache);
            self.put(id, memo);
        }
        self.by_class[id.index()].as_ref().expect("just put there")
    }

    fn remove(&mut self, id: ClassId) -> Option<Box<Memo>> {
        let memo = self.by_class.get_mut(id.index())?.take()?;
        self.held.retain(|held| *held != id);
        Some(memo)
    }

    /// The class is gone, and its number may be given to another.
    pub fn forget(&mut self, id: ClassId) {
        self.remove(id);
        for held in &self.held {
            self.by_class[held.index()].iter_mut().flat_map(|m| &mut m.tallies).for_each(|t| t.forget(id));
        }
    }

    /// Brings the tallies up to date with one Pod. Those of an older structure are made anew when they are needed.
    pub fn count(&mut self, counted: Counted, cache: &Cache) {
        let Counted { node, class, terminating, sign } = counted;
        let group = Group { class, terminating, pods: 1 };
        for id in &self.held {
            let current = self.by_class[id.index()].as_mut().filter(|memo| memo.structure == Some(cache.structure));
            let Some(Memo { class: Some(counting), tallies, .. }) = current.map(|memo| &mut **memo) else { continue };
            tallies.iter_mut().for_each(|tally| tally.count(counting, node, &group, sign, cache));
        }
    }
}
