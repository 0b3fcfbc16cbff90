//! The trail of one request: what its events will say, gathered wherever it is found out. Where nothing is audited a trail is
//! nothing, and what is told to it costs a comparison.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use api::{Value, meta};
use clock::Timestamp;
use futures::FutureExt;
use json::{append_string, json};
use listener::Connection;
use parking_lot::Mutex;

use super::{
    Auditor,
    event::{Course, Event, Facts, Identity, Reference, Status, TRUNCATED, Told},
    policy::{Decision, Level, Stage},
    sink::Until,
};
use crate::{auth::User, document, http::request::Info};

/// Larger objects are left out.
const OBJECT_BYTES: usize = 32 << 20;
/// Requests that took longer say how long.
const SLOW_MILLISECONDS: i64 = 500;

/// Clones are the trail of the same request. When the last one goes, the request is complete.
#[derive(Clone, Default)]
pub struct Trail(Option<Arc<Record>>);

struct Record {
    auditor: Arc<Auditor>,
    decision: Decision,
    id: String,
    received: Timestamp,
    info: Arc<Info>,
    /// A caller inside this process has none.
    connection: Option<Connection>,
    told: Told,
    course: Mutex<Course>,
    /// The request is refused before it is known who sent it.
    refused: bool,
    done: AtomicBool,
    /// The number among the open ones, of a request that came over a connection.
    open: Option<u64>,
}

/// The requests over connections that are not complete.
#[derive(Default)]
pub(super) struct Open {
    last: AtomicU64,
    records: Mutex<HashMap<u64, Weak<Record>>>,
}

impl Open {
    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> Vec<Trail> {
        let records: Vec<Arc<Record>> = self.records.lock().values().filter_map(Weak::upgrade).collect();
        records.into_iter().map(|record| Trail(Some(record))).collect()
    }
}

/// The object that the path of a request names.
pub fn about(info: &Info) -> Option<Reference<'_>> {
    info.is_resource().then(|| Reference {
        resource: info.resource(),
        namespace: &info.namespace,
        name: &info.name,
        group: info.group(),
        version: info.version(),
        subresource: info.subresource_name(),
        ..Reference::default()
    })
}

impl Trail {
    pub(super) fn new(
        auditor: &Arc<Auditor>,
        decision: Decision,
        facts: &Facts<'_>,
        info: &Arc<Info>,
        connection: Option<Connection>,
    ) -> Self {
        let open = (connection.is_some() && facts.user.is_some()).then(|| auditor.open.number());
        let record = Arc::new(Record {
            auditor: auditor.clone(),
            decision,
            id: facts.id.to_owned(),
            received: facts.received,
            info: info.clone(),
            connection,
            told: Told::of(facts, auditor.wants_lines()),
            course: Mutex::default(),
            refused: facts.user.is_none(),
            done: AtomicBool::new(facts.user.is_none()),
            open,
        });
        if let Some(open) = open {
            auditor.open.records.lock().insert(open, Arc::downgrade(&record));
        }
        Trail(Some(record))
    }

    /// Whether events say at least as much as this level.
    pub fn says(&self, level: Level) -> bool {
        self.0.as_ref().is_some_and(|record| record.decision.level >= level)
    }

    /// Whether the answer has to be there as a whole, in JSON.
    pub fn wants_response(&self) -> bool {
        self.says(Level::RequestResponse)
    }

    /// Adds an annotation. One that is there already stays.
    pub fn annotate(&self, key: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        let Some(record) = &self.0 else { return };
        record.course.lock().annotations.add(key.into(), value.into());
    }

    /// The request acts for somebody else, perhaps because of a verb that allows it in some requests.
    pub fn impersonated(&self, user: &Arc<User>, constraint: Option<&'static str>) {
        if let Some(record) = &self.0 {
            record.course.lock().impersonated = Some((user.clone(), constraint));
        }
    }

    /// The object that came with the request.
    pub fn requested(&self, object: &Value) {
        let Some(record) = &self.0 else { return };
        let mut course = record.course.lock();
        let known = course.object.get_or_insert_default();
        let Identity { namespace, name, uid, resource_version } = &mut **known;
        for (known, given) in [
            (namespace, meta::namespace(object)),
            (name, meta::name(object)),
            (uid, meta::uid(object)),
            (resource_version, meta::resource_version(object)),
        ] {
            if known.is_empty() {
                given.clone_into(known);
            }
        }
        if record.decision.level >= Level::Request {
            let text = record.text(object);
            course.keep(|course| &mut course.request, text);
        }
    }

    /// The options of a deletion that came with the request. Upstream tells of them in the version that it has inside.
    pub fn requested_options(&self, options: &Value) {
        let Some(record) = self.0.as_ref().filter(|_| self.says(Level::Request)) else { return };
        let mut told = options.clone();
        told["kind"] = json!("DeleteOptions");
        told["apiVersion"] = json!("meta.k8s.io/__internal");
        let text = record.text(&told);
        record.course.lock().keep(|course| &mut course.request, text);
    }

    /// The patch that came with the request.
    pub fn requested_text(&self, body: &[u8]) {
        let Some(record) = self.0.as_ref().filter(|_| self.says(Level::Request)) else { return };
        // An applied object may be in YAML.
        let yaml = |text: &str| document::read_leniently(text).ok().map(|(value, _)| value).filter(|v| !v.is_null());
        let value = std::str::from_utf8(body).ok().and_then(|text| json::parse(text).ok().or_else(|| yaml(text)));
        if let Some(text) = value.map(|value| record.text(&value)) {
            record.course.lock().keep(|course| &mut course.request, text);
        }
    }

    /// The answer. `whole` is its text, where that is JSON; `object` whether it is one of the API.
    pub(super) fn answered(&self, code: u16, whole: Option<&[u8]>, object: bool) {
        let Some(record) = &self.0 else { return };
        let parsed = || whole.and_then(|text| json::parse(std::str::from_utf8(text).ok()?).ok());
        let is_status = whole.is_some_and(|text| text.starts_with(b"{\"kind\":\"Status\",\"apiVersion\":\"v1\""));
        let status = is_status.then(parsed).flatten().map(|status| Status::of(code, &status));
        let mut course = record.course.lock();
        course.status = Some(status.unwrap_or(Status { code, ..Status::default() }));
        if let Some(text) = whole.filter(|_| object && record.decision.level >= Level::RequestResponse) {
            let text = match record.decision.omits_managed_fields.then(parsed).flatten() {
                Some(value) => record.text(&value),
                None => text.trim_ascii_end().to_vec(),
            };
            course.keep(|course| &mut course.response, text);
        }
    }

    /// Nothing comes of the request: the server failed.
    pub async fn panicked(&self, why: &str) {
        let Some(record) = &self.0 else { return };
        let message = format!("APIServer panic'd: {why}");
        let (status, reason) = ("Failure".to_owned(), "InternalError".to_owned());
        record.course.lock().status = Some(Status { code: 500, status, message, reason, details: None });
        record.done.store(true, Ordering::Relaxed);
        record.emit(Stage::Panic, None).await;
    }

    /// The request begins; false when it has to be refused.
    pub(super) async fn received(&self) -> bool {
        let Some(record) = &self.0 else { return true };
        match record.event(Stage::RequestReceived, None) {
            Some(event) if record.only_reads() => record.auditor.take(event, record.until(Until::Whenever)).await,
            Some(event) => record.auditor.take(event, Until::Written).await,
            None => true,
        }
    }

    /// The answer begins, of a request that may take any time, or of which nothing else is told.
    pub(super) async fn started(&self) {
        let may_take_any_time = |info: &Info| info.long_running() || (info.refusal.is_some() && info.verb == "watch");
        if let Some(record) = self.0.as_ref().filter(|record| record.refused || may_take_any_time(&record.info)) {
            record.emit(Stage::ResponseStarted, None).await;
        }
    }

    /// The answer is complete.
    pub(super) async fn complete(&self) {
        if let Some(record) = &self.0
            && !record.done.swap(true, Ordering::Relaxed)
        {
            let now = record.finish();
            record.emit(Stage::ResponseComplete, Some(now)).await;
        }
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// By which the request is found in the log.
    pub fn id(&self) -> Option<&str> {
        self.0.as_ref().map(|record| record.id.as_str())
    }

    /// A trail that leads nowhere.
    #[cfg(test)]
    pub fn for_tests(level: Level) -> Self {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{{level: {}}}]", level.name());
        let policy = super::policy::Policy::parse(&text).unwrap();
        let settings = super::Settings { policy, log: None, webhook: None };
        let auditor = Auditor::new(settings, &mut Default::default());
        let (parts, ()) = http::Request::new(()).into_parts();
        auditor.trail(&parts, &Arc::default(), None, &super::Begun::of(&parts, true))
    }

    /// The annotations so far.
    #[cfg(test)]
    pub fn annotations(&self) -> Vec<(String, String)> {
        let Some(record) = &self.0 else { return Vec::new() };
        record.course.lock().annotations.all()
    }
}

/// A structure as an annotation has it, in Go's text: its fields stand in this order.
pub fn structure<'f>(fields: impl IntoIterator<Item = (&'f str, Value)>) -> String {
    let mut text = vec![b'{'];
    for (name, value) in fields {
        if text.len() > 1 {
            text.push(b',');
        }
        append_string(&mut text, name);
        text.push(b':');
        value.append_to(&mut text);
    }
    text.push(b'}');
    String::from_utf8_lossy(&text).into_owned()
}

impl Course {
    /// Keeps the text of an object, unless it is too large, which is said.
    fn keep(&mut self, place: impl FnOnce(&mut Course) -> &mut Option<Vec<u8>>, text: Vec<u8>) {
        if text.len() > OBJECT_BYTES {
            self.annotations.set(TRUNCATED.into(), "true".into());
            return;
        }
        *place(self) = Some(text);
    }
}

impl Record {
    /// An object in text, without field managers where nobody wants to read them.
    fn text(&self, object: &Value) -> Vec<u8> {
        if !self.decision.omits_managed_fields {
            return api::codec::encode::described(object);
        }
        let mut object = object.clone();
        let forget = |object: &mut Value| {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        };
        forget(&mut object);
        for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            forget(item);
        }
        for row in object.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
            row.get_mut("object").map(forget);
        }
        api::codec::encode::described(&object)
    }

    /// Whether nothing changes by what is asked for, here or elsewhere, before it is answered.
    fn only_reads(&self) -> bool {
        match self.info.verb {
            "watch" => true,
            verb => matches!(verb, "get" | "list" | "head") && !self.info.long_running(),
        }
    }

    /// Adds the facts that are known when a request ends, which is now.
    fn finish(&self) -> Timestamp {
        let now = clock::now();
        let took = now.duration_since(self.received);
        let mut course = self.course.lock();
        if course.status.is_none() {
            let (status, message) = ("Success".to_owned(), "Connection closed early".to_owned());
            course.status = Some(Status { code: 200, status, message, ..Status::default() });
        }
        if took.as_millis() > i128::from(SLOW_MILLISECONDS) && !self.info.long_running() {
            let seconds = format!("{}s", took.as_secs_f64());
            course.annotations.set("apiserver.latency.k8s.io/total".into(), seconds.into());
        }
        now
    }

    /// The event of a stage, which is now where no time is given.
    fn event(&self, stage: Stage, time: Option<Timestamp>) -> Option<Event> {
        if self.decision.omitted.has(stage) {
            return None;
        }
        let time = (stage != Stage::RequestReceived).then(|| time.unwrap_or_else(clock::now));
        let course = self.course.lock();
        Some(Event::of(self.decision.level, &self.told, &course, about(&self.info), (stage, time)))
    }

    /// Tells of a stage behind which bytes of the answer leave.
    async fn emit(&self, stage: Stage, time: Option<Timestamp>) {
        if let Some(event) = self.event(stage, time) {
            self.auditor.take(event, self.until(Until::Written)).await;
        }
    }

    /// Waiting for an event is its connection's part, where the request has one.
    fn until<'a>(&'a self, otherwise: Until<'a>) -> Until<'a> {
        self.connection.as_ref().map_or(otherwise, Until::Leaving)
    }
}

/// The last one that had something to do with the request has let go of it: no task waits for the event any more.
impl Drop for Record {
    fn drop(&mut self) {
        if let Some(open) = self.open {
            self.auditor.open.records.lock().remove(&open);
        }
        if self.done.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = self.finish();
        let Some(event) = self.event(Stage::ResponseComplete, Some(now)) else { return };
        let (auditor, connection) = (self.auditor.clone(), self.connection.take());
        let take = async move {
            let until = connection.as_ref().map_or(Until::Whenever, Until::Leaving);
            auditor.take(event, until).await
        };
        let mut taking = take.boxed();
        if (&mut taking).now_or_never().is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(taking);
        }
    }
}
