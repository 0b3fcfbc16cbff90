//! Conversations for tests: requests as text against the in-process server, over a store in memory.

use std::sync::Arc;

use api::{
    Value,
    features::{Features, RuntimeConfig},
    status::StatusError,
};
use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use http::Request;
use http_body_util::BodyExt;

use crate::{
    Server, User,
    admission::attributes::{Admission, Attributes},
    auth::AlwaysAllow,
    custom,
    http::{
        access::{Authenticator, Known, Stranger},
        body::{Body, BoxError},
        encoding::Encoding,
    },
    outbound::webhook::Webhooks,
    router::Router,
    special::table::Specials,
    state::{Limits, State},
    storage::{kinds::Kinds, object_store::ObjectStore},
};

struct Nobody;

impl Authenticator for Nobody {
    fn authenticate<'a>(&'a self, _: &'a http::request::Parts) -> BoxFuture<'a, Result<Option<Known>, Stranger>> {
        Box::pin(async { Ok(None) })
    }
}

struct AdmitsAll;

impl Admission for AdmitsAll {
    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), StatusError>> {
        Box::pin(async { Ok(()) })
    }

    fn validate<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), StatusError>> {
        Box::pin(async { Ok(()) })
    }
}

pub struct Conversation {
    pub server: Server,
}

pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    /// `200` and the value at a JSON pointer.
    pub fn at(&self, pointer: &str) -> Value {
        self.json().pointer(pointer).cloned().unwrap_or(Value::Null)
    }

    pub fn message(&self) -> String {
        self.at("/message").as_str().unwrap_or("").to_owned()
    }
}

impl Conversation {
    pub async fn start() -> Self {
        Self::with(Specials::default()).await
    }

    /// With resources that the verbs do not cover.
    pub async fn with(specials: Specials) -> Self {
        Self::over(Arc::new(store::embedded::Embedded::memory()), specials).await
    }

    /// Where the gate `CBORServingAndStorage` is on.
    pub async fn with_cbor() -> Self {
        let store = Arc::new(store::embedded::Embedded::memory());
        Self::made(store, Specials::default(), Encoding::WITH_CBOR, Kinds::default()).await
    }

    /// With what `--runtime-config` switches on.
    pub async fn serving(runtime_config: &str) -> Self {
        Self::serving_with("", runtime_config).await
    }

    /// With what `--feature-gates` and `--runtime-config` switch on.
    pub async fn serving_with(gates: &str, runtime_config: &str) -> Self {
        let runtime_config = RuntimeConfig::parse(&[runtime_config.to_owned()]).unwrap();
        let features = Features::set(&api::features::settings(gates).unwrap()).unwrap();
        let kinds = Kinds::new(Arc::new(api::kinds::table(features, &runtime_config).0));
        let store = Arc::new(store::embedded::Embedded::memory());
        Self::made(store, Specials::default(), Encoding::USUAL, kinds).await
    }

    /// Over a store of the test's own.
    pub async fn over(store: Arc<dyn store::Store>, specials: Specials) -> Self {
        Self::made(store, specials, Encoding::USUAL, Kinds::default()).await
    }

    async fn made(
        store: Arc<dyn store::Store>,
        specials: Specials,
        encodings: &'static [Encoding],
        kinds: Kinds,
    ) -> Self {
        clock::simulate(clock::Timestamp::from_second(1_700_000_000).unwrap(), 1);
        let objects = ObjectStore::with_kinds(store, kinds).await.unwrap();
        let (authorizer, admission) = (Arc::new(AlwaysAllow), Arc::new(AdmitsAll));
        let mut state = State::new(objects, authorizer, admission, Vec::new(), Limits::default());
        state.encodings = encodings;
        let state = Arc::new(state);
        let mut background = tokio::task::JoinSet::new();
        let webhooks = Arc::new(Webhooks::new(&state.objects, state.aggregator.routing));
        custom::start(&state, webhooks, Features::default(), &mut background).await.unwrap();
        let router = Router { specials, background, ..Router::new(state, Arc::new(Nobody)) };
        Conversation { server: Server::new(router) }
    }

    /// `say("POST /api/v1/namespaces", "{…}")`; more header lines may follow the first line.
    pub async fn say(&self, head: &str, body: impl AsRef<[u8]>) -> Answer {
        let response = self.send(head, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect(1 << 30).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { code: parts.status.as_u16(), headers: parts.headers, text }
    }

    pub async fn say_bytes(&self, head: &str) -> bytes::Bytes {
        self.send(head, "").await.into_body().collect(1 << 30).await.unwrap()
    }

    pub async fn send(&self, head: &str, body: impl AsRef<[u8]>) -> http::Response<Body> {
        let mut lines = head.lines();
        let (method, uri) = lines.next().unwrap().split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri).header("user-agent", "test/1");
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        request = request.extension(Arc::new(User::new("tester", ["system:masters"])));
        self.server.handle(request.body(Body::from(body.as_ref().to_vec())).unwrap()).await
    }

    /// Opens a watch.
    pub async fn watch(&self, uri: &str) -> Lines {
        let response = self.send(&format!("GET {uri}"), "").await;
        assert_eq!(response.status(), 200);
        Lines { stream: BodyExt::into_data_stream(response.into_body()).boxed(), buffer: Vec::new() }
    }
}

/// The events of a watch.
pub struct Lines {
    stream: BoxStream<'static, Result<bytes::Bytes, BoxError>>,
    buffer: Vec<u8>,
}

impl Lines {
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = self.stream.next().await?.unwrap();
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// `ADDED a`, with the object's name.
    pub async fn line(&mut self) -> String {
        let Some(event) = self.next().await else { return "END".to_owned() };
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("");
        format!("{} {name}", event["type"].as_str().unwrap_or("?")).trim_end().to_owned()
    }
}
