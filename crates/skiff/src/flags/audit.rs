//! The audit's policy and ways out: upstream's flags.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use apiserver::audit::{
    batch,
    log::{self, Format},
    sink::{Mode, Truncation},
};
use clap::Args;

use super::value;

#[derive(Args, Clone, Debug)]
pub struct AuditFlags {
    /// The audit policy, which says which requests are audited and how much of them; without one changes are, and reads of Secrets
    #[arg(long, value_name = "FILE", value_parser = value::readable)]
    pub audit_policy_file: Option<PathBuf>,
    /// Write audit events to this file; `-` is standard output, an empty text no file. Without the flag it is audit/audit.log in the
    /// data folder
    #[arg(long, value_name = "FILE", value_parser = clap::value_parser!(std::ffi::OsString))]
    audit_log_path: Option<std::ffi::OsString>,
    /// How the events look in it: json, or one line of text for each
    #[arg(long, default_value = "json", value_parser = ["json", "legacy"])]
    audit_log_format: String,
    /// How many days old audit logs are kept; 0 is for ever, as for a file that is named, and 30 are usual for the one that is not
    #[arg(long, value_name = "DAYS")]
    audit_log_maxage: Option<u32>,
    /// How many old audit logs are kept; 0 is all, as for a file that is named, and 10 are usual for the one that is not
    #[arg(long, value_name = "FILES")]
    audit_log_maxbackup: Option<usize>,
    /// The size in megabytes from which on another audit log is begun; 0 is 100
    #[arg(long, default_value_t = 0, value_name = "MEGABYTES")]
    audit_log_maxsize: u64,
    /// Compress old audit logs; it is usual for the file that is not named
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    audit_log_compress: Option<bool>,
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
    ($type:ident, $name:literal, $batch:literal, $wait:literal, $throttle:literal) => {
        #[derive(Args, Clone, Debug)]
        struct $type {
            /// Whether a request waits for its events: batch, blocking, or blocking-strict, which refuses it if they cannot be kept. A log
            /// that is named is usually blocking, all else goes in batches
            #[arg(id = concat!("audit_", $name, "_mode"), long = concat!("audit-", $name, "-mode"), value_name = "MODE",
                value_parser = ["batch", "blocking", "blocking-strict"])]
            mode: Option<String>,
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

            fn mode(&self, usual: &str) -> Mode {
                match self.mode.as_deref().unwrap_or(usual) {
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

way!(LogWay, "log", 1, "0s", false);
way!(WebhookWay, "webhook", 400, "30s", true);

impl AuditFlags {
    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        self.log.check()?;
        self.webhook.check()
    }

    /// The log, which is in the file `usual` where the flags name none; `None` where they want none.
    pub fn log(&self, usual: &Path) -> Option<(log::Settings, Mode, Option<Truncation>)> {
        let given = self.audit_log_path.as_ref().map(PathBuf::from);
        let named = given.is_some();
        let path = given.unwrap_or_else(|| usual.to_owned());
        if path.as_os_str().is_empty() {
            return None;
        }
        let settings = log::Settings {
            path,
            format: if self.audit_log_format == "legacy" { Format::Legacy } else { Format::Json },
            days: self.audit_log_maxage.unwrap_or(if named { 0 } else { 30 }),
            files: self.audit_log_maxbackup.unwrap_or(if named { 0 } else { 10 }),
            megabytes: self.audit_log_maxsize,
            compress: self.audit_log_compress.unwrap_or(!named),
        };
        // Nobody waits for a log that nobody asked for, and it is written a few times in a second at most.
        let mode = match self.log.mode(if named { "blocking" } else { "batch" }) {
            Mode::Batch(few) if !named && few.batch == 1 => {
                Mode::Batch(batch::Settings { batch: 400, wait: Duration::from_millis(500), ..few })
            }
            mode => mode,
        };
        Some((settings, mode, self.log.truncation()))
    }

    pub fn webhook(&self) -> Option<(&PathBuf, Mode, Option<Truncation>)> {
        Some((self.audit_webhook_config_file.as_ref()?, self.webhook.mode("batch"), self.webhook.truncation()))
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
        let data = Path::new("/d/audit.log");
        let named = flags(&["--audit-log-path=-"]);
        assert_eq!(
            named.log(data).map(|(log, mode, most)| (log.path, log.days, log.files, log.compress, mode, most)),
            Some(("-".into(), 0, 0, false, Mode::Blocking, None))
        );
        assert!(named.webhook().is_none() && flags(&["--audit-log-path="]).log(data).is_none());
        let (log, mode, _) = flags(&["--audit-log-maxage=40"]).log(data).unwrap();
        assert_eq!((&*log.path, log.days, log.files, log.compress), (data, 40, 10, true));
        assert!(matches!(mode, Mode::Batch(_)));
        let (buffer, wait) = (10_000, Duration::from_secs(30));
        let expected = batch::Settings { buffer, batch: 400, batch_bytes: None, wait, throttle: Some((10.0, 15)) };
        assert_eq!(named.webhook.mode("batch"), Mode::Batch(expected));
        let other = flags(&["--audit-log-mode=blocking-strict", "--audit-webhook-truncate-enabled"]);
        assert_eq!(other.log.mode("blocking"), Mode::BlockingStrict);
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
