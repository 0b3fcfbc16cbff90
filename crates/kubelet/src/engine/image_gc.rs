//! Images that no container uses go when their disk is full: the ones longest unused first, until it is four fifths full
//! again. Upstream counterpart: pkg/kubelet/images/image_gc_manager.go.

use std::collections::{BTreeMap, BTreeSet};

use client::EventKind;
use clock::{Duration, Timestamp};
use k8s_cri::v1::Image;
use runtime::reference;

use crate::{
    configuration::settings::ImageCollection, eviction::pressure::Measured, kubelet::Kubelet, pod::desired::DesiredPod,
};

#[derive(Debug, Clone, Copy)]
struct Record {
    /// When the image came.
    detected: Timestamp,
    /// When it was last seen in use.
    last_used: Option<Timestamp>,
}

/// The records of the images on this node, by id.
#[derive(Debug, Default)]
pub struct ImageGc {
    records: BTreeMap<String, Record>,
    /// The last collection failed.
    failed: bool,
}

fn names(image: &Image) -> impl Iterator<Item = &String> {
    [&image.id].into_iter().chain(&image.repo_tags).chain(&image.repo_digests)
}

/// The whole names of the images that a Pod mounts.
fn mounted(desired: &DesiredPod) -> Vec<String> {
    let of = |container| desired.image_volumes(container).into_values().collect::<Vec<_>>();
    let names = desired.containers().flat_map(of).filter_map(|image| image.reference.as_deref());
    names.filter_map(|name| reference::parse(name).ok()).map(|name| name.whole()).collect()
}

fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
    names(image).any(|name| used.contains(name))
}

/// How many bytes are to be freed; `None` while there is room.
fn excess(disk: Measured, settings: &ImageCollection) -> Option<i64> {
    let full = disk.capacity > 0 && disk.capacity - disk.available >= disk.capacity * settings.high / 100;
    full.then(|| disk.capacity * (100 - settings.low) / 100 - disk.available).filter(|bytes| *bytes > 0)
}

/// How much is to be freed, and the ages of images that count: younger ones stay, older ones go even where there is room.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    bytes: i64,
    min_age: Duration,
    max_age: Option<Duration>,
}

impl ImageGc {
    fn note(&mut self, images: &[Image], used: &BTreeSet<String>, now: Timestamp) {
        self.records.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let record = self.records.entry(image.id.clone()).or_insert(Record { detected: now, last_used: None });
            if is_used(image, used) {
                record.last_used = Some(now);
            }
        }
    }

    /// The images of at least that age that go to free `wanted` bytes.
    fn choose<'a>(
        &self,
        images: &'a [Image],
        used: &BTreeSet<String>,
        wanted: Wanted,
        now: Timestamp,
    ) -> Vec<&'a Image> {
        let Wanted { bytes: wanted, min_age, max_age } = wanted;
        // An image that came from a file has a name and no digest of a registry: gone, it would not come back.
        let own = |image: &Image| !image.repo_tags.is_empty() && image.repo_digests.is_empty();
        let old = |record: &Record| record.detected.checked_add(min_age).is_ok_and(|grown| grown <= now);
        let eligible = images.iter().filter(|i| !(i.pinned || own(i) || is_used(i, used)));
        let mut unused: Vec<(&Record, &Image)> = eligible
            .filter_map(|i| self.records.get(&i.id).filter(|record| old(record)).map(|record| (record, i)))
            .collect();
        unused.sort_by_key(|(record, image)| (record.last_used, record.detected, image.id.clone()));
        let mut freed = 0;
        let is_too_old = |record: &Record| {
            let idle = record.last_used.unwrap_or(record.detected);
            max_age.is_some_and(|age| idle.checked_add(age).is_ok_and(|end| end < now))
        };
        let enough = unused.into_iter().take_while(|(record, image)| {
            let more = freed < wanted || is_too_old(record);
            freed = freed.saturating_add(i64::try_from(image.size).unwrap_or(i64::MAX));
            more
        });
        enough.map(|(_, image)| image).collect()
    }

    /// Frees what the disk of the images needs, or all that is unused. A failure leaves the image to the next time.
    pub async fn collect(&mut self, kubelet: &Kubelet, disk: Option<Measured>, all: bool) {
        let span = kubelet.traces.root("Images/GarbageCollect");
        let outcome = spans::within(span, || self.collect_now(kubelet, disk, all)).await;
        let Err(why) = &outcome else {
            self.failed = false;
            return;
        };
        tracing::warn!(why, "images could not be collected");
        // The first failure may be one of an engine that is about to begin.
        if std::mem::replace(&mut self.failed, true) {
            kubelet.events.node(EventKind::Warning, "ImageGCFailed", why);
        }
    }

    async fn collect_now(&mut self, kubelet: &Kubelet, disk: Option<Measured>, all: bool) -> Result<(), String> {
        let (engine, began) = (&kubelet.config.runtime, clock::now_seconds());
        let mut images = engine.images().await.map_err(|error| error.to_string())?;
        let containers = engine.containers(None).await.map_err(|error| error.to_string())?;
        if disk.is_some_and(|disk| disk.capacity == 0) && !all {
            let text = "invalid capacity 0 on image filesystem";
            kubelet.events.node(EventKind::Warning, "InvalidDiskCapacity", text);
            return Err(text.to_owned());
        }
        let named = |c: k8s_cri::v1::Container| [c.image_ref, c.image.map(|i| i.image).unwrap_or_default()];
        let of_containers = containers.into_iter().flat_map(named).filter(|name| !name.is_empty());
        let mounted = kubelet.pods.all().into_iter().flat_map(|pod| mounted(&pod.desired()));
        let used: BTreeSet<String> = of_containers.chain(mounted).collect();
        let now = clock::now();
        let settings = &kubelet.config.settings.images;
        let (min_age, max_age) = (settings.min_age, settings.max_age);
        let goal = match disk.and_then(|disk| excess(disk, settings)) {
            _ if all => Wanted { bytes: i64::MAX, min_age: Duration::ZERO, max_age },
            bytes => Wanted { bytes: bytes.unwrap_or(0), min_age, max_age },
        };
        let wanted = goal.bytes;
        self.note(&images, &used, now);
        let (mut freed, mut gone, mut errors) = (0, BTreeSet::new(), Vec::new());
        for image in self.choose(&images, &used, goal, now) {
            match engine.remove_image(&image.id).await {
                Ok(()) => {
                    gone.insert(image.id.clone());
                    tracing::info!(image = image.id, names = ?image.repo_tags, bytes = image.size, "an unused image was removed");
                    freed += i64::try_from(image.size).unwrap_or(0);
                }
                Err(error) => {
                    tracing::warn!(image = image.id, %error, "an unused image could not be removed");
                    errors.push(error.to_string());
                }
            }
        }
        images.retain(|image| !gone.contains(&image.id));
        if kubelet.images.verifies() {
            kubelet.images.records.prune(&images, began);
        }
        if !errors.is_empty() {
            let errors = if let [one] = &errors[..] { one.clone() } else { format!("[{}]", errors.join(", ")) };
            let done = format!("wanted to free {wanted} bytes, but freed {freed} bytes space");
            return Err(format!("{done} with errors in image deletion: {errors}"));
        }
        if !all && freed < wanted {
            let text = format!(
                "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} \
                 bytes eligible to free."
            );
            kubelet.events.node(EventKind::Warning, "FreeDiskSpaceFailed", &text);
            return Err(text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now};

    fn usual() -> ImageCollection {
        crate::configuration::settings::Settings::default().images
    }

    #[test]
    fn a_disk_that_is_85_percent_full_is_emptied_to_80() {
        for (available, expected) in [(16, None), (15, Some(5)), (3, Some(17))] {
            assert_eq!(excess(Measured { available, capacity: 100 }, &usual()), expected, "{available}");
        }
        assert_eq!(excess(Measured { available: 0, capacity: 0 }, &usual()), None);
    }

    #[test]
    fn images_that_pods_mount_are_in_use() {
        let desired = crate::pod::fixture::pod(
            r#"{"containers": [{"name": "c", "image": "c:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "image": {"reference": "data:2"}}, {"name": "w", "image": {"reference": "other"}}]}"#,
        );
        assert_eq!(mounted(&desired), ["docker.io/library/data:2"]);
    }

    #[test]
    fn the_longest_unused_go_first_and_no_more_than_needed() {
        let image = |id: &str, tag: &str| Image {
            id: id.into(),
            repo_tags: vec![tag.into()],
            repo_digests: vec![format!("{id}@sha256:0")],
            size: 10,
            ..Default::default()
        };
        let mut images = vec![
            image("never", "a:1"),
            image("recent", "b:1"),
            image("old", "c:1"),
            image("used", "d:1"),
            image("named", "e:1"),
            image("imported", "x:1"),
            image("pinned", "f:1"),
        ];
        images[5].repo_digests.clear();
        images[6].pinned = true;
        let mut gc = ImageGc::default();
        let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|n| (*n).to_owned()).collect() };
        gc.note(&images, &set(&["old", "recent"]), at(-300));
        gc.note(&images, &set(&["recent"]), at(-200));
        images.push(image("young", "g:1"));
        let used = set(&["used", "e:1"]);
        gc.note(&images, &used, at(-119));
        let check = |wanted: i64, min_age, expected: &[&str]| {
            let chosen = gc.choose(&images, &used, Wanted { bytes: wanted, min_age, max_age: None }, now());
            assert_eq!(chosen.iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), expected, "{wanted}");
        };
        let min_age = usual().min_age;
        let old = Wanted { bytes: 0, min_age, max_age: Some(Duration::from_secs(250)) };
        let chosen = gc.choose(&images, &used, old, now());
        assert_eq!(chosen.iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), ["never", "old"]);
        check(0, min_age, &[]);
        check(1, min_age, &["never"]);
        check(11, min_age, &["never", "old"]);
        check(i64::MAX, min_age, &["never", "old", "recent"]);
        check(i64::MAX, Duration::ZERO, &["never", "young", "old", "recent"]);
    }
}
