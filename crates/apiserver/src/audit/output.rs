//! The outputs that keep events: the log, or the webhook.

use std::sync::Arc;

use super::{
    event::Event,
    log::Log,
    metrics::{Metrics, Part},
    webhook::Webhook,
};

/// The output that keeps events.
#[derive(Clone)]
pub enum Output {
    Log(Arc<Log>),
    Webhook(Webhook),
}

impl Output {
    /// Whether others should not wait for it.
    pub fn takes_long(&self) -> bool {
        matches!(self, Output::Webhook(_))
    }

    /// Whether the events were kept. Those that were not are counted.
    pub async fn write(&self, events: &[Event], metrics: &Metrics) -> bool {
        let (part, lost, why) = match self {
            Output::Log(log) => {
                let lost = log.write(events);
                (Part::Log, lost.events.len(), lost.why)
            }
            Output::Webhook(webhook) => (Part::Webhook, events.len(), webhook.send(events).await.err()),
        };
        if let Some(why) = &why {
            metrics.lost(part, lost, why);
        }
        why.is_none()
    }

    /// Whether it takes events in their old form.
    pub fn wants_lines(&self) -> bool {
        matches!(self, Output::Log(log) if log.wants_lines())
    }
}
