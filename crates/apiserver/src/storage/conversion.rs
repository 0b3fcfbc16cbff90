//! Objects of kinds that a webhook converts, on their way out of the store and into it. A reader of entries of such a
//! kind sees them through [`Conversions::shown`], in the version that was asked for; all other kinds pass untouched.

use std::sync::{Arc, OnceLock};

use api::{
    Value,
    kind::{Definition, webhook::Webhook},
    status::StatusError,
    write::versions::Question,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use store::{Entry, Event};

use crate::storage::object;

/// The most objects that one question is about, and the most bytes of them.
const OBJECTS: usize = 500;
const BYTES: usize = 2 << 20;

/// Asks webhooks.
pub trait Converter: Send + Sync {
    /// Sends a ConversionReview and reads the answer, which has at most `limit` bytes. The error says why there is none.
    fn ask<'a>(
        &'a self,
        webhook: &'a dyn Webhook,
        review: &'a Value,
        limit: usize,
    ) -> BoxFuture<'a, Result<Value, String>>;
}

/// The way to the webhooks, as soon as there is one.
#[derive(Default)]
pub struct Conversions(OnceLock<Arc<dyn Converter>>);

/// Objects that are asked about together, each with its place among the entries.
#[derive(Default)]
struct Batch {
    places: Vec<usize>,
    objects: Vec<Value>,
    bytes: usize,
}

impl Conversions {
    /// Sets the way; later ones change nothing.
    pub fn set(&self, converter: Arc<dyn Converter>) {
        let _ = self.0.set(converter);
    }

    /// The entries as this version of their kind shows them.
    pub async fn shown(&self, definition: &Definition, mut entries: Vec<Entry>) -> Result<Vec<Entry>, StatusError> {
        let Some(webhook) = &definition.webhook else { return Ok(entries) };
        let desired = definition.api_version();
        let mut question = Batch::default();
        for at in 0..entries.len() {
            let value = &entries[at].value;
            if object::is_settled(definition, &entries[at]) && object::api_version(value) == Some(&desired) {
                continue;
            }
            let mut object = object::stored(value);
            webhook.shape(&mut object).map_err(bare)?;
            if object["apiVersion"] == *desired {
                entries[at].value = encoded(definition, &object);
                continue;
            }
            question.bytes += value.len();
            question.places.push(at);
            question.objects.push(object);
            if question.objects.len() == OBJECTS || question.bytes >= BYTES {
                self.answer(definition, &**webhook, &mut entries, std::mem::take(&mut question)).await?;
            }
        }
        self.answer(definition, &**webhook, &mut entries, question).await?;
        Ok(entries)
    }

    /// One entry as this version of its kind shows it.
    pub async fn shown_one(&self, definition: &Definition, entry: Entry) -> Result<Entry, StatusError> {
        if definition.webhook.is_none() {
            return Ok(entry);
        }
        let missing = || StatusError::internal("a conversion lost an object");
        self.shown(definition, vec![entry]).await?.pop().ok_or_else(missing)
    }

    /// Events as this version of their kind shows them.
    pub async fn events(&self, definition: &Definition, mut events: Vec<Event>) -> Result<Vec<Event>, StatusError> {
        if definition.webhook.is_none() {
            return Ok(events);
        }
        let mut halves: Vec<&mut Entry> = Vec::new();
        for event in &mut events {
            halves.extend(event.previous.as_mut());
            halves.extend(event.entry.as_mut());
        }
        let shown = self.shown(definition, halves.iter().map(|entry| (**entry).clone()).collect()).await?;
        for (half, shown) in halves.into_iter().zip(shown) {
            *half = shown;
        }
        Ok(events)
    }

    async fn answer(
        &self,
        definition: &Definition,
        webhook: &dyn Webhook,
        entries: &mut [Entry],
        question: Batch,
    ) -> Result<(), StatusError> {
        if question.objects.is_empty() {
            return Ok(());
        }
        let converted = self.convert(webhook, &definition.api_version(), &question.objects, question.bytes).await?;
        for (place, object) in question.places.into_iter().zip(converted) {
            entries[place].value = encoded(definition, &object);
        }
        Ok(())
    }

    async fn convert(
        &self,
        webhook: &dyn Webhook,
        desired: &str,
        objects: &[Value],
        bytes: usize,
    ) -> Result<Vec<Value>, StatusError> {
        let uid = clock::uuid();
        let review = webhook.review(&uid, desired, objects).map_err(bare)?;
        let answer = match self.0.get() {
            Some(converter) => converter.ask(webhook, &review, answer_limit(bytes)).await,
            None => Err("this server asks no webhooks".to_owned()),
        };
        webhook.read(&uid, desired, objects, answer).map_err(bare)
    }

    /// The bytes that are stored of an object of this version.
    pub async fn stored(&self, definition: &Definition, object: &Value) -> Result<Bytes, StatusError> {
        if !definition.is_converted() {
            return Ok(object::encode(definition, object));
        }
        let mut stored = object.clone();
        match &definition.webhook {
            None => definition.strategy.to_storage(&mut stored),
            Some(webhook) => {
                let (group, version) = &definition.storage;
                stored = self.between_versions(&**webhook, stored, &format!("{group}/{version}")).await?;
            }
        }
        Ok(object::encode(definition, &stored))
    }

    /// An object of one version as another version of the same objects shows it.
    pub async fn between(&self, from: &Definition, to: &Definition, object: &Value) -> Result<Value, StatusError> {
        match &to.webhook {
            Some(webhook) if from.version != to.version => {
                self.between_versions(&**webhook, object.clone(), &to.api_version()).await
            }
            _ => Ok(object::between(from, to, object)),
        }
    }

    /// The view of its object that a write asks for.
    pub async fn seen(&self, webhook: &dyn Webhook, question: &Question) -> Result<Value, StatusError> {
        self.between_versions(webhook, question.object.clone(), &question.version).await
    }

    async fn between_versions(
        &self,
        webhook: &dyn Webhook,
        mut object: Value,
        desired: &str,
    ) -> Result<Value, StatusError> {
        // That is the store's, and no webhook's business.
        let revision = api::meta::metadata_mut(&mut object).and_then(|metadata| metadata.remove("resourceVersion"));
        let objects = [object];
        let bytes = objects[0].to_string().len();
        let converted = self.convert(webhook, desired, &objects, bytes).await?.pop();
        let mut converted = converted.ok_or_else(|| StatusError::internal("a conversion lost an object"))?;
        if let (Some(metadata), Some(revision)) = (api::meta::metadata_mut(&mut converted), revision) {
            metadata.insert("resourceVersion", revision);
        }
        Ok(converted)
    }
}

fn encoded(definition: &Definition, object: &Value) -> Bytes {
    object::encode_in_version(definition, object).into()
}

/// An answer may be longer than the question, but not by any factor: what it holds is held in memory.
fn answer_limit(bytes: usize) -> usize {
    4 * bytes + (1 << 20)
}

/// Upstream gives the errors of conversions no reason.
fn bare(message: String) -> StatusError {
    StatusError::new(500, "", message)
}
