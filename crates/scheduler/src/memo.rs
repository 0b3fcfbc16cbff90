//! The memory of a class between cycles: its tallies, the verdicts that hold until a node changes, and why it fitted
//! nowhere. All of it can be worked out from the cache at any time.

use std::sync::Arc;

use crate::{
    cache::{Cache, Counted},
    class::{Class, ClassId},
    failure::Failure,
    node::Group,
    plugin::Plugin,
    tally::{Counts, Tally},
    topology::KeyId,
};

/// By node: the version of the node, and the fixed filter that turned it away by its place in the list.
pub type Fixed = [Option<(u32, Option<u8>)>];

/// The memory of one class.
#[derive(Default)]
pub struct Memo {
    pub tallies: Vec<Tally>,
    /// The structure of the cache that the tallies were made for.
    structure: Option<u64>,
    pub fixed: Vec<Option<(u32, Option<u8>)>>,
    /// Why the class fitted nowhere, as of this generation of the cache.
    pub failure: Option<(u64, Arc<Failure>)>,
    used: u64,
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
fn needed(plugins: &[Plugin], class: &Class, cache: &Cache) -> Vec<Tally> {
    let mut wanted: Vec<(KeyId, Counts)> = Vec::new();
    for tally in plugins.iter().flat_map(|plugin| (plugin.tallies)(class, cache)) {
        if !wanted.contains(&tally) {
            wanted.push(tally);
        }
    }
    wanted.into_iter().map(|(key, counts)| Tally::new(key, counts, class, cache)).collect()
}

impl Memos {
    /// Takes out what is remembered about a class, ready for a cycle. Give it back with [`Memos::put`].
    pub fn take(&mut self, id: ClassId, plugins: &[Plugin], cache: &Cache) -> Box<Memo> {
        let mut memo = self.remove(id).unwrap_or_default();
        if memo.structure != Some(cache.structure) {
            memo.tallies = needed(plugins, cache.class(id), cache);
            memo.structure = Some(cache.structure);
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

    /// Makes the tallies of a class anew, if they are not up to date.
    pub fn renew(&mut self, id: ClassId, plugins: &[Plugin], cache: &Cache) {
        if self.tallies(id, cache).is_none() {
            let memo = self.take(id, plugins, cache);
            self.put(id, memo);
        }
    }

    /// The tallies of a class, if they are up to date.
    pub fn tallies(&self, id: ClassId, cache: &Cache) -> Option<&[Tally]> {
        let memo = self.by_class.get(id.index())?.as_ref()?;
        (memo.structure == Some(cache.structure)).then_some(&*memo.tallies)
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
            let tallies = current.map(|memo| &mut memo.tallies).filter(|tallies| !tallies.is_empty());
            let Some(tallies) = tallies else { continue };
            let counting = cache.class(*id);
            tallies.iter_mut().for_each(|tally| tally.count(counting, node, &group, sign, cache));
        }
    }
}
