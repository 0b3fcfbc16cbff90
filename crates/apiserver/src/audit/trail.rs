//! The trail of one request: what its events will say, gathered wherever it is found out. Where nothing is audited a trail is
//! nothing, and what is told to it costs a comparison.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use api::{Value, meta};
use futures::FutureExt;
use json::append_string;
use parking_lot::Mutex;

use super::{
    Auditor,
    event::{Course, Event, Facts, Reference, Status, TRUNCATED, Told},
    policy::{Decision, Level, Stage},
};
use crate::auth::User;

/// Larger objects are left out.
const OBJECT_BYTES: usize = 32 << 20;
/// Requests that took longer say how long.
const SLOW_MILLISECONDS: i64 = 500;
/// Annotations of one event at most.
const ANNOTATIONS: usize = 1024;

/// Clones are the trail of the same request. When the last one goes, the request is complete.
#[derive(Clone, Default)]
pub struct Trail(Option<Arc<Record>>);

struct Record {
    auditor: Arc<Auditor>,
    decision: Decision,
    facts: Facts,
    told: Arc<Told>,
    long_running: bool,
    course: Mutex<Course>,
    done: AtomicBool,
}

impl Trail {
    pub(super) fn new(auditor: Arc<Auditor>, decision: Decision, facts: Facts, course: Course, long: bool) -> Self {
        let (told, course, done) = (Told::of(&facts), Mutex::new(course), AtomicBool::new(false));
        Trail(Some(Arc::new(Record { auditor, decision, facts, told, long_running: long, course, done })))
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
        let mut course = record.course.lock();
        let annotations = Arc::make_mut(&mut course.annotations);
        if annotations.len() < ANNOTATIONS {
            annotations.entry(key.into()).or_insert_with(|| value.into());
        }
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
        let about = course.reference.get_or_insert_with(Reference::default);
        for (known, given) in [
            (&mut about.namespace, meta::namespace(object)),
            (&mut about.name, meta::name(object)),
            (&mut about.uid, meta::uid(object)),
            (&mut about.resource_version, meta::resource_version(object)),
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

    /// The patch, or the options, that came with the request.
    pub fn requested_text(&self, body: &[u8]) {
        let Some(record) = self.0.as_ref().filter(|record| record.decision.level >= Level::Request) else { return };
        // An applied object may be in YAML.
        let value: Option<Value> = std::str::from_utf8(body)
            .ok()
            .and_then(|text| json::parse(text).ok().or_else(|| serde_saphyr::from_str(text).ok()));
        let text = value.filter(|value| !value.is_null()).map(|value| record.text(&value));
        if let Some(text) = text {
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
        record.emit(Stage::Panic).await;
    }

    /// The request begins; false when it has to be refused.
    pub(super) async fn received(&self) -> bool {
        match &self.0 {
            Some(record) => record.emit(Stage::RequestReceived).await,
            None => true,
        }
    }

    /// The answer begins, of a request that may take any time.
    pub(super) async fn started(&self) {
        if let Some(record) = self.0.as_ref().filter(|record| record.long_running) {
            record.emit(Stage::ResponseStarted).await;
        }
    }

    /// Nothing but that credentials were wrong is said of a request.
    pub(super) async fn unauthenticated(&self) {
        if let Some(record) = &self.0 {
            record.done.store(true, Ordering::Relaxed);
            record.emit(Stage::ResponseStarted).await;
        }
    }

    /// The answer is complete.
    pub(super) async fn complete(&self) {
        if let Some(record) = &self.0
            && !record.done.swap(true, Ordering::Relaxed)
        {
            record.finish();
            record.emit(Stage::ResponseComplete).await;
        }
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// By which the request is found in the log.
    pub fn id(&self) -> Option<&str> {
        self.0.as_ref().map(|record| record.facts.id.as_str())
    }

    /// A trail that leads nowhere.
    #[cfg(test)]
    pub fn for_tests(level: Level) -> Self {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{{level: {}}}]", level.name());
        let policy = super::policy::Policy::parse(&text).unwrap();
        let settings = super::Settings { policy, log: None, webhook: None };
        let auditor = Auditor::new(settings, &mut Default::default());
        let (parts, ()) = http::Request::new(()).into_parts();
        auditor.trail(&parts, &Default::default(), None, &super::Begun::of(&parts, true))
    }

    /// The annotations so far.
    #[cfg(test)]
    pub fn annotations(&self) -> Vec<(String, String)> {
        let Some(record) = &self.0 else { return Vec::new() };
        let annotations = record.course.lock().annotations.clone();
        annotations.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
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
            Arc::make_mut(&mut self.annotations).insert(TRUNCATED.into(), "true".into());
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
            if let Some(metadata) = meta::metadata_mut(object) {
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

    /// Adds the facts that are known when a request ends.
    fn finish(&self) {
        let took = clock::now().duration_since(self.facts.received);
        let mut course = self.course.lock();
        if course.status.is_none() {
            let (status, message) = ("Success".to_owned(), "Connection closed early".to_owned());
            course.status = Some(Status { code: 200, status, message, ..Status::default() });
        }
        if !self.long_running && took.as_millis() > i128::from(SLOW_MILLISECONDS) {
            let seconds = format!("{}s", took.as_secs_f64());
            Arc::make_mut(&mut course.annotations).insert("apiserver.latency.k8s.io/total".into(), seconds.into());
        }
    }

    fn event(&self, stage: Stage) -> Option<Arc<Event>> {
        if self.decision.omitted.has(stage) {
            return None;
        }
        let at = if stage == Stage::RequestReceived { self.facts.received } else { clock::now() };
        let lines = self.auditor.wants_lines();
        Some(Arc::new(Event::of((&self.facts, &self.told), &self.course.lock(), stage, at, lines)))
    }

    async fn emit(&self, stage: Stage) -> bool {
        match self.event(stage) {
            Some(event) => self.auditor.take(event).await,
            None => true,
        }
    }
}

/// The last one that had something to do with the request has let go of it: nobody waits for the event any more.
impl Drop for Record {
    fn drop(&mut self) {
        if self.done.swap(true, Ordering::Relaxed) {
            return;
        }
        self.finish();
        let Some(event) = self.event(Stage::ResponseComplete) else { return };
        let auditor = self.auditor.clone();
        let mut taking = async move { auditor.take(event).await }.boxed();
        if (&mut taking).now_or_never().is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(taking);
        }
    }
}
