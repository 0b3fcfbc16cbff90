//! When a ready Pod begins to count as available.

use std::time::Duration;

use api::rules::pod;
use clock::Timestamp;
use k8s_openapi::api::core::v1::Pod;

/// How long until a ready Pod counts as available; `None` when it does already, or is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !pod::is_ready(pod) || pod::is_available(pod, min_ready_seconds, now) {
        return None;
    }
    let since = pod::condition(pod, "Ready")?.last_transition_time.as_ref()?.0.as_second();
    let left = since + i64::from(min_ready_seconds) - now.as_second();
    Some(Duration::from_secs(left.max(0) as u64 + 1))
}

/// How long until the next of these Pods becomes available.
pub fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    pods.into_iter().filter_map(|pod| available_in(pod, min_ready_seconds, now)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_ready_pod_waits_for_its_seconds() {
        let pod = |ready: &str| -> Pod {
            json::from_value(json!({"status": {"conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .unwrap()
        };
        let at = |second: i32| format!("2026-01-01T00:00:{second:02}Z").parse().unwrap();
        for (ready, min_ready, second, expected) in
            [("True", 0, 0, None), ("True", 10, 4, Some(7)), ("True", 10, 10, None), ("False", 10, 4, None)]
        {
            let left = available_in(&pod(ready), min_ready, at(second));
            assert_eq!(left, expected.map(Duration::from_secs), "{ready} {min_ready} {second}");
        }
    }
}
