//! The event recorder: what components tell users about objects (`kubectl describe`, `kubectl get events`).
//!
//! The caller never waits: events go through a bounded queue, and one that finds it full is dropped. A single task per
//! recorder correlates them as client-go does: the same event again raises a count, many alike are combined into one,
//! and an object that causes too many is silenced for a while.
//!
//! The newer form (events.k8s.io) also says what the component was doing. Of these events the second alike begins a series, which is
//! written anew from time to time.
//! Upstream counterpart: client-go/tools/record, client-go/tools/events.

use std::{
    collections::HashMap,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    time::Duration,
};

use api::object::{Kind, Object};
use clock::Timestamp;
use json::{Value, json};
use k8s_openapi::{
    Resource as _,
    api::{
        core::v1::{Event, EventSource, ObjectReference},
        events::v1::{Event as NewEvent, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use tokio::sync::mpsc;

use crate::{
    Client, Error,
    rest::{self, Resource, Verb},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        }
    }
}

struct Told {
    object: ObjectReference,
    kind: EventKind,
    reason: String,
    message: String,
    at: Timestamp,
}

/// Records events in the name of one component. Cloning shares the queue.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Told>,
}

/// How many events may wait to be sent; more are dropped.
const QUEUE: usize = 1000;
/// How often sending one event is tried.
const TRIES: u32 = 4;

impl EventRecorder {
    /// `component` is `source.component` of the events, `host` the node's name for components of a node.
    pub fn new(client: Client, component: &str, host: Option<&str>) -> Self {
        let (queue, told) = mpsc::channel(QUEUE);
        let source = EventSource { component: Some(component.to_owned()), host: host.map(str::to_owned) };
        tokio::spawn(deliver(client, source, told));
        EventRecorder { queue }
    }

    /// A recorder whose events nobody hears, for tests of code that records.
    pub fn discard() -> Self {
        EventRecorder { queue: mpsc::channel(1).0 }
    }

    /// Tells `message` about `object`. Returns at once.
    pub fn event(&self, object: &ObjectReference, kind: EventKind, reason: &str, message: &str) {
        let (object, reason, message) = (object.clone(), reason.to_owned(), message.to_owned());
        let told = Told { object, kind, reason, message, at: clock::now() };
        if let Err(mpsc::error::TrySendError::Full(lost)) = self.queue.try_send(told) {
            tracing::debug!(reason = lost.reason, message = lost.message, "the event queue is full, event dropped");
        }
    }

    /// Records an event about an object at hand.
    pub fn about<K: Kind>(&self, object: &K, kind: EventKind, reason: &str, message: &str) {
        self.event(&reference(object), kind, reason, message);
    }
}

/// How events refer to `object`.
pub fn reference<K: Kind>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.to_owned()),
        kind: Some(K::KIND.to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Something that a component did, or was about to do, to an object.
#[derive(Debug, Clone, Copy)]
pub struct Act<'a> {
    pub kind: EventKind,
    pub reason: &'a str,
    /// The work in which it happened, in upstream's word.
    pub action: &'a str,
    /// The other object that has a part in it.
    pub related: Option<&'a ObjectReference>,
}

/// Records events of the newer form in the name of one component. Cloning shares the queue.
#[derive(Clone)]
pub struct ActRecorder {
    queue: mpsc::Sender<NewEvent>,
}

impl ActRecorder {
    /// `controller` is the component; the instance is told by its machine.
    pub fn new(client: Client, controller: &str) -> Self {
        let (queue, acts) = mpsc::channel(QUEUE);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        tokio::spawn(deliver_acts(client, Ongoing::new(controller, host.trim()), acts));
        ActRecorder { queue }
    }

    /// Tells of an act. Returns at once.
    pub fn tell(&self, object: &ObjectReference, act: Act<'_>, note: &str) {
        let event = NewEvent {
            event_time: Some(MicroTime(clock::now())),
            action: Some(act.action.to_owned()),
            reason: Some(act.reason.to_owned()),
            regarding: Some(object.clone()),
            related: act.related.cloned(),
            note: Some(note.to_owned()),
            type_: Some(act.kind.as_str().to_owned()),
            ..NewEvent::default()
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(event) {
            tracing::debug!(reason = act.reason, note, "the event queue is full, event dropped");
        }
    }
}

async fn deliver_acts(client: Client, mut ongoing: Ongoing, mut acts: mpsc::Receiver<NewEvent>) {
    let resource = Resource {
        group: NewEvent::GROUP.to_owned(),
        version: NewEvent::VERSION.to_owned(),
        kind: NewEvent::KIND.to_owned(),
        plural: NewEvent::URL_PATH_SEGMENT.to_owned(),
    };
    let (mut ends, mut refreshes) = (clock::interval(SERIES_ENDS), clock::interval(SERIES_REFRESH));
    loop {
        let writes = tokio::select! {
            biased;
            next = acts.recv() => match next {
                Some(next) => ongoing.take(next).into_iter().collect(),
                None => return,
            },
            _ = ends.tick() => ongoing.end(clock::now()),
            _ = refreshes.tick() => ongoing.refresh(),
        };
        for one in writes {
            write(&client, &resource, one).await;
        }
    }
}

async fn deliver(client: Client, source: EventSource, mut told: mpsc::Receiver<Told>) {
    let resource = Resource::of::<Event>();
    let mut correlator = Correlator::new(source);
    while let Some(next) = told.recv().await {
        let Some(send) = correlator.correlate(next) else { continue };
        write(&client, &resource, send.write()).await;
    }
}

/// The write of an event: of all of it, or of a change where it is there already.
struct Write {
    namespace: String,
    name: String,
    whole: Value,
    change: Option<Value>,
}

async fn write(client: &Client, resource: &Resource, write: Write) {
    let Write { namespace, name, whole, mut change } = write;
    for attempt in 0..TRIES {
        let verb = match &change {
            Some(change) => Verb::StrategicPatch(change.clone()),
            None => Verb::Create(whole.clone()),
        };
        match rest::write(client, resource, &namespace, &name, "", &verb).await {
            Ok(_) => break,
            // The event that goes on is gone: its time to live was over. Start a new one.
            Err(Error::Api(status)) if status.code == 404 && change.is_some() => change = None,
            Err(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                tracing::debug!(name, message = status.message, "the server refused an event");
                break;
            }
            Err(error) => {
                tracing::debug!(name, %error, attempt, "cannot send an event");
                clock::sleep(Duration::from_secs(1 << attempt)).await;
            }
        }
    }
}

/// One event to be written: anew, or as a raised count of one that exists.
#[derive(Debug, Clone, PartialEq)]
struct Send {
    namespace: String,
    name: String,
    patch: bool,
    event: Event,
}

impl Send {
    fn write(self) -> Write {
        let Event { count, last_timestamp, message, .. } = &self.event;
        let change = json!({"count": count, "lastTimestamp": last_timestamp, "message": message});
        let whole = self.event.to_value();
        Write { namespace: self.namespace, name: self.name, whole, change: self.patch.then_some(change) }
    }
}

/// Events about one object that are alike are combined once there were this many within [`SIMILAR_WITHIN`].
const SIMILAR: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// An object may cause this many events at once and one more per [`REFILL`].
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// How many objects, groups and events are remembered each; all are forgotten together when there are more.
const REMEMBERED: usize = 4096;

/// The events of an object that are alike but for their messages. What is only compared is kept as a hash: a quiet cluster has had a
/// few events about each of its objects.
struct Group {
    messages: Vec<u64>,
    last: Timestamp,
}

/// An event that was told, as far as one alike needs it.
struct Known {
    name: String,
    first: Time,
    count: i32,
}

struct Bucket {
    tokens: f64,
    last: Timestamp,
}

/// The numbers in the names of events: the time in nanoseconds, made unique, since several events may be told in one moment. Some of
/// its last bits are the recorder's own: others may tell of the same object at the same time.
struct Numbers {
    own: i128,
    last: i128,
}

impl Numbers {
    const OWN: i128 = 1 << 12;

    fn of(source: &EventSource) -> Self {
        let mut hasher = DefaultHasher::new();
        (&source.component, &source.host).hash(&mut hasher);
        Numbers { own: i128::from(hasher.finish()) % Self::OWN, last: 0 }
    }

    fn next(&mut self, at: Timestamp) -> i128 {
        let moment = at.as_nanosecond() / Self::OWN;
        self.last = moment.max(self.last + 1);
        self.last * Self::OWN + self.own
    }
}

/// A series is over when this passed without another event.
const SERIES_ENDS: Duration = Duration::from_secs(6 * 60);
/// So often the series that go on are written, before their time to live is over.
const SERIES_REFRESH: Duration = Duration::from_secs(30 * 60);

/// Events that are alike but for their notes have this many notes; others are counted with the last one.
const NOTES: usize = 5;

/// Decides what becomes of an event of the newer form: those of the last minutes are known by what makes events alike. Another note
/// begins another event, as the note of one that is written cannot change and the newest is the one that helps (upstream's recorder
/// counts it with the first).
struct Ongoing {
    controller: String,
    instance: String,
    numbers: Numbers,
    known: HashMap<String, Vec<NewEvent>>,
}

impl Ongoing {
    fn new(controller: &str, host: &str) -> Self {
        let instance = format!("{controller}-{host}");
        let source = EventSource { component: Some(controller.to_owned()), host: Some(instance.clone()) };
        Ongoing { controller: controller.to_owned(), instance, numbers: Numbers::of(&source), known: HashMap::new() }
    }

    /// The first event is written, and the second as the beginning of a series, whose others are only counted for now.
    fn take(&mut self, event: NewEvent) -> Option<Write> {
        let NewEvent { type_, action, reason, regarding, related, .. } = &event;
        let alike = format!("{:?}", (type_, action, reason, regarding, related));
        let told = self.known.get_mut(&alike).map(Vec::as_mut_slice).unwrap_or_default();
        let same = told.iter().position(|known| known.note == event.note);
        let at = same.or((told.len() >= NOTES).then(|| told.len() - 1));
        if let Some(known) = at.map(|at| &mut told[at]) {
            let begun = known.series.as_ref().map(|series| series.count);
            let series = EventSeries { count: begun.unwrap_or(1) + 1, last_observed_time: event.event_time? };
            known.series = Some(series);
            return begun.is_none().then(|| series_write(known));
        }
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, told| told.iter().any(|known| known.series.is_some()));
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let fresh = self.fresh(event);
        let write = Write { change: None, ..series_write(&fresh) };
        self.known.entry(alike).or_default().push(fresh);
        Some(write)
    }

    fn fresh(&mut self, event: NewEvent) -> NewEvent {
        let regarding = event.regarding.clone().unwrap_or_default();
        let at = event.event_time.as_ref().map_or_else(clock::now, |time| time.0);
        let name = format!("{}.{:x}", regarding.name.unwrap_or_default(), self.numbers.next(at));
        let namespace = regarding.namespace.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
        NewEvent {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..event
        }
    }

    /// Forgets what did not happen again for a while; of a series the last count is written.
    fn end(&mut self, now: Timestamp) -> Vec<Write> {
        let last = |event: &NewEvent| match &event.series {
            Some(series) => Some(series.last_observed_time.0),
            None => event.event_time.as_ref().map(|time| time.0),
        };
        let over = |at: Timestamp| now.duration_since(at).unsigned_abs() > SERIES_ENDS;
        let mut gone = Vec::new();
        self.known.retain(|_, told| {
            gone.extend(told.extract_if(.., |event| last(event).is_none_or(over)));
            !told.is_empty()
        });
        gone.iter().filter(|event| event.series.is_some()).map(series_write).collect()
    }

    fn refresh(&self) -> Vec<Write> {
        self.known.values().flatten().filter(|event| event.series.is_some()).map(series_write).collect()
    }
}

/// Writes how often an event has happened.
fn series_write(event: &NewEvent) -> Write {
    Write {
        namespace: event.metadata.namespace.clone().unwrap_or_default(),
        name: event.metadata.name.clone().unwrap_or_default(),
        whole: json::to_value(event).unwrap_or_default(),
        change: Some(json!({"series": event.series})),
    }
}

/// Decides what becomes of an event; what it knows of the past is all here.
struct Correlator {
    source: EventSource,
    numbers: Numbers,
    hasher: RandomState,
    buckets: HashMap<u64, Bucket>,
    groups: HashMap<u64, Group>,
    sent: HashMap<u64, Known>,
}

impl Correlator {
    fn new(source: EventSource) -> Self {
        let numbers = Numbers::of(&source);
        let (hasher, buckets, groups, sent) = Default::default();
        Correlator { source, numbers, hasher, buckets, groups, sent }
    }

    fn correlate(&mut self, told: Told) -> Option<Send> {
        let ObjectReference { uid, kind, namespace, name, field_path, .. } = &told.object;
        let alike = self.hasher.hash_one((uid, kind, namespace, name, field_path, told.kind, &told.reason));
        let (message, counted_as) = self.combine(alike, &told);
        let at = Time(Timestamp::from_second(told.at.as_second()).unwrap_or(told.at));
        if self.sent.len() >= REMEMBERED {
            self.sent.clear();
        }
        let (id, numbers) = (self.hasher.hash_one((alike, counted_as)), &mut self.numbers);
        let known = self.sent.entry(id).or_insert_with(|| {
            let name = format!("{}.{:x}", name.as_deref().unwrap_or(""), numbers.next(told.at));
            Known { name, first: at.clone(), count: 0 }
        });
        known.count += 1;
        let patch = known.count > 1;
        let event = event(&self.source, &told, known, message, at);
        if !self.may_send(&told) {
            return None;
        }
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        Some(Send { namespace, name: event.metadata.name.clone().unwrap_or_default(), patch, event })
    }

    /// The message to show and the one that says which event this counts as.
    fn combine(&mut self, alike: u64, told: &Told) -> (String, String) {
        if self.groups.len() >= REMEMBERED {
            self.groups.clear();
        }
        let message = self.hasher.hash_one(&told.message);
        let group = self.groups.entry(alike).or_insert_with(|| Group { messages: Vec::new(), last: told.at });
        if told.at.duration_since(group.last) > jiff::SignedDuration::try_from(SIMILAR_WITHIN).unwrap_or_default() {
            group.messages.clear();
        }
        group.last = told.at;
        if group.messages.len() < SIMILAR && !group.messages.contains(&message) {
            group.messages.push(message);
        }
        if group.messages.len() < SIMILAR {
            return (told.message.clone(), told.message.clone());
        }
        (format!("(combined from similar events): {}", told.message), "(combined from similar events)".to_owned())
    }

    fn may_send(&mut self, told: &Told) -> bool {
        if self.buckets.len() >= REMEMBERED {
            self.buckets.clear();
        }
        let object = &told.object;
        let id = self.hasher.hash_one((&object.uid, &object.name));
        let bucket = self.buckets.entry(id).or_insert(Bucket { tokens: BURST, last: told.at });
        let passed = told.at.duration_since(bucket.last).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + passed / REFILL.as_secs_f64()).min(BURST);
        bucket.last = told.at;
        let may = bucket.tokens >= 1.0;
        if may {
            bucket.tokens -= 1.0;
        }
        may
    }
}

/// The event as it is now.
fn event(source: &EventSource, told: &Told, known: &Known, message: String, at: Time) -> Event {
    let object = &told.object;
    let namespace = object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    Event {
        metadata: ObjectMeta { name: Some(known.name.clone()), namespace: Some(namespace), ..Default::default() },
        involved_object: object.clone(),
        reason: Some(told.reason.clone()),
        message: Some(message),
        type_: Some(told.kind.as_str().to_owned()),
        source: Some(source.clone()),
        first_timestamp: Some(known.first.clone()),
        last_timestamp: Some(at),
        count: Some(known.count),
        event_time: None::<MicroTime>,
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(second: i64, reason: &str, message: &str) -> Told {
        Told {
            object: ObjectReference { name: Some("web".into()), uid: Some("u".into()), ..Default::default() },
            kind: EventKind::Normal,
            reason: reason.into(),
            message: message.into(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn the_same_event_is_counted_up() {
        let mut correlator = Correlator::new(EventSource::default());
        let first = correlator.correlate(told(1, "Pulled", "image")).unwrap();
        let again = correlator.correlate(told(5, "Pulled", "image")).unwrap();
        let other = correlator.correlate(told(6, "Pulled", "another")).unwrap();
        assert_eq!((first.patch, again.patch, other.patch), (false, true, false));
        assert_eq!((again.name == first.name, again.event.count), (true, Some(2)));
        let same_moment = correlator.correlate(told(1, "Pulled", "a third")).unwrap();
        assert_ne!(same_moment.name, first.name);
        let of_another = EventSource { component: Some("another".into()), ..Default::default() };
        let of_another = Correlator::new(of_another).correlate(told(1, "Pulled", "image")).unwrap();
        assert_ne!(of_another.name, first.name);
        assert_eq!(first.namespace, "default");
    }

    #[test]
    fn many_alike_are_combined_and_too_many_silenced() {
        let mut correlator = Correlator::new(EventSource::default());
        let sent: Vec<_> = (0..40).map(|i| correlator.correlate(told(1, "Failed", &format!("no {i}")))).collect();
        let texts: Vec<_> = sent.iter().flatten().filter_map(|s| s.event.message.clone()).collect();
        assert_eq!(texts.len(), BURST as usize);
        assert_eq!(texts[8], "no 8");
        assert_eq!(texts[9], "(combined from similar events): no 9");
        assert!(sent[10].as_ref().unwrap().patch);
        // A token is back after five minutes.
        assert!(correlator.correlate(told(302, "Other", "again")).is_some());
        assert!(correlator.correlate(told(302, "Other", "and again")).is_none());
    }

    #[test]
    fn acts_that_happen_again_are_a_series() {
        let mut ongoing = Ongoing::new("default-scheduler", "m");
        let act = |second: i64, reason: &str, note: &str| NewEvent {
            event_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
            action: Some("Scheduling".into()),
            reason: Some(reason.into()),
            regarding: Some(ObjectReference { name: Some("web".into()), ..ObjectReference::default() }),
            note: Some(note.into()),
            type_: Some("Warning".into()),
            ..NewEvent::default()
        };
        let first = ongoing.take(act(1, "FailedScheduling", "no node")).unwrap();
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "default", "name": first.name},
            "eventTime": "1970-01-01T00:00:01.000000Z", "regarding": {"name": "web"}, "note": "no node", "type": "Warning",
            "reason": "FailedScheduling", "action": "Scheduling",
            "reportingController": "default-scheduler", "reportingInstance": "default-scheduler-m",
        });
        assert_eq!((&first.whole, &first.change), (&expected, &None));
        let series = |count: i64, time: &str| json!({"series": {"count": count, "lastObservedTime": time}});
        let second = ongoing.take(act(2, "FailedScheduling", "no node")).unwrap();
        assert_eq!((&second.name, second.change), (&first.name, Some(series(2, "1970-01-01T00:00:02.000000Z"))));
        assert_eq!(second.whole["note"], json!("no node"));
        assert!(ongoing.take(act(3, "FailedScheduling", "no node")).is_none(), "it is only counted");
        assert_ne!(ongoing.take(act(3, "Scheduled", "")).unwrap().name, first.name);
        let counted = Some(series(3, "1970-01-01T00:00:03.000000Z"));
        let changes = |writes: Vec<Write>| writes.into_iter().map(|write| write.change).collect::<Vec<_>>();
        assert_eq!(changes(ongoing.refresh()), std::slice::from_ref(&counted));
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert!(ongoing.end(at(360)).is_empty() && ongoing.known.len() == 2);
        assert_eq!(changes(ongoing.end(at(364))), [counted]);
        assert!(ongoing.known.is_empty());
        let names = |notes: &[&str], ongoing: &mut Ongoing| {
            let writes = notes.iter().filter_map(|note| ongoing.take(act(365, "Other", note)));
            writes.map(|write| (write.name, write.change.is_some())).collect::<Vec<_>>()
        };
        let noted = names(&["1", "2", "3", "4", "5", "6", "2"], &mut ongoing);
        let is_series: Vec<bool> = noted.iter().map(|(_, is_series)| *is_series).collect();
        assert_eq!(is_series, [false, false, false, false, false, true, true]);
        assert_eq!((&noted[5].0, &noted[6].0), (&noted[4].0, &noted[1].0), "more notes are counted with the last one");
        assert!(ongoing.take(act(365, "FailedScheduling", "no node")).unwrap().change.is_none());
    }
}
