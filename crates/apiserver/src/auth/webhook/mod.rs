//! The authorization webhook: somebody else's server that is asked for rights, with a SubjectAccessReview. Its answers are
//! remembered for a while; one that hangs, lies or floods harms the requests that ask it and no others.
//!
//! Upstream counterpart: apiserver/plugin/pkg/authorizer/webhook.

mod conditions;
mod remembered;
mod review;

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use clock::Duration;
use futures::future::Either;
use json::Value;
use meter::{Metric, Metrics, Sort, USUAL};
use sha2::{Digest, Sha256};

use super::{Answer, Attributes, Authorizer, Failure, Rules, User, Verdict, known};
pub use crate::outbound::kubeconfig::PATIENCE;
use crate::outbound::kubeconfig::{self, Server, retried};
pub use conditions::{Conditions, compile};
use remembered::Remembered;
pub use review::Version;
use review::{Said, document};

/// The most that is read of an answer.
const ANSWER: usize = 1 << 20;
/// The pause before a question is put again.
const BACKOFF: Duration = Duration::from_millis(500);
/// The size in bytes from which the part that a requestor chooses is not remembered.
const REMEMBERED_BYTES: usize = 10_000;

static EVALUATIONS: Metric = Metric {
    name: "apiserver_authorization_webhook_evaluations_total",
    help: "Round-trips to authorization webhooks.",
    sort: Sort::Counter,
};
static DURATION: Metric = Metric {
    name: "apiserver_authorization_webhook_duration_seconds",
    help: "Request latency in seconds.",
    sort: Sort::Histogram(USUAL),
};
static FAIL_OPEN: Metric = Metric {
    name: "apiserver_authorization_webhook_evaluations_fail_open_total",
    help: "NoOpinion results due to webhook timeout or error.",
    sort: Sort::Counter,
};

/// The settings of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub kubeconfig: PathBuf,
    pub version: Version,
    pub timeout: Duration,
    /// How long it is remembered what it allowed; not at all where this is nothing.
    pub authorized: Duration,
    pub unauthorized: Duration,
    /// Whether a request is refused that it could not be asked about.
    pub denies_on_failure: bool,
    /// Expressions, all of which have to hold for it to be asked.
    pub conditions: Vec<String>,
}

pub struct Webhook {
    name: String,
    server: Server,
    settings: Settings,
    conditions: Conditions,
    remembered: Remembered,
    metrics: Arc<Metrics>,
}

impl Webhook {
    pub fn new(name: &str, settings: Settings, metrics: Arc<Metrics>) -> Result<Self, String> {
        let file = &settings.kubeconfig;
        let server = Server::of_file(file, settings.timeout).map_err(|error| kubeconfig::sentence(&error))?;
        let conditions = Conditions::new(&settings.conditions)?;
        Ok(Webhook { name: name.to_owned(), server, settings, conditions, remembered: Remembered::default(), metrics })
    }

    fn failed(&self, error: String) -> Verdict {
        let denied = self.settings.denies_on_failure;
        Verdict::Failed(Failure { denied, reason: String::new(), error })
    }

    async fn ask(&self, spec: Value, key: Option<[u8; 32]>) -> Verdict {
        let question = Bytes::from(document(self.settings.version, spec).to_string());
        match retried(BACKOFF, |error: &kubeconfig::Failure| error.again, || self.put(question.clone())).await {
            Ok(said) => {
                let time = if said.allowed { self.settings.authorized } else { self.settings.unauthorized };
                if let Some(key) = key {
                    self.remembered.keep(key, &said, time);
                }
                said.verdict()
            }
            Err(failure) => {
                tracing::debug!(
                    webhook = self.name,
                    error = failure.message,
                    "an authorization webhook did not answer"
                );
                if !self.settings.denies_on_failure {
                    let result = if failure.late { "timeout" } else { "error" };
                    self.metrics.count(&FAIL_OPEN, &[("name", &self.name), ("result", result)]);
                }
                self.failed(failure.message)
            }
        }
    }

    /// Puts the question once.
    async fn put(&self, question: Bytes) -> Result<Said, kubeconfig::Failure> {
        let counting = Counting { webhook: self, begin: clock::Instant::now(), result: "canceled" };
        let asked = self.server.post("kube-apiserver", question, ANSWER).await;
        let said = asked.and_then(|answer| {
            let unread = |message| kubeconfig::Failure { message, code: None, late: false, again: false };
            Said::read(self.settings.version, &answer).map_err(unread)
        });
        counting.end(match &said {
            Ok(_) => "success",
            Err(failure) if failure.late => "timeout",
            Err(_) => "error",
        });
        said
    }
}

/// Counts a question however it ends; one whose asker is gone was cancelled.
struct Counting<'w> {
    webhook: &'w Webhook,
    begin: clock::Instant,
    result: &'static str,
}

impl Counting<'_> {
    fn end(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        let labels = [("name", &*self.webhook.name), ("result", self.result)];
        self.webhook.metrics.count(&EVALUATIONS, &labels);
        self.webhook.metrics.observe(&DURATION, &labels, self.begin.elapsed().as_secs_f64());
    }
}

impl Authorizer for Webhook {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> Answer<'a> {
        match self.conditions.hold(a, &self.name, &self.metrics) {
            Ok(true) => {}
            Ok(false) => return known(Verdict::NoOpinion(String::new())),
            Err(why) => return known(self.failed(why)),
        }
        let spec = review::spec(a);
        let chosen = [a.namespace, a.verb, a.group, a.version, a.resource, a.subresource, a.name, a.path];
        let key = (chosen.iter().map(|part| part.len()).sum::<usize>() < REMEMBERED_BYTES)
            .then(|| Sha256::digest(spec.to_string()).into());
        if let Some(said) = key.as_ref().and_then(|key| self.remembered.get(key)) {
            return known(said.verdict());
        }
        Either::Right(Box::pin(self.ask(spec, key)))
    }

    /// A webhook lists no rules.
    fn rules_for(&self, _: &User, _: &str) -> Rules {
        Rules { unlisted: vec!["webhook authorizer does not support user rule resolution"], ..Rules::default() }
    }
}
