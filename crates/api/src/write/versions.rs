//! The objects of a write, as other versions of the kind have them. A manager's fields are named as its own version names them,
//! and where a webhook converts only that can say what an object is in another version. Asking takes time, which the merging
//! of fields does not have: [`Versions`] collects what is to be asked, and the write is thought through once more when the
//! answers are there.
//!
//! Upstream counterpart: apimachinery's `managedfields/internal/versionconverter.go` and structured-merge-diff's `Updater`.

use std::sync::Arc;

use json::Value;
use parking_lot::Mutex;

use crate::{kind::webhook::Webhook, schema::Type};

/// The knowledge of one write about its object's other versions.
pub struct Versions {
    webhook: Arc<dyn Webhook>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    answers: Vec<(Question, Value)>,
    wanted: Vec<Question>,
}

/// An object, and the version that it is wanted in.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub object: Value,
    pub version: String,
}

/// An object in a version.
pub(crate) enum Sight {
    As(Type, Value),
    /// The kind has no such version any more.
    Gone,
    /// Nobody has said yet. Whatever comes of it counts for nothing.
    Asked,
}

impl Versions {
    pub fn new(webhook: Arc<dyn Webhook>) -> Self {
        Versions { webhook, known: Mutex::default() }
    }

    pub fn webhook(&self) -> &dyn Webhook {
        &*self.webhook
    }

    /// Takes what the last time of thinking would have needed to know.
    pub fn wanted(&self) -> Vec<Question> {
        std::mem::take(&mut self.known.lock().wanted)
    }

    pub fn learn(&self, question: Question, answer: Value) {
        self.known.lock().answers.push((question, answer));
    }

    pub(crate) fn sees(&self, object: &Value, version: &str) -> Sight {
        let Some(ty) = self.webhook.ty(version) else { return Sight::Gone };
        if object["apiVersion"] == *version {
            return Sight::As(ty, object.clone());
        }
        let mut known = self.known.lock();
        let is_it = |question: &Question| question.version == version && question.object == *object;
        if let Some((_, answer)) = known.answers.iter().find(|(question, _)| is_it(question)) {
            return Sight::As(ty, answer.clone());
        }
        if !known.wanted.iter().any(is_it) {
            known.wanted.push(Question { object: object.clone(), version: version.to_owned() });
        }
        Sight::Asked
    }
}
