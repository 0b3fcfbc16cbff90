//! The verdicts about nodes: whether claims get their devices there. It holds for all claims that ask for the same, until a
//! device that the node can use changes hands. So a Pod costs what changed since the one before, and not a search on every
//! node. All of it can be found out again at any time.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

use k8s_openapi::api::resource::v1::DeviceClaim;

use super::slices::PoolId;
use crate::{node::Node, node_id::NodeId};

/// Claims that ask for the same have the same number. A number is never given again.
pub(super) type SpecId = u64;

/// The specs of all claims, each with its number and how many claims have it.
#[derive(Default)]
pub(super) struct Specs {
    ids: HashMap<Vec<u8>, (SpecId, usize)>,
    last: SpecId,
}

impl Specs {
    pub fn enter(&mut self, spec: &DeviceClaim) -> SpecId {
        let last = &mut self.last;
        let (id, users) = self.ids.entry(text(spec)).or_insert_with(|| {
            *last += 1;
            (*last, 0)
        });
        *users += 1;
        *id
    }

    pub fn leave(&mut self, spec: &DeviceClaim) {
        let text = text(spec);
        if let Some((_, users)) = self.ids.get_mut(&text) {
            *users -= 1;
            if *users == 0 {
                self.ids.remove(&text);
            }
        }
    }
}

/// The requests of claims that are made for extended resources, each with its number. They are no claims yet, so nobody
/// says when a number is needed no more: with too many of them all are forgotten.
#[derive(Default)]
pub(super) struct UnnamedSpecs {
    ids: HashMap<Vec<u8>, SpecId>,
    last: SpecId,
}

/// The numbers above are theirs.
const UNNAMED: SpecId = 1 << 63;

impl UnnamedSpecs {
    pub fn enter(&mut self, spec: &DeviceClaim) -> SpecId {
        if self.ids.len() >= KEPT {
            self.ids.clear();
        }
        let last = &mut self.last;
        *self.ids.entry(text(spec)).or_insert_with(|| {
            *last += 1;
            UNNAMED | *last
        })
    }
}

fn text(spec: &DeviceClaim) -> Vec<u8> {
    serde_json::to_vec(spec).expect("plain data with text keys")
}

/// Whether claims get their devices on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// There are not enough that suit them.
    Not,
    /// For a reason that follows from the devices alone.
    Unfit(&'static str),
}

/// When something was found out about a node: the version of its object, and how much had changed for it.
type Moment = (u32, u64, u64);

/// The verdicts about nodes, by the specs that they are about.
pub(super) struct Found<K, V> {
    known: HashMap<K, Vec<Option<(Moment, V)>>>,
}

/// The verdicts by the numbers of the claims' specs in their order.
pub(super) type Verdicts = Found<Vec<SpecId>, Verdict>;

/// For how much that was looked for something is kept. With more, all is forgotten.
const KEPT: usize = 64;

impl<K, V> Default for Found<K, V> {
    fn default() -> Self {
        Found { known: HashMap::new() }
    }
}

impl<K: Eq + Hash, V: Copy> Found<K, V> {
    pub fn get<Q: Eq + Hash + ?Sized>(&self, what: &Q, id: NodeId, moment: Moment) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (then, found) = (*self.known.get(what)?.get(id.index())?)?;
        (then == moment).then_some(found)
    }

    pub fn set<Q: Eq + Hash + ToOwned<Owned = K> + ?Sized>(&mut self, what: &Q, id: NodeId, moment: Moment, found: V)
    where
        K: Borrow<Q>,
    {
        if !self.known.contains_key(what) {
            if self.known.len() >= KEPT {
                self.known.clear();
            }
            self.known.insert(what.to_owned(), Vec::new());
        }
        let Some(nodes) = self.known.get_mut(what) else { return };
        if nodes.len() <= id.index() {
            nodes.resize(id.index() + 1, None);
        }
        nodes[id.index()] = Some((moment, found));
    }
}

/// How much has changed: for all nodes, and for those that have pools of their own.
#[derive(Default)]
pub(super) struct Changes {
    all: u64,
    near: HashMap<String, u64>,
}

impl Changes {
    pub fn everywhere(&mut self) {
        self.all += 1;
        // Whatever was found out before does not hold any more.
        self.near.clear();
    }

    /// A device of a pool has changed hands; `homes` are the nodes that can use the pool, `None` if any node may.
    pub fn in_pool(&mut self, homes: Option<impl Iterator<Item = String>>) {
        match homes {
            None => self.everywhere(),
            Some(homes) => homes.for_each(|node| *self.near.entry(node).or_default() += 1),
        }
    }

    pub fn moment(&self, node: &Node) -> Moment {
        (node.version, self.all, self.near.get(&*node.name).copied().unwrap_or_default())
    }
}

/// The pool of a device.
pub(super) fn pool_of(device: &super::DeviceId) -> PoolId {
    PoolId { driver: device.driver.clone(), pool: device.pool.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::resource::v1::DeviceRequest;

    fn spec(name: &str) -> DeviceClaim {
        let request = DeviceRequest { name: name.to_owned(), ..DeviceRequest::default() };
        DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() }
    }

    #[test]
    fn claims_that_ask_for_the_same_have_one_number_while_there_are_any() {
        let mut specs = Specs::default();
        let first = specs.enter(&spec("a"));
        assert_eq!(specs.enter(&spec("a")), first);
        assert_ne!(specs.enter(&spec("b")), first);
        specs.leave(&spec("a"));
        assert_eq!(specs.enter(&spec("a")), first);
        (0..2).for_each(|_| specs.leave(&spec("a")));
        assert_ne!(specs.enter(&spec("a")), first, "a number is never given again");
        assert_eq!(specs.ids.len(), 2);
    }

    #[test]
    fn claims_for_extended_resources_have_numbers_of_their_own() {
        let (mut specs, mut unnamed) = (Specs::default(), UnnamedSpecs::default());
        let first = unnamed.enter(&spec("a"));
        assert_ne!(specs.enter(&spec("a")), first);
        assert_eq!(unnamed.enter(&spec("a")), first);
        let others: Vec<SpecId> = (0..200).map(|n| unnamed.enter(&spec(&n.to_string()))).collect();
        assert!(unnamed.ids.len() <= KEPT && others.iter().all(|id| *id != first));
        assert_ne!(unnamed.enter(&spec("a")), first, "a number is never given again");
    }

    #[test]
    fn a_verdict_holds_until_something_changes_on_the_node() {
        let (mut verdicts, mut changes) = (Verdicts::default(), Changes::default());
        let node = |name: &str| Node::new(name.into());
        let (a, b, id) = (node("a"), node("b"), NodeId(3));
        verdicts.set(&[1][..], id, changes.moment(&a), Verdict::Fits);
        changes.in_pool(Some(["b".to_owned()].into_iter()));
        assert_eq!(verdicts.get(&[1][..], id, changes.moment(&a)), Some(Verdict::Fits), "that was elsewhere");
        assert_eq!(verdicts.get(&[2][..], id, changes.moment(&a)), None, "others ask for something else");
        let before = changes.moment(&b);
        for _ in 0..2 {
            changes.in_pool(Some(["a".to_owned(), "b".to_owned()].into_iter()));
            assert_eq!(verdicts.get(&[1][..], id, changes.moment(&a)), None);
            assert_ne!(changes.moment(&b), before);
        }
        verdicts.set(&[1][..], id, changes.moment(&a), Verdict::Not);
        changes.in_pool(None::<std::iter::Empty<String>>);
        assert_eq!(verdicts.get(&[1][..], id, changes.moment(&a)), None, "any node may have it");
        let newer = Node { version: 1, ..node("a") };
        verdicts.set(&[1][..], id, changes.moment(&a), Verdict::Not);
        assert_eq!(verdicts.get(&[1][..], id, changes.moment(&newer)), None);
        for other in 2..200 {
            verdicts.set(&[other][..], id, changes.moment(&a), Verdict::Not);
        }
        assert!(verdicts.known.len() <= KEPT);
    }
}
