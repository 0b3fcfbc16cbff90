//! How long the Pods of an ending machine have, as a configuration says it.

use std::time::Duration;

use json::Value;

/// The time of the Pods of one priority and above, up to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The time of all Pods together.
    pub all: Duration,
    /// The last part of it, for critical Pods.
    pub critical: Duration,
    /// The time of each group, in the place of both.
    pub by_priority: Vec<Period>,
}

impl Shutdown {
    /// Whether the times fit each other.
    pub fn check(&self) -> Result<(), String> {
        if self.critical > self.all {
            return Err("shutdownGracePeriodCriticalPods: it cannot be longer than shutdownGracePeriod".to_owned());
        }
        for (field, time) in [("shutdownGracePeriod", self.all), ("shutdownGracePeriodCriticalPods", self.critical)] {
            if !time.is_zero() && time < Duration::from_secs(1) {
                return Err(format!("{field}: it must be nothing or 1s at least"));
            }
        }
        if !self.by_priority.is_empty() && !self.all.is_zero() {
            return Err("shutdownGracePeriodByPodPriority: it cannot stand beside shutdownGracePeriod".to_owned());
        }
        Ok(())
    }
}

/// The groups of a list, each with its fields `priority` and `shutdownGracePeriodSeconds`.
pub fn periods(value: &Value) -> Result<Vec<Period>, String> {
    let list = value.as_array().ok_or("it must be a list")?;
    list.iter().map(period).collect()
}

fn period(value: &Value) -> Result<Period, String> {
    let map = value.as_object().ok_or("each group is an object")?;
    let known = ["priority", "shutdownGracePeriodSeconds"];
    if let Some(strange) = map.keys().find(|name| !known.contains(&&***name)) {
        return Err(format!("unknown field \"{strange}\""));
    }
    let number = |name: &str| match value.get(name) {
        None => Ok(0),
        Some(given) => given.as_i64().ok_or_else(|| format!("{name}: it must be a number")),
    };
    let (priority, seconds) = (number(known[0])?, number(known[1])?);
    let priority = i32::try_from(priority).map_err(|_| format!("priority: {priority} is none"))?;
    // A longer time than that is longer than all others that a configuration knows.
    let seconds = i32::try_from(seconds).ok().and_then(|seconds| u32::try_from(seconds).ok());
    let seconds = seconds.ok_or("shutdownGracePeriodSeconds: it must be a number from 0 to 2147483647")?;
    Ok(Period { priority, seconds })
}
