//! What to do next for one Pod: from what is wanted, what runs, and what was learnt on the way. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::is_sidecar;
use clock::{Duration, Timestamp};
use k8s_openapi::api::core::v1::Container;

use crate::{
    running::{Ran, Running, State},
    wanted::{Wanted, hash},
};

/// The first wait after a container ended twice, and the longest.
pub const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// How long a container of that name waits between its end and its next start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    pub delay: Duration,
    pub since: Timestamp,
}

impl Backoff {
    /// After one more failure: doubled, or from the beginning when the last one is long ago.
    pub fn next(previous: Option<Backoff>, now: Timestamp) -> Backoff {
        let delay = match previous {
            Some(b) if now.as_second() - b.since.as_second() < 2 * BACKOFF.1.as_secs() as i64 => {
                (b.delay * 2).min(BACKOFF.1)
            }
            _ => BACKOFF.0,
        };
        Backoff { delay, since: now }
    }
}

/// What the worker has learnt about its Pod and the engine does not tell.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Volumes, cgroups and folders are there.
    pub prepared: bool,
    /// The API says that all work was done before this kubelet saw the Pod.
    pub done: bool,
    /// They are gone again; nothing is left to do.
    pub settled: bool,
    /// Why the Pod is refused or ended by the node itself: reason and message.
    pub failed: Option<(String, String)>,
    pub backoff: BTreeMap<String, Backoff>,
    /// Why a container does not run: reason and message.
    pub waiting: BTreeMap<String, (String, String)>,
    /// Nothing is tried before.
    pub retry_at: BTreeMap<String, Timestamp>,
    /// Containers (by id) that a probe has condemned, with the message of the event.
    pub condemned: BTreeMap<String, String>,
    /// Containers (by id) whose startup probe has passed, and whose readiness probe passes.
    pub started: BTreeSet<String>,
    pub ready: BTreeSet<String>,
    /// Termination messages by container id.
    pub messages: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Volumes, cgroup, folders.
    Prepare,
    MakeSandbox {
        attempt: u32,
    },
    Start {
        name: String,
        restarts: i32,
    },
    /// Ends one container; its restart is decided later.
    Kill {
        id: String,
        name: String,
        why: String,
    },
    /// Ends all that lives, within the Pod's grace period.
    KillAll,
    StopSandbox {
        id: String,
    },
    /// Dead containers that nobody needs any more.
    Remove {
        id: String,
    },
    /// The Pod will never run here again: undo what `Prepare` did.
    Settle,
    /// As `Settle`; and the object itself goes.
    Finish,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub steps: Vec<Step>,
    pub wake_at: Option<Timestamp>,
}

/// Whether a container that ended is to run again.
pub fn restarts(wanted: &Wanted, container: &Container, exit_code: i32) -> bool {
    is_sidecar(container)
        || match wanted.restart_policy() {
            "Never" => false,
            "OnFailure" => exit_code != 0,
            _ => wanted.spec().containers.iter().any(|c| c.name == container.name) || exit_code != 0,
        }
}

/// All work is done, or can't be: no container will be started again.
pub fn is_done(wanted: &Wanted, running: &Running, memory: &Memory) -> bool {
    if memory.failed.is_some() || memory.done {
        return true;
    }
    let ended = |c: &Container| match running.latest(&c.name) {
        Some(ran) if ran.state == State::Exited => !restarts(wanted, c, ran.exit_code),
        _ => false,
    };
    let init_failed = wanted
        .init_containers()
        .iter()
        .filter(|c| !is_sidecar(c))
        .any(|c| ended(c) && running.latest(&c.name).is_some_and(|r| r.exit_code != 0));
    init_failed || wanted.spec().containers.iter().all(ended)
}

/// Every init container has done its part in the current sandbox.
pub fn is_initialized(wanted: &Wanted, running: &Running, memory: &Memory) -> bool {
    let begun = wanted.spec().containers.iter().any(|c| running.latest(&c.name).is_some());
    begun
        || wanted.init_containers().iter().all(|c| match running.current(&c.name) {
            Some(ran) if is_sidecar(c) => ran.state == State::Running && memory.started.contains(&ran.id),
            Some(ran) => ran.state == State::Exited && ran.exit_code == 0,
            None => false,
        })
}

pub fn decide(wanted: &Wanted, running: &Running, memory: &Memory, now: Timestamp) -> Decision {
    if memory.settled && !wanted.is_ending() {
        return Decision::default();
    }
    if wanted.is_ending() || is_done(wanted, running, memory) {
        return end(wanted, running);
    }
    let mut plan = Planner { wanted, running, memory, now, out: Decision::default() };
    plan.run();
    plan.out
}

fn end(wanted: &Wanted, running: &Running) -> Decision {
    let step = if running.alive().next().is_some() {
        Step::KillAll
    } else if let Some(sandbox) = running.sandboxes.iter().find(|s| s.ready) {
        Step::StopSandbox { id: sandbox.id.clone() }
    } else if wanted.is_ending() {
        Step::Finish
    } else {
        Step::Settle
    };
    Decision { steps: vec![step], wake_at: None }
}

struct Planner<'a> {
    wanted: &'a Wanted,
    running: &'a Running,
    memory: &'a Memory,
    now: Timestamp,
    out: Decision,
}

impl Planner<'_> {
    fn run(&mut self) {
        let Some(sandbox) = self.running.sandbox() else { return self.make_sandbox() };
        for stray in self.running.alive().filter(|c| c.sandbox != sandbox.id) {
            self.kill(stray, "Pod sandbox changed, it will be killed and re-created.");
        }
        self.drop_old();
        if self.initialize() {
            for container in &self.wanted.spec().containers {
                self.main(container);
            }
        }
    }

    fn make_sandbox(&mut self) {
        for stray in self.running.alive() {
            self.kill(stray, "Pod sandbox changed, it will be killed and re-created.");
        }
        if self.held_back("") {
            return;
        }
        if !self.memory.prepared {
            self.out.steps.push(Step::Prepare);
        }
        // The engine names a sandbox by its attempt, and one that failed to start keeps its name for a while.
        let attempt = self.running.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
        self.out.steps.push(Step::MakeSandbox { attempt });
    }

    /// Keeps one dead container per name: its log and its end are still asked for.
    fn drop_old(&mut self) {
        let mut seen = BTreeMap::new();
        for ran in &self.running.containers {
            let count = seen.entry(&ran.name).or_insert(0);
            *count += 1;
            if *count > 2 && ran.state != State::Running {
                self.out.steps.push(Step::Remove { id: ran.id.clone() });
            }
        }
    }

    /// Runs the init containers in their order; true when the main ones may run.
    fn initialize(&mut self) -> bool {
        let begun = self.wanted.spec().containers.iter().any(|c| self.running.current(&c.name).is_some());
        for container in self.wanted.init_containers() {
            let sidecar = is_sidecar(container);
            match self.running.current(&container.name) {
                Some(ran) if ran.state == State::Running => {
                    if sidecar && self.condemned(ran) {
                        return begun;
                    }
                    if !(begun || sidecar && self.memory.started.contains(&ran.id)) {
                        return false;
                    }
                }
                Some(ran) if ran.state == State::Exited && !sidecar && ran.exit_code == 0 => {}
                _ if begun && !sidecar => {}
                ran => {
                    self.start(container, ran);
                    if !begun {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn main(&mut self, container: &Container) {
        match self.running.current(&container.name).or(self.running.latest(&container.name)) {
            Some(ran) if ran.state == State::Running => {
                if !self.condemned(ran) && ran.hash != hash(container) {
                    self.kill(ran, &format!("Container {} definition changed, will be restarted", ran.name));
                }
            }
            Some(ran) if ran.state == State::Exited && !restarts(self.wanted, container, ran.exit_code) => {}
            ran => self.start(container, ran),
        }
    }

    fn condemned(&mut self, ran: &Ran) -> bool {
        let Some(why) = self.memory.condemned.get(&ran.id) else { return false };
        self.kill(ran, why);
        true
    }

    fn kill(&mut self, ran: &Ran, why: &str) {
        self.out.steps.push(Step::Kill { id: ran.id.clone(), name: ran.name.clone(), why: why.to_owned() });
    }

    fn start(&mut self, container: &Container, before: Option<&Ran>) {
        let name = &container.name;
        if self.held_back(name) {
            return;
        }
        let before = before.or(self.running.latest(name));
        let ended = before.filter(|r| r.state == State::Exited).and_then(|r| r.finished_at);
        if let (Some(ended), Some(backoff)) = (ended, self.memory.backoff.get(name)) {
            let due = ended.checked_add(backoff.delay).unwrap_or(ended);
            if due > self.now {
                return self.wake(due);
            }
        }
        let restarts = before.map_or(0, |r| r.restarts + 1);
        self.out.steps.push(Step::Start { name: name.clone(), restarts });
    }

    fn held_back(&mut self, name: &str) -> bool {
        match self.memory.retry_at.get(name) {
            Some(at) if *at > self.now => {
                self.wake(*at);
                true
            }
            _ => false,
        }
    }

    fn wake(&mut self, at: Timestamp) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |w| w.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::running::Sandbox;

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn wanted(policy: &str, ending: bool) -> Wanted {
        let deleted = ending.then_some("2026-01-01T00:00:00Z");
        let pod = json!({
            "metadata": { "name": "p", "namespace": "d", "uid": "u", "deletionTimestamp": deleted },
            "spec": {
                "restartPolicy": policy,
                "initContainers": [{ "name": "i", "image": "x" }, { "name": "s", "image": "x", "restartPolicy": "Always" }],
                "containers": [{ "name": "m", "image": "x" }],
            },
        });
        Wanted { pod: Arc::new(serde_json::from_value(pod).unwrap()), is_static: false, removed: false }
    }

    /// `name:up` or `name:exit code`, the oldest first; the sandbox is ready unless there is none.
    fn running(wanted: &Wanted, text: &str) -> Running {
        let mut found = Running::default();
        if text == "nothing" {
            return found;
        }
        found.sandboxes.push(Sandbox { id: "s1".into(), ready: true, attempt: 0, ips: Vec::new(), created_at: 1 });
        for (index, word) in text.split_whitespace().enumerate() {
            let (name, state) = word.split_once(':').unwrap();
            let up = state == "up";
            let ran = Ran {
                id: format!("{name}{index}"),
                name: name.into(),
                sandbox: "s1".into(),
                state: if up { State::Running } else { State::Exited },
                restarts: 0,
                hash: hash(wanted.container(name).unwrap()),
                exit_code: state.parse().unwrap_or(0),
                reason: String::new(),
                message: String::new(),
                image: String::new(),
                image_ref: String::new(),
                log_path: String::new(),
                started_at: Some(now()),
                finished_at: (!up).then(now),
                created_at: index as i64,
            };
            found.containers.insert(0, ran);
        }
        found
    }

    fn check(policy: &str, text: &str, memory: &Memory, expected: &str) {
        let (policy, ending) = policy.strip_prefix("deleted ").map_or((policy, false), |p| (p, true));
        let wanted = wanted(policy, ending);
        let decision = decide(&wanted, &running(&wanted, text), memory, now());
        let words = |step: &Step| match step {
            Step::Start { name, restarts } => format!("start {name} {restarts}"),
            Step::Kill { name, .. } => format!("kill {name}"),
            other => format!("{other:?}").split(' ').next().unwrap_or_default().to_lowercase(),
        };
        let steps: Vec<String> = decision.steps.iter().map(words).collect();
        let wake = if decision.wake_at.is_some() { " wait" } else { "" };
        assert_eq!(format!("{}{wake}", steps.join(", ")), expected, "{policy}: {text}");
    }

    #[test]
    fn a_pod_starts_in_order_restarts_by_policy_and_ends() {
        let started = Memory { started: ["s1".to_owned()].into(), ..Default::default() };
        let none = Memory::default();
        check("Always", "nothing", &none, "prepare, makesandbox");
        check("Always", "", &none, "start i 0");
        check("Always", "i:up", &none, "");
        check("Always", "i:1", &none, "start i 1");
        check("Always", "i:0", &none, "start s 0");
        check("Always", "i:0 s:up", &none, "");
        check("Always", "i:0 s:up", &started, "start m 0");
        check("Always", "i:0 s:up m:up", &started, "");
        check("Always", "i:0 s:up m:0", &started, "start m 1");
        check("OnFailure", "i:0 s:up m:1", &started, "start m 1");
        // Done: the sidecar goes with the main container.
        check("OnFailure", "i:0 s:up m:0", &started, "killall");
        check("Never", "i:1", &none, "stopsandbox");
        check("deleted Always", "i:0 s:up m:up", &started, "killall");
        check("deleted Always", "i:0 s:0 m:0", &started, "stopsandbox");
        check("deleted Always", "nothing", &none, "finish");
    }

    #[test]
    fn a_container_that_fails_again_waits_and_one_that_a_probe_condemns_is_killed() {
        let backoff = Backoff::next(None, now());
        let mut memory = Memory { started: ["s1".to_owned()].into(), ..Default::default() };
        memory.backoff.insert("m".to_owned(), backoff);
        check("Always", "i:0 s:up m:1", &memory, " wait");
        memory.condemned.insert("m2".to_owned(), "failed".to_owned());
        check("Always", "i:0 s:up m:up", &memory, "kill m");
        assert_eq!(Backoff::next(Some(backoff), now()).delay, BACKOFF.0 * 2);
        let late = now().checked_add(BACKOFF.1 * 2).unwrap();
        assert_eq!(Backoff::next(Some(backoff), late).delay, BACKOFF.0);
    }
}
