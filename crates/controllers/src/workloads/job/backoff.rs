//! How long a Job waits before it replaces Pods that failed: longer with each failure since the last success.

use std::{collections::BTreeSet, time::Duration};

use api::rules::pod;
use clock::Timestamp;
use k8s_openapi::api::core::v1::Pod;

/// The delay after the first failure, which doubles with each further one up to the longest.
const FIRST_DELAY: Duration = Duration::from_secs(10);
pub const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// More failures than this do not lengthen the delay.
const MOST_FAILURES: usize = 7;

/// The failures of a Job's Pods since its last success. Pods are remembered by UID, so that a Pod that is seen in several
/// plans counts once. After a restart the Pods that still exist tell most of it again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Failures {
    last_success: Option<Timestamp>,
    /// The latest failures with the UIDs of their Pods.
    latest: BTreeSet<(Timestamp, String)>,
}

impl Failures {
    pub fn succeeded(&mut self, pod: &Pod) {
        self.last_success = self.last_success.max(finished_at(pod));
        let last = self.last_success;
        self.latest.retain(|(at, _)| Some(*at) > last);
    }

    pub fn failed(&mut self, pod: &Pod) {
        let Some(at) = finished_at(pod).filter(|at| self.last_success.is_none_or(|success| *at > success)) else {
            return;
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        // The time of a failure is estimated from less before the Pod has ended than after.
        self.latest.retain(|(_, held)| *held != uid);
        self.latest.insert((at, uid));
        while self.latest.len() > MOST_FAILURES {
            self.latest.pop_first();
        }
    }

    /// How long no Pod may be created yet; `None` when one may.
    pub fn wait(&self, now: Timestamp) -> Option<Duration> {
        let (last, _) = self.latest.last()?;
        wait(self.latest.len() as u32, *last, now)
    }
}

/// The time that the replacement has to wait after this number of failures, of which the last was at this time.
pub fn wait(failures: u32, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(MOST_FAILURES as u32);
    let delay = (FIRST_DELAY * (1 << doublings)).min(LONGEST_DELAY);
    let passed = now.as_second() - last.as_second();
    let left = delay.saturating_sub(Duration::from_secs(passed.max(0) as u64));
    (!left.is_zero()).then_some(left)
}

/// When a Pod ended: as its containers say, or else its Ready condition, its deletion or, lacking all that, its creation.
pub fn finished_at(pod: &Pod) -> Option<Timestamp> {
    containers_finished_at(pod)
        .or_else(|| {
            pod::condition(pod, "Ready").filter(|c| c.status == "False")?.last_transition_time.as_ref().map(|t| t.0)
        })
        .or_else(|| {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let deleted = pod.metadata.deletion_timestamp.as_ref()?.0;
            Timestamp::from_second(deleted.as_second() - grace).ok()
        })
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
}

/// When the last container ended; `None` while one runs.
fn containers_finished_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ends: Option<Vec<Timestamp>> =
        containers.iter().map(|c| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)).collect();
    ends?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn ended(uid: &str, second: i64) -> Pod {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "finishedAt": at(second).to_string()}}});
        json::from_value(json!({"metadata": {"uid": uid}, "status": {"containerStatuses": [container]}})).unwrap()
    }

    #[test]
    fn the_delay_doubles_and_has_an_end() {
        let delays: Vec<u64> = (0..9).map(|n| wait(n, at(0), at(0)).map_or(0, |d| d.as_secs())).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(wait(2, at(0), at(15)), Some(Duration::from_secs(5)));
        assert_eq!(wait(2, at(0), at(20)), None);
        assert_eq!(wait(1, at(5), at(0)), Some(Duration::from_secs(10)), "a clock that goes ahead delays no longer");
        assert_eq!(wait(u32::MAX, at(0), at(0)), Some(LONGEST_DELAY));
    }

    #[test]
    fn a_success_forgives_earlier_failures() {
        // `s` and `f` are Pods that succeeded and failed at that second; the third is the wait at second 100.
        let check = |pods: &str, expected: u64| {
            let mut failures = Failures::default();
            for (i, word) in pods.split_whitespace().enumerate() {
                let (outcome, second) = word.split_at(1);
                let pod = ended(&i.to_string(), second.parse().unwrap());
                let learn = |failures: &mut Failures| match outcome {
                    "s" => failures.succeeded(&pod),
                    _ => failures.failed(&pod),
                };
                learn(&mut failures);
                learn(&mut failures);
            }
            assert_eq!(failures.wait(at(100)).map_or(0, |d| d.as_secs()), expected, "{pods}");
        };
        check("", 0);
        check("f99", 9);
        check("f98 f99", 19);
        check("f98 f99 s97", 19);
        check("f98 s99", 0);
        check("f98 s99 f100", 10);
        check("s99 f98", 0);
        check("f1 f2 f3 f4 f5 f6 f7 f8 f9 f100", 600);
    }

    #[test]
    fn the_end_is_found_where_it_is_told() {
        let check = |pod: json::Value, expected: i64| {
            let pod: Pod = json::from_value(pod).unwrap();
            assert_eq!(finished_at(&pod), Some(at(expected)), "{pod:?}");
        };
        let time = |second: i64| at(second).to_string();
        let created = json!({"creationTimestamp": time(1)});
        check(json!({"metadata": created}), 1);
        let deleted =
            json!({"creationTimestamp": time(1), "deletionTimestamp": time(40), "deletionGracePeriodSeconds": 30});
        check(json!({"metadata": deleted}), 10);
        let unready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": time(20)}]);
        check(json!({"metadata": deleted, "status": {"conditions": unready}}), 20);
        let container = |state: json::Value| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let done = |second: i64| container(json!({"terminated": {"exitCode": 0, "finishedAt": time(second)}}));
        let two = json!([done(30), done(35)]);
        check(json!({"metadata": deleted, "status": {"conditions": unready, "containerStatuses": two}}), 35);
        let one_runs = json!([done(30), container(json!({"running": {}}))]);
        check(json!({"metadata": deleted, "status": {"conditions": unready, "containerStatuses": one_runs}}), 20);
    }
}
