//! The audit webhook: a server that is sent lists of events, several times if it does not take them.
//!
//! Upstream counterpart: apiserver/plugin/pkg/audit/webhook.

use std::sync::Arc;

use bytes::Bytes;
use clock::Duration;
use futures::future::BoxFuture;

use super::event::Event;

/// Each time the pause grows by half, and by a fifth at random.
const TRIES: u32 = 5;

/// The way to the server: takes a list of events in JSON. The error says why it was not taken.
pub type Deliver = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

#[derive(Clone)]
pub struct Webhook {
    pub deliver: Deliver,
    /// The first pause.
    pub backoff: Duration,
}

impl Webhook {
    pub async fn send(&self, events: &[Arc<Event>]) -> Result<(), String> {
        let text = list(events);
        let mut pause = self.backoff;
        for _ in 1..TRIES {
            match (self.deliver)(text.clone()).await {
                Ok(()) => return Ok(()),
                Err(why) => tracing::debug!(why, "the audit webhook did not take its events"),
            }
            let jitter = clock::random_range(0..(pause.as_millis() as u64 / 5).max(1));
            clock::sleep(pause + Duration::from_millis(jitter)).await;
            pause += pause / 2;
        }
        (self.deliver)(text).await
    }
}

fn list(events: &[Arc<Event>]) -> Bytes {
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
