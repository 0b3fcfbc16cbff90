//! An event in text: `audit.k8s.io/v1`, its fields in upstream's order, or the old form of one line for people.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Write as _},
    io,
    net::IpAddr,
    ops::Range,
    sync::Arc,
};

use api::Value;
use clock::Timestamp;
use json::append_string;

use super::policy::{Level, Stage};
use crate::auth::User;

/// The annotation of an event whose objects were left out.
pub const TRUNCATED: &str = "audit.k8s.io/truncated";

/// Most of their texts are known when this is built.
pub type Annotations = BTreeMap<Cow<'static, str>, Cow<'static, str>>;

/// The facts about a request that are known from its beginning.
pub struct Facts {
    pub level: Level,
    pub id: String,
    /// Path and query.
    pub uri: String,
    pub verb: &'static str,
    /// Nobody, where the credentials are wrong.
    pub user: Option<Arc<User>>,
    pub addresses: Vec<IpAddr>,
    pub agent: String,
    pub received: Timestamp,
}

/// The facts about a request that are found out on its way, and how it went so far.
#[derive(Default)]
pub struct Course {
    /// The user that it acts for, and the verb that allows that in some requests.
    pub impersonated: Option<(Arc<User>, Option<&'static str>)>,
    pub reference: Option<Reference>,
    pub status: Option<Status>,
    /// In JSON.
    pub request: Option<Vec<u8>>,
    pub response: Option<Vec<u8>>,
    /// Events share them until one more is added.
    pub annotations: Arc<Annotations>,
}

/// The object that a request is about. Text is empty where it is not known.
#[derive(Default)]
pub struct Reference {
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub group: String,
    pub version: String,
    pub resource_version: String,
    pub subresource: String,
}

/// The part of a `metav1.Status` that an event repeats.
#[derive(Default)]
pub struct Status {
    pub code: u16,
    pub status: String,
    pub message: String,
    pub reason: String,
    pub details: Option<Value>,
}

impl Status {
    /// The part that is told of an answer that is a Status itself.
    pub fn of(code: u16, answer: &Value) -> Self {
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        let details = Some(answer["details"].clone()).filter(|details| !details.is_null());
        Status { code, status: text("status"), message: text("message"), reason: text("reason"), details }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"metadata\":{}");
        text(out, "status", &self.status);
        text(out, "message", &self.message);
        text(out, "reason", &self.reason);
        if let Some(details) = &self.details {
            out.extend_from_slice(b",\"details\":");
            out.extend_from_slice(&api::codec::encode::described(details));
        }
        if self.code != 0 {
            out.extend_from_slice(b",\"code\":");
            out.extend_from_slice(itoa::Buffer::new().format(self.code).as_bytes());
        }
        out.push(b'}');
    }
}

/// The fields that all events of a request have alike, written once: each has its level and identity before its stage, then
/// what was asked by whom, and what else the stage says stands between that, where it came from, and when.
pub struct Told {
    text: Vec<u8>,
    asked: usize,
    from: usize,
    when: usize,
    /// The time at which it was received.
    received: Range<usize>,
}

impl Told {
    pub fn of(facts: &Facts) -> Arc<Self> {
        let mut text = Vec::with_capacity(640);
        let out = &mut text;
        for part in [b"\"level\":\"" as &[u8], facts.level.name().as_bytes(), b"\",\"auditID\":"] {
            out.extend_from_slice(part);
        }
        append_string(out, &facts.id);
        out.extend_from_slice(b",\"stage\":\"");
        let asked = out.len();
        out.extend_from_slice(b"\",\"requestURI\":");
        append_string(out, &facts.uri);
        out.extend_from_slice(b",\"verb\":");
        append_string(out, facts.verb);
        out.extend_from_slice(b",\"user\":");
        user(out, facts.user.as_deref());
        let from = out.len();
        out.extend_from_slice(b",\"sourceIPs\":[");
        for (at, address) in facts.addresses.iter().enumerate() {
            written(out, format_args!("{}\"{address}\"", if at > 0 { "," } else { "" }));
        }
        out.push(b']');
        self::text(out, "userAgent", &facts.agent);
        let when = out.len();
        out.extend_from_slice(b",\"requestReceivedTimestamp\":\"");
        let begin = out.len();
        written(out, format_args!("{:.6}", facts.received));
        let received = begin..out.len();
        out.extend_from_slice(b"\",\"stageTimestamp\":\"");
        Arc::new(Told { text, asked, from, when, received })
    }
}

/// One event, as text that is put together where it goes.
#[derive(Clone)]
pub struct Event {
    pub level: Level,
    pub stage: Stage,
    told: Arc<Told>,
    /// The fields of this stage: whom it acts for, then from `about` on the object and the status, then from `at` on the time.
    fields: Vec<u8>,
    about: usize,
    at: usize,
    objects: Vec<u8>,
    annotations: Arc<Annotations>,
    line: Option<String>,
}

impl Event {
    /// The event of a stage. `line` is whether the old form is wanted, too.
    pub fn of(
        (facts, told): (&Facts, &Arc<Told>),
        course: &Course,
        stage: Stage,
        time: Timestamp,
        line: bool,
    ) -> Event {
        let mut fields = Vec::with_capacity(256);
        impersonated(&mut fields, course);
        let about = fields.len();
        reference_and_status(&mut fields, course);
        let at = fields.len();
        if time == facts.received {
            fields.extend_from_slice(&told.text[told.received.clone()]);
        } else {
            written(&mut fields, format_args!("{time:.6}"));
        }
        let mut objects = Vec::new();
        for (name, object) in [("requestObject", &course.request), ("responseObject", &course.response)] {
            if let Some(object) = object {
                written(&mut objects, format_args!(",\"{name}\":"));
                objects.extend_from_slice(object);
            }
        }
        Event {
            level: facts.level,
            stage,
            told: told.clone(),
            fields,
            about,
            at,
            objects,
            annotations: course.annotations.clone(),
            line: line.then(|| self::line(facts, course, stage)),
        }
    }

    /// About how much memory it takes.
    pub fn size(&self) -> usize {
        let annotations = self.annotations.iter().map(|(key, value)| key.len() + value.len() + 6).sum::<usize>();
        self.told.text.len() + self.fields.len() + self.objects.len() + annotations
    }

    /// The same event without the objects, which says so.
    pub fn truncated(&self) -> Event {
        let mut event = Event { objects: Vec::new(), ..self.clone() };
        Arc::make_mut(&mut event.annotations).insert(TRUNCATED.into(), "true".into());
        event
    }

    /// As a document of its own, in one line.
    pub fn document(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",");
        self.fields(out);
    }

    /// As one of the items of a list.
    pub fn item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.fields(out);
    }

    fn fields(&self, out: &mut Vec<u8>) {
        out.reserve(self.size() + 64);
        let (told, fields) = (&*self.told, &self.fields[..]);
        for part in [
            &told.text[..told.asked],
            self.stage.name().as_bytes(),
            &told.text[told.asked..told.from],
            &fields[..self.about],
            &told.text[told.from..told.when],
            &fields[self.about..self.at],
            &self.objects,
            &told.text[told.when..],
            &fields[self.at..],
            b"\"",
        ] {
            out.extend_from_slice(part);
        }
        if !self.annotations.is_empty() {
            out.extend_from_slice(b",\"annotations\":");
            for (at, (key, value)) in self.annotations.iter().enumerate() {
                out.push(if at == 0 { b'{' } else { b',' });
                append_string(out, key);
                out.push(b':');
                append_string(out, value);
            }
            out.push(b'}');
        }
        out.push(b'}');
    }

    /// The end of a request with this identity.
    #[cfg(test)]
    pub fn for_tests(id: &str) -> Event {
        let received = Timestamp::UNIX_EPOCH;
        let facts = Facts {
            level: Level::Metadata,
            id: id.to_owned(),
            uri: "/".to_owned(),
            verb: "get",
            user: None,
            addresses: Vec::new(),
            agent: String::new(),
            received,
        };
        Event::of((&facts, &Told::of(&facts)), &Course::default(), Stage::ResponseComplete, received, false)
    }

    /// In the old form.
    pub fn line(&self) -> &str {
        self.line.as_deref().unwrap_or_default()
    }
}

/// Text that is nowhere else in between.
fn written(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    io::Write::write_fmt(out, text).expect("memory takes everything");
}

/// A field, unless it is empty.
fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.is_empty() {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        append_string(out, value);
    }
}

/// The user that the request acts for.
fn impersonated(out: &mut Vec<u8>, course: &Course) {
    let Some((impersonated, constraint)) = &course.impersonated else { return };
    out.extend_from_slice(b",\"impersonatedUser\":");
    user(out, Some(impersonated));
    if let Some(verb) = constraint {
        written(out, format_args!(",\"authenticationMetadata\":{{\"impersonationConstraint\":\"{verb}\"}}"));
    }
}

fn reference_and_status(out: &mut Vec<u8>, course: &Course) {
    if let Some(about) = &course.reference {
        out.extend_from_slice(b",\"objectRef\":{");
        let begin = out.len();
        for (name, value) in [
            ("resource", &about.resource),
            ("namespace", &about.namespace),
            ("name", &about.name),
            ("uid", &about.uid),
            ("apiGroup", &about.group),
            ("apiVersion", &about.version),
            ("resourceVersion", &about.resource_version),
            ("subresource", &about.subresource),
        ] {
            text(out, name, value);
        }
        // The first field follows the brace.
        if out.len() > begin {
            out.remove(begin);
        }
        out.push(b'}');
    }
    if let Some(status) = &course.status {
        out.extend_from_slice(b",\"responseStatus\":");
        status.append_to(out);
    }
}

/// A `UserInfo`.
fn user(out: &mut Vec<u8>, user: Option<&User>) {
    let list = |out: &mut Vec<u8>, texts: &[String]| {
        out.push(b'[');
        for (at, text) in texts.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            append_string(out, text);
        }
        out.push(b']');
    };
    out.push(b'{');
    let begin = out.len();
    if let Some(user) = user {
        text(out, "username", &user.name);
        text(out, "uid", &user.uid);
        if !user.groups.is_empty() {
            out.extend_from_slice(b",\"groups\":");
            list(out, &user.groups);
        }
        for (at, (key, values)) in user.extra.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b",\"extra\":{" } else { b"," });
            append_string(out, key);
            out.push(b':');
            list(out, values);
        }
        if !user.extra.is_empty() {
            out.push(b'}');
        }
    }
    if out.len() > begin {
        out.remove(begin);
    }
    out.push(b'}');
}

/// The old form: one line with a part of what is known.
fn line(facts: &Facts, course: &Course, stage: Stage) -> String {
    let quoted = |texts: &[String]| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(",");
    let of = |user: Option<&Arc<User>>, nobody: &str, none: &str| {
        let groups = user.filter(|user| !user.groups.is_empty()).map(|user| quoted(&user.groups));
        (user.map_or(nobody.to_owned(), |user| user.name.clone()), groups.unwrap_or(none.to_owned()))
    };
    let (name, groups) = of(facts.user.as_ref(), "<none>", "<none>");
    let (as_name, as_groups) = of(course.impersonated.as_ref().map(|(user, _)| user), "<self>", "<lookup>");
    let namespace = course.reference.as_ref().map(|about| about.namespace.as_str()).filter(|name| !name.is_empty());
    let code = course.status.as_ref().map_or("<deferred>".to_owned(), |status| status.code.to_string());
    let address = facts.addresses.first().map_or("<unknown>".to_owned(), ToString::to_string);
    let mut line = format!("{} AUDIT: id={:?} stage={:?} ip={address:?}", facts.received, facts.id, stage.name());
    let _ =
        write!(line, " method={:?} user={name:?} groups={groups:?} as={as_name:?} asgroups={as_groups:?}", facts.verb);
    let _ = write!(line, " user-agent={:?} namespace={:?}", facts.agent, namespace.unwrap_or("<none>"));
    let _ = write!(line, " uri={:?} response=\"{code}\"", facts.uri);
    line
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn facts(level: Level) -> Facts {
        let mut user = User::new("jane", ["dev"]);
        user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        Facts {
            level,
            id: "id".to_owned(),
            uri: "/api/v1/pods?x=\"".to_owned(),
            verb: "list",
            user: Some(Arc::new(user)),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            agent: "test".to_owned(),
            received: "2024-01-01T00:00:00Z".parse().unwrap(),
        }
    }

    fn course() -> Course {
        let reference = Reference { resource: "pods".to_owned(), version: "v1".to_owned(), ..Reference::default() };
        let status = json!({"status": "Failure", "message": "m", "reason": "r", "details": {"name": "n"}});
        Course {
            impersonated: Some((Arc::new(User::new("joe", ["ops"])), Some("impersonate:user-info"))),
            reference: Some(reference),
            status: Some(Status::of(404, &status)),
            request: Some(b"{\"a\":1}".to_vec()),
            response: Some(b"[]".to_vec()),
            annotations: Arc::new([("k".into(), "v".into())].into()),
        }
    }

    fn text(event: &Event) -> String {
        let mut out = Vec::new();
        event.document(&mut out);
        String::from_utf8(out).unwrap()
    }

    const HEAD: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id","stage":"ResponseComplete","requestURI":"/api/v1/pods?x=\"","verb":"list","user":{"username":"jane","groups":["dev"],"extra":{"k":["v"]}},"impersonatedUser":{"username":"joe","groups":["ops"]},"authenticationMetadata":{"impersonationConstraint":"impersonate:user-info"},"sourceIPs":["10.0.0.1"],"userAgent":"test","objectRef":{"resource":"pods","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","message":"m","reason":"r","details":{"name":"n"},"code":404}"#;
    const TAIL: &str =
        r#","requestReceivedTimestamp":"2024-01-01T00:00:00.000000Z","stageTimestamp":"2024-01-01T00:00:01.500000Z""#;

    #[test]
    fn fields_stand_in_upstreams_order() {
        let at = "2024-01-01T00:00:01.5Z".parse().unwrap();
        let facts = facts(Level::RequestResponse);
        let event = Event::of((&facts, &Told::of(&facts)), &course(), Stage::ResponseComplete, at, true);
        let objects = r#","requestObject":{"a":1},"responseObject":[]"#;
        assert_eq!(text(&event), format!("{HEAD}{objects}{TAIL},\"annotations\":{{\"k\":\"v\"}}}}"));
        let marked = r#","annotations":{"audit.k8s.io/truncated":"true","k":"v"}}"#;
        assert_eq!(text(&event.truncated()), format!("{HEAD}{TAIL}{marked}"));
        let line = r#"2024-01-01T00:00:00Z AUDIT: id="id" stage="ResponseComplete" ip="10.0.0.1" method="list" user="jane" groups="\"dev\"" as="joe" asgroups="\"ops\"" user-agent="test" namespace="<none>" uri="/api/v1/pods?x=\"" response="404""#;
        assert_eq!(event.line(), line);
    }

    #[test]
    fn what_is_not_known_is_not_there() {
        let unknown = Facts { user: None, agent: String::new(), addresses: Vec::new(), ..facts(Level::Metadata) };
        let at = unknown.received;
        let told = Told::of(&unknown);
        let event = Event::of((&unknown, &told), &Course::default(), Stage::RequestReceived, at, false);
        let value = json::parse(&text(&event)).unwrap();
        assert_eq!((&value["user"], &value["sourceIPs"]), (&json!({}), &json!([])));
        for absent in ["userAgent", "objectRef", "responseStatus", "requestObject", "annotations", "impersonatedUser"] {
            assert!(value.get(absent).is_none(), "{absent}");
        }
    }
}
