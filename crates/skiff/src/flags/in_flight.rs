//! How many requests are worked on at once, whether by priority, and for how long: upstream's flags.

use std::time::Duration;

use apiserver::server::Limits;
use clap::Args;

use super::value;

#[derive(Args, Clone, Debug)]
pub struct InFlight {
    /// Share out the requests at once by FlowSchemas and PriorityLevelConfigurations
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    enable_priority_and_fairness: bool,
    /// How many requests that change nothing are worked on at once; with the next number it is what is shared out
    #[arg(long, default_value_t = 400, value_name = "REQUESTS")]
    max_requests_inflight: u32,
    /// How many requests that change something
    #[arg(long, default_value_t = 200, value_name = "REQUESTS")]
    max_mutating_requests_inflight: u32,
    /// How long a request may take that is no watch and no stream
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = value::duration)]
    request_timeout: Duration,
    /// A watch ends after this many seconds to twice as many, unless its client says when
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    min_request_timeout: u32,
}

impl InFlight {
    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.enable_priority_and_fairness || self.sum() > 0,
            "--max-requests-inflight and --max-mutating-requests-inflight must not both be 0 with \
             --enable-priority-and-fairness"
        );
        anyhow::ensure!(!self.request_timeout.is_zero(), "--request-timeout must not be 0: nothing could be answered");
        anyhow::ensure!(
            self.min_request_timeout > 0,
            "--min-request-timeout must not be 0: every watch would end at once"
        );
        Ok(())
    }

    fn sum(&self) -> u32 {
        self.max_requests_inflight.saturating_add(self.max_mutating_requests_inflight)
    }

    pub fn limits(&self) -> Limits {
        Limits {
            request_timeout: self.request_timeout,
            watch_timeout: Duration::from_secs(self.min_request_timeout.into()),
            seats: self.enable_priority_and_fairness.then(|| self.sum()),
            ..Limits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        in_flight: InFlight,
    }

    #[test]
    fn both_numbers_are_shared_out() {
        let flags = |flags: &[&str]| Flags::parse_from([&["test"][..], flags].concat()).in_flight;
        assert_eq!(flags(&[]).limits().seats, Some(600));
        assert_eq!(flags(&["--max-requests-inflight=5"]).limits().seats, Some(205));
        assert_eq!(flags(&["--enable-priority-and-fairness=false"]).limits().seats, None);
        let none = flags(&["--max-requests-inflight=0", "--max-mutating-requests-inflight=0"]);
        assert!(none.check().is_err());
    }

    #[test]
    fn requests_and_watches_end() {
        let flags = |flags: &[&str]| Flags::parse_from([&["test"][..], flags].concat()).in_flight;
        let times = |given: &[&str]| {
            let limits = flags(given).limits();
            [limits.request_timeout, limits.watch_timeout].map(|time| time.as_secs())
        };
        let usual = Limits::default();
        assert_eq!(times(&[]), [usual.request_timeout, usual.watch_timeout].map(|time| time.as_secs()));
        assert_eq!(times(&["--request-timeout=2m30s", "--min-request-timeout", "300"]), [150, 300]);
        for wrong in ["--request-timeout=0s", "--min-request-timeout=0"] {
            assert!(flags(&[wrong]).check().is_err(), "{wrong}");
        }
    }
}
