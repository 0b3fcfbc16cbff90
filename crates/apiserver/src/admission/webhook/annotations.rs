//! The annotations for an audit log about webhooks, beside those that they make themselves: which one changed an object and
//! how, and which one did not answer and was passed over.

use api::{Value, validation::names::qualified_name};

use super::source::Hook;
use crate::audit::{Trail, policy::Level, structure};

/// Whether an event may have an annotation of this key, which a stranger chose: a domain's name, a slash and a name.
pub(super) fn is_key(key: &str) -> bool {
    key.contains('/') && qualified_name(key).is_empty()
}

/// A webhook that is asked: the how manieth of all, in which round.
pub(super) struct Notes<'a> {
    pub trail: &'a Trail,
    pub hook: &'a Hook,
    pub round: usize,
    pub index: usize,
}

impl Notes<'_> {
    /// An annotation about it: its names, and more behind them.
    fn said(&self, more: &[(&str, Value)]) -> String {
        let names = [("configuration", &self.hook.configuration), ("webhook", &self.hook.name)];
        let names = names.into_iter().map(|(field, name)| (field, Value::from(name.as_str())));
        structure(names.chain(more.iter().cloned()))
    }

    fn key(&self, prefix: &str) -> String {
        format!("{prefix}.webhook.admission.k8s.io/round_{}_index_{}", self.round, self.index)
    }

    /// Whether the webhook changed the object.
    pub fn mutation(&self, mutated: bool) {
        if self.trail.is_on() {
            self.trail.annotate(self.key("mutation"), self.said(&[("mutated", Value::from(mutated))]));
        }
    }

    /// How it changed it. The patch may repeat what the object says, so it is told where that is.
    pub fn patch(&self, patch: &[u8]) {
        if !self.trail.says(Level::Request) {
            return;
        }
        if let Some(patch) = std::str::from_utf8(patch).ok().and_then(|text| json::parse(text).ok()) {
            let said = self.said(&[("patch", patch), ("patchType", Value::from("JSONPatch"))]);
            self.trail.annotate(self.key("patch"), said);
        }
    }

    /// It did not answer, and the write went on without it.
    pub fn failed_open(&self, sort: &str) {
        if self.trail.is_on() {
            self.trail.annotate(self.key(&format!("failed-open.{sort}")), self.hook.name.clone());
        }
    }
}
