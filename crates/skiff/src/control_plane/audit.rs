//! The audit's policy, and the ways out: the log that is opened, and the server that is sent events.

use anyhow::Context;
use apiserver::audit::{
    Settings,
    log::Log,
    policy::Policy,
    webhook::{Webhook, deliver},
};
use files::modes;

use crate::{flags::audit::AuditFlags, layout::Layout};

/// The policy where the administrator gave none.
const USUAL: &str = include_str!("audit-policy.yaml");

/// `None` where nothing is audited: there is no log, as the administrator wants it, and nobody is sent events.
pub fn settings(flags: &AuditFlags, layout: &Layout) -> anyhow::Result<Option<Settings>> {
    let (log, webhook) = (flags.log(&layout.audit_log()), flags.webhook());
    if log.is_none() && webhook.is_none() {
        return Ok(None);
    }
    let policy = match &flags.audit_policy_file {
        None => Policy::parse(USUAL).map_err(anyhow::Error::msg)?,
        Some(file) => {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("--audit-policy-file: {}", file.display()))?;
            let policy = Policy::parse(&text);
            policy.map_err(|why| anyhow::anyhow!("--audit-policy-file: {}: {why}", file.display()))?
        }
    };
    let log = log.map(|(settings, mode, most)| {
        if let Some(folder) = settings.path.parent().filter(|_| settings.path == layout.audit_log()) {
            modes::folder(folder, modes::PRIVATE_FOLDER)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        audit: AuditFlags,
    }

    #[test]
    fn there_is_a_log_for_nobody_else_unless_that_is_not_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let of = |args: &[&str]| {
            let flags = Flags::parse_from([&["test"], args].concat());
            settings(&flags.audit, &layout).unwrap()
        };
        assert!(of(&["--audit-log-path="]).is_none() && !layout.audit_log().exists());
        let usual = of(&[]).unwrap();
        assert!(usual.log.is_some() && usual.webhook.is_none());
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&layout.audit_log()), mode(layout.audit_log().parent().unwrap())),
            (modes::PRIVATE_FILE, modes::PRIVATE_FOLDER)
        );
    }
}
