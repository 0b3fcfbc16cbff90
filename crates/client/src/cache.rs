//! One kind's objects as of a known revision, kept current by one list and one watch.
//!
//! Objects are immutable (`Arc`): a change replaces the pointer. Followers are told of each change with the object before and
//! after it, at once; subscribers read it when they get to it, and one that reads too slowly is told so and looks at every object
//! again. Losing a watch costs a new list. Neither costs correctness, because what is decided is decided by what the cache holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use api::object::{Kind, MetadataOnly, Object as _};
use clock::{Instant, Progress};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;

use crate::{
    handover,
    reflector::{Listing, Sink, revision_of},
};

/// Names one object of a kind. Cluster-scoped objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }

    pub fn of<K: Kind>(object: &K) -> Self {
        Key::named(object.metadata())
    }

    pub fn named(meta: &ObjectMeta) -> Self {
        Key { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// A change of one object. `old` and `new` are what the cache held before and holds now.
#[derive(Debug)]
pub struct Change<K> {
    pub key: Key,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

/// A subscriber's end. All subscribers are handed the same change.
pub type Changes<K> = broadcast::Receiver<Arc<Change<K>>>;

/// Hears of each change, on the task that makes it.
type Follower<K> = dyn Fn(&Change<K>) + Send + Sync;

/// A follower is told of changes for as long as this lives.
#[must_use]
pub struct Following {
    _follower: Box<dyn Send + Sync>,
}

/// Computes the index values of an object (owner UIDs, node name, …).
pub type IndexFn<K> = fn(&K) -> Vec<String>;

struct Index<K> {
    name: &'static str,
    values_of: IndexFn<K>,
    keys: BTreeMap<String, BTreeSet<Key>>,
}

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    indexes: Vec<Index<K>>,
}

/// How long somebody listened, in all.
#[derive(Default)]
struct Listened {
    before: Duration,
    since: Option<Instant>,
}

impl Listened {
    fn until(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    fn change(&mut self, listens: bool, now: Instant) {
        *self = Listened { before: self.until(now), since: listens.then_some(now) };
    }
}

/// One kind's objects. Written by its reflector (see `caches`), read by everyone in the process.
pub struct Cache<K> {
    state: RwLock<State<K>>,
    /// The revision the cache has reached: it holds every change up to it. 0 until the first list is in.
    revision: Progress,
    changes: broadcast::Sender<Arc<Change<K>>>,
    followers: RwLock<Vec<Weak<Follower<K>>>>,
    listened: Mutex<Listened>,
}

/// How many changes a subscriber may lag behind before it is told to look at everything again.
const CHANGE_BUFFER: usize = 1024;

impl<K: Kind> Default for Cache<K> {
    fn default() -> Self {
        Cache {
            state: RwLock::new(State { objects: BTreeMap::new(), indexes: Vec::new() }),
            revision: Progress::default(),
            changes: broadcast::Sender::new(CHANGE_BUFFER),
            followers: RwLock::default(),
            listened: Mutex::default(),
        }
    }
}

impl<K: Kind> Cache<K> {
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.state.read().objects.get(key).cloned()
    }

    /// All objects, in key order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// The objects of one namespace, in name order.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        if state.objects.is_empty() {
            return Vec::new();
        }
        let start = Key::new(namespace, "");
        state.objects.range(start..).take_while(|(k, _)| k.namespace == namespace).map(|(_, v)| v.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index; a second call with the same name does nothing.
    pub fn add_index(&self, name: &'static str, values_of: IndexFn<K>) {
        let mut state = self.state.write();
        if state.indexes.iter().any(|i| i.name == name) {
            return;
        }
        let mut index = Index { name, values_of, keys: BTreeMap::new() };
        for (key, object) in &state.objects {
            index.insert(key, object);
        }
        state.indexes.push(index);
    }

    /// The objects that an index files under `value`, in key order. Panics when the index was never added.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        let index = state.indexes.iter().find(|i| i.name == name).unwrap_or_else(|| panic!("no index named {name}"));
        let Some(keys) = index.keys.get(value) else { return Vec::new() };
        keys.iter().filter_map(|k| state.objects.get(k).cloned()).collect()
    }

    /// Changes from now on. On `RecvError::Lagged` the subscriber must look at every object again.
    pub fn subscribe(&self) -> Changes<K> {
        self.changes.subscribe()
    }

    /// Tells `follower` of each change from now on, none left out, once the cache holds the change and before it has reached its
    /// revision. Meanwhile the next change waits: a follower notes what is to be done, and follows no further cache.
    pub fn follow(&self, follower: impl Fn(&Change<K>) + Send + Sync + 'static) -> Following {
        let follower: Arc<Follower<K>> = Arc::new(follower);
        let mut followers = self.followers.write();
        followers.retain(|known| known.strong_count() > 0);
        followers.push(Arc::downgrade(&follower));
        Following { _follower: Box::new(follower) }
    }

    pub fn revision(&self) -> u64 {
        self.revision.get()
    }

    /// Returns when the cache holds every change up to `revision`.
    pub async fn reached(&self, revision: u64) {
        self.revision.reached(revision.max(1)).await;
    }

    /// Returns when the first list is in.
    pub async fn synced(&self) {
        self.reached(0).await;
    }

    /// For how long, in all, this cache was told of changes: a clock that stands while the server is not heard. Whoever takes
    /// the silence of others for a sign measures it by this one.
    pub fn listened(&self) -> Duration {
        self.listened.lock().until(Instant::now())
    }

    fn put(&self, key: Key, new: Option<Arc<K>>) {
        let old = {
            let mut state = self.state.write();
            let State { objects, indexes } = &mut *state;
            let old = match &new {
                Some(object) => objects.insert(key.clone(), object.clone()),
                None => objects.remove(&key),
            };
            for index in indexes {
                if let Some(old) = &old {
                    index.remove(&key, old);
                }
                if let Some(new) = &new {
                    index.insert(&key, new);
                }
            }
            old
        };
        if old.is_some() || new.is_some() {
            let change = Change { key, old, new };
            self.followers.read().iter().filter_map(Weak::upgrade).for_each(|follower| follower(&change));
            // No subscriber is fine.
            let _ = self.changes.send(Arc::new(change));
        }
    }
}

impl<K: Kind> Sink for Cache<K> {
    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Fresh { cache: self, objects: BTreeMap::new() })
    }

    fn apply(&self, object: &str) -> Result<u64, serde_json::Error> {
        let handed = handover::take::<K>(object).map(|handed| Ok(Ok(handed)));
        let revision = match handed.unwrap_or_else(|| read(object))? {
            Ok(object) => {
                let revision = revision_of(object.metadata());
                self.put(Key::of(&*object), Some(object));
                revision
            }
            Err(metadata) => revision_of(&metadata),
        };
        self.advance(revision);
        Ok(revision)
    }

    fn delete(&self, object: &str) -> Result<u64, serde_json::Error> {
        let object = MetadataOnly::from_json(object)?;
        let revision = revision_of(&object.metadata);
        self.put(Key::named(&object.metadata), None);
        self.advance(revision);
        Ok(revision)
    }

    fn advance(&self, revision: u64) {
        self.revision.advance(revision);
    }

    fn listening(&self, listens: bool) {
        self.listened.lock().change(listens, Instant::now());
    }
}

/// The object in a text. One that is not of its type is passed over, with its metadata: what is known of it stays, and the others
/// of its kind are seen. Without metadata the text is no object at all.
fn read<K: Kind>(text: &str) -> Result<Result<Arc<K>, ObjectMeta>, serde_json::Error> {
    let error = match K::from_json(text) {
        Ok(object) => return Ok(Ok(Arc::new(object))),
        Err(error) => error,
    };
    let MetadataOnly { metadata } = MetadataOnly::from_json(text)?;
    if metadata.name.is_none() {
        return Err(error);
    }
    tracing::error!(kind = K::KIND, object = %Key::named(&metadata), %error, "an object cannot be read and is passed over");
    Ok(Err(metadata))
}

/// A new list on its way into the cache.
struct Fresh<'a, K> {
    cache: &'a Cache<K>,
    objects: BTreeMap<Key, Arc<K>>,
}

impl<K: Kind> Listing for Fresh<'_, K> {
    fn add(&mut self, object: &str) -> Result<(), serde_json::Error> {
        match read::<K>(object)? {
            Ok(object) => drop(self.objects.insert(Key::of(&*object), object)),
            Err(metadata) => {
                let key = Key::named(&metadata);
                self.objects.extend(self.cache.get(&key).map(|held| (key, held)));
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, revision: u64) {
        let Fresh { cache, objects } = *self;
        let held: Vec<Key> = cache.state.read().objects.keys().cloned().collect();
        for key in held.into_iter().filter(|key| !objects.contains_key(key)) {
            cache.put(key, None);
        }
        for (key, object) in objects {
            let same = cache
                .get(&key)
                .is_some_and(|held| held.metadata().resource_version == object.metadata().resource_version);
            if !same {
                cache.put(key, Some(object));
            }
        }
        // A list after the server's store was reset may go backwards, so this sets instead of advancing.
        cache.revision.reset(revision.max(1));
    }
}

impl<K> Index<K> {
    fn insert(&mut self, key: &Key, object: &K) {
        for value in (self.values_of)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, object: &K) {
        for value in (self.values_of)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn an_object_that_cannot_be_read_hides_no_other() {
        let cache = Cache::<ConfigMap>::default();
        let object = |name: &str, version: u64, data: &str| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}},"data":{data}}}"#)
        };
        let shown = || {
            let one = |map: &Arc<ConfigMap>| {
                format!("{} {}", Key::of(&**map).name, map.metadata.resource_version.as_deref().unwrap_or_default())
            };
            (cache.list().iter().map(one).collect::<Vec<_>>().join(", "), cache.revision())
        };
        let mut list = Sink::list(&cache);
        for (name, data) in [("a", "{}"), ("b", "7"), ("c", "{}")] {
            list.add(&object(name, 3, data)).expect("objects");
        }
        list.finish(3);
        assert_eq!(shown(), ("a 3, c 3".to_owned(), 3));
        assert_eq!(cache.apply(&object("a", 4, "7")).expect("an object"), 4);
        assert_eq!(shown(), ("a 3, c 3".to_owned(), 4), "what is known of it stays");
        let mut list = Sink::list(&cache);
        list.add(&object("a", 4, "7")).expect("an object");
        list.finish(5);
        assert_eq!(shown(), ("a 3".to_owned(), 5));
        assert_eq!(cache.apply(&object("a", 6, "{}")).expect("an object"), 6);
        assert_eq!(shown(), ("a 6".to_owned(), 6));
        cache.delete(&object("a", 7, "7")).expect("an object");
        assert_eq!(shown(), (String::new(), 7));
        for none in ["7", "{}", r#"{"metadata":{}}"#, r#"{"metadata":{"name":7}}"#, "{"] {
            let read = read::<ConfigMap>(none);
            assert!(!matches!(read, Ok(Err(_))), "{none} is none: {read:?}");
        }
    }

    #[test]
    fn followers_are_told_of_what_the_cache_holds_until_they_leave() {
        let cache = Arc::new(Cache::<ConfigMap>::default());
        let told = Arc::new(Mutex::new(Vec::new()));
        let (seen, of) = (told.clone(), Arc::downgrade(&cache));
        let following = cache.follow(move |change| {
            let cache = of.upgrade().expect("it tells of a change");
            let held = cache.get(&change.key).is_some();
            assert_eq!(held, change.new.is_some(), "the cache holds the change");
            let states = [&change.old, &change.new].map(|object| object.is_some());
            seen.lock().push((change.key.name.clone(), states, cache.revision()));
        });
        let object =
            |name: &str, version: u64| format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#);
        let mut list = Sink::list(&*cache);
        list.add(&object("a", 3)).expect("an object");
        list.finish(3);
        cache.apply(&object("a", 4)).expect("an object");
        cache.delete(&object("a", 5)).expect("an object");
        cache.delete(&object("a", 5)).expect("an object");
        let expected = [([false, true], 0), ([true, true], 3), ([true, false], 4)];
        assert_eq!(*told.lock(), expected.map(|(states, revision)| ("a".to_owned(), states, revision)));
        drop(following);
        cache.apply(&object("b", 6)).expect("an object");
        assert_eq!(told.lock().len(), 3);
        assert_eq!(Arc::strong_count(&told), 1, "nothing holds a follower that has left");
    }

    #[test]
    fn what_is_listened_stands_still_while_nothing_is_heard() {
        let start = Instant::now();
        let mut listened = Listened::default();
        let mut check = |listens: Option<bool>, at: u64, expected: u64| {
            let now = start + Duration::from_secs(at);
            listened.change(listens.unwrap_or(listened.since.is_some()), now);
            assert_eq!(listened.until(now), Duration::from_secs(expected), "{listens:?} at {at}");
        };
        check(None, 10, 0);
        check(Some(true), 20, 0);
        check(None, 25, 5);
        check(Some(false), 30, 10);
        check(None, 90, 10);
        check(Some(true), 100, 10);
        check(Some(true), 103, 13);
    }
}
