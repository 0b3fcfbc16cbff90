//! The state that every handler reads: the objects, who may do what, what admission and allocations say, and how much
//! is allowed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use api::{kind::Definition, status::StatusError};
use clock::Instant;

use crate::{
    admission::attributes::{Admission, Allocation},
    aggregator::Aggregator,
    audit::{Auditor, Trail},
    auth::{self, Attributes, Authorizer, Verdict, impersonation::Impersonation},
    fairness::Fairness,
    http::{encoding::Encoding, places::Levels},
    pages::metrics::Metrics,
    storage::object_store::ObjectStore,
};

/// `(group, plural)` of each kind with an allocation.
pub type Allocations = Vec<((&'static str, &'static str), Arc<dyn Allocation>)>;

/// Where the server says stop.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The time a request may take that is not long-running.
    pub request_timeout: Duration,
    /// A watch without a `timeoutSeconds` ends after this to twice this time.
    pub watch_timeout: Duration,
    pub body_bytes: usize,
    /// The seats that requests share by priority and fairness; `None` where nothing is shared out.
    pub seats: Option<u32>,
    /// How many requests one HTTP/2 connection has open at once.
    pub streams: u32,
    /// The time in which watches end when the server does; without any they all end at once.
    pub watch_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            request_timeout: Duration::from_secs(60),
            watch_timeout: Duration::from_secs(1800),
            body_bytes: 3 * 1024 * 1024,
            seats: Some(600),
            streams: listener::STREAMS,
            watch_grace: Duration::ZERO,
        }
    }
}

/// The state that all requests share.
pub struct State {
    pub objects: Arc<ObjectStore>,
    pub authorizer: Arc<dyn Authorizer>,
    /// How callers may act for others.
    pub impersonation: Impersonation,
    pub admission: Arc<dyn Admission>,
    /// Of the kinds whose objects hold something out of a limited supply.
    pub allocations: Allocations,
    pub limits: Limits,
    /// The encodings in which clients can have answers.
    pub encodings: &'static [Encoding],
    pub metrics: Arc<Metrics>,
    pub places: Levels,
    /// The fairness that gives seats to requests; `None` where all are equal.
    pub fairness: Option<Arc<Fairness>>,
    /// `None` where nothing is audited.
    pub auditor: Option<Arc<Auditor>>,
    /// `None` where no spans are sent.
    pub tracer: Option<Arc<spans::Tracer>>,
    /// Group versions that other servers serve.
    pub aggregator: Arc<Aggregator>,
    /// Where clients reach the server; `None` where they say.
    pub address: Option<SocketAddr>,
}

impl State {
    pub fn new(
        objects: Arc<ObjectStore>,
        authorizer: Arc<dyn Authorizer>,
        admission: Arc<dyn Admission>,
        allocations: Allocations,
        limits: Limits,
    ) -> Self {
        let metrics = objects.watches.metrics.clone();
        let places = Levels::new(metrics.clone());
        let (aggregator, encodings) = (Arc::default(), Encoding::USUAL);
        State {
            objects,
            authorizer,
            impersonation: Impersonation::default(),
            admission,
            allocations,
            limits,
            encodings,
            metrics,
            places,
            auditor: None,
            tracer: None,
            fairness: None,
            aggregator,
            address: None,
        }
    }

    /// The authorizers' verdict about a request; its trail is told why.
    pub async fn authorize(&self, attributes: &Attributes<'_>, trail: &Trail) -> Verdict {
        let verdict = self.decide(attributes).await;
        match &verdict {
            _ if !trail.is_on() => {}
            Verdict::Failed(_) => trail.annotate("authorization.k8s.io/reason", "internal error"),
            verdict => {
                let decision = if verdict.allowed() { "allow" } else { "forbid" };
                trail.annotate("authorization.k8s.io/decision", decision);
                trail.annotate("authorization.k8s.io/reason", verdict.reason().to_owned());
            }
        }
        verdict
    }

    async fn decide(&self, attributes: &Attributes<'_>) -> Verdict {
        let began = Instant::now();
        let verdict = self.authorizer.authorize(attributes).await;
        self.metrics.access.decided(&self.metrics.all, &verdict, began.elapsed());
        verdict
    }

    /// Whether the authorizers allow this; the error is the answer to who asked.
    pub async fn ask(&self, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        permitted(attributes, self.authorizer.authorize(attributes).await)
    }

    /// The supply that objects of this kind hold something of.
    pub fn allocation(&self, definition: &Definition) -> Option<&dyn Allocation> {
        let of = |key: &(&str, &str)| definition.group == key.0 && definition.plural == key.1;
        self.allocations.iter().find(|(key, _)| of(key)).map(|(_, allocation)| &**allocation)
    }
}

/// The error that follows from a verdict, if any. One that could not be found is this server's failure, not the user's.
pub fn permitted(attributes: &Attributes<'_>, verdict: Verdict) -> Result<(), StatusError> {
    match verdict {
        Verdict::Allow(_) => Ok(()),
        Verdict::Deny(why) | Verdict::NoOpinion(why) => Err(auth::forbidden(attributes, &why)),
        Verdict::Failed(failure) => Err(StatusError::internal(failure.error)),
    }
}
