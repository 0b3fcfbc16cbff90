//! The reason and message while a container waits for its next start or its image. The two wait by themselves: neither
//! lengthens the other's pause. Pure.

use clock::{Duration, Timestamp};

use crate::pod::{
    backoff::{Pull, in_words},
    desired::DesiredPod,
    memory::Memory,
    restart::goes_on,
    running::{ContainerRun, RunningPod, State},
};

/// Why a container waits: what its status shows and the events that go with it, as warning, reason, message.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    pub container: String,
    pub reason: &'static str,
    pub message: String,
    pub events: Vec<(bool, &'static str, String)>,
}

pub fn image_wait(container: &str, image: &str, failed: &Pull) -> Wait {
    let Pull { reason, error, .. } = failed;
    let text = format!("Back-off pulling image \"{image}\"");
    Wait {
        container: container.to_owned(),
        reason: "ImagePullBackOff",
        message: format!("{text}: {reason}: {error}"),
        events: vec![(false, "BackOff", text), (true, "Failed", "Error: ImagePullBackOff".to_owned())],
    }
}

fn crash_wait(desired: &DesiredPod, container: &str, delay: Duration) -> Wait {
    let pod = desired.name_in_messages();
    Wait {
        container: container.to_owned(),
        reason: "CrashLoopBackOff",
        message: format!("back-off {} restarting failed container={container} pod={pod}", in_words(delay)),
        events: vec![(true, "BackOff", format!("Back-off restarting failed container {container} in pod {pod}"))],
    }
}

/// The containers that wait now, each with its first reason.
pub fn waits(desired: &DesiredPod, running: &RunningPod, memory: &Memory, now: Timestamp) -> Vec<Wait> {
    let one = |container: &k8s_openapi::api::core::v1::Container| {
        let (name, latest) = (&container.name, running.latest(&container.name));
        let over = |r: &ContainerRun| r.state == State::Exited && !goes_on(desired, container, r.exit_code, memory);
        if latest.is_some_and(|r| r.state == State::Running || over(r)) {
            return None;
        }
        if memory.restart_due(latest).is_some_and(|due| due > now) {
            return Some(crash_wait(desired, name, memory.container(name).backoff?.delay));
        }
        let failed = |image: &str| memory.pulls.get(image).filter(|p| p.due() > now && p.shown_as_waiting_at() <= now);
        let (image, pull) = desired.images(container).into_iter().find_map(|image| Some((image, failed(image)?)))?;
        // Only a container that has asked for the image waits for it.
        let asked = memory.container(name).waiting.as_ref().is_some_and(|w| w.reason == pull.reason);
        asked.then(|| image_wait(name, image, pull))
    };
    if desired.is_ending() { Vec::new() } else { desired.containers().filter_map(one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{
        backoff::{Backoff, Pauses},
        fixture::{at, now, pod, running},
        memory::Cause,
    };

    /// `m` has ended `ended` seconds ago after a pause of 10 s was set, and its image failed `pulled` seconds ago.
    fn check(ended: Option<i64>, pulled: Option<(i64, &str)>, expected: &[&str]) {
        let desired = pod(
            r#"{"restartPolicy": "OnFailure", "containers": [{"name": "m", "image": "x"}, {"name": "n", "image": "x"}]}"#,
        );
        let mut memory = Memory::default();
        let mut found = running(&desired, "");
        if let Some(seconds) = ended {
            found = running(&desired, if seconds < 0 { "m:0" } else { "m:1" });
            found.containers[0].finished_at = Some(at(-seconds));
            memory.container_mut("m").backoff = Some(Backoff { delay: Pauses::USUAL.first, since: at(-seconds) });
        }
        if let Some((seconds, asked)) = pulled {
            let backoff = Backoff { delay: Pauses::USUAL.first, since: at(-seconds) };
            memory.pulls.insert("x".into(), Pull { backoff, reason: "ErrImagePull", error: "no such host".into() });
            memory.container_mut(asked).waiting = Some(Cause::new("ErrImagePull", "no such host"));
        }
        let got = waits(&desired, &found, &memory, now());
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
        let backoff = Backoff { delay: Pauses::USUAL.first, since: now() };
        let wait = image_wait("m", "x", &Pull { backoff, reason: "RegistryUnavailable", error: "e".into() });
        assert_eq!(wait.message, "Back-off pulling image \"x\": RegistryUnavailable: e");
        assert_eq!(
            wait.events,
            [
                (false, "BackOff", "Back-off pulling image \"x\"".to_owned()),
                (true, "Failed", "Error: ImagePullBackOff".to_owned())
            ]
        );
        let crash = crash_wait(&pod(r#"{"containers": []}"#), "m", Pauses::USUAL.first);
        assert_eq!(crash.events[0].2, "Back-off restarting failed container m in pod p_d(u)");
    }
}
