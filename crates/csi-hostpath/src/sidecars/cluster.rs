//! The API as the sidecars use it, the driver as they ask it, and their patience with both.

use std::{collections::HashMap, sync::Arc};

use client::{
    Client, Error, EventKind, EventRecorder,
    rest::{self, DeleteOptions, Form, Resource, Verb},
};
use clock::{Duration, Instant};
use json::{Value, json};
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use runtime::grpc::Status;

use crate::{images::Images, moods::Moods};

/// How long a driver may take for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The first and the longest pause before a thing is tried again that failed.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

pub struct Cluster {
    pub client: Client,
    pub events: EventRecorder,
    pub driver: String,
    pub images: Arc<Images>,
    pub moods: Arc<Moods>,
    pub retries: Retries,
}

/// When what failed may be tried again, by what it is about.
#[derive(Default)]
pub struct Retries(Mutex<HashMap<String, (Instant, Duration)>>);

impl Retries {
    pub fn is_due(&self, key: &str) -> bool {
        self.0.lock().get(key).is_none_or(|(when, _)| Instant::now() >= *when)
    }

    pub fn note(&self, key: &str, is_done: bool) {
        let mut all = self.0.lock();
        if is_done {
            all.remove(key);
            return;
        }
        let pause = all.get(key).map_or(PAUSES.0, |(_, pause)| (*pause * 2).min(PAUSES.1));
        all.insert(key.to_owned(), (Instant::now() + pause, pause));
    }
}

/// A kind of objects by its group, its version, its name and that in paths.
pub fn kind(group: &str, version: &str, kind: &str, plural: &str) -> Resource {
    Resource { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned(), plural: plural.to_owned() }
}

pub fn claims() -> Resource {
    kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
}

pub fn volumes() -> Resource {
    kind("", "v1", "PersistentVolume", "persistentvolumes")
}

pub fn attachments() -> Resource {
    kind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments")
}

pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

pub fn snapshots() -> Resource {
    kind(SNAPSHOT_GROUP, "v1", "VolumeSnapshot", "volumesnapshots")
}

pub fn contents() -> Resource {
    kind(SNAPSHOT_GROUP, "v1", "VolumeSnapshotContent", "volumesnapshotcontents")
}

/// The text at a place of an object; empty where there is none.
pub fn text<'a>(object: &'a Value, place: &str) -> &'a str {
    object.pointer(place).and_then(Value::as_str).unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"].get(key).and_then(Value::as_str).unwrap_or_default()
}

pub fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub fn finalizers(object: &Value) -> Vec<Value> {
    object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default()
}

pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    finalizers(object).iter().any(|held| held.as_str() == Some(finalizer))
}

/// An amount of bytes at a place.
pub fn bytes(object: &Value, place: &str) -> u64 {
    let amount = text(object, place).parse::<api::rules::quantity::Quantity>().unwrap_or_default();
    u64::try_from(amount.value()).unwrap_or(0)
}

/// An amount of bytes as it stands in objects.
pub fn amount(bytes: u64) -> String {
    use api::rules::quantity::{Format, Quantity};
    Quantity::new(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi).to_string()
}

pub fn now() -> String {
    clock::now_seconds().to_string()
}

impl Cluster {
    pub async fn list(&self, of: &Resource) -> Result<Vec<Value>, Error> {
        let answer = rest::read(&self.client, &of.path("", "", ""), Form::Whole).await?;
        rest::page(&answer)?.items.into_iter().map(|item| json::parse(item.get()).map_err(Error::Decode)).collect()
    }

    /// As `list`, for a kind that may not be installed.
    pub async fn list_custom(&self, of: &Resource) -> Result<Vec<Value>, Error> {
        Ok(rest::found(self.list(of).await)?.unwrap_or_default())
    }

    pub async fn get(&self, of: &Resource, namespace: &str, name: &str) -> Result<Value, Error> {
        let answer = rest::read(&self.client, &of.path(namespace, name, ""), Form::Whole).await?;
        read(&answer)
    }

    pub async fn create(&self, of: &Resource, namespace: &str, mut object: Value) -> Result<(), Error> {
        object["apiVersion"] = of.api_version().into();
        object["kind"] = of.kind.as_str().into();
        let verb = Verb::Create(object);
        rest::write(&self.client, of, namespace, "", "", &verb).await.map(drop)
    }

    /// Changes an object, or a part of it such as `status`, unless it has changed since it was read.
    pub async fn patch(&self, of: &Resource, object: &Value, part: &str, mut patch: Value) -> Result<Value, Error> {
        patch["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        let verb = Verb::MergePatch(patch);
        read(&rest::send(&self.client, of, namespace(object), name(object), part, &verb).await?)
    }

    pub async fn delete(&self, of: &Resource, object: &Value) -> Result<(), Error> {
        let options = DeleteOptions { uid: Some(uid(object).to_owned()), ..DeleteOptions::default() };
        let verb = Verb::Delete(options);
        rest::write(&self.client, of, namespace(object), name(object), "", &verb).await.map(drop)
    }

    /// The object with a finalizer.
    pub async fn hold(&self, of: &Resource, object: &Value, finalizer: &str) -> Result<Value, Error> {
        if has_finalizer(object, finalizer) {
            return Ok(object.clone());
        }
        let mut all = finalizers(object);
        all.push(finalizer.into());
        self.patch(of, object, "", json!({"metadata": {"finalizers": all}})).await
    }

    /// Takes finalizers from an object. One that is gone then is well.
    pub async fn release(&self, of: &Resource, object: &Value, given: &[&str]) -> Result<(), Error> {
        let mut left = finalizers(object);
        let before = left.len();
        left.retain(|held| !given.iter().any(|given| held.as_str() == Some(*given)));
        if left.len() < before {
            let patched = self.patch(of, object, "", json!({"metadata": {"finalizers": left}})).await;
            rest::found(patched)?;
        }
        Ok(())
    }

    pub fn tell(&self, of: &Resource, object: &Value, kind: EventKind, reason: &str, message: &str) {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let about = ObjectReference {
            api_version: Some(of.api_version()),
            kind: Some(of.kind.clone()),
            namespace: some(namespace(object)),
            name: some(name(object)),
            uid: some(uid(object)),
            resource_version: some(text(object, "/metadata/resourceVersion")),
            field_path: None,
        };
        self.events.event(&about, kind, reason, message);
    }

    /// Asks the driver, which answers as its mood is.
    pub async fn ask<A: Default>(
        &self,
        method: &str,
        what: &str,
        work: impl FnOnce() -> Result<A, Status>,
    ) -> Result<A, Status> {
        let answered = clock::timeout(PATIENCE, self.moods.answer(method, what, work)).await;
        answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")))
    }
}

fn read(answer: &[u8]) -> Result<Value, Error> {
    let text = std::str::from_utf8(answer).map_err(Error::transport)?;
    json::parse(text).map_err(Error::Decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_waits_and_what_is_done_does_not() {
        let retries = Retries::default();
        assert!(retries.is_due("a"));
        retries.note("a", false);
        assert!(!retries.is_due("a") && retries.is_due("b"));
        retries.note("a", true);
        assert!(retries.is_due("a"));
        let pause = |retries: &Retries| retries.0.lock()["a"].1;
        let seen: Vec<u64> = (0..5).map(|_| (retries.note("a", false), pause(&retries).as_secs()).1).collect();
        assert_eq!(seen, [1, 2, 4, 8, 8]);
    }

    #[test]
    fn objects_are_read_where_they_say_something() {
        let object = json!({"metadata": {"name": "a", "annotations": {"x/y": "z"}, "finalizers": ["f"]},
            "spec": {"capacity": {"storage": "1Gi"}}});
        assert_eq!((name(&object), namespace(&object), annotation(&object, "x/y")), ("a", "", "z"));
        assert_eq!((bytes(&object, "/spec/capacity/storage"), bytes(&object, "/spec/x")), (1 << 30, 0));
        assert_eq!((amount(1 << 30), amount(3 << 20)), ("1Gi".to_owned(), "3Mi".to_owned()));
        assert!(has_finalizer(&object, "f") && !has_finalizer(&object, "g") && !is_deleted(&object));
    }
}
