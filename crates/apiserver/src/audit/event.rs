//! An event in text: `audit.k8s.io/v1`, its fields in upstream's order, or the old form of one line for people.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io,
    net::IpAddr,
    ops::Range,
    sync::Arc,
};

use api::Value;
use clock::{Timestamp, append_micros};
use json::append_string;

use super::{
    annotations::Annotations,
    policy::{Level, Stage},
};
use crate::auth::User;

/// The annotation of an event whose objects were left out.
pub const TRUNCATED: &str = "audit.k8s.io/truncated";

/// The fields that make an event a document of its own.
const HEAD: &[u8] = b"{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",";

/// The facts about a request that are known from its beginning.
pub struct Facts<'a> {
    pub level: Level,
    pub id: &'a str,
    /// Path and query.
    pub uri: &'a str,
    pub verb: &'static str,
    /// Nobody, where the credentials are wrong.
    pub user: Option<&'a Arc<User>>,
    pub addresses: &'a [IpAddr],
    pub agent: Cow<'a, str>,
    pub received: Timestamp,
    /// The object that the path names.
    pub about: Option<Reference<'a>>,
}

/// The facts about a request that are found out on its way, and how it went so far.
#[derive(Default)]
pub struct Course {
    /// The user that it acts for, and the verb that allows that in some requests.
    pub impersonated: Option<(Arc<User>, Option<&'static str>)>,
    /// The object that came with the request, which may say more than the path.
    pub object: Option<Box<Identity>>,
    pub status: Option<Status>,
    /// In JSON.
    pub request: Option<Vec<u8>>,
    pub response: Option<Vec<u8>>,
    pub annotations: Annotations,
}

/// The object that a request is about. Text is empty where it is not known.
#[derive(Clone, Copy, Default)]
pub struct Reference<'a> {
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource_version: &'a str,
    pub subresource: &'a str,
}

/// The part of an object that tells it from others.
#[derive(Default)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
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

impl<'a> Reference<'a> {
    /// The path comes first, and where it says nothing the object does.
    fn or(self, object: &'a Identity) -> Self {
        let or = |known: &'a str, given: &'a str| if known.is_empty() { given } else { known };
        Reference {
            namespace: or(self.namespace, &object.namespace),
            name: or(self.name, &object.name),
            uid: or(self.uid, &object.uid),
            resource_version: or(self.resource_version, &object.resource_version),
            ..self
        }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"objectRef\":{");
        let begin = out.len();
        for (name, value) in [
            ("resource", self.resource),
            ("namespace", self.namespace),
            ("name", self.name),
            ("uid", self.uid),
            ("apiGroup", self.group),
            ("apiVersion", self.version),
            ("resourceVersion", self.resource_version),
            ("subresource", self.subresource),
        ] {
            text(out, name, value);
        }
        // The first field follows the brace.
        if out.len() > begin {
            out.remove(begin);
        }
        out.push(b'}');
    }
}

/// The fields that all events of a request have alike, written once: level and identity, from `asked` on what was asked by
/// whom, from `from` on where it came from, from `about` on the object that the path names, and from `when` on the time.
/// A stage has more to say at each of these places.
pub struct Told {
    text: Vec<u8>,
    asked: usize,
    from: usize,
    about: usize,
    when: usize,
    /// The time at which it was received.
    received: Range<usize>,
    line: Option<Box<Line>>,
}

impl Told {
    /// `line` is whether the old form is wanted, too.
    pub fn of(facts: &Facts<'_>, line: bool) -> Self {
        let mut text = Vec::with_capacity(1024);
        let out = &mut text;
        for part in [HEAD, b"\"level\":\"", facts.level.name().as_bytes(), b"\",\"auditID\":"] {
            out.extend_from_slice(part);
        }
        append_string(out, facts.id);
        out.extend_from_slice(b",\"stage\":\"");
        let asked = out.len();
        out.extend_from_slice(b"\",\"requestURI\":");
        append_string(out, facts.uri);
        out.extend_from_slice(b",\"verb\":");
        append_string(out, facts.verb);
        out.extend_from_slice(b",\"user\":");
        user(out, facts.user.map(|user| &**user));
        let from = out.len();
        out.extend_from_slice(b",\"sourceIPs\":[");
        for (at, address) in facts.addresses.iter().enumerate() {
            out.extend_from_slice(if at > 0 { b",\"" } else { b"\"" });
            self::address(out, address);
            out.push(b'"');
        }
        out.push(b']');
        self::text(out, "userAgent", &facts.agent);
        let about = out.len();
        if let Some(reference) = &facts.about {
            reference.append_to(out);
        }
        let when = out.len();
        out.extend_from_slice(b",\"requestReceivedTimestamp\":\"");
        let begin = out.len();
        append_micros(out, facts.received);
        let received = begin..out.len();
        out.extend_from_slice(b"\",\"stageTimestamp\":\"");
        let line = line.then(|| Box::new(Line::of(facts)));
        Told { text, asked, from, about, when, received, line }
    }
}

/// One event in text.
#[derive(Clone)]
pub struct Event {
    pub level: Level,
    pub stage: Stage,
    text: Vec<u8>,
    /// The place of the objects in the text.
    objects: Range<usize>,
    /// The place of the annotations, and they themselves where the objects may have to be left out.
    end: usize,
    annotations: Option<Annotations>,
    line: Option<String>,
}

impl Event {
    /// The event of a stage. `about` is what the path names.
    pub fn of(
        level: Level,
        told: &Told,
        course: &Course,
        about: Option<Reference<'_>>,
        (stage, time): (Stage, Option<Timestamp>),
    ) -> Event {
        let mut text = Vec::with_capacity(told.text.len() + 512);
        text.extend_from_slice(&told.text[..told.asked]);
        text.extend_from_slice(stage.name().as_bytes());
        text.extend_from_slice(&told.text[told.asked..told.from]);
        impersonated(&mut text, course);
        match &course.object {
            None => text.extend_from_slice(&told.text[told.from..told.when]),
            Some(object) => {
                text.extend_from_slice(&told.text[told.from..told.about]);
                about.unwrap_or_default().or(object).append_to(&mut text);
            }
        }
        if let Some(status) = &course.status {
            text.extend_from_slice(b",\"responseStatus\":");
            status.append_to(&mut text);
        }
        let begin = text.len();
        for (name, object) in [("requestObject", &course.request), ("responseObject", &course.response)] {
            if let Some(object) = object {
                written(&mut text, format_args!(",\"{name}\":"));
                text.extend_from_slice(object);
            }
        }
        let objects = begin..text.len();
        text.extend_from_slice(&told.text[told.when..]);
        match time {
            None => text.extend_from_slice(&told.text[told.received.clone()]),
            Some(time) => append_micros(&mut text, time),
        }
        text.push(b'"');
        let end = text.len();
        course.annotations.append_to(&mut text);
        text.push(b'}');
        let line = told.line.as_ref().map(|line| line.text(course, about.as_ref(), stage));
        let annotations = (!objects.is_empty()).then(|| course.annotations.clone());
        Event { level, stage, text, objects, end, annotations, line }
    }

    /// How many bytes it has.
    pub fn size(&self) -> usize {
        self.text.len()
    }

    /// The same event without the objects, which says so.
    pub fn truncated(&self) -> Event {
        let mut annotations = self.annotations.clone().unwrap_or_default();
        annotations.set(TRUNCATED.into(), "true".into());
        let mut text = self.text[..self.objects.start].to_vec();
        text.extend_from_slice(&self.text[self.objects.end..self.end]);
        let (objects, end) = (self.objects.start..self.objects.start, text.len());
        annotations.append_to(&mut text);
        text.push(b'}');
        Event { text, objects, end, annotations: None, line: self.line.clone(), ..*self }
    }

    /// As a document of its own, in one line.
    pub fn document(&self) -> &[u8] {
        &self.text
    }

    /// As one of the items of a list.
    pub fn item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        out.extend_from_slice(&self.text[HEAD.len()..]);
    }

    /// The end of a request with this identity.
    #[cfg(test)]
    pub fn for_tests(id: &str) -> Event {
        let received = Timestamp::UNIX_EPOCH;
        let (level, user, about) = (Level::Metadata, None, None);
        let facts = Facts { level, id, uri: "/", verb: "get", user, addresses: &[], agent: "".into(), received, about };
        let end = (Stage::ResponseComplete, Some(received));
        Event::of(level, &Told::of(&facts, false), &Course::default(), None, end)
    }

    /// In the old form.
    pub fn line(&self) -> &str {
        self.line.as_deref().unwrap_or_default()
    }
}

/// An address is written for each request, and nearly always one of four numbers.
fn address(out: &mut Vec<u8>, address: &IpAddr) {
    let IpAddr::V4(four) = address else { return written(out, format_args!("{address}")) };
    for (at, number) in four.octets().into_iter().enumerate() {
        if at > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
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
struct Line {
    id: String,
    uri: String,
    verb: &'static str,
    user: Option<Arc<User>>,
    address: Option<IpAddr>,
    agent: String,
    received: Timestamp,
}

impl Line {
    fn of(facts: &Facts<'_>) -> Self {
        Line {
            id: facts.id.to_owned(),
            uri: facts.uri.to_owned(),
            verb: facts.verb,
            user: facts.user.cloned(),
            address: facts.addresses.first().copied(),
            agent: facts.agent.clone().into_owned(),
            received: facts.received,
        }
    }

    fn text(&self, course: &Course, about: Option<&Reference<'_>>, stage: Stage) -> String {
        let quoted = |texts: &[String]| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(",");
        let of = |user: Option<&Arc<User>>, nobody: &str, none: &str| {
            let groups = user.filter(|user| !user.groups.is_empty()).map(|user| quoted(&user.groups));
            (user.map_or(nobody.to_owned(), |user| user.name.clone()), groups.unwrap_or(none.to_owned()))
        };
        let (name, groups) = of(self.user.as_ref(), "<none>", "<none>");
        let (as_name, as_groups) = of(course.impersonated.as_ref().map(|(user, _)| user), "<self>", "<lookup>");
        let of_object = course.object.as_ref().map(|object| object.namespace.as_str());
        let of_path = about.map(|about| about.namespace);
        let namespace = [of_path, of_object].into_iter().flatten().find(|name| !name.is_empty());
        let code = course.status.as_ref().map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let address = self.address.map_or("<unknown>".to_owned(), |address| address.to_string());
        let mut line = format!("{} AUDIT: id={:?} stage={:?} ip={address:?}", self.received, self.id, stage.name());
        let _ = write!(line, " method={:?} user={name:?} groups={groups:?} as={as_name:?}", self.verb);
        let _ = write!(line, " asgroups={as_groups:?} user-agent={:?}", self.agent);
        let _ = write!(line, " namespace={:?} uri={:?} response=\"{code}\"", namespace.unwrap_or("<none>"), self.uri);
        line
    }
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    fn course() -> Course {
        let status = json!({"status": "Failure", "message": "m", "reason": "r", "details": {"name": "n"}});
        let mut annotations = Annotations::default();
        annotations.add("k".into(), "v".into());
        Course {
            impersonated: Some((Arc::new(User::new("joe", ["ops"])), Some("impersonate:user-info"))),
            object: None,
            status: Some(Status::of(404, &status)),
            request: Some(b"{\"a\":1}".to_vec()),
            response: Some(b"[]".to_vec()),
            annotations,
        }
    }

    fn event(change: impl FnOnce(&mut Facts<'_>), course: &Course, stage: Stage, time: Option<&str>) -> Event {
        let mut user = User::new("jane", ["dev"]);
        user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let user = Arc::new(user);
        let about = Some(Reference { resource: "pods", version: "v1", ..Reference::default() });
        let mut facts = Facts {
            level: Level::RequestResponse,
            id: "id",
            uri: "/api/v1/pods?x=\"",
            verb: "list",
            user: Some(&user),
            addresses: &["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            agent: "test".into(),
            received: "2024-01-01T00:00:00Z".parse().unwrap(),
            about,
        };
        change(&mut facts);
        let at = (stage, time.map(|time| time.parse().unwrap()));
        Event::of(facts.level, &Told::of(&facts, true), course, facts.about, at)
    }

    fn text(event: &Event) -> String {
        String::from_utf8(event.document().to_vec()).unwrap()
    }

    const BEGINNING: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id","stage":"ResponseComplete","requestURI":"/api/v1/pods?x=\"","verb":"list","user":{"username":"jane","groups":["dev"],"extra":{"k":["v"]}},"impersonatedUser":{"username":"joe","groups":["ops"]},"authenticationMetadata":{"impersonationConstraint":"impersonate:user-info"},"sourceIPs":["10.0.0.1","2001:db8::1"],"userAgent":"test","objectRef":{"resource":"pods","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","message":"m","reason":"r","details":{"name":"n"},"code":404}"#;
    const TAIL: &str =
        r#","requestReceivedTimestamp":"2024-01-01T00:00:00.000000Z","stageTimestamp":"2024-01-01T00:00:01.500000Z""#;

    #[test]
    fn fields_stand_in_upstreams_order() {
        let event = event(|_| {}, &course(), Stage::ResponseComplete, Some("2024-01-01T00:00:01.5Z"));
        let objects = r#","requestObject":{"a":1},"responseObject":[]"#;
        assert_eq!(text(&event), format!("{BEGINNING}{objects}{TAIL},\"annotations\":{{\"k\":\"v\"}}}}"));
        let mut item = Vec::new();
        event.item(&mut item);
        assert!(item.starts_with(b"{\"level\":") && text(&event).as_bytes().ends_with(&item[1..]));
        let marked = r#","annotations":{"audit.k8s.io/truncated":"true","k":"v"}}"#;
        assert_eq!(text(&event.truncated()), format!("{BEGINNING}{TAIL}{marked}"));
        let line = r#"2024-01-01T00:00:00Z AUDIT: id="id" stage="ResponseComplete" ip="10.0.0.1" method="list" user="jane" groups="\"dev\"" as="joe" asgroups="\"ops\"" user-agent="test" namespace="<none>" uri="/api/v1/pods?x=\"" response="404""#;
        assert_eq!(event.line(), line);
    }

    #[test]
    fn the_object_says_what_the_path_does_not() {
        let identity =
            || Identity { namespace: "b".to_owned(), name: "n".to_owned(), uid: "u".to_owned(), ..Identity::default() };
        let course = || Course { object: Some(Box::new(identity())), ..Course::default() };
        let named = |facts: &mut Facts<'_>| facts.about.as_mut().unwrap().namespace = "a";
        let value = json::parse(&text(&event(named, &course(), Stage::ResponseComplete, None))).unwrap();
        let expected = json!({"resource": "pods", "namespace": "a", "name": "n", "uid": "u", "apiVersion": "v1"});
        assert_eq!(value["objectRef"], expected);
        assert_eq!(value["stageTimestamp"], value["requestReceivedTimestamp"]);
        let nowhere = event(|facts| facts.about = None, &course(), Stage::ResponseComplete, None);
        let value = json::parse(&text(&nowhere)).unwrap();
        assert_eq!(value["objectRef"], json!({"namespace": "b", "name": "n", "uid": "u"}));
        assert!(nowhere.line().contains("namespace=\"b\""), "{}", nowhere.line());
    }

    #[test]
    fn what_is_not_known_is_not_there() {
        let unknown = |facts: &mut Facts<'_>| {
            (facts.user, facts.addresses, facts.agent, facts.about) = (None, &[], "".into(), None);
        };
        let value = json::parse(&text(&event(unknown, &Course::default(), Stage::RequestReceived, None))).unwrap();
        assert_eq!((&value["user"], &value["sourceIPs"]), (&json!({}), &json!([])));
        for absent in ["userAgent", "objectRef", "responseStatus", "requestObject", "annotations", "impersonatedUser"] {
            assert!(value.get(absent).is_none(), "{absent}");
        }
    }
}
