//! Clients that write and read the same few objects, as fast as they are answered, and write down what came of it.

use std::{collections::HashMap, time::Duration};

use client::{Client, Error, rest};
use http::Method;
use json::json;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::record::{Answer, Call, Fresh, Object, Recorder, Revision};

pub const OBJECTS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "application/json";
/// So few that clients meet at them.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// A request that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The part that is read of an object.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Shown {
    pub metadata: Metadata,
    data: HashMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    name: String,
    uid: String,
    pub resource_version: String,
    pub annotations: HashMap<String, String>,
    #[serde(rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
pub struct List {
    pub metadata: Metadata,
    items: Vec<Shown>,
}

impl Shown {
    pub fn object(mut self) -> Object {
        let value = self.data.remove("value").unwrap_or_default();
        Object { revision: self.revision(), name: self.metadata.name, uid: self.metadata.uid, value }
    }

    pub fn revision(&self) -> Revision {
        self.metadata.revision()
    }
}

impl Metadata {
    pub fn revision(&self) -> Revision {
        self.resource_version.parse().unwrap_or_else(|_| panic!("a revision: {:?}", self.resource_version))
    }
}

impl List {
    pub fn objects(self) -> Vec<Object> {
        // An object that the cluster keeps in the namespace is nobody's here.
        self.items.into_iter().map(Shown::object).filter(|object| is_ours(&object.name)).collect()
    }
}

pub fn is_ours(name: &str) -> bool {
    name == END || NAMES.contains(&name)
}

/// The object that is written when everything is over.
pub const END: &str = "end";

/// A request, answered in time or not at all.
async fn ask(client: &Client, method: Method, path: &str, kind: &str, body: String) -> Result<Vec<u8>, Error> {
    let request = async {
        let response = rest::open(client, method.clone(), path, JSON, kind, body.into()).await?;
        Ok(response.into_body().collect_bytes().await?.to_vec())
    };
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| panic!("{method} {path} is not answered"))
}

fn answer(outcome: Result<Vec<u8>, Error>, read: impl FnOnce(&[u8]) -> Answer) -> Answer {
    match outcome {
        Ok(body) => read(&body),
        Err(Error::Api(status)) => match (status.code, status.reason.as_str()) {
            (404, _) => Answer::Absent,
            (409, "AlreadyExists") => Answer::Exists,
            (409, _) => Answer::Changed,
            (410, _) => Answer::Forgotten,
            (429 | 500.., _) => Answer::Unknown,
            _ => panic!("an answer that makes no sense: {status:?}"),
        },
        Err(_) => Answer::Unknown,
    }
}

/// Reads an answer, which is as it should be: one that was cut off is told as an error before.
pub fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> T {
    serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body)))
}

fn object(name: &str, value: &str, over: Option<Revision>) -> String {
    let mut object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}});
    if let Some(over) = over {
        object["metadata"]["resourceVersion"] = json!(over.to_string());
    }
    object.to_string()
}

/// Does what is called for.
pub async fn carry_out(client: &Client, call: &Call) -> Answer {
    let written = |body: &[u8]| Answer::Written(read::<Shown>(body).object());
    match call {
        Call::Create { name, value } => {
            answer(ask(client, Method::POST, OBJECTS, JSON, object(name, value, None)).await, written)
        }
        Call::Replace { name, value, over } => {
            let path = format!("{OBJECTS}/{name}");
            answer(ask(client, Method::PUT, &path, JSON, object(name, value, *over)).await, written)
        }
        Call::Patch { name, value } => {
            let (path, patch) = (format!("{OBJECTS}/{name}"), json!({"data": {"value": value}}).to_string());
            answer(ask(client, Method::PATCH, &path, "application/merge-patch+json", patch).await, written)
        }
        Call::Delete { name, over } => {
            #[derive(Deserialize)]
            struct Gone {
                details: Details,
            }
            #[derive(Deserialize)]
            struct Details {
                uid: String,
            }
            let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            if let Some(over) = over {
                options["preconditions"] = json!({"resourceVersion": over.to_string()});
            }
            let outcome = ask(client, Method::DELETE, &format!("{OBJECTS}/{name}"), JSON, options.to_string()).await;
            answer(outcome, |body| Answer::Deleted { uid: read::<Gone>(body).details.uid })
        }
        Call::Get { name } => {
            let outcome = ask(client, Method::GET, &format!("{OBJECTS}/{name}"), JSON, String::new()).await;
            answer(outcome, |body| Answer::Found(read::<Shown>(body).object()))
        }
        Call::List(fresh) => list(client, *fresh).await,
    }
}

async fn list(client: &Client, fresh: Fresh) -> Answer {
    let query = match fresh {
        // In pages, or at once.
        Fresh::Newest if clock::random_range(0..2) == 0 => return pages(client).await,
        Fresh::Newest => String::new(),
        Fresh::Any => "?resourceVersion=0".to_owned(),
        Fresh::Exactly(revision) => format!("?resourceVersionMatch=Exact&resourceVersion={revision}"),
    };
    let outcome = ask(client, Method::GET, &format!("{OBJECTS}{query}"), JSON, String::new()).await;
    answer(outcome, |body| {
        let list: List = read(body);
        Answer::Listed(list.metadata.revision(), list.objects())
    })
}

/// All pages of a list: they are of one revision.
async fn pages(client: &Client) -> Answer {
    let (mut objects, mut first, mut more) = (Vec::new(), None, String::new());
    loop {
        let path = client::rest::with_query(OBJECTS.to_owned(), &[("limit", "2"), ("continue", &more)]);
        let list: List = match ask(client, Method::GET, &path, JSON, String::new()).await {
            Ok(body) => read(&body),
            Err(_) => return Answer::Unknown,
        };
        let revision = list.metadata.revision();
        assert_eq!(*first.get_or_insert(revision), revision, "pages of one list");
        more.clone_from(&list.metadata.more);
        objects.extend(list.objects());
        if more.is_empty() {
            return Answer::Listed(revision, objects);
        }
    }
}

/// One client: which servers it asks, and what it has seen of the objects.
pub struct Worker {
    number: usize,
    servers: Vec<Client>,
    recorder: Recorder,
    count: usize,
    known: HashMap<String, Revision>,
    listed: Option<Revision>,
}

impl Worker {
    pub fn new(number: usize, servers: Vec<Client>, recorder: Recorder) -> Self {
        Worker { number, servers, recorder, count: 0, known: HashMap::new(), listed: None }
    }

    /// Works until it is told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let server = self.servers[clock::random_range(0..self.servers.len() as u64) as usize].clone();
            let call = self.next();
            if self.count.is_multiple_of(10) {
                noise(&server).await;
            }
            let answer = self.recorder.record(call.clone(), carry_out(&server, &call)).await;
            match answer {
                Answer::Written(object) | Answer::Found(object) => {
                    self.known.insert(object.name, object.revision);
                }
                Answer::Listed(revision, _) => self.listed = Some(revision),
                Answer::Unknown => until_ready(&server, &stop).await,
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Call {
        self.count += 1;
        let name = NAMES[clock::random_range(0..NAMES.len() as u64) as usize].to_owned();
        let value = format!("{}-{}", self.number, self.count);
        let over = self.known.get(&name).copied();
        match clock::random_range(0..100) {
            0..20 => Call::Create { name, value },
            20..35 => Call::Replace { name, value, over },
            35..40 => Call::Replace { name, value, over: None },
            40..52 => Call::Patch { name, value },
            52..58 => Call::Delete { name, over },
            58..64 => Call::Delete { name, over: None },
            64..85 => Call::Get { name },
            85..93 => Call::List(Fresh::Newest),
            93..96 => Call::List(Fresh::Any),
            _ => Call::List(self.listed.map_or(Fresh::Any, Fresh::Exactly)),
        }
    }
}

/// A write that moves the store's revision on, and that nobody here watches.
pub async fn noise(server: &Client) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "noise-"}}).to_string();
    let _ = ask(server, Method::POST, "/api/v1/namespaces/default/secrets", JSON, secret).await;
}

async fn until_ready(server: &Client, stop: &CancellationToken) {
    while !stop.is_cancelled() && rest::read(server, "/readyz", rest::Form::Whole).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
