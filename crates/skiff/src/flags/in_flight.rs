//! How many requests are worked on at once, and whether by priority: upstream's flags.

use clap::Args;

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
}

impl InFlight {
    /// Says what is wrong with the flags together.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.enable_priority_and_fairness || self.sum() > 0,
            "--max-requests-inflight and --max-mutating-requests-inflight must not both be 0 with \
             --enable-priority-and-fairness"
        );
        Ok(())
    }

    fn sum(&self) -> u32 {
        self.max_requests_inflight.saturating_add(self.max_mutating_requests_inflight)
    }

    /// The seats that are shared out.
    pub fn seats(&self) -> Option<u32> {
        self.enable_priority_and_fairness.then(|| self.sum())
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
        assert_eq!(flags(&[]).seats(), Some(600));
        assert_eq!(flags(&["--max-requests-inflight=5"]).seats(), Some(205));
        assert_eq!(flags(&["--enable-priority-and-fairness=false"]).seats(), None);
        let none = flags(&["--max-requests-inflight=0", "--max-mutating-requests-inflight=0"]);
        assert!(none.check().is_err());
    }
}
