//! Images that no container uses go when their disk is full: the ones longest unused first, until it is four fifths full
//! again. Upstream counterpart: pkg/kubelet/images/image_gc_manager.go.

use std::collections::{BTreeMap, BTreeSet};

use client::EventKind;
use clock::{Duration, Timestamp};
use k8s_cri::v1::Image;

use crate::{eviction::pressure::Measured, kubelet::Node};

/// The disk is full for images from this share on, and to this share it is emptied, in percent.
const HIGH: i64 = 85;
const LOW: i64 = 80;
/// An image is left alone for so long after it came.
const MIN_AGE: Duration = Duration::from_secs(120);
/// When each image came and was last seen in use, by id.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<String, (Timestamp, Option<Timestamp>)>);

impl Seen {
    fn note(&mut self, images: &[Image], used: &BTreeSet<String>, now: Timestamp) {
        self.0.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let times = self.0.entry(image.id.clone()).or_insert((now, None));
            if is_used(image, used) {
                times.1 = Some(now);
            }
        }
    }
}

fn names(image: &Image) -> impl Iterator<Item = &String> {
    [&image.id].into_iter().chain(&image.repo_tags).chain(&image.repo_digests)
}

fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
    names(image).any(|name| used.contains(name))
}

/// So many bytes are to be freed; `None` while there is room.
fn excess(disk: Measured) -> Option<i64> {
    let full = disk.capacity > 0 && disk.capacity - disk.available >= disk.capacity * HIGH / 100;
    full.then(|| disk.capacity * (100 - LOW) / 100 - disk.available).filter(|bytes| *bytes > 0)
}

/// The images that go to free `wanted` bytes.
fn choose<'a>(
    seen: &Seen,
    images: &'a [Image],
    used: &BTreeSet<String>,
    wanted: i64,
    min_age: Duration,
    now: Timestamp,
) -> Vec<&'a Image> {
    // What came from a file has a name and no digest of a registry: gone, it would not come back.
    let own = |image: &Image| !image.repo_tags.is_empty() && image.repo_digests.is_empty();
    let old = |first: Timestamp| first.checked_add(min_age).is_ok_and(|grown| grown <= now);
    let mut unused: Vec<(Option<Timestamp>, Timestamp, &Image)> = images
        .iter()
        .filter(|i| !(i.pinned || own(i) || is_used(i, used)))
        .filter_map(|i| seen.0.get(&i.id).filter(|(first, _)| old(*first)).map(|(first, last)| (*last, *first, i)))
        .collect();
    unused.sort_by_key(|(last, first, image)| (*last, *first, image.id.clone()));
    let mut freed = 0;
    let enough = unused.into_iter().take_while(|(_, _, image)| {
        let more = freed < wanted;
        freed = freed.saturating_add(i64::try_from(image.size).unwrap_or(i64::MAX));
        more
    });
    enough.map(|(_, _, image)| image).collect()
}

/// Frees what the disk of the images needs, or all that is unused. A failure leaves the image to the next time.
pub async fn collect(node: &Node, disk: Option<Measured>, all: bool) {
    let engine = &node.config.runtime;
    let (Ok(images), Ok(containers)) = (engine.images().await, engine.containers(None).await) else { return };
    let named = |c: k8s_cri::v1::Container| [c.image_ref, c.image.map(|i| i.image).unwrap_or_default()];
    let used: BTreeSet<String> = containers.into_iter().flat_map(named).filter(|name| !name.is_empty()).collect();
    let now = clock::now();
    let (wanted, min_age) = match disk.and_then(excess) {
        _ if all => (i64::MAX, Duration::ZERO),
        Some(bytes) => (bytes, MIN_AGE),
        None => (0, MIN_AGE),
    };
    let chosen = {
        let mut seen = node.images.lock();
        seen.note(&images, &used, now);
        choose(&seen, &images, &used, wanted, min_age, now)
    };
    let mut freed = 0;
    for image in chosen {
        match engine.remove_image(&image.id).await {
            Ok(()) => {
                tracing::info!(image = image.id, names = ?image.repo_tags, bytes = image.size, "an unused image was removed");
                freed += i64::try_from(image.size).unwrap_or(0);
            }
            Err(error) => tracing::warn!(image = image.id, %error, "an unused image could not be removed"),
        }
    }
    if !all && freed < wanted {
        let text = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} \
             bytes eligible to free."
        );
        node.event(EventKind::Warning, "FreeDiskSpaceFailed", &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now};

    #[test]
    fn a_disk_that_is_85_percent_full_is_emptied_to_80() {
        for (available, expected) in [(16, None), (15, Some(5)), (3, Some(17))] {
            assert_eq!(excess(Measured { available, capacity: 100 }), expected, "{available}");
        }
        assert_eq!(excess(Measured { available: 0, capacity: 0 }), None);
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
        let mut seen = Seen::default();
        let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|n| (*n).to_owned()).collect() };
        seen.note(&images, &set(&["old", "recent"]), at(-300));
        seen.note(&images, &set(&["recent"]), at(-200));
        images.push(image("young", "g:1"));
        let used = set(&["used", "e:1"]);
        seen.note(&images, &used, at(-119));
        let check = |wanted: i64, min_age, expected: &[&str]| {
            let chosen = choose(&seen, &images, &used, wanted, min_age, now());
            assert_eq!(chosen.iter().map(|i| i.id.as_str()).collect::<Vec<_>>(), expected, "{wanted}");
        };
        check(0, MIN_AGE, &[]);
        check(1, MIN_AGE, &["never"]);
        check(11, MIN_AGE, &["never", "old"]);
        check(i64::MAX, MIN_AGE, &["never", "old", "recent"]);
        check(i64::MAX, Duration::ZERO, &["never", "young", "old", "recent"]);
    }
}
