//! Webhooks that convert custom objects. Few questions are under way at once for one definition, so that what one webhook holds
//! up is its own objects.

use std::{collections::HashMap, sync::Arc};

use api::{Value, kind::webhook::Webhook};
use futures::future::BoxFuture;
use meter::{DOUBLED, Metric};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    outbound::webhook::{Question, Silence, Webhooks},
    pages::metrics::Metrics,
    storage::conversion::Converter,
};

/// Everything about a question is over by then.
const PATIENCE: clock::Duration = clock::Duration::from_secs(30);
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
/// Questions to the webhook of one definition that are under way at once; others wait.
const QUESTIONS: usize = 64;
/// The number of definitions whose webhooks are remembered; with one more all begin anew.
const KEPT: usize = 256;

static REQUESTS: Metric = Metric::counter(
    "apiserver_conversion_webhook_request_total",
    "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type",
);
static SECONDS: Metric = Metric::histogram(
    "apiserver_conversion_webhook_duration_seconds",
    "[ALPHA] Conversion webhook request latency",
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0],
);
static SECONDS_OF_KIND: Metric = Metric::histogram(
    "apiserver_crd_conversion_webhook_duration_seconds",
    "[ALPHA] CRD webhook conversion duration in seconds",
    DOUBLED,
);

/// Asks for conversions.
pub struct Conversions {
    webhooks: Arc<Webhooks>,
    metrics: Arc<Metrics>,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Conversions {
    pub fn new(webhooks: Arc<Webhooks>, metrics: Arc<Metrics>) -> Self {
        Conversions { webhooks, metrics, places: Mutex::default() }
    }

    fn places(&self, name: &str) -> Arc<Semaphore> {
        let mut places = self.places.lock();
        if let Some(known) = places.get(name) {
            return known.clone();
        }
        if places.len() >= KEPT {
            // Series of definitions that are long gone go with them.
            places.drain().for_each(|(name, _)| self.metrics.all.forget(&SECONDS_OF_KIND, &[("crd_name", &name)]));
        }
        let made = Arc::new(Semaphore::new(QUESTIONS));
        places.insert(name.to_owned(), made.clone());
        made
    }

    async fn post(&self, webhook: &dyn Webhook, review: &Value, limit: usize) -> Result<Value, String> {
        let places = self.places(webhook.name());
        let asked = async {
            let _place = places.acquire().await.map_err(|error| error.to_string())?;
            let (seconds, late) = (PATIENCE.as_secs(), LATE);
            let question = Question { review, seconds, late, limit, agent: None, credentials: None };
            let answer = self.webhooks.ask(webhook.client(), question).await;
            answer.map_err(|(Silence::Busy(why) | Silence::NoAnswer(why))| why.message)
        };
        // Waiting for a place counts.
        let began = clock::Instant::now();
        let answer = clock::timeout(PATIENCE, asked).await.map_err(|_| LATE.to_owned()).flatten();
        self.tell(webhook.name(), review, &answer, began.elapsed());
        answer
    }

    /// Counts a question. One that got no answer, or a refusal, has failed; upstream does not count by what the converted
    /// objects are like.
    fn tell(&self, name: &str, review: &Value, answer: &Result<Value, String>, took: clock::Duration) {
        let converted =
            answer.as_ref().is_ok_and(|answer| answer["response"]["result"]["status"].as_str() == Some("Success"));
        let (result, failure) =
            if converted { ("success", "") } else { ("failure", "conversion_webhook_call_failure") };
        let (all, labels) = (&self.metrics.all, [("result", result), ("failure_type", failure)]);
        all.count(&REQUESTS, &labels);
        all.observe(&SECONDS, &labels, took.as_secs_f64());
        let request = &review["request"];
        let version = |version: &'_ Value| {
            let version = version.as_str().unwrap_or_default();
            version.rsplit_once('/').map_or(version, |(_, version)| version).to_owned()
        };
        let (from, to) = (version(&request["objects"][0]["apiVersion"]), version(&request["desiredAPIVersion"]));
        let succeeded = if converted { "true" } else { "false" };
        let labels = [("crd_name", name), ("from_version", &*from), ("to_version", &*to), ("succeeded", succeeded)];
        all.observe(&SECONDS_OF_KIND, &labels, took.as_secs_f64());
    }
}

impl Converter for Conversions {
    fn ask<'a>(
        &'a self,
        webhook: &'a dyn Webhook,
        review: &'a Value,
        limit: usize,
    ) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(self.post(webhook, review, limit))
    }
}
