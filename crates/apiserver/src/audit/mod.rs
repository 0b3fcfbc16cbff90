//! Audit: who asked for what, when, from where, and what became of it.
//!
//! `policy` decides how much is said of a request, once, when its sender is known. A `trail` goes with the request from then
//! on and gathers what is found out; `event` is a stage of it in text, a `sink` takes it to the log or the webhook.
//! Upstream counterpart: apiserver/pkg/audit and plugin/pkg/audit.

mod annotations;
mod answer;
pub mod batch;
mod event;
mod group;
pub mod log;
mod metrics;
mod output;
pub mod policy;
#[cfg(test)]
mod promises;
pub mod sink;
mod source;
#[cfg(test)]
mod tests;
mod trail;
pub mod webhook;

use std::sync::{Arc, atomic::Ordering};

use clock::Timestamp;
use http::{HeaderName, HeaderValue, request::Parts};
use listener::Answering;

use crate::{
    auth::User,
    http::{access::Peer, request::Info},
};

pub use answer::observed;
use event::{Event, Facts};
use metrics::Metrics;
use output::Output;
use policy::{Level, Policy};
use sink::{Mode, Sink, Truncation, Until};
pub use trail::{Trail, structure};

/// By which a request is found in the log, and which it may bring with it.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The policy of the audit, and where its events go.
pub struct Settings {
    pub policy: Policy,
    pub log: Option<(log::Log, Mode, Option<Truncation>)>,
    pub webhook: Option<(webhook::Webhook, Mode, Option<Truncation>)>,
}

/// The auditor that all requests share. There is none where nothing is audited.
pub struct Auditor {
    policy: Policy,
    sinks: Vec<Sink>,
    metrics: Arc<Metrics>,
    open: trail::Open,
}

impl Auditor {
    /// Work that goes on beside requests runs in `background`.
    pub fn new(settings: Settings, background: &mut tokio::task::JoinSet<()>) -> Arc<Self> {
        let metrics = Arc::<Metrics>::default();
        let log = settings.log.map(|(log, mode, most)| (Output::Log(Arc::new(log)), mode, most));
        let webhook = settings.webhook.map(|(webhook, mode, most)| (Output::Webhook(webhook), mode, most));
        let outputs = log.into_iter().chain(webhook);
        let sinks = outputs.map(|(output, mode, most)| Sink::new(output, mode, most, &metrics, background)).collect();
        Arc::new(Auditor { policy: settings.policy, sinks, metrics, open: trail::Open::default() })
    }

    /// Begins the trail of a request whose sender is known.
    pub async fn receive(
        self: &Arc<Self>,
        parts: &Parts,
        info: &Arc<Info>,
        user: &Arc<User>,
        begun: &Begun,
    ) -> Result<Trail, &'static str> {
        let trail = self.trail(parts, info, Some(user), begun);
        if !trail.received().await {
            self.metrics.rejected.fetch_add(1, Ordering::Relaxed);
            return Err("failed to store audit event");
        }
        Ok(trail)
    }

    /// The trail of a request that is refused before it is known who sent it, or because that cannot be known. It has one event,
    /// which says how it is answered.
    pub fn refuse(self: &Arc<Self>, parts: &Parts, info: &Arc<Info>, begun: &Begun) -> Trail {
        self.trail(parts, info, None, begun)
    }

    /// Nobody is known to have sent a request that is refused.
    fn trail(self: &Arc<Self>, parts: &Parts, info: &Arc<Info>, user: Option<&Arc<User>>, begun: &Begun) -> Trail {
        let decision = self.policy.decide(user.map(|user| &**user), info);
        self.metrics.decided(decision.level);
        if decision.level == Level::None {
            return Trail::default();
        }
        let addresses = source::addresses(parts);
        let facts = Facts {
            level: decision.level,
            id: begun.id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default(),
            uri: parts.uri.path_and_query().map_or("/", |uri| uri.as_str()),
            verb: info.verb,
            user,
            addresses: &addresses,
            agent: source::agent(&parts.headers),
            received: begun.received,
            about: trail::about(info),
        };
        let connection = parts.extensions.get::<Answering>().map(Answering::connection);
        Trail::new(self, decision, &facts, info, connection)
    }

    fn wants_lines(&self) -> bool {
        self.sinks.iter().any(Sink::wants_lines)
    }

    /// False when the request has to be refused, since it could not be told of.
    async fn take(&self, event: Event, until: Until<'_>) -> bool {
        self.metrics.events.fetch_add(1, Ordering::Relaxed);
        let Some((last, others)) = self.sinks.split_last() else { return true };
        let mut kept = true;
        for sink in others {
            kept &= sink.take(event.clone(), until, &self.metrics).await;
        }
        last.take(event, until, &self.metrics).await && kept
    }

    /// Completes the requests that are open still, since the server ends, and waits until all events have gone where they go.
    pub async fn end(&self) {
        for trail in self.open.all() {
            trail.complete().await;
        }
        self.flush().await;
    }

    /// Waits until what was taken has gone where it goes.
    pub async fn flush(&self) {
        for sink in &self.sinks {
            sink.flush().await;
        }
    }

    /// The lines for `/metrics`.
    pub fn render(&self) -> String {
        self.metrics.render()
    }
}

/// A request before it is known who sent it.
pub struct Begun {
    id: Option<HeaderValue>,
    received: Timestamp,
}

impl Begun {
    /// The identity that the request brings with it, or a new one. Callers inside this process have none where nobody would
    /// read it.
    pub fn of(parts: &Parts, audited: bool) -> Begun {
        let known = audited || parts.extensions.get::<Peer>().is_some();
        let given = || parts.headers.get(AUDIT_ID).filter(|id| !id.is_empty() && id.to_str().is_ok()).cloned();
        let made = || HeaderValue::try_from(clock::uuid()).ok();
        Begun { id: known.then(|| given().or_else(made)).flatten(), received: clock::now() }
    }

    pub fn received(&self) -> Timestamp {
        self.received
    }

    /// The identity, as far as one that is long is shown where it is no more than a hint.
    pub fn id(&self) -> &str {
        const SHOWN: usize = 64;
        let id = self.id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
        id.get(..SHOWN).unwrap_or(id)
    }

    pub fn into_id(self) -> Option<HeaderValue> {
        self.id
    }
}
