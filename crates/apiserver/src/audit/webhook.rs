//! The audit webhook: a server that is sent lists of events, several times if it does not take them.
//!
//! Upstream counterpart: apiserver/plugin/pkg/audit/webhook.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use clock::Duration;
use futures::future::BoxFuture;

use super::event::Event;
use crate::outbound::kubeconfig::{ConfigError, PATIENCE, Server, retried};

/// The most that is read of an answer. Nothing in it counts.
const ANSWER: usize = 1 << 20;

/// The way to the server: takes a list of events in JSON. The error says why it was not taken.
pub type Deliver = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

#[derive(Clone)]
pub struct Webhook {
    pub deliver: Deliver,
    /// The first pause.
    pub backoff: Duration,
}

impl Webhook {
    pub async fn send(&self, events: &[Event]) -> Result<(), String> {
        let text = list(events);
        let again = |why: &String| {
            tracing::debug!(why, "the audit webhook did not take its events");
            true
        };
        retried(self.backoff, again, || (self.deliver)(text.clone())).await
    }
}

/// The way to the server that a kubeconfig file names.
pub fn deliver(file: &Path) -> Result<Deliver, ConfigError> {
    let server = Arc::new(Server::of_file(file, PATIENCE)?);
    Ok(Arc::new(move |events| {
        let server = server.clone();
        Box::pin(async move {
            let answered = server.post("kube-apiserver-audit", events, ANSWER).await;
            answered.map(drop).map_err(|failure| failure.message)
        })
    }))
}

fn list(events: &[Event]) -> Bytes {
    let mut text = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        event.item(&mut text);
    }
    text.extend_from_slice(b"]}");
    text.into()
}
