//! How limits of processors are kept: as an amount of time in each period of the kernel's scheduler, unless the node's settings leave
//! them out. Pure.
//! Upstream counterpart: MilliCPUToQuota in pkg/kubelet/cm, and cpuCFSQuota of a KubeletConfiguration.

use api::{
    features::{Feature, Features},
    rules::quantity::Quantity,
};

/// The kernel's usual period, in microseconds.
const USUAL: i64 = 100_000;

/// The shortest time that the kernel takes for a quota, in microseconds.
const LEAST: i64 = 1000;

/// The kernel's quotas of processor time on this node. All amounts of time are microseconds, and 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cfs {
    /// Limits are kept.
    pub enforced: bool,
    pub period: i64,
}

impl Default for Cfs {
    fn default() -> Self {
        Cfs { enforced: true, period: USUAL }
    }
}

impl Cfs {
    /// The error where a period is asked for that the features do not allow.
    pub fn check(self, features: &Features) -> Result<(), String> {
        let gate = Feature::CustomCPUCFSQuotaPeriod;
        if self.period == USUAL || features.enabled(gate) {
            return Ok(());
        }
        Err(format!("cpuCFSQuotaPeriod: it needs the feature gate {}", gate.name()))
    }

    /// The time in each period that a limit stands for.
    pub fn quota(self, limit: Option<Quantity>) -> i64 {
        self.of_milli(limit.map_or(0, Quantity::milli_value))
    }

    /// A quota that is kept with another period, as it would be with this node's: an earlier kubelet may have had other settings.
    pub fn converted(self, quota: i64, period: i64) -> i64 {
        match () {
            () if !self.enforced || quota <= 0 => 0,
            () if period <= 0 || period == self.period => quota,
            // Thousandths of a processor were rounded down to microseconds.
            () => self.of_milli(quota.saturating_mul(1000).saturating_add(period - 1) / period),
        }
    }

    /// Thousandths of a processor that a quota allows.
    pub fn milli(self, quota: i64) -> i64 {
        quota.saturating_mul(1000) / self.period
    }

    fn of_milli(self, milli: i64) -> i64 {
        if milli == 0 || !self.enforced { 0 } else { (milli.saturating_mul(self.period) / 1000).max(LEAST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(period: i64) -> Cfs {
        Cfs { enforced: true, period }
    }

    #[test]
    fn a_limit_is_a_part_of_each_period_and_never_less_than_a_millisecond() {
        let check = |cfs: Cfs, limit: &str, expected: i64| {
            assert_eq!(cfs.quota(Some(limit.parse().unwrap())), expected, "{cfs:?} {limit}");
        };
        check(every(100_000), "1m", 1000);
        check(every(100_000), "100m", 10_000);
        check(every(100_000), "1.5", 150_000);
        check(every(5_000), "2", 10_000);
        check(every(5_000), "100m", 1000);
        check(every(1_000), "1m", 1000);
        check(every(1_000_000), "1m", 1000);
        check(every(1_000_000), "1.5", 1_500_000);
        check(Cfs { enforced: false, ..Cfs::default() }, "2", 0);
        assert_eq!((every(5_000).quota(None), every(5_000).milli(10_000)), (0, 2000));
        // More than any machine has is no reason to fail.
        check(every(1_000_000), "1000000000000000", i64::MAX / 1000);
    }

    #[test]
    fn what_was_kept_with_another_period_reads_as_the_same_limit() {
        for period in [1000, 5000, 33_333, 100_000, 1_000_000] {
            for milli in [1000, 1001, 1999, 7500] {
                let held = every(period).of_milli(milli);
                assert_eq!(Cfs::default().converted(held, period), Cfs::default().of_milli(milli), "{period} {milli}");
            }
        }
        assert_eq!(Cfs::default().converted(-1, 100_000), 0);
        assert_eq!(Cfs::default().converted(1234, 0), 1234);
        assert_eq!(Cfs { enforced: false, ..Cfs::default() }.converted(1234, 100_000), 0);
    }

    #[test]
    fn another_period_needs_its_gate() {
        let (off, on) = (Features::default(), Features::default().with(Feature::CustomCPUCFSQuotaPeriod, true));
        assert_eq!((Cfs::default().check(&off), every(5000).check(&on)), (Ok(()), Ok(())));
        let text = "cpuCFSQuotaPeriod: it needs the feature gate CustomCPUCFSQuotaPeriod";
        assert_eq!(every(5000).check(&off).unwrap_err(), text);
    }
}
