//! Which Pods end when: the least important first, those of each group within its time. Pure.
//! Upstream counterpart: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.

use std::time::Duration;

use api::features::{Feature, Features};

use crate::{
    configuration::shutdown::{Period, Shutdown},
    pod::admit::SYSTEM_CRITICAL,
};

/// The groups, the least important first. None where the Pods of an ending machine end with it.
pub fn of(settings: &Shutdown, features: &Features) -> Result<Vec<Period>, String> {
    let lacks = |feature: Feature, field: &str| Err(format!("{field}: it needs the feature gate {}", feature.name()));
    if !settings.all.is_zero() && !features.enabled(Feature::GracefulNodeShutdown) {
        return lacks(Feature::GracefulNodeShutdown, "shutdownGracePeriod");
    }
    if settings.by_priority.is_empty() {
        return Ok(of_two(settings));
    }
    if !features.enabled(Feature::GracefulNodeShutdownBasedOnPodPriority) {
        return lacks(Feature::GracefulNodeShutdownBasedOnPodPriority, "shutdownGracePeriodByPodPriority");
    }
    let mut periods = settings.by_priority.clone();
    periods.sort_by_key(|period| period.priority);
    Ok(periods)
}

/// Critical Pods end after all others, in their part of the whole time.
fn of_two(settings: &Shutdown) -> Vec<Period> {
    if settings.all.is_zero() {
        return Vec::new();
    }
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    vec![
        Period { priority: 0, seconds: seconds(settings.all.saturating_sub(settings.critical)) },
        Period { priority: SYSTEM_CRITICAL, seconds: seconds(settings.critical) },
    ]
}

pub fn whole(periods: &[Period]) -> Duration {
    Duration::from_secs(periods.iter().map(|period| u64::from(period.seconds)).sum())
}

/// The group of a Pod: the most important one that is not above its priority, or else the least important one.
pub fn group(periods: &[Period], priority: i32) -> usize {
    periods.partition_point(|period| period.priority <= priority).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(i32, u32)]) -> Vec<Period> {
        list.iter().map(|(priority, seconds)| Period { priority: *priority, seconds: *seconds }).collect()
    }

    #[test]
    fn critical_pods_have_the_last_part_of_the_time() {
        let of = |all: u64, critical: u64| {
            let settings = Shutdown {
                all: Duration::from_secs(all),
                critical: Duration::from_secs(critical),
                ..Shutdown::default()
            };
            super::of(&settings, &Features::default()).unwrap()
        };
        assert_eq!(of(30, 10), pairs(&[(0, 20), (SYSTEM_CRITICAL, 10)]));
        assert_eq!(of(30, 0), pairs(&[(0, 30), (SYSTEM_CRITICAL, 0)]));
        assert_eq!(of(0, 0), []);
        assert_eq!(whole(&of(30, 10)), Duration::from_secs(30));
    }

    #[test]
    fn pods_belong_to_the_group_below_them() {
        let settings = Shutdown { by_priority: pairs(&[(1000, 30), (0, 60), (100, 5)]), ..Shutdown::default() };
        let periods = of(&settings, &Features::default()).unwrap();
        assert_eq!(periods, pairs(&[(0, 60), (100, 5), (1000, 30)]));
        for (priority, expected) in
            [(-5, 0), (0, 0), (99, 0), (100, 1), (999, 1), (1000, 2), (1001, 2), (i32::MAX, 2), (i32::MIN, 0)]
        {
            assert_eq!(group(&periods, priority), expected, "{priority}");
        }
    }

    #[test]
    fn what_is_switched_off_is_not_asked_for() {
        let off = Features::default().with(Feature::GracefulNodeShutdownBasedOnPodPriority, false);
        let by_priority = Shutdown { by_priority: pairs(&[(0, 1)]), ..Shutdown::default() };
        let text = "shutdownGracePeriodByPodPriority: it needs the feature gate GracefulNodeShutdownBasedOnPodPriority";
        assert_eq!(of(&by_priority, &off), Err(text.to_owned()));
        let all = Shutdown { all: Duration::from_secs(3), ..Shutdown::default() };
        assert!(of(&all, &off.with(Feature::GracefulNodeShutdown, false)).is_err());
        assert!(of(&Shutdown::default(), &off).is_ok());
    }
}
