//! New objects on their way from the API server of this process to its caches: the server had each in its type when it checked it,
//! and a cache that reads it from the text again does that work a second time.
//!
//! An object is handed over with the bytes that are stored of it, before they are, and found by its UID. It is taken for the text of a
//! watch that has these very bytes, with the resourceVersion at its place: what they say is what was handed over, whatever came of
//! the write and whoever else writes. One that is not found is read from the text. It is taken once, so a quiet process keeps none.

use std::{any::TypeId, collections::BTreeSet, sync::Arc};

use api::{kind::TypedObject, object::Kind};
use bytes::Bytes;
use memchr::memmem;
use parking_lot::{Mutex, RwLock};

/// The most objects that are on their way; a later one takes the place of another.
const PLACES: usize = 512;
/// Larger objects are read from their text.
const BYTES_MAX: usize = 16 << 10;
/// Names and UID stand within this many bytes.
const HEAD: usize = 1 << 10;
const VERSION: &[u8] = b",\"resourceVersion\":\"";
const UID: &[u8] = b"\"uid\":\"";

struct Handed {
    /// Without the resourceVersion.
    stored: Bytes,
    object: TypedObject,
}

/// The types of which caches in this process are fed by its own server.
static WANTED: RwLock<BTreeSet<TypeId>> = RwLock::new(BTreeSet::new());
static PLACE: [Mutex<Option<Handed>>; PLACES] = [const { Mutex::new(None) }; PLACES];

/// From now on a cache of this process waits for objects of the type.
pub(crate) fn want<K: Kind>() {
    WANTED.write().insert(TypeId::of::<K>());
}

/// Hands a new object over that nobody else holds, if a cache waits for such.
pub fn give(stored: &Bytes, object: TypedObject) {
    if stored.len() > BYTES_MAX || !WANTED.read().contains(&(*object).type_id()) {
        return;
    }
    let Some(place) = place_of(stored) else { return };
    let replaced = place.lock().replace(Handed { stored: stored.clone(), object });
    drop(replaced);
}

/// The object in this text, if it was handed over.
pub(crate) fn take<K: Kind>(text: &str) -> Option<Arc<K>> {
    let at = memmem::find(head(text.as_bytes()), VERSION)?;
    let (begin, rest) = (&text.as_bytes()[..at], &text[at + VERSION.len()..]);
    let (version, end) = rest.split_once('"')?;
    let mut place = place_of(begin)?.lock();
    let handed = place.take_if(|handed| handed.object.is::<K>() && is(&handed.stored, begin, end.as_bytes()))?;
    drop(place);
    let mut object = handed.object.downcast::<K>().ok()?;
    Arc::get_mut(&mut object)?.metadata_mut().resource_version = Some(version.to_owned());
    debug_assert_eq!(format!("{object:?}"), format!("{:?}", K::from_json(text).expect("what was stored is read")));
    Some(object)
}

fn is(stored: &[u8], begin: &[u8], end: &[u8]) -> bool {
    stored.len() == begin.len() + end.len() && stored.starts_with(begin) && stored.ends_with(end)
}

fn head(text: &[u8]) -> &[u8] {
    &text[..text.len().min(HEAD)]
}

/// UIDs are random, and the server's own: nobody makes some that meet.
fn place_of(text: &[u8]) -> Option<&'static Mutex<Option<Handed>>> {
    let begin = memmem::find(head(text), UID)? + UID.len();
    let uid = text[begin..].split(|byte| *byte == b'"').next()?;
    let hash = uid.iter().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    Some(&PLACE[hash % PLACES])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

    use super::*;

    /// The tests share the places: UIDs that differ in their last digits alone have different ones.
    fn stored(uid: &str, data: &str) -> String {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a","namespace":"n","uid":"{uid}"}},"data":{data}}}"#
        )
    }

    fn served(stored: &str, version: u64) -> String {
        let (begin, end) = stored.split_once("},").expect("metadata");
        format!(r#"{begin},"resourceVersion":"{version}"}},{end}"#)
    }

    fn read(text: &str) -> ConfigMap {
        api::object::Object::from_json(text).expect("a map")
    }

    fn handed(uid: &str, data: &str) -> String {
        let text = stored(uid, data);
        give(&text.clone().into(), Arc::new(read(&text)));
        text
    }

    #[test]
    fn an_object_is_taken_once_and_for_its_own_text_alone() {
        let (uid, data) = ("11111111-2222-3333-4444-555555555551", r#"{"a":"1"}"#);
        give(&stored(uid, data).into(), Arc::new(Pod::default()));
        assert!(take::<Pod>(&served(&stored(uid, data), 7)).is_none(), "no cache wants Pods here");
        want::<ConfigMap>();
        let text = handed(uid, data);
        let others = [
            served(&stored(uid, r#"{"a":"2"}"#), 7),
            served(&stored(uid, "{}"), 7),
            served(&stored("11111111-2222-3333-4444-555555555552", data), 7),
            text.clone(),
            format!("{} ", served(&text, 7)),
            served(&text, 7).replace("resourceVersion", "resourceversion"),
            String::new(),
        ];
        for other in others {
            assert!(take::<ConfigMap>(&other).is_none(), "{other}");
        }
        assert!(take::<Secret>(&served(&text, 7)).is_none(), "it is of another type");
        let taken = take::<ConfigMap>(&served(&text, 7)).expect("it was handed over");
        assert_eq!(*taken, read(&served(&text, 7)));
        assert!(take::<ConfigMap>(&served(&text, 7)).is_none(), "it is gone");
    }

    #[test]
    fn a_later_object_under_the_same_uid_takes_the_place() {
        want::<ConfigMap>();
        let uid = "11111111-2222-3333-4444-555555555553";
        let (first, second) = (handed(uid, r#"{"a":"1"}"#), handed(uid, r#"{"a":"2"}"#));
        assert!(take::<ConfigMap>(&served(&first, 7)).is_none());
        assert!(take::<ConfigMap>(&served(&second, 8)).is_some());
    }

    #[test]
    fn large_objects_are_not_kept() {
        want::<ConfigMap>();
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(BYTES_MAX));
        let text = handed("11111111-2222-3333-4444-555555555554", &large);
        assert!(take::<ConfigMap>(&served(&text, 7)).is_none());
    }
}
