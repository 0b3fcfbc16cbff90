//! How long what failed waits before it is tried again, and what users read meanwhile. A container that ended and an image
//! that cannot be pulled wait by themselves: neither lengthens the other's pause. Pure.

use clock::{Duration, Timestamp};

use crate::pod::{
    decide::{self, Memory},
    running::{Ran, Running, State},
    wanted::Wanted,
};

/// The first pause and the longest.
pub const FIRST: Duration = Duration::from_secs(10);
pub const LONGEST: Duration = Duration::from_secs(300);
/// How long a failed pull shows its error before it shows that it waits.
const SHOW_ERROR: Duration = Duration::from_secs(1);

/// A pause that doubles with each failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    pub delay: Duration,
    /// When it was last lengthened.
    pub since: Timestamp,
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(at)
}

impl Backoff {
    /// After a failure at `failed`, of which is learnt `now`: doubled, or from the beginning when all went well for long.
    pub fn next(previous: Option<Backoff>, failed: Timestamp, now: Timestamp) -> Backoff {
        let delay = match previous {
            Some(b) if !b.is_past(failed) => (b.delay * 2).min(LONGEST),
            _ => FIRST,
        };
        Backoff { delay, since: now }
    }

    /// What failed at `failed` had run well for so long that earlier failures do not count.
    fn is_past(&self, failed: Timestamp) -> bool {
        failed > later(self.since, 2 * LONGEST)
    }

    /// When the next try is due after a failure at `failed`.
    fn due(&self, failed: Timestamp) -> Option<Timestamp> {
        (!self.is_past(failed)).then(|| later(failed, self.delay))
    }
}

/// An image that could not be pulled for this Pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Pull {
    pub backoff: Backoff,
    /// The engine's words.
    pub error: String,
}

impl Pull {
    pub fn due(&self) -> Timestamp {
        later(self.backoff.since, self.backoff.delay)
    }

    /// Shown from then on: that it waits, no longer how it failed.
    fn shown_as_waiting_at(&self) -> Timestamp {
        later(self.backoff.since, SHOW_ERROR)
    }
}

/// When a container that ended may run again; `None` is at once.
pub fn restart_due(memory: &Memory, ran: Option<&Ran>) -> Option<Timestamp> {
    let ran = ran.filter(|r| r.state == State::Exited)?;
    memory.backoff.get(&ran.name)?.due(ran.finished_at?)
}

/// When the image of a container may be tried again; then, or when its status is due to change, the worker looks again.
pub fn pull_due(memory: &Memory, image: &str, now: Timestamp) -> Option<Timestamp> {
    let pull = memory.pulls.get(image).filter(|p| p.due() > now)?;
    let shown = pull.shown_as_waiting_at();
    Some(if shown > now { shown.min(pull.due()) } else { pull.due() })
}

/// Why a container waits: what its status shows and the events that go with it, as warning, reason, message.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    pub container: String,
    pub reason: &'static str,
    pub message: String,
    pub events: Vec<(bool, &'static str, String)>,
}

pub fn image_wait(container: &str, image: &str, error: &str) -> Wait {
    let text = format!("Back-off pulling image \"{image}\"");
    Wait {
        container: container.to_owned(),
        reason: "ImagePullBackOff",
        message: format!("{text}: ErrImagePull: {error}"),
        events: vec![(false, "BackOff", text), (true, "Failed", "Error: ImagePullBackOff".to_owned())],
    }
}

fn crash_wait(wanted: &Wanted, container: &str, delay: Duration) -> Wait {
    let pod = format!("{}_{}({})", wanted.name(), wanted.namespace(), wanted.uid());
    Wait {
        container: container.to_owned(),
        reason: "CrashLoopBackOff",
        message: format!("back-off {} restarting failed container={container} pod={pod}", in_words(delay)),
        events: vec![(true, "BackOff", format!("Back-off restarting failed container {container} in pod {pod}"))],
    }
}

/// The containers that wait now, each with its first reason.
pub fn waits(wanted: &Wanted, running: &Running, memory: &Memory, now: Timestamp) -> Vec<Wait> {
    let one = |container: &k8s_openapi::api::core::v1::Container| {
        let (name, latest) = (&container.name, running.latest(&container.name));
        let over = |r: &Ran| r.state == State::Exited && !decide::restarts(wanted, container, r.exit_code);
        if latest.is_some_and(|r| r.state == State::Running || over(r)) {
            return None;
        }
        if restart_due(memory, latest).is_some_and(|due| due > now) {
            return Some(crash_wait(wanted, name, memory.backoff.get(name)?.delay));
        }
        let image = container.image.as_deref().unwrap_or_default();
        let pull = memory.pulls.get(image).filter(|p| p.due() > now && p.shown_as_waiting_at() <= now)?;
        // Only a container that has asked for the image waits for it.
        let asked = memory.waiting.get(name).is_some_and(|(reason, _)| reason == "ErrImagePull");
        asked.then(|| image_wait(name, image, &pull.error))
    };
    if wanted.is_ending() { Vec::new() } else { wanted.containers().filter_map(one).collect() }
}

/// A duration as Go prints it: `10s`, `1m20s`, `5m0s`.
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::fixture::{at, now, pod, running};

    #[test]
    fn pauses_double_to_five_minutes_and_begin_anew_after_ten_good_ones() {
        let mut backoff = None;
        let mut seen = Vec::new();
        for _ in 0..7 {
            backoff = Some(Backoff::next(backoff, now(), now()));
            seen.push(in_words(backoff.unwrap().delay));
        }
        assert_eq!(seen, ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]);
        for (ran_seconds, delay, due) in [(599, "5m0s", true), (600, "5m0s", true), (601, "10s", false)] {
            let ended = at(ran_seconds);
            assert_eq!(in_words(Backoff::next(backoff, ended, ended).delay), delay, "{ran_seconds}");
            assert_eq!(backoff.unwrap().due(ended).is_some(), due, "{ran_seconds}");
        }
    }

    /// `m` has ended `ended` seconds ago after a pause of 10 s was set, and its image failed `pulled` seconds ago.
    fn check(ended: Option<i64>, pulled: Option<(i64, &str)>, expected: &[&str]) {
        let wanted = pod(
            r#"{"restartPolicy": "OnFailure", "containers": [{"name": "m", "image": "x"}, {"name": "n", "image": "x"}]}"#,
        );
        let mut memory = Memory::default();
        let mut found = running(&wanted, "");
        if let Some(seconds) = ended {
            found = running(&wanted, if seconds < 0 { "m:0" } else { "m:1" });
            found.containers[0].finished_at = Some(at(-seconds));
            memory.backoff.insert("m".into(), Backoff { delay: FIRST, since: at(-seconds) });
        }
        if let Some((seconds, asked)) = pulled {
            let backoff = Backoff { delay: FIRST, since: at(-seconds) };
            memory.pulls.insert("x".into(), Pull { backoff, error: "no such host".into() });
            memory.waiting.insert(asked.into(), ("ErrImagePull".into(), "no such host".into()));
        }
        let got = waits(&wanted, &found, &memory, now());
        let text: Vec<String> = got.iter().map(|w| format!("{} {}: {}", w.container, w.reason, w.message)).collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn containers_and_images_wait_by_themselves() {
        let crash = "m CrashLoopBackOff: back-off 10s restarting failed container=m pod=p_d(u)";
        let image = "m ImagePullBackOff: Back-off pulling image \"x\": ErrImagePull: no such host";
        check(None, None, &[]);
        check(Some(9), None, &[crash]);
        check(Some(10), None, &[]);
        // It ended well just now, after failures, and will not run again.
        check(Some(-1), None, &[]);
        check(None, Some((0, "m")), &[]);
        check(None, Some((1, "m")), &[image]);
        check(None, Some((9, "m")), &[image]);
        check(None, Some((10, "m")), &[]);
        check(None, Some((5, "other")), &[]);
        // The restart comes first, and the image's pause is not its.
        check(Some(9), Some((5, "m")), &[crash]);
        check(Some(10), Some((5, "m")), &[image]);
    }

    #[test]
    fn the_events_say_what_upstream_says() {
        let wait = image_wait("m", "x", "e");
        assert_eq!(
            wait.events,
            [
                (false, "BackOff", "Back-off pulling image \"x\"".to_owned()),
                (true, "Failed", "Error: ImagePullBackOff".to_owned())
            ]
        );
        let crash = crash_wait(&pod(r#"{"containers": []}"#), "m", FIRST);
        assert_eq!(crash.events[0].2, "Back-off restarting failed container m in pod p_d(u)");
    }
}
