//! The annotations for an audit log about webhooks, beside those that they make themselves: which one changed an object and
//! how, and which one did not answer and was passed over.

use json::json;

use super::source::Hook;
use crate::audit::{Trail, policy::Level};

/// A webhook that is asked: the how manieth of all, in which round.
pub(super) struct Notes<'a> {
    pub trail: &'a Trail,
    pub hook: &'a Hook,
    pub round: usize,
    pub index: usize,
}

impl Notes<'_> {
    fn key(&self, prefix: &str) -> String {
        format!("{prefix}.webhook.admission.k8s.io/round_{}_index_{}", self.round, self.index)
    }

    /// Whether the webhook changed the object.
    pub fn mutation(&self, mutated: bool) {
        if self.trail.is_on() {
            let said = json!({"configuration": self.hook.configuration, "webhook": self.hook.name, "mutated": mutated});
            self.trail.annotate(self.key("mutation"), said.to_string());
        }
    }

    /// How it changed it. The patch may repeat what the object says, so it is told where that is.
    pub fn patch(&self, patch: &[u8]) {
        if !self.trail.says(Level::Request) {
            return;
        }
        if let Some(patch) = std::str::from_utf8(patch).ok().and_then(|text| json::parse(text).ok()) {
            let said = json!({"configuration": self.hook.configuration, "webhook": self.hook.name, "patch": patch,
                "patchType": "JSONPatch"});
            self.trail.annotate(self.key("patch"), said.to_string());
        }
    }

    /// It did not answer, and the write went on without it.
    pub fn failed_open(&self, sort: &str) {
        if self.trail.is_on() {
            self.trail.annotate(self.key(&format!("failed-open.{sort}")), self.hook.name.clone());
        }
    }
}
