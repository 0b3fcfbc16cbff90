//! The setting that the tests share: an API server over a store in memory, which asks nobody for credentials and admits
//! everything, and a client that learns late.

use std::{sync::Arc, time::Duration};

use api::features::{Features, RuntimeConfig};
use apiserver::{
    Server, User,
    admission::attributes::{Admission, Attributes},
    auth::{AlwaysAllow, user::GROUP_MASTERS},
    http::access::{Authenticator, Known, Stranger},
    router::Router,
    special,
    state::{Limits, State},
    storage::{kinds::Kinds, object_store::ObjectStore},
};
use client::{Body, Client, Object};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use http_body_util::{BodyStream, StreamBody};
use json::Value;
use store::embedded::Embedded;

struct Nobody;

impl Authenticator for Nobody {
    fn authenticate<'a>(&'a self, _: &'a http::request::Parts) -> BoxFuture<'a, Result<Option<Known>, Stranger>> {
        async { Ok(None) }.boxed()
    }
}

struct NoAdmission;

impl Admission for NoAdmission {
    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), api::status::StatusError>> {
        async { Ok(()) }.boxed()
    }

    fn validate<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), api::status::StatusError>> {
        async { Ok(()) }.boxed()
    }
}

/// All features, and every version of the API.
pub fn everything() -> (Features, RuntimeConfig) {
    let settings = api::features::settings("AllAlpha=true,AllBeta=true").unwrap();
    (Features::set(&settings).unwrap(), RuntimeConfig::parse(&["api/all=true".to_owned()]).unwrap())
}

/// Starts the server; all time and randomness from here on follow from the seed.
pub async fn server(seed: u64) -> Client {
    clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), seed);
    let (features, served) = everything();
    let kinds = Kinds::new(Arc::new(api::kinds::table(features, &served).0));
    let objects = ObjectStore::with_kinds(Arc::new(Embedded::memory()), kinds).await.unwrap();
    let state = State::new(objects, Arc::new(AlwaysAllow), Arc::new(NoAdmission), Vec::new(), Limits::default());
    let background = state.aggregator.start(&state.objects).await.unwrap();
    let mut router = Router::new(Arc::new(state), Arc::new(Nobody));
    router.background = background;
    router.specials = special::of_state();
    let server = Server::new(router);
    let user = User::new("system:test", [GROUP_MASTERS]).authenticated();
    client::in_process(server.in_process().as_user(user))
}

/// A client to which everything that a watch says comes this much later.
pub fn lagging(client: Client, lag: Duration) -> Client {
    client::in_process(tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move {
            let is_watch = request.uri().query().is_some_and(|q| q.contains("watch=true"));
            let answer = client.send(request).await?;
            Ok::<_, client::Error>(answer.map(|body| {
                let late = BodyStream::new(body).then(move |frame| async move {
                    if is_watch {
                        clock::sleep(lag).await;
                    }
                    frame
                });
                StreamBody::new(late)
            }))
        }
    }))
}

pub fn object<K: Object>(value: Value) -> K {
    K::from_json(&value.to_string()).unwrap()
}
