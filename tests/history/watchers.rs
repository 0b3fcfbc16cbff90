//! Watchers that begin with a list and come back wherever they were cut, as informers do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{Client, Error, rest};
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    clients::{List, OBJECTS, Shown, is_ours, read},
    record::{Kind, Object, Revision, Seen},
};

/// The most seconds after which a watch is asked to end by itself.
const TIMEOUT_SECONDS: u64 = 4;
/// The silence after which a watch hangs: it should have ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a watcher behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Always there.
    Attentive,
    /// Takes the first state from the watch itself (`sendInitialEvents`), and asks for bookmarks.
    Streaming,
    /// Stays away for a while between its watches, so that others forget the past meanwhile.
    Lazy,
}

pub struct Watcher {
    manner: Manner,
    servers: Vec<Client>,
    seen: Vec<Seen>,
    reached: Option<Revision>,
    /// Where this one is, and where all are done.
    pub place: Arc<AtomicU64>,
    pub end: Arc<AtomicU64>,
}

/// Why a watch is over.
enum Over {
    /// It can go on from where it was.
    Cut,
    /// The past is forgotten.
    Forgotten,
}

#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
}

impl Watcher {
    /// It goes on until it has seen what `end` says, once that is something.
    pub fn new(manner: Manner, servers: Vec<Client>, end: Arc<AtomicU64>) -> Self {
        Watcher { manner, servers, seen: Vec::new(), reached: None, place: Arc::default(), end }
    }

    /// One that was away since it saw these objects.
    pub fn coming_back(revision: Revision, objects: Vec<Object>, servers: Vec<Client>, end: Arc<AtomicU64>) -> Self {
        let seen = vec![Seen::Listed(revision, objects)];
        Watcher { manner: Manner::Attentive, servers, seen, reached: Some(revision), place: Arc::default(), end }
    }

    pub async fn run(mut self) -> Vec<Seen> {
        while !self.is_done() {
            let server = self.servers[clock::random_range(0..self.servers.len() as u64) as usize].clone();
            let outcome = match (self.reached, self.manner) {
                (None, Manner::Streaming) => self.watch(&server, None).await,
                (None, _) => self.list(&server).await,
                (from, _) => self.watch(&server, from).await,
            };
            match outcome {
                Ok(Over::Forgotten) => self.reached = None,
                Ok(Over::Cut) if self.manner == Manner::Lazy => {
                    tokio::time::sleep(Duration::from_millis(clock::random_range(0..1500))).await;
                }
                Ok(Over::Cut) => {}
                Err(Error::Api(status)) if status.code == 410 => self.reached = None,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        self.seen
    }

    fn is_done(&self) -> bool {
        let end = self.end.load(Ordering::SeqCst);
        end > 0 && self.reached.is_some_and(|reached| reached >= end)
    }

    fn reach(&mut self, revision: Revision) {
        self.reached = Some(revision);
        self.place.store(revision, Ordering::SeqCst);
    }

    async fn list(&mut self, server: &Client) -> Result<Over, Error> {
        let body = rest::read(server, OBJECTS, rest::Form::Whole);
        let body = tokio::time::timeout(PATIENCE, body).await.expect("a list is answered")?;
        let list: List = read(&body);
        let revision = list.metadata.revision();
        self.seen.push(Seen::Listed(revision, list.objects()));
        self.reach(revision);
        Ok(Over::Cut)
    }

    /// Watches from a revision on, or from the present state, which comes first.
    async fn watch(&mut self, server: &Client, from: Option<Revision>) -> Result<Over, Error> {
        let (timeout, revision) =
            (clock::random_range(1..TIMEOUT_SECONDS + 1).to_string(), from.map(|r| r.to_string()));
        let mut query = vec![("watch", "true"), ("timeoutSeconds", timeout.as_str())];
        match &revision {
            Some(revision) => query.push(("resourceVersion", revision)),
            None => query.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]),
        }
        if self.manner == Manner::Streaming {
            query.push(("allowWatchBookmarks", "true"));
        }
        let path = rest::with_query(OBJECTS.to_owned(), &query);
        let opened = rest::open(server, Method::GET, &path, "application/json", "", Vec::new());
        let opened = tokio::time::timeout(PATIENCE, opened).await.expect("a watch is answered");
        let mut body = opened?.into_body();
        let (mut rest, mut initial) = (Vec::new(), from.is_none().then(Vec::new));
        loop {
            let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
            let frame = frame.unwrap_or_else(|_| panic!("a watch of {timeout} seconds hangs ({path})"));
            let Some(frame) = frame.transpose()? else { return Ok(Over::Cut) };
            rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            let complete = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in rest[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                if let Some(over) = self.take(line, &mut initial) {
                    return Ok(over);
                }
            }
            rest.drain(..complete);
            if self.is_done() {
                return Ok(Over::Cut);
            }
        }
    }

    /// One line of a watch. `initial` gathers the first state until its end is told.
    fn take(&mut self, line: &[u8], initial: &mut Option<Vec<Object>>) -> Option<Over> {
        let line: Line<'_> = read(line);
        if line.r#type == "ERROR" {
            let status: Status = read(line.object.get().as_bytes());
            return Some(if status.code == 410 { Over::Forgotten } else { Over::Cut });
        }
        let shown: Shown = read(line.object.get().as_bytes());
        let revision = shown.revision();
        let is_end = shown.metadata.annotations.contains_key("k8s.io/initial-events-end");
        match (line.r#type, initial.take()) {
            ("BOOKMARK", Some(objects)) if is_end => {
                self.seen.push(Seen::Listed(revision, objects));
                self.reach(revision);
            }
            ("ADDED", Some(mut objects)) => {
                let object = shown.object();
                objects.extend(is_ours(&object.name).then_some(object));
                *initial = Some(objects);
            }
            ("BOOKMARK", None) => {
                self.seen.push(Seen::Bookmark(revision));
                self.reach(revision);
            }
            (kind, None) => {
                let kind = match kind {
                    "ADDED" => Kind::Added,
                    "MODIFIED" => Kind::Modified,
                    "DELETED" => Kind::Deleted,
                    other => panic!("no kind of event: {other}"),
                };
                let object = shown.object();
                if is_ours(&object.name) {
                    self.seen.push(Seen::Event(kind, object));
                }
                // Behind another one's event nothing of before may come.
                self.reach(revision);
            }
            (kind, Some(_)) => panic!("{kind} among the first events"),
        }
        None
    }
}
