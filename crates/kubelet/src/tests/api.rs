//! An API server in memory: it keeps objects of any kind and tells watchers about them. It knows no rules.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::tests::world::Gate;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// One object by its place in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    plural: String,
    namespace: String,
    name: String,
    subresource: String,
}

impl Place {
    /// The place that a path names. The name of a collection is empty.
    fn of(path: &str) -> Place {
        let mut parts = path.split('/').filter(|p| !p.is_empty());
        let versions = if parts.next() == Some("api") { 1 } else { 2 };
        let mut parts = parts.skip(versions).map(str::to_owned).peekable();
        let mut namespace = String::new();
        if parts.peek().is_some_and(|p| p == "namespaces") {
            parts.next();
            namespace = parts.next().unwrap_or_default();
        }
        let mut next = || parts.next().unwrap_or_default();
        Place { plural: next(), namespace, name: next(), subresource: next() }
    }

    /// Whether this collection holds that object.
    fn holds(&self, other: &Place) -> bool {
        self.plural == other.plural && (self.namespace.is_empty() || self.namespace == other.namespace)
    }
}

/// A change of an object: the word of the watch event and the object afterwards.
type Change = (Place, &'static str, Value);

#[derive(Default)]
struct State {
    objects: Vec<(Place, Value)>,
    /// The first change has revision 1.
    changes: Vec<Change>,
    events: Vec<Value>,
}

/// How the server takes requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mood {
    Answers,
    /// Nothing comes back until it is in another mood.
    Hangs,
    /// Every request is refused, as by a server that is overloaded.
    Refuses,
}

#[derive(Clone)]
pub struct Api {
    state: Arc<Mutex<State>>,
    revision: watch::Sender<usize>,
    gate: Gate,
    pub mood: watch::Sender<Mood>,
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).expect("a plain answer")
}

fn failed(code: u16, reason: &str) -> Response<Body> {
    answer(code, &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}))
}

/// Merges as the statuses of this kubelet need it: conditions by their type, other lists as a whole.
fn merge(held: &mut Value, patch: &Value) {
    let (Some(held), Some(patch)) = (held.as_object_mut(), patch.as_object()) else { return *held = patch.clone() };
    for (key, value) in patch {
        let old = held.entry(key.clone()).or_insert(Value::Null);
        match value {
            Value::Null => drop(held.remove(key)),
            Value::Object(_) if old.is_object() => merge(old, value),
            Value::Object(_) => {
                *old = json!({});
                merge(old, value);
            }
            Value::Array(fresh) if key == "conditions" => {
                let mut all = old.as_array().cloned().unwrap_or_default();
                for one in fresh {
                    if one["$patch"] == "delete" {
                        all.retain(|c| c["type"] != one["type"]);
                        continue;
                    }
                    match all.iter_mut().find(|c| c["type"] == one["type"]) {
                        Some(same) => merge(same, one),
                        None => all.push(one.clone()),
                    }
                }
                *old = all.into();
            }
            Value::Array(fresh) => *old = fresh.iter().filter(|v| v.get("$patch").is_none()).cloned().collect(),
            plain => *old = plain.clone(),
        }
    }
}

impl State {
    fn note(&mut self, place: &Place, what: &'static str, mut object: Value) -> Value {
        object["metadata"]["resourceVersion"] = (self.changes.len() + 1).to_string().into();
        self.objects.retain(|(held, _)| held != place);
        if what != "DELETED" {
            self.objects.push((place.clone(), object.clone()));
        }
        self.changes.push((place.clone(), what, object.clone()));
        object
    }

    fn get(&self, place: &Place) -> Option<Value> {
        self.objects.iter().find(|(held, _)| held == place).map(|(_, object)| object.clone())
    }
}

impl Api {
    pub fn new(gate: Gate) -> Self {
        Api { state: Arc::default(), revision: watch::Sender::new(0), gate, mood: watch::Sender::new(Mood::Answers) }
    }

    pub fn client(&self) -> client::Client {
        let api = self.clone();
        client::in_process(tower::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.respond(request).await) }
        }))
    }

    /// An object as it is, by the path of its collection and its name.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().get(&Place::of(path))
    }

    /// The objects of a collection, the oldest write first.
    pub fn all(&self, path: &str) -> Vec<Value> {
        let place = Place::of(path);
        self.state.lock().objects.iter().filter(|(held, _)| place.holds(held)).map(|(_, o)| o.clone()).collect()
    }

    /// The events about an object of that name, as `reason message`.
    pub fn events(&self, name: &str) -> Vec<String> {
        let state = self.state.lock();
        let about = state.events.iter().filter(|event| event["involvedObject"]["name"] == *name);
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        about.map(|event| format!("{} {}", text(event, "reason"), text(event, "message"))).collect()
    }

    /// How often an event with this message was told again.
    pub fn repeated(&self, message: &str) -> usize {
        let is_again = |event: &&Value| event["count"].as_u64() > Some(1) && event["message"] == *message;
        self.state.lock().events.iter().filter(is_again).count()
    }

    /// Whether an object of that name has ever been so.
    pub fn was_ever(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> bool {
        self.state.lock().changes.iter().any(|(place, _, object)| place.name == name && is_so(object))
    }

    /// Whether there was an event with these words.
    pub fn has_said(&self, words: &str) -> bool {
        let state = self.state.lock();
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let said = |event: &Value| format!("{}: {}", text(event, "reason"), text(event, "message"));
        state.events.iter().any(|event| said(event).contains(words))
    }

    pub fn remove(&self, path: &str) {
        let place = Place::of(path);
        let mut state = self.state.lock();
        let held = state.get(&place).unwrap_or_default();
        state.note(&place, "DELETED", held);
        self.revision.send_replace(state.changes.len());
    }

    /// Makes an object, or puts it in the place of the one that is there.
    pub fn put(&self, path: &str, object: Value) {
        let place = Place::of(path);
        let mut state = self.state.lock();
        let what = if state.get(&place).is_some() { "MODIFIED" } else { "ADDED" };
        state.note(&place, what, object);
        self.revision.send_replace(state.changes.len());
    }

    async fn respond(&self, request: Request<client::Body>) -> Response<Body> {
        // The sender lives as long as this.
        let _ = self.mood.subscribe().wait_for(|mood| *mood != Mood::Hangs).await;
        if *self.mood.borrow() == Mood::Refuses {
            return failed(503, "ServiceUnavailable");
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let place = Place::of(parts.uri.path());
        let query = parts.uri.query().unwrap_or_default().replace("%3D", "=").replace("%2C", ",");
        // Nobody waits for events.
        if place.plural == "events" {
            self.state.lock().events.push(body.clone());
            return answer(201, &body);
        }
        if place.subresource == "token" {
            let seconds = body["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
            let until = clock::now().checked_add(clock::Duration::from_secs(seconds)).unwrap_or_default();
            let status = json!({"token": "a-token", "expirationTimestamp": until.to_string()});
            return answer(201, &json!({"kind": "TokenRequest", "spec": {"audiences": []}, "status": status}));
        }
        // Only what concerns Pods is worth a death.
        let concerns_pods = ["pods", "configmaps", "secrets", "resourceclaims"].contains(&place.plural.as_str());
        if concerns_pods {
            self.gate.pass().await;
        }
        let answered = self.answer(&parts.method, place, &query, body);
        if concerns_pods {
            self.gate.pass().await;
        }
        answered
    }

    fn answer(&self, method: &Method, mut place: Place, query: &str, mut body: Value) -> Response<Body> {
        let mut state = self.state.lock();
        if *method == Method::GET && place.name.is_empty() {
            return if query.contains("watch=true") { self.watch(place, query) } else { list(&state, &place, query) };
        }
        if *method == Method::POST {
            if let Some(prefix) = body["metadata"]["generateName"].as_str() {
                body["metadata"]["name"] = format!("{prefix}{}", state.changes.len()).into();
            }
            place.name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if state.get(&place).is_some() {
                return failed(409, "AlreadyExists");
            }
            body["metadata"]["uid"] = format!("uid-of-{}", place.name).into();
            let made = state.note(&place, "ADDED", body);
            self.revision.send_replace(state.changes.len());
            return answer(201, &made);
        }
        let asked_uid = match *method {
            Method::DELETE => body["preconditions"]["uid"].clone(),
            _ => body["metadata"]["uid"].clone(),
        };
        place.subresource.clear();
        let Some(mut object) = state.get(&place) else { return failed(404, "NotFound") };
        if !asked_uid.is_null() && asked_uid != object["metadata"]["uid"] {
            return failed(409, "Conflict");
        }
        let what = match *method {
            Method::PATCH => {
                merge(&mut object, &body);
                "MODIFIED"
            }
            Method::DELETE => "DELETED",
            _ => return answer(200, &object),
        };
        let now = state.note(&place, what, object);
        self.revision.send_replace(state.changes.len());
        answer(200, &now)
    }

    fn watch(&self, place: Place, query: &str) -> Response<Body> {
        let from = query.split('&').find_map(|q| q.strip_prefix("resourceVersion=")?.parse().ok()).unwrap_or(0);
        let (state, query) = (self.state.clone(), query.to_owned());
        let lines = stream::unfold((from, self.revision.subscribe()), move |(at, mut revision): (usize, _)| {
            let (state, place, query) = (state.clone(), place.clone(), query.clone());
            async move {
                revision.wait_for(|now| *now > at).await.ok()?;
                let (changed, what, object) = state.lock().changes[at].clone();
                let concerns = place.holds(&changed) && is_selected(&object, &query);
                let line = concerns.then(|| format!("{}\n", json!({"type": what, "object": object})));
                Some((line, (at + 1, revision)))
            }
        });
        let frames = lines.filter_map(|line| std::future::ready(line.map(|l| Ok(Frame::data(Bytes::from(l))))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// Whether the field selector takes an object.
fn is_selected(object: &Value, query: &str) -> bool {
    let fields = query.split('&').find_map(|q| q.strip_prefix("fieldSelector=")).unwrap_or_default();
    fields
        .split(',')
        .filter_map(|one| one.split_once('='))
        .all(|(path, value)| path.split('.').fold(object, |at, part| &at[part]).as_str() == Some(value))
}

fn list(state: &State, place: &Place, query: &str) -> Response<Body> {
    let found = state.objects.iter().filter(|(held, object)| place.holds(held) && is_selected(object, query));
    let items: Vec<&Value> = found.map(|(_, object)| object).collect();
    let revision = state.changes.len().to_string();
    answer(200, &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": revision}, "items": items}))
}
