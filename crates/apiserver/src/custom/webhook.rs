//! Webhooks that convert custom objects. Few questions are under way at once for one definition, so that what one webhook holds
//! up is its own objects.

use std::{collections::HashMap, sync::Arc};

use api::{Value, kind::webhook::Webhook};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    outbound::webhook::{Question, Webhooks},
    storage::conversion::Converter,
};

/// Everything about a question is over by then.
const PATIENCE: clock::Duration = clock::Duration::from_secs(30);
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
/// Questions to the webhook of one definition that are under way at once; others wait.
const QUESTIONS: usize = 64;
/// The number of definitions whose webhooks are remembered; with one more all begin anew.
const KEPT: usize = 256;

/// Asks for conversions.
pub struct Conversions {
    webhooks: Arc<Webhooks>,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Conversions {
    pub fn new(webhooks: Arc<Webhooks>) -> Self {
        Conversions { webhooks, places: Mutex::default() }
    }

    fn places(&self, name: &str) -> Arc<Semaphore> {
        let mut places = self.places.lock();
        if let Some(known) = places.get(name) {
            return known.clone();
        }
        if places.len() >= KEPT {
            places.clear();
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
            self.webhooks.ask(webhook.client(), question).await.map_err(|error| error.message)
        };
        // Waiting for a place counts.
        clock::timeout(PATIENCE, asked).await.map_err(|_| LATE.to_owned())?
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
