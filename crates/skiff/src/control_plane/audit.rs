//! What is audited, and the ways out: the log that is opened, and the server that is sent events.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use apiserver::audit::{
    Settings,
    log::Log,
    policy::Policy,
    webhook::{Deliver, Webhook},
};
use client::Kubeconfig;
use http::{Request, header};

use crate::flags::audit::AuditFlags;

/// The server takes events within this time.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// The way to the server of a kubeconfig. Its URL is where events are sent to.
fn deliver(file: &Path) -> anyhow::Result<Deliver> {
    let mut config = Kubeconfig::current_of(file)?;
    let server = std::mem::take(&mut config.server);
    let uri = format!("{}?timeout={}s", server.path(), PATIENCE.as_secs());
    let mut parts = server.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    config.server = http::Uri::from_parts(parts)?;
    let client = client::from_config(&config)?;
    Ok(Arc::new(move |events| {
        let (client, uri) = (client.clone(), uri.clone());
        Box::pin(async move {
            let request = Request::post(uri)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::USER_AGENT, "kube-apiserver-audit")
                .body(client::Body::from(events))
                .map_err(|error| error.to_string())?;
            let answer =
                clock::timeout(PATIENCE, client.send(request)).await.map_err(|_| "it did not answer in time")?;
            let code = answer.map_err(|error| error.to_string())?.status();
            if code.is_success() { Ok(()) } else { Err(format!("it answered {code}")) }
        })
    }))
}
