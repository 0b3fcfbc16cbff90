//! The audit's policy and ways out: upstream's flags.

use std::{path::PathBuf, time::Duration};

use apiserver::audit::{
    batch,
    log::{self, Format},
    sink::{Mode, Truncation},
};
use clap::Args;

use super::value;

#[derive(Args, Clone, Debug)]
pub struct AuditFlags {
    /// The audit policy, which says which requests are audited and how much of them
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub audit_policy_file: Option<PathBuf>,
    /// Write audit events to this file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// How the events look in it: json, or one line of text for each
    #[arg(long, default_value = "json", value_parser = ["json", "legacy"])]
    audit_log_format: String,
    /// How many days old audit logs are kept; 0 is for ever
    #[arg(long, default_value_t = 0, value_name = "DAYS")]
    audit_log_maxage: u32,
    /// How many old audit logs are kept; 0 is all
    #[arg(long, default_value_t = 0, value_name = "FILES")]
    audit_log_maxbackup: usize,
    /// The size in megabytes from which on another audit log is begun; 0 is 100
    #[arg(long, default_value_t = 0, value_name = "MEGABYTES")]
    audit_log_maxsize: u64,
    /// Compress old audit logs
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    audit_log_compress: bool,
    /// The version of the events in the log
    #[arg(long, default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"], hide = true)]
    audit_log_version: String,
    #[command(flatten)]
    log: LogWay,
    /// Send audit events to the server that this kubeconfig names
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// How long is waited before events are sent once more that the server did not take
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = value::duration)]
    pub audit_webhook_initial_backoff: Duration,
    /// The version of the events that are sent
    #[arg(long, default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"], hide = true)]
    audit_webhook_version: String,
    #[command(flatten)]
    webhook: WebhookWay,
}

/// The flags that both ways out have, under names of their own.
macro_rules! way {
    ($type:ident, $name:literal, $mode:literal, $batch:literal, $wait:literal, $throttle:literal) => {
        #[derive(Args, Clone, Debug)]
        struct $type {
            /// Whether a request waits for its events: batch, blocking, or blocking-strict, which refuses it if they cannot be kept
            #[arg(id = concat!("audit_", $name, "_mode"), long = concat!("audit-", $name, "-mode"), value_name = "MODE",
                default_value = $mode, value_parser = ["batch", "blocking", "blocking-strict"])]
            mode: String,
            /// In batch mode: how many events wait at most; further ones are lost
            #[arg(id = concat!("audit_", $name, "_batch_buffer_size"), long = concat!("audit-", $name, "-batch-buffer-size"),
                default_value_t = 10_000, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
            buffer: u32,
            /// In batch mode: how many events are one batch at most
            #[arg(id = concat!("audit_", $name, "_batch_max_size"), long = concat!("audit-", $name, "-batch-max-size"),
                default_value_t = $batch, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
            batch: u32,
            /// In batch mode: how long a batch waits for more events
            #[arg(id = concat!("audit_", $name, "_batch_max_wait"), long = concat!("audit-", $name, "-batch-max-wait"),
                default_value = $wait, value_name = "DURATION", value_parser = value::duration)]
            wait: Duration,
            /// In batch mode: whether batches per second are bounded
            #[arg(id = concat!("audit_", $name, "_batch_throttle_enable"), long = concat!("audit-", $name, "-batch-throttle-enable"),
                action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = $throttle, default_missing_value = "true")]
            throttle: bool,
            /// In batch mode: how many batches per second
            #[arg(id = concat!("audit_", $name, "_batch_throttle_qps"), long = concat!("audit-", $name, "-batch-throttle-qps"),
                default_value = "10", value_name = "RATE", value_parser = value::rate)]
            per_second: f64,
            /// In batch mode: how many batches may follow at once on a pause
            #[arg(id = concat!("audit_", $name, "_batch_throttle_burst"), long = concat!("audit-", $name, "-batch-throttle-burst"),
                default_value_t = 15, value_name = "BATCHES", value_parser = clap::value_parser!(u32).range(1..))]
            burst: u32,
            /// Leave objects out of events that are too large, and events that are too large even so
            #[arg(id = concat!("audit_", $name, "_truncate_enabled"), long = concat!("audit-", $name, "-truncate-enabled"),
                action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
            truncate: bool,
            /// How large a batch may be then
            #[arg(id = concat!("audit_", $name, "_truncate_max_batch_size"),
                long = concat!("audit-", $name, "-truncate-max-batch-size"), default_value_t = 10 << 20, value_name = "BYTES")]
            batch_bytes: usize,
            /// How large an event may be then
            #[arg(id = concat!("audit_", $name, "_truncate_max_event_size"),
                long = concat!("audit-", $name, "-truncate-max-event-size"), default_value_t = 100 << 10, value_name = "BYTES")]
            event_bytes: usize,
        }

        impl $type {
            fn check(&self) -> anyhow::Result<()> {
                let (most, event) = (self.batch_bytes, self.event_bytes);
                anyhow::ensure!(
                    event > 0,
                    "invalid audit truncate {} max event size {event}, must be a positive number",
                    $name
                );
                anyhow::ensure!(
                    most >= event,
                    "invalid audit truncate {} max batch size {most}, must be greater than max event size ({event})",
                    $name
                );
                Ok(())
            }

            fn mode(&self) -> Mode {
                match self.mode.as_str() {
                    "blocking" => Mode::Blocking,
                    "blocking-strict" => Mode::BlockingStrict,
                    _ => Mode::Batch(batch::Settings {
                        buffer: self.buffer as usize,
                        batch: self.batch as usize,
                        batch_bytes: None,
                        wait: self.wait,
                        throttle: self.throttle.then_some((self.per_second as f32, self.burst)),
                    }),
                }
            }

            fn truncation(&self) -> Option<Truncation> {
                let (event_bytes, batch_bytes) = (self.event_bytes, self.batch_bytes);
                self.truncate.then_some(Truncation { event_bytes, batch_bytes })
            }
        }
    };
}

way!(LogWay, "log", "blocking", 1, "0s", false);
way!(WebhookWay, "webhook", "batch", 400, "30s", true);

impl AuditFlags {
    /// For how many days logs are kept, how many of them, and how large they become; 0 stands for no bound.
    pub fn log_bounds(&self) -> (u32, usize, u64) {
        (self.audit_log_maxage, self.audit_log_maxbackup, self.audit_log_maxsize)
    }

    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        self.log.check()?;
        self.webhook.check()
    }

    pub fn log(&self) -> Option<(log::Settings, Mode, Option<Truncation>)> {
        let settings = log::Settings {
            path: self.audit_log_path.clone().filter(|path| !path.as_os_str().is_empty())?,
            format: if self.audit_log_format == "legacy" { Format::Legacy } else { Format::Json },
            days: self.audit_log_maxage,
            files: self.audit_log_maxbackup,
            megabytes: self.audit_log_maxsize,
            compress: self.audit_log_compress,
        };
        Some((settings, self.log.mode(), self.log.truncation()))
    }

    pub fn webhook(&self) -> Option<(&PathBuf, Mode, Option<Truncation>)> {
        Some((self.audit_webhook_config_file.as_ref()?, self.webhook.mode(), self.webhook.truncation()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        audit: AuditFlags,
    }

    fn flags(given: &[&str]) -> AuditFlags {
        Flags::parse_from([&["test"][..], given].concat()).audit
    }

    #[test]
    fn each_way_has_upstreams_defaults() {
        let usual = flags(&["--audit-log-path=-"]);
        assert_eq!(
            usual.log().map(|(log, mode, most)| (log.path, mode, most)),
            Some(("-".into(), Mode::Blocking, None))
        );
        assert!(usual.webhook().is_none() && flags(&[]).log().is_none());
        let (buffer, wait) = (10_000, Duration::from_secs(30));
        let expected = batch::Settings { buffer, batch: 400, batch_bytes: None, wait, throttle: Some((10.0, 15)) };
        assert_eq!(usual.webhook.mode(), Mode::Batch(expected));
        let other = flags(&["--audit-log-mode=blocking-strict", "--audit-webhook-truncate-enabled"]);
        assert_eq!(other.log.mode(), Mode::BlockingStrict);
        assert_eq!(other.webhook.truncation(), Some(Truncation { event_bytes: 102_400, batch_bytes: 10_485_760 }));
    }

    #[test]
    fn a_batch_holds_an_event() {
        let error = flags(&["--audit-log-truncate-max-batch-size=5"]).check().unwrap_err().to_string();
        let expected = "invalid audit truncate log max batch size 5, must be greater than max event size (102400)";
        assert_eq!(error, expected);
        assert!(Flags::try_parse_from(["test", "--audit-log-mode=never"]).is_err());
    }
}
