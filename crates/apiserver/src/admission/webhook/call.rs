//! Asking one webhook, and what follows when it does not answer as it should.

use api::{Value, status::StatusError};
use spans::Span;

use super::super::{attributes::Attributes, policy::input::Input};
use super::annotations::is_key;
use super::metrics::End;
use super::review::{self, Answer};
use super::source::{Hook, Way};
use crate::{
    http::timing,
    outbound::webhook::{Question, Silence},
};

/// An answer has at most this many bytes: a patch may hold a whole object, in base64.
const ANSWER: usize = 8 << 20;
const AGENT: &str = "kube-apiserver-admission";

/// Why a webhook lets no write through.
#[derive(Debug)]
pub(super) enum Failure {
    /// It gave no answer that counts. Its failure policy says what follows.
    Unanswered { why: String, code: u16 },
    /// It was not asked: too many wait for it. That is not its failure.
    Busy(StatusError),
    /// It refused.
    Denied(StatusError),
    /// The write cannot be what it asks for.
    Impossible(StatusError),
}

impl Failure {
    pub(super) fn unanswered(code: u16, why: String) -> Self {
        Failure::Unanswered { why, code }
    }
}

/// The span of the question, where one is sent.
pub(super) fn span(hook: &Hook, mutating: bool, input: &Input) -> Option<Span> {
    let mut span = spans::part(if mutating { "Call mutating webhook" } else { "Call validating webhook" })?;
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let (request, resource) = (&input.request, &input.request["resource"]);
    let (group, version, plural) = (text(&resource["group"]), text(&resource["version"]), text(&resource["resource"]));
    span.set("configuration", &*hook.configuration);
    span.set("webhook", &*hook.name);
    span.set("resource", &*format!("{group}/{version}, Resource={plural}"));
    span.set("subresource", &*text(&request["subResource"]));
    span.set("operation", &*text(&request["operation"]));
    Some(span)
}

/// Asks one webhook about a write. The answer may be a refusal.
pub(super) async fn ask(
    way: Option<&Way>,
    hook: &Hook,
    mutating: bool,
    dry_run: bool,
    input: &Input,
) -> Result<Answer, Failure> {
    if dry_run && !hook.takes_dry_runs {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Failure::Impossible(StatusError::bad_request(why)));
    }
    let unknown =
        "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
    let version = hook.version.ok_or_else(|| Failure::unanswered(400, unknown.to_owned()))?;
    let no_way = || Failure::unanswered(500, "this server asks no webhooks".to_owned());
    let way = way.ok_or_else(no_way)?;
    let uid = clock::uuid();
    spans::set("UID", || &*uid);
    let review = review::question(version, &uid, input);
    let question = Question {
        review: &review,
        seconds: timing::left().map_or(hook.seconds, |left| hook.seconds.min(left)),
        late: "context deadline exceeded",
        limit: ANSWER,
        agent: Some(AGENT),
        credentials: Some(way.credentials(mutating)),
    };
    let answer = way.webhooks.ask(&hook.client, question).await;
    let answer = answer.map_err(|silence| match silence {
        Silence::Busy(why) => Failure::Busy(why),
        Silence::NoAnswer(why) => Failure::unanswered(why.code, format!("failed to call webhook: {}", why.message)),
    })?;
    spans::event("Request completed");
    review::read(version, &uid, mutating, &answer)
        .map_err(|why| Failure::unanswered(503, format!("received invalid webhook response: {why}")))
}

/// Takes what is told beside the verdict, and the verdict.
pub(super) fn verdict(hook: &Hook, attributes: &mut Attributes<'_>, answer: &mut Answer) -> Result<(), Failure> {
    for (key, value) in std::mem::take(&mut answer.annotations) {
        let key = format!("{}/{key}", hook.name);
        if is_key(&key) {
            attributes.trail.annotate(key, value);
        } else {
            tracing::warn!(webhook = hook.name, key, "a webhook's annotation has no key that events may have");
        }
    }
    attributes.warnings.append(&mut answer.warnings);
    if answer.allowed {
        return Ok(());
    }
    Err(Failure::Denied(review::denial(&hook.name, answer.status.take())))
}

/// How the metrics count the end of a question.
pub(super) fn end<T>(hook: &Hook, done: &Result<T, Failure>) -> End {
    let (code, error, rejected) = match done {
        Ok(_) => (200, "", false),
        Err(Failure::Unanswered { code, .. }) => (*code, "calling_webhook_error", !hook.ignores_failures),
        Err(Failure::Denied(error)) => (error.code, "no_error", true),
        Err(Failure::Busy(error)) => (error.code, "apiserver_internal_error", true),
        Err(Failure::Impossible(_)) => (0, "apiserver_internal_error", true),
    };
    End { code, error, rejected }
}

/// The outcome of the write.
pub(super) fn settle(hook: &Hook, failure: Failure) -> Result<(), StatusError> {
    match failure {
        Failure::Unanswered { why, .. } => {
            let message = format!("failed calling webhook {:?}: {why}", hook.name);
            if hook.ignores_failures {
                tracing::warn!("{message}; its failure policy lets the write through");
                return Ok(());
            }
            Err(StatusError::internal(message))
        }
        Failure::Busy(error) | Failure::Denied(error) | Failure::Impossible(error) => Err(error),
    }
}
