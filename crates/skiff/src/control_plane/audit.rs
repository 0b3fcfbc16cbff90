//! The audit's policy, and the ways out: the log that is opened, and the server that is sent events.

use anyhow::Context;
use apiserver::audit::{
    Settings,
    log::Log,
    policy::Policy,
    webhook::{Webhook, deliver},
};

use crate::flags::audit::AuditFlags;

/// `None` where nothing is audited.
pub fn settings(flags: &AuditFlags) -> anyhow::Result<Option<Settings>> {
    let (log, webhook) = (flags.log(), flags.webhook());
    if log.is_none() && webhook.is_none() {
        return Ok(None);
    }
    let Some(file) = &flags.audit_policy_file else {
        tracing::warn!("nothing is audited without --audit-policy-file");
        return Ok(None);
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("--audit-policy-file: {}", file.display()))?;
    let policy = Policy::parse(&text);
    let policy = policy.map_err(|why| anyhow::anyhow!("--audit-policy-file: {}: {why}", file.display()))?;
    let log = log.map(|(settings, mode, most)| {
        let opened = Log::open(&settings).with_context(|| format!("--audit-log-path: {}", settings.path.display()));
        opened.map(|log| (log, mode, most))
    });
    let backoff = flags.audit_webhook_initial_backoff;
    let webhook = webhook.map(|(file, mode, most)| {
        let way = deliver(file).context("--audit-webhook-config-file");
        way.map(|deliver| (Webhook { deliver, backoff }, mode, most))
    });
    Ok(Some(Settings { policy, log: log.transpose()?, webhook: webhook.transpose()? }))
}
