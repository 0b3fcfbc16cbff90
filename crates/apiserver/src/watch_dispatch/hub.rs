//! The watchers of one storage prefix, in groups with one scope each.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{kind::Definition, status::StatusError};
use bytes::Bytes;
use clock::{Instant, Seldom};
use meter::{Metric, Series};
use store::{Event, Revision};
use tokio::sync::mpsc;

use super::{
    encoded_event::EncodedEvent,
    scope::{Place, WatchScope},
};
use crate::{
    http::view,
    pages::metrics::Metrics,
    storage::{informer::Informer, object},
};

/// A group smaller than this gets its events at once, whatever there is.
const SMALL: usize = 8;
/// The time that waking one member costs, or a little more.
const WAKING: Duration = Duration::from_micros(20);
/// No event waits longer for others to come.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

struct Member {
    id: u64,
    bookmarks: bool,
    queue: mpsc::Sender<Bytes>,
}

static EVENTS: Metric =
    Metric::counter("apiserver_watch_events_total", "[ALPHA] Number of events sent in watch clients");
static SIZES: Metric = Metric::histogram(
    "apiserver_watch_events_sizes",
    "[ALPHA] Watch event size distribution in bytes",
    &[1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0],
);
static CUT: Metric = Metric::counter(
    "apiserver_terminated_watchers_total",
    "[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type.",
);

/// The metrics of a group's events.
struct Sent {
    events: Arc<Series>,
    sizes: Arc<Series>,
}

impl Sent {
    fn of(scope: &WatchScope, metrics: &Metrics) -> Self {
        let definition = &scope.definition;
        let labels: [(&str, &str); 3] =
            [("group", &definition.group), ("version", &definition.version), ("resource", &definition.plural)];
        Sent { events: metrics.all.series(&EVENTS, &labels), sizes: metrics.all.series(&SIZES, &labels) }
    }

    /// Counts events that each went to this number of members.
    fn count(&self, events: &[Bytes], members: usize) {
        self.events.count_more((events.len() * members) as u64);
        events.iter().for_each(|event| self.sizes.observe_more(event.len() as f64, members as u64));
    }
}

struct Group {
    scope: WatchScope,
    members: Vec<Member>,
    /// Events that are not sent yet.
    pending: Vec<Bytes>,
    sent: Sent,
    /// Nothing is sent before. After a pause the first event goes out at once; then events are gathered for as long as
    /// it takes to wake all members, so that many members make few wakings and not all others wait for them.
    due: Option<Instant>,
}

impl Group {
    fn pause(&self) -> Duration {
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        if self.members.len() < SMALL { Duration::ZERO } else { WAKING.saturating_mul(members).min(LONGEST_PAUSE) }
    }

    /// Sends what is pending; returns the members that could not take it.
    fn send(&mut self, metrics: &Metrics) -> Vec<u64> {
        let buffer = match self.pending.as_slice() {
            [] => return Vec::new(),
            [one] => one.clone(),
            many => many.concat().into(),
        };
        self.sent.count(&self.pending, self.members.len());
        self.pending.clear();
        let mut cut = Vec::new();
        for member in &self.members {
            if let Err(error) = member.queue.try_send(buffer.clone()) {
                if matches!(error, mpsc::error::TrySendError::Full(_)) {
                    let definition = &self.scope.definition;
                    metrics.all.count(&CUT, &[("group", &definition.group), ("resource", &definition.plural)]);
                    static SELDOM: Seldom = Seldom::new();
                    if let Some(more) = SELDOM.turn() {
                        let (kind, namespace) = (&self.scope.definition.kind, &self.scope.namespace);
                        tracing::warn!(kind, namespace, more, "a watcher did not keep up and was cut off");
                    }
                }
                cut.push(member.id);
            }
        }
        cut
    }
}

#[derive(Default)]
pub(super) struct Hub {
    /// Ordered, as the hubs are: whom a bookmark wakes first must not depend on chance.
    places: BTreeMap<Place, Vec<Group>>,
    /// Field labels that some group is indexed by, with the number of such groups.
    fields: HashMap<String, usize>,
    pub informers: Vec<Arc<Informer>>,
    /// Places with groups that have events pending.
    touched: BTreeSet<Place>,
}

impl Hub {
    pub fn has_watchers(&self) -> bool {
        !self.places.is_empty()
    }

    /// Adds a member to the group of its scope. It gets every event dispatched from now on.
    pub fn join(&mut self, scope: WatchScope, id: u64, queue: mpsc::Sender<Bytes>, metrics: &Metrics) {
        let place = scope.place();
        // An event that is pending is older than the new member.
        self.send_all(&place, metrics);
        let member = Member { id, bookmarks: scope.bookmarks, queue };
        let groups = self.places.entry(place.clone()).or_default();
        match groups.iter_mut().find(|g| g.scope.same_group(&scope)) {
            Some(group) => group.members.push(member),
            None => {
                let sent = Sent::of(&scope, metrics);
                groups.push(Group { scope, members: vec![member], pending: Vec::new(), sent, due: None });
                if let Place::Field(field, _) = &place {
                    *self.fields.entry(field.clone()).or_default() += 1;
                }
            }
        }
    }

    /// Takes a member out. It has, or has waiting in its queue, every event dispatched so far.
    pub fn leave(&mut self, place: &Place, id: u64, metrics: &Metrics) {
        self.send_all(place, metrics);
        self.remove(place, |m| m.id == id);
    }

    /// Tells all watchers what ends their watches.
    pub fn fail(&mut self, error: &StatusError) {
        for group in self.places.values().flatten() {
            let line = Bytes::from(view::error(group.scope.view, error));
            for member in &group.members {
                // A member that has no room for it sees the end all the same.
                let _ = member.queue.try_send(line.clone());
            }
        }
    }

    pub fn watchers(&self) -> usize {
        self.places.values().flatten().map(|group| group.members.len()).sum()
    }

    /// Ends this number of watches, or all there are, and returns how many. They have every event dispatched so far.
    pub fn end_some(&mut self, most: usize, metrics: &Metrics) -> usize {
        for place in std::mem::take(&mut self.touched) {
            self.send_all(&place, metrics);
        }
        let (mut left, mut ended) = (most, Vec::new());
        for (place, groups) in &self.places {
            let ids = groups.iter().flat_map(|group| &group.members).map(|member| member.id);
            let ids: HashSet<u64> = ids.take(left).collect();
            left -= ids.len();
            ended.push((place.clone(), ids));
        }
        for (place, ids) in ended {
            self.remove(&place, |member| ids.contains(&member.id));
        }
        most - left
    }

    /// Ends all watches.
    pub fn end_all(&mut self) {
        self.places.clear();
        self.fields.clear();
        self.touched.clear();
    }

    pub fn dispatch(&mut self, definition: &Definition, event: &Event) {
        let (namespace, name) = object::names(definition, &event.key);
        let mut encoded = EncodedEvent::new(definition, event);
        let mut places = vec![
            Place::Everywhere,
            Place::Namespace(namespace.to_owned()),
            Place::Object(namespace.to_owned(), name.to_owned()),
            Place::Object(String::new(), name.to_owned()),
        ];
        if !definition.namespaced() {
            places.pop();
        }
        if !self.fields.is_empty() {
            for old in [false, true] {
                let Some(value) = encoded.value(old) else { continue };
                for (label, value) in definition.field_values(value) {
                    let place = Place::Field(label.to_owned(), value);
                    if self.fields.contains_key(label) && !places.contains(&place) {
                        places.push(place);
                    }
                }
            }
        }
        for place in places {
            for group in self.places.get_mut(&place).into_iter().flatten() {
                if group.scope.covers(namespace, name)
                    && let Some(line) = encoded.line(&group.scope)
                {
                    if group.pending.is_empty() {
                        self.touched.insert(place.clone());
                    }
                    group.pending.push(line);
                }
            }
        }
    }

    /// Sends what is due; members that cannot take it are cut off. Returns when the next group is due.
    pub fn flush(&mut self, now: Instant, metrics: &Metrics) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut cut = Vec::new();
        for place in std::mem::take(&mut self.touched) {
            for group in self.places.get_mut(&place).into_iter().flatten().filter(|g| !g.pending.is_empty()) {
                match group.due.filter(|due| *due > now) {
                    Some(due) => {
                        next = Some(next.map_or(due, |n| n.min(due)));
                        self.touched.insert(place.clone());
                    }
                    None => {
                        cut.extend(group.send(metrics).into_iter().map(|id| (place.clone(), id)));
                        group.due = Some(now + group.pause());
                    }
                }
            }
        }
        for (place, id) in cut {
            self.remove(&place, |m| m.id == id);
        }
        next
    }

    /// Sends what is pending at a place, due or not.
    fn send_all(&mut self, place: &Place, metrics: &Metrics) {
        let groups = self.places.get_mut(place).into_iter().flatten();
        let cut: Vec<u64> = groups.flat_map(|group| group.send(metrics)).collect();
        self.remove(place, |m| cut.contains(&m.id));
    }

    /// Tells those who asked for bookmarks that they have everything up to the revision.
    pub fn bookmark(&mut self, revision: Revision, metrics: &Metrics) {
        for place in std::mem::take(&mut self.touched) {
            self.send_all(&place, metrics);
        }
        for group in self.places.values().flatten() {
            if !group.members.iter().any(|m| m.bookmarks) {
                continue;
            }
            let line = Bytes::from(view::bookmark(&group.scope.definition, group.scope.view, revision, false));
            for member in group.members.iter().filter(|m| m.bookmarks) {
                // A full queue shows soon enough, by an event that does not fit.
                let _ = member.queue.try_send(line.clone());
            }
        }
    }

    fn remove(&mut self, place: &Place, gone: impl Fn(&Member) -> bool) {
        let Some(groups) = self.places.get_mut(place) else { return };
        for group in groups.iter_mut() {
            group.members.retain(|m| !gone(m));
        }
        let before = groups.len();
        groups.retain(|g| !g.members.is_empty());
        let ended = before - groups.len();
        if groups.is_empty() {
            self.places.remove(place);
        }
        if let Place::Field(field, _) = place
            && ended > 0
            && let Some(count) = self.fields.get_mut(field)
        {
            *count -= ended;
            if *count == 0 {
                self.fields.remove(field);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use store::Entry;

    use super::*;
    use crate::{http::view::View, storage::filter::Filter};

    fn definition() -> Arc<Definition> {
        api::kinds::built_in().find("", "v1", "configmaps").expect("a built-in kind").clone()
    }

    fn scope() -> WatchScope {
        let definition = definition();
        WatchScope {
            filter: Filter::parse(&definition, "", "").expect("empty selectors"),
            definition,
            view: View::OBJECT,
            namespace: String::new(),
            name: String::new(),
            selectors: String::new(),
            bookmarks: true,
        }
    }

    fn event(revision: Revision) -> Event {
        let key: Arc<str> = format!("/registry/configmaps/default/c{revision}").into();
        let value = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c{revision}"}}}}"#);
        let entry = Entry { key: key.clone(), value: value.into(), created: revision, modified: revision };
        Event { revision, key, entry: Some(entry), previous: None }
    }

    /// The buffers that wait in a queue: each as the names of the objects in it, `-` for a bookmark.
    fn received(queue: &mut mpsc::Receiver<Bytes>) -> Vec<String> {
        let name = |line: &json::Value| match line["type"].as_str() {
            Some("BOOKMARK") => "-".to_owned(),
            _ => line["object"]["metadata"]["name"].as_str().unwrap_or("?").to_owned(),
        };
        let names = |buffer: Bytes| -> String {
            let lines = serde_json::Deserializer::from_slice(&buffer).into_iter::<json::Value>();
            lines.map(|line| name(&line.expect("JSON"))).collect::<Vec<_>>().join(" ")
        };
        std::iter::from_fn(|| queue.try_recv().ok()).map(names).collect()
    }

    fn hub(members: u64) -> (Hub, Metrics, Vec<mpsc::Receiver<Bytes>>) {
        let (mut hub, metrics, mut queues) = (Hub::default(), Metrics::default(), Vec::new());
        for id in 0..members {
            let (sender, receiver) = mpsc::channel(4);
            hub.join(scope(), id, sender, &metrics);
            queues.push(receiver);
        }
        (hub, metrics, queues)
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_get_each_event_at_once() {
        let (mut hub, metrics, mut queues) = hub(2);
        for revision in 1..=2 {
            hub.dispatch(&definition(), &event(revision));
            assert_eq!(hub.flush(Instant::now(), &metrics), None);
        }
        assert_eq!(received(&mut queues[1]), ["c1", "c2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn for_many_events_are_gathered_while_they_follow_each_other() {
        let (mut hub, metrics, mut queues) = hub(100);
        let start = Instant::now();
        for revision in 1..=3 {
            hub.dispatch(&definition(), &event(revision));
            hub.flush(start, &metrics);
        }
        assert_eq!(received(&mut queues[7]), ["c1"], "the first after a pause does not wait");
        let due = hub.flush(start, &metrics).expect("something waits");
        assert_eq!(due, start + Duration::from_millis(2));
        assert_eq!(hub.flush(due, &metrics), None);
        assert_eq!(received(&mut queues[7]), ["c2 c3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_joins_leaves_or_asks_for_a_bookmark_finds_nothing_pending() {
        let (mut hub, metrics, mut queues) = hub(100);
        let now = Instant::now();
        let dispatch = |hub: &mut Hub, revision| {
            hub.dispatch(&definition(), &event(revision));
            hub.flush(now, &metrics);
        };
        dispatch(&mut hub, 1);
        dispatch(&mut hub, 2);
        let (sender, mut late) = mpsc::channel(4);
        hub.join(scope(), 1000, sender, &metrics);
        assert_eq!(received(&mut queues[0]), ["c1", "c2"]);
        dispatch(&mut hub, 3);
        hub.leave(&Place::Everywhere, 0, &metrics);
        dispatch(&mut hub, 4);
        hub.bookmark(4, &metrics);
        assert_eq!(received(&mut queues[0]), ["c3"]);
        assert_eq!(received(&mut late), ["c3", "c4", "-"], "nothing from before it came");
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_keep_up_is_cut_off() {
        let (mut hub, metrics, mut queues) = hub(2);
        for revision in 1..=5 {
            received(&mut queues[1]);
            hub.dispatch(&definition(), &event(revision));
            hub.flush(Instant::now(), &metrics);
        }
        assert_eq!(received(&mut queues[0]), ["c1", "c2", "c3", "c4"]);
        assert!(queues[0].is_closed() && !queues[1].is_closed());
        let page = metrics.all.render();
        assert!(page.contains("apiserver_terminated_watchers_total{group=\"\",resource=\"configmaps\"} 1\n"), "{page}");
        assert!(
            page.contains("apiserver_watch_events_total{group=\"\",version=\"v1\",resource=\"configmaps\"} "),
            "{page}"
        );
    }
}
