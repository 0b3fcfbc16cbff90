//! Which time of its schedule a CronJob has reached, and when the next one comes.

use std::time::Duration;

use api::rules::cron::Schedule;
use clock::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus};

/// The next time is looked at this much later, so that clocks that differ a little do not miss it.
const PADDING: Duration = Duration::from_millis(100);

/// More missed times than this are told to the user.
const MANY: i64 = 100;

/// A time that has come and has no Job yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    pub at: Timestamp,
    pub many_missed: bool,
}

/// The last time that has come since the last Job, or since the CronJob was created. Times that are too late to be started
/// are left out.
pub fn due(cron: &CronJob, status: &CronJobStatus, now: Timestamp, schedule: &Schedule) -> Result<Option<Due>, String> {
    let mut since = earliest(cron, status);
    if let Some(deadline) = cron.spec.as_ref().and_then(|s| s.starting_deadline_seconds) {
        let too_late = Timestamp::from_second(now.as_second().saturating_sub(deadline)).unwrap_or(Timestamp::MIN);
        since = since.max(too_late);
    }
    let (last, missed) = latest(since, now, schedule)?;
    Ok(last.map(|at| Due { at, many_missed: missed > MANY }))
}

/// How long until the next time of the schedule.
pub fn until_next(cron: &CronJob, status: &CronJobStatus, now: Timestamp, schedule: &Schedule) -> Duration {
    let since = earliest(cron, status);
    let after = match latest(since, now, schedule) {
        Ok((Some(last), _)) => last,
        Ok((None, 0)) => since,
        _ => now,
    };
    let next = schedule.next(after).map_or(0, |next| next.as_second() - now.as_second());
    Duration::from_secs(next.max(0) as u64) + PADDING
}

fn earliest(cron: &CronJob, status: &CronJobStatus) -> Timestamp {
    let last = status.last_schedule_time.as_ref().or(cron.metadata.creation_timestamp.as_ref());
    last.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The last time of the schedule after `since` that has come, and roughly how many have.
fn latest(since: Timestamp, now: Timestamp, schedule: &Schedule) -> Result<(Option<Timestamp>, i64), String> {
    let never = || "time difference between two schedules is less than 1 second".to_owned();
    let first = schedule.next(since).ok_or_else(never)?;
    if now < first {
        return Ok((None, 0));
    }
    let Some(second) = schedule.next(first) else { return Ok((Some(first), 0)) };
    if now < second {
        return Ok((Some(first), 0));
    }
    let interval = second.as_second() - first.as_second();
    if interval < 1 {
        return Err(never());
    }
    let missed = (now.as_second() - first.as_second()) / interval + 1;
    // The search begins two intervals before the last time that a regular schedule would have. An irregular one may have
    // had its last time before that.
    let start = first.as_second() + (missed - 2) * interval;
    let mut last = None;
    let mut at = schedule.next(Timestamp::from_second(start).map_err(|_| never())?);
    while let Some(time) = at.filter(|time| *time <= now) {
        last = Some(time);
        at = schedule.next(time);
    }
    Ok((last, missed))
}
