//! The name of a field. Most names are known when the program is built, or belong to a schema: those are shared, not copied.

use std::{borrow::Borrow, borrow::Cow, cmp::Ordering, fmt, hash, ops::Deref, sync::Arc, sync::OnceLock};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::escapes::is_plain;

/// Names in two parts up to this length are looked up without an allocation.
const JOINED_MAX: usize = 64;

#[derive(Clone)]
pub struct Key(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    /// One of those told to [`know`], or a constant: they stand in JSON as they are.
    Known(&'static str),
    Shared(Arc<str>),
}

impl Key {
    /// The key of a name that is written out. Where it is a constant, the look at the name is taken when the program is built.
    pub const fn fixed(name: &'static str) -> Key {
        Key(if is_surely_plain(name) { Text::Known(name) } else { Text::Static(name) })
    }

    /// The key of this name, without a copy where the name is one of those told to [`know`].
    #[inline]
    pub fn of(name: &str) -> Key {
        match KNOWN.get().and_then(|known| known.get(name)) {
            Some(name) => Key(Text::Known(name)),
            None => Key(Text::Shared(name.into())),
        }
    }

    /// The key of a name in two parts.
    pub fn joined(prefix: &str, name: &str) -> Key {
        let mut room = [0; JOINED_MAX];
        let whole = room.get_mut(..prefix.len() + name.len()).and_then(|room| {
            let (head, tail) = room.split_at_mut(prefix.len());
            head.copy_from_slice(prefix.as_bytes());
            tail.copy_from_slice(name.as_bytes());
            std::str::from_utf8(room).ok()
        });
        match whole {
            Some(whole) => Key::of(whole),
            None => Key::from([prefix, name].concat()),
        }
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(name) | Text::Known(name) => name,
            Text::Shared(name) => name,
        }
    }

    /// Whether it is known without a look that the name stands in JSON as it is.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.0, Text::Known(_))
    }
}

/// Whether a name is made of characters that are never escaped: a constant can ask.
const fn is_surely_plain(name: &str) -> bool {
    let (bytes, mut at) = (name.as_bytes(), 0);
    while at < bytes.len()
        && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'.' | b'-' | b'_' | b'/' | b':'))
    {
        at += 1;
    }
    at == bytes.len()
}

/// Names that many objects have, found by their ends and their length. Where names collide the later ones stand in the next
/// slots; how far depends on the names known, never on what is looked for.
struct Known {
    names: Vec<&'static str>,
    /// Positions in `names`, counted from one; at least half of the slots are empty.
    slots: Box<[u16]>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Says which names many objects have; those that JSON escapes are none of them. The first call counts.
pub fn know(names: impl FnOnce() -> Vec<&'static str>) {
    KNOWN.get_or_init(|| Known::new(names()));
}

impl Known {
    fn new(mut names: Vec<&'static str>) -> Known {
        names.retain(|name| is_plain(name));
        names.truncate(usize::from(u16::MAX));
        let slots = vec![0; (names.len() * 2 + 2).next_power_of_two()].into();
        let mut known = Known { names: Vec::with_capacity(names.len()), slots };
        for name in names {
            let at = known.slot(name);
            if known.slots[at] == 0 {
                known.names.push(name);
                known.slots[at] = known.names.len() as u16;
            }
        }
        known
    }

    /// The slot of the name, or the one where it would stand.
    fn slot(&self, name: &str) -> usize {
        let last = self.slots.len() - 1;
        let mut at = (mixed(name.as_bytes()) >> 32) as usize & last;
        while self.name(at).is_some_and(|known| known != name) {
            at = (at + 1) & last;
        }
        at
    }

    fn name(&self, slot: usize) -> Option<&'static str> {
        self.slots[slot].checked_sub(1).map(|at| self.names[usize::from(at)])
    }

    fn get(&self, name: &str) -> Option<&'static str> {
        self.name(self.slot(name))
    }
}

/// A number that differs for most names. Whoever chooses names can make them alike, so it finds a place among few only.
#[inline]
pub fn mixed(name: &[u8]) -> u64 {
    let (head, tail) = match (name.first_chunk(), name.last_chunk()) {
        (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
        _ => (name.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte)), 0),
    };
    (head ^ tail.rotate_left(29) ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Deref for Key {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for Key {
    /// Names that are shared are mostly one text, which need not be read.
    #[inline]
    fn eq(&self, other: &Key) -> bool {
        let (one, another) = (self.as_str(), other.as_str());
        std::ptr::eq(one, another) || one == another
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_str().cmp(other)
    }
}

impl hash::Hash for Key {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialEq<str> for Key {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Key {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Key {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Key> for str {
    fn eq(&self, other: &Key) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<Key> for &str {
    fn eq(&self, other: &Key) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<Key> for String {
    fn eq(&self, other: &Key) -> bool {
        self == other.as_str()
    }
}

/// Only of names that live as long as the program: others say `to_owned`, so that it shows where a copy is made.
impl From<&'static str> for Key {
    fn from(name: &'static str) -> Key {
        Key(Text::Static(name))
    }
}

impl From<String> for Key {
    fn from(name: String) -> Key {
        Key(Text::Shared(name.into()))
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Key {
        Key(Text::Shared(name.as_str().into()))
    }
}

impl From<Box<str>> for Key {
    fn from(name: Box<str>) -> Key {
        Key(Text::Shared(name.into()))
    }
}

impl From<Cow<'_, str>> for Key {
    fn from(name: Cow<'_, str>) -> Key {
        Key(Text::Shared(name.into()))
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.as_str().to_owned()
    }
}

impl From<&Key> for String {
    fn from(key: &Key) -> String {
        key.as_str().to_owned()
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(Name)
    }
}

struct Name;

impl Visitor<'_> for Name {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
        Ok(Key::of(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_found_and_others_are_not() {
        let names: Vec<&'static str> = vec!["a", "b", "", "metadata", "metadatb", "clusterIPs", "clusterIP", "a"];
        let known = Known::new(names.clone());
        for name in &names {
            assert_eq!(known.get(name), Some(*name));
        }
        for name in ["c", "metadat", "metadataa", "cluster"] {
            assert_eq!(known.get(name), None, "{name}");
        }
        let escaped = Known::new(vec!["a\"b", "a<b", "a\nb"]);
        assert!(escaped.names.is_empty(), "a known name is written as it is");
    }

    #[test]
    fn a_constant_is_known_to_be_plain() {
        for (name, known) in
            [("f:spec", true), ("", true), (".", true), ("a<b", false), ("a\"", false), ("\u{e4}", false)]
        {
            assert_eq!(Key::fixed(name).is_known(), known, "{name}");
            assert!(!known || is_plain(name), "{name}");
        }
    }

    #[test]
    fn a_name_in_two_parts_is_one_name() {
        let long = "x".repeat(100);
        for (prefix, name) in [("f:", "spec"), ("", ""), ("f:", &*long), ("f:", "\u{e4}")] {
            assert_eq!(Key::joined(prefix, name), format!("{prefix}{name}"));
        }
    }

    #[test]
    fn keys_of_all_makes_are_one_name() {
        let (fixed, copied) = (Key::from("spec"), Key::from("spec".to_owned()));
        assert_eq!(fixed, copied);
        assert_eq!(fixed.cmp(&copied), Ordering::Equal);
        assert_eq!(Key::fixed("a").cmp(&copied), Ordering::Less);
        let hash = |key: &Key| {
            use std::hash::{BuildHasher, RandomState};
            let state = RandomState::new();
            state.hash_one(key) == state.hash_one(key.as_str())
        };
        assert!(hash(&fixed) && hash(&copied), "a key is found where its text is");
    }
}
