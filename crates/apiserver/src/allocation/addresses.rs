//! The addresses that Services can have, and those that are taken: live copies of ServiceCIDRs and IPAddresses.
//!
//! They may lag the store by milliseconds. That makes a draw fail now and then, never succeed wrongly: whoever draws an
//! address gets it only when the store has no IPAddress of that name.
//! Upstream counterpart: `MetaAllocator` in pkg/registry/core/service/ipallocator.

use std::{borrow::Cow, collections::HashMap, net::IpAddr, sync::Arc};

use api::{Value, kind::Definition, meta, rules::service_range, status::StatusError};
use bytes::Bytes;
use ipnet::IpNet;
use parking_lot::Mutex;
use serde::Deserialize;
use store::{Entry, Revision};
use tokio::sync::Notify;

use super::{families::Family, span::Span};
use crate::storage::{
    informer::{EventHandler, Informer},
    object,
    object_store::ObjectStore,
};

const GROUP: &str = "networking.k8s.io";

/// A range that Services may get addresses from.
struct ServiceRange {
    range: IpNet,
    /// One of the ServiceCIDRs that name it is ready and stays.
    ready: bool,
}

/// The holder of an address that is taken.
#[derive(Debug, Default, Clone)]
pub struct Holding {
    pub revision: Revision,
    /// `namespace/name` of the Service that it belongs to.
    pub service: Option<String>,
    /// Somebody wants to be asked before it goes.
    pub has_finalizers: bool,
}

/// The live copy of the IPAddresses, as far as it matters here.
#[derive(Default)]
struct Book {
    held: Mutex<HashMap<IpAddr, Holding>>,
    changed: Notify,
}

impl EventHandler for Book {
    /// Each Service that comes or goes passes here: a few fields are read, without making the object.
    fn stored(&self, name: &str, entry: &Entry) -> bool {
        let Ok(address) = name.parse() else { return true };
        self.held.lock().insert(address, holding(entry));
        self.changed.notify_one();
        true
    }

    fn changed(&self, _: &Definition, _: &str, name: &str, _: Option<&Value>) {
        let Ok(address) = name.parse() else { return };
        self.held.lock().remove(&address);
        self.changed.notify_one();
    }
}

#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    metadata: StoredMeta<'a>,
    #[serde(borrow)]
    spec: StoredSpec<'a>,
}

#[derive(Deserialize)]
struct StoredMeta<'a> {
    #[serde(borrow, default)]
    finalizers: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSpec<'a> {
    #[serde(borrow)]
    parent_ref: Parent<'a>,
}

#[derive(Deserialize)]
struct Parent<'a> {
    #[serde(borrow, default)]
    group: Cow<'a, str>,
    #[serde(borrow, default)]
    resource: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

/// The holder by a stored IPAddress.
pub fn holding(entry: &Entry) -> Holding {
    let revision = entry.modified;
    let Ok(stored) = serde_json::from_slice::<Stored<'_>>(&entry.value) else {
        return Holding { revision, ..Holding::default() };
    };
    let Parent { group, resource, namespace, name } = &stored.spec.parent_ref;
    let service = (group.is_empty() && resource == "services").then(|| format!("{namespace}/{name}"));
    Holding { revision, service, has_finalizers: !stored.metadata.finalizers.is_empty() }
}

/// `namespace/name` of the Service that an IPAddress belongs to, if it is one's.
pub fn parent_service(object: &Value) -> Option<String> {
    let text = |field: &str| object.pointer(&format!("/spec/parentRef/{field}")).and_then(Value::as_str).unwrap_or("");
    let is_service = text("group").is_empty() && text("resource") == "services";
    is_service.then(|| format!("{}/{}", text("namespace"), text("name")))
}

pub struct Addresses {
    objects: Arc<ObjectStore>,
    definition: Arc<Definition>,
    cidrs: Arc<Informer>,
    /// The ranges as of a generation of `cidrs`.
    ranges: Mutex<(u64, Arc<Vec<ServiceRange>>)>,
    book: Arc<Book>,
    cidrs_changed: Arc<Notify>,
}

/// Tells that there was a change.
struct Signal(Arc<Notify>);

impl EventHandler for Signal {
    fn wants(&self, _: &[u8]) -> bool {
        false
    }

    fn changed(&self, _: &Definition, _: &str, _: &str, _: Option<&Value>) {
        self.0.notify_one();
    }
}

impl Addresses {
    pub async fn new(objects: Arc<ObjectStore>) -> Result<Self, StatusError> {
        let definition = objects.definition(GROUP, "ipaddresses")?;
        let (kind, cidrs_changed) = (objects.definition(GROUP, "servicecidrs")?, Arc::new(Notify::new()));
        let cidrs = objects.informer(&kind).await?;
        objects.add_event_handler(&kind, Arc::new(Signal(cidrs_changed.clone()))).await?;
        let book = Arc::new(Book::default());
        objects.add_event_handler(&definition, book.clone()).await?;
        Ok(Addresses { objects, definition, cidrs, ranges: Mutex::default(), book, cidrs_changed })
    }

    /// Returns when an IPAddress was changed since the last call.
    pub async fn changed(&self) {
        self.book.changed.notified().await;
    }

    /// Returns when a ServiceCIDR was changed since the last call.
    pub async fn cidrs_changed(&self) {
        self.cidrs_changed.notified().await;
    }

    /// The key that an address is taken under.
    pub fn key(&self, address: &IpAddr) -> Arc<str> {
        object::key(&self.definition, "", &address.to_string()).into()
    }

    fn ranges(&self) -> Arc<Vec<ServiceRange>> {
        let generation = self.cidrs.generation();
        let mut cached = self.ranges.lock();
        if cached.0 != generation {
            *cached = (generation, Arc::new(service_ranges(&self.cidrs.all())));
        }
        cached.1.clone()
    }

    /// Whether Services may be given this address now.
    pub async fn offers(&self, address: &IpAddr) -> Result<bool, StatusError> {
        let offers = || self.ranges().iter().any(|of| of.ready && service_range::holds(&of.range, address));
        if offers() {
            return Ok(true);
        }
        // The range may have been made a moment ago.
        self.objects.caught_up().await?;
        Ok(offers())
    }

    pub fn holding(&self, address: &IpAddr) -> Option<Holding> {
        self.book.held.lock().get(address).cloned()
    }

    /// An address that seems to be free; `None` when all ranges of the family are full.
    pub async fn draw(&self, family: Family) -> Result<Option<IpAddr>, StatusError> {
        if let Some(found) = self.draw_from_book(family) {
            return Ok(Some(found));
        }
        // One that was given back a moment ago may not be in the book yet.
        self.objects.caught_up().await?;
        Ok(self.draw_from_book(family))
    }

    fn draw_from_book(&self, family: Family) -> Option<IpAddr> {
        let ranges = self.ranges();
        let held = self.book.held.lock();
        let of = ranges.iter().filter(|of| of.ready && Family::of(&of.range.addr()) == family).map(|of| &of.range);
        of.filter_map(|range| Some((range, Span::of_addresses(range)?)))
            .find_map(|(range, span)| span.draw_address(range, |address| held.contains_key(address)))
    }
}

/// The IPAddress that gives an address to a Service, in its stored form. Each creation of a Service makes one, so it is
/// written down rather than made a value, defaulted, validated and encoded; a test compares the two.
pub fn stored_form(address: &IpAddr, namespace: &str, name: &str) -> Bytes {
    let (now, uid) = (clock::now_seconds(), clock::uuid());
    let (family, ours) = (service_range::family(address), service_range::ALLOCATOR);
    let (namespace, name) = (Value::from(namespace), Value::from(name));
    let labels = format!(r#"{{"{}":"{family}","{}":"{ours}"}}"#, service_range::FAMILY, service_range::MANAGED_BY);
    let metadata = format!(r#"{{"name":"{address}","uid":"{uid}","creationTimestamp":"{now}","labels":{labels}}}"#);
    let spec = format!(r#"{{"parentRef":{{"resource":"services","namespace":{namespace},"name":{name}}}}}"#);
    let object = r#"{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":"#;
    format!(r#"{object}{metadata},"spec":{spec}}}"#).into_boxed_str().into_boxed_bytes().into()
}

fn service_ranges(cidrs: &[Arc<Value>]) -> Vec<ServiceRange> {
    let mut all: Vec<ServiceRange> = Vec::new();
    for cidr in cidrs {
        let ready = meta::deletion_timestamp(cidr).is_none() && is_ready(cidr);
        for range in ranges_of(cidr) {
            match all.iter_mut().find(|of| of.range == range) {
                Some(known) => known.ready |= ready,
                None => all.push(ServiceRange { range, ready }),
            }
        }
    }
    all
}

/// The ranges that a ServiceCIDR names.
pub fn ranges_of(cidr: &Value) -> Vec<IpNet> {
    let texts = cidr.pointer("/spec/cidrs").and_then(Value::as_array).into_iter().flatten();
    service_range::ranges(texts.filter_map(Value::as_str))
}

/// A range that nobody has judged yet is used: no controller may be running.
fn is_ready(cidr: &Value) -> bool {
    let conditions = cidr.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.next().is_none_or(|condition| condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::storage::{kinds::Kinds, object, strategy};

    /// Every step of a write leaves the object as it is, but for its UID and time.
    #[test]
    fn the_stored_form_is_that_of_a_write() {
        for (address, name) in [("10.0.0.1", "s"), ("fd00::1", "quo\"te")] {
            let definition = Kinds::default().any_version(GROUP, "ipaddresses").unwrap();
            let stored = stored_form(&address.parse().unwrap(), "d", name);
            let mut object: Value = serde_json::from_slice(&stored).unwrap();
            let own = object["metadata"].clone();
            definition.strategy.default(&mut object);
            strategy::before_create(&definition, &mut object).unwrap();
            for field in ["uid", "creationTimestamp"] {
                assert_eq!(own[field].as_str().unwrap().len(), object["metadata"][field].as_str().unwrap().len());
                object["metadata"][field] = own[field].clone();
            }
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            assert_eq!(text(&object::encode(&definition, &object)), text(&stored));
        }
    }

    #[test]
    fn the_book_reads_what_matters() {
        let check = |object: Value, service: Option<&str>, has_finalizers: bool| {
            let entry = Entry { key: "k".into(), value: object.to_string().into(), created: 1, modified: 7 };
            let found = holding(&entry);
            let found = (found.revision, found.service.as_deref(), found.has_finalizers);
            assert_eq!(found, (7, service, has_finalizers), "{object}");
        };
        let of = |metadata: Value, parent: Value| json!({"metadata": metadata, "spec": {"parentRef": parent}});
        let service = json!({"resource": "services", "namespace": "d", "name": "s"});
        check(of(json!({"name": "10.0.0.1"}), service.clone()), Some("d/s"), false);
        check(of(json!({"finalizers": ["x.io/y"]}), service), Some("d/s"), true);
        check(of(json!({}), json!({"group": "x.io", "resource": "services", "name": "s"})), None, false);
        check(json!({"metadata": {}}), None, false);
    }

    #[test]
    fn a_range_is_ready_while_one_that_names_it_is() {
        let cidr = |range: &str, status: Option<&str>, deleted: bool| {
            let conditions: Vec<Value> =
                status.iter().map(|status| json!({"type": "Ready", "status": status})).collect();
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            Arc::new(json!({"metadata": {"name": "r", "deletionTimestamp": deleted}, "spec": {"cidrs": [range]},
                "status": {"conditions": conditions}}))
        };
        let check = |cidrs: &[Arc<Value>], expected: &[(&str, bool)]| {
            let found: Vec<(String, bool)> =
                service_ranges(cidrs).iter().map(|of| (of.range.to_string(), of.ready)).collect();
            let expected: Vec<(String, bool)> = expected.iter().map(|(r, ready)| ((*r).to_owned(), *ready)).collect();
            assert_eq!(found, expected);
        };
        let (a, b) = ("10.0.0.0/24", "fd00::/64");
        check(&[cidr(a, None, false)], &[(a, true)]);
        check(&[cidr(a, Some("True"), false), cidr(b, Some("False"), false)], &[(a, true), (b, false)]);
        check(&[cidr(a, Some("True"), true)], &[(a, false)]);
        check(&[cidr(a, Some("True"), true), cidr(a, None, false)], &[(a, true)]);
    }
}
