//! Decides what to do next for one Pod, from what is desired, what runs, and what was learnt on the way. Pure.

use std::collections::BTreeSet;

use api::rules::pod::is_sidecar;
use clock::Timestamp;
use k8s_openapi::api::core::v1::Container;

use crate::pod::{
    desired::{DesiredPod, hash},
    memory::{KillReason, Memory, Renewal},
    resize::{self, Change},
    restart::{self, goes_on},
    running::{ContainerRun, RunningPod, State},
    spec::resources,
};

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Makes the Pod's folders, volumes and cgroup.
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
        why: KillReason,
    },
    /// Gives the running containers, and the Pod as a whole, the resources that they are to have.
    Resize,
    /// Ends all that lives, within the Pod's grace period.
    KillAll,
    /// Ends all that lives but what looks into the Pod, at once and without hooks: the Pod begins anew.
    Interrupt,
    StopSandbox {
        id: String,
    },
    /// Removes a dead container that is no longer needed, and its log.
    Remove {
        id: String,
    },
    /// Removes a sandbox that is over, with nothing left in it.
    RemoveSandbox {
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

/// All work is done, or can't be: no container will be started again.
pub fn is_done(desired: &DesiredPod, running: &RunningPod, memory: &Memory) -> bool {
    if memory.life.end().is_some() {
        return true;
    }
    if !restart::asking(desired, running).is_empty() {
        return false;
    }
    let ended = |c: &Container| match running.latest(&c.name) {
        Some(ran) if ran.state == State::Exited => !goes_on(desired, c, ran.exit_code, memory),
        _ => false,
    };
    let init_failed = desired
        .init_containers()
        .iter()
        .filter(|c| !is_sidecar(c))
        .any(|c| ended(c) && running.latest(&c.name).is_some_and(|r| r.exit_code != 0));
    init_failed || desired.spec().containers.iter().all(ended)
}

/// Whether the Pod begins anew now, because the end of a container asked for it. That waits as long as the container itself
/// waits for its restart.
pub fn begins_anew(desired: &DesiredPod, running: &RunningPod, memory: &Memory, now: Timestamp) -> bool {
    let waits = |ran: &ContainerRun| memory.restart_due(Some(ran)).is_some_and(|due| due > now);
    restart::asking(desired, running).into_iter().any(|ran| !waits(ran))
}

/// Every init container has done its part in the current sandbox.
pub fn is_initialized(desired: &DesiredPod, running: &RunningPod, memory: &Memory) -> bool {
    let begun = desired.spec().containers.iter().any(|c| running.latest(&c.name).is_some());
    begun
        || desired.init_containers().iter().all(|c| match running.current(&c.name) {
            Some(ran) if is_sidecar(c) => ran.state == State::Running && memory.run(&ran.id).started,
            Some(ran) => ran.state == State::Exited && ran.exit_code == 0,
            None => false,
        })
}

pub fn decide(desired: &DesiredPod, running: &RunningPod, memory: &Memory, now: Timestamp) -> Decision {
    if memory.life.is_settled() && !desired.is_ending() {
        return Decision::default();
    }
    if desired.is_ending() || is_done(desired, running, memory) {
        return end(desired, running);
    }
    let mut plan = Planner { desired, running, memory, now, out: Decision::default() };
    plan.run();
    plan.out
}

fn end(desired: &DesiredPod, running: &RunningPod) -> Decision {
    let mut steps = Vec::new();
    if running.alive().next().is_some() {
        steps.push(Step::KillAll);
    } else if let Some(sandbox) = running.sandboxes.iter().find(|s| s.ready) {
        steps.push(Step::StopSandbox { id: sandbox.id.clone() });
    } else if desired.is_ending() {
        steps.push(Step::Finish);
    } else {
        steps.extend(garbage(running));
        steps.push(Step::Settle);
    }
    Decision { steps, wake_at: None }
}

/// Removes containers and sandboxes that are over and no longer asked for. Of each container that ended the newest run stays: its log and
/// its end are still read. One that was made and never started goes when another has taken its place. Of the sandboxes the newest stays, and
/// those that hold a container.
fn garbage(running: &RunningPod) -> Vec<Step> {
    let mut kept = BTreeSet::new();
    let mut is_surplus = |ran: &ContainerRun| match ran.state {
        State::Running => false,
        State::Exited => !kept.insert(ran.name.clone()),
        State::Created => running.latest(&ran.name).is_some_and(|latest| latest.id != ran.id),
    };
    let surplus: Vec<&ContainerRun> = running.containers.iter().filter(|ran| is_surplus(ran)).collect();
    let used = |id: &str| running.containers.iter().any(|c| c.sandbox == id);
    let empty = running.sandboxes.iter().skip(1).filter(|s| !s.ready && !used(&s.id));
    let containers = surplus.into_iter().map(|c| Step::Remove { id: c.id.clone() });
    containers.chain(empty.map(|s| Step::RemoveSandbox { id: s.id.clone() })).collect()
}

struct Planner<'a> {
    desired: &'a DesiredPod,
    running: &'a RunningPod,
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
        if begins_anew(self.desired, self.running, self.memory, self.now) {
            return self.begin_anew();
        }
        self.out.steps.extend(garbage(self.running));
        if !self.prepare() || self.resize() {
            return;
        }
        // They help to see why the others do not start. None is ever started twice.
        for container in self.desired.ephemeral_containers() {
            if self.running.latest(&container.name).is_none()
                && self.memory.container(&container.name).restarts.is_none()
            {
                self.start(container, None);
            }
        }
        if self.initialize() {
            for container in &self.desired.spec().containers {
                self.main(container);
            }
        }
    }

    /// All containers end and are removed, those that asked for it last: as long as one of them is there, the next kubelet goes
    /// on with it.
    fn begin_anew(&mut self) {
        let looks_in = |ran: &&ContainerRun| self.desired.ephemeral_containers().iter().any(|c| c.name == ran.name);
        if self.running.alive().any(|ran| !looks_in(&ran)) {
            return self.out.steps.push(Step::Interrupt);
        }
        let asking = restart::asking(self.desired, self.running);
        let all = self.running.containers.iter().filter(|ran| !looks_in(ran));
        let (last, first): (Vec<_>, Vec<_>) = all.partition(|ran| asking.iter().any(|asks| asks.id == ran.id));
        self.out.steps.extend(first.into_iter().chain(last).map(|ran| Step::Remove { id: ran.id.clone() }));
    }

    /// Whether the Pod's folders and volumes are there for the steps that follow.
    fn prepare(&mut self) -> bool {
        if self.memory.life.is_prepared() {
            return true;
        }
        let now = !self.held_back(self.memory.retry_at);
        if now {
            self.out.steps.push(Step::Prepare);
        }
        now
    }

    /// Whether containers end, to start with other resources. That comes first: the Pod shrinks after them.
    fn resize(&mut self) -> bool {
        let changes = resize::changes(self.desired, self.running, self.memory);
        let mut restarts = changes.iter().filter(|(_, _, change)| *change == Change::Restart).peekable();
        if restarts.peek().is_some() {
            for (container, ran, _) in restarts {
                let message = format!("Container {} resize requires restart", container.name);
                self.renew(ran, message, Renewal::Resources);
            }
            return true;
        }
        let pod_lags =
            self.memory.cgroup.is_some_and(|held| held != resources::of_pod(self.desired.spec(), self.memory.cfs));
        if (pod_lags || !changes.is_empty()) && !self.held_back(self.memory.resize.retry_at) {
            self.out.steps.push(Step::Resize);
        }
        false
    }

    fn make_sandbox(&mut self) {
        for stray in self.running.alive() {
            self.kill(stray, "Pod sandbox changed, it will be killed and re-created.");
        }
        if self.held_back(self.memory.retry_at) || !self.prepare() {
            return;
        }
        // The engine names a sandbox by its attempt, and one that failed to start keeps its name for a while.
        let attempt = self.running.sandboxes.iter().map(|s| s.attempt + 1).max().unwrap_or(0);
        self.out.steps.push(Step::MakeSandbox { attempt });
    }

    /// Runs the init containers in their order; true when the main ones may run. The furthest that has begun tells whose turn it is:
    /// those before it have had theirs, and a sidecar among them that has ended comes back beside it.
    fn initialize(&mut self) -> bool {
        let all = self.desired.init_containers();
        let has_begun = |c: &Container| self.running.current(&c.name).is_some();
        let had_their_turn = match self.desired.spec().containers.iter().any(has_begun) {
            true => all.len(),
            false => all.iter().rposition(has_begun).unwrap_or_default(),
        };
        let (before, rest) = all.split_at(had_their_turn);
        for sidecar in before.iter().filter(|c| is_sidecar(c)) {
            self.init(sidecar);
        }
        rest.iter().all(|container| self.init(container))
    }

    /// Goes on with one init container; true when the next one may run.
    fn init(&mut self, container: &Container) -> bool {
        let sidecar = is_sidecar(container);
        match self.running.current(&container.name) {
            Some(ran) if ran.state == State::Running => {
                if sidecar && !self.condemned(ran) {
                    self.replaced(ran, container, "Init container", "");
                }
                sidecar && self.memory.run(&ran.id).started
            }
            Some(ran) if ran.state == State::Exited && !sidecar && ran.exit_code == 0 => true,
            ran => {
                self.start(container, ran);
                false
            }
        }
    }

    fn main(&mut self, container: &Container) {
        match self.running.current(&container.name).or(self.running.latest(&container.name)) {
            Some(ran) if ran.state == State::Running => {
                if !self.condemned(ran) {
                    self.replaced(ran, container, "Container", ", will be restarted");
                }
            }
            Some(ran)
                if ran.state == State::Exited && !goes_on(self.desired, container, ran.exit_code, self.memory) => {}
            ran => self.start(container, ran),
        }
    }

    fn condemned(&mut self, ran: &ContainerRun) -> bool {
        let Some(why) = self.memory.run(&ran.id).condemned.clone() else { return false };
        self.end_one(ran, why);
        true
    }

    /// Whether a container ends for it to start with its new definition.
    fn replaced(&mut self, ran: &ContainerRun, container: &Container, sort: &str, what_follows: &str) -> bool {
        if ran.hash == hash(container) {
            return false;
        }
        let message = format!("{sort} {} definition changed{what_follows}", ran.name);
        self.renew(ran, message, Renewal::Definition);
        true
    }

    fn renew(&mut self, ran: &ContainerRun, message: String, renewal: Renewal) {
        self.end_one(ran, KillReason { message, grace_seconds: None, renewal: Some(renewal) });
    }

    fn kill(&mut self, ran: &ContainerRun, message: &str) {
        self.end_one(ran, KillReason { message: message.to_owned(), ..KillReason::default() });
    }

    fn end_one(&mut self, ran: &ContainerRun, why: KillReason) {
        self.out.steps.push(Step::Kill { id: ran.id.clone(), name: ran.name.clone(), why });
    }

    fn start(&mut self, container: &Container, before: Option<&ContainerRun>) {
        let name = &container.name;
        let record = self.memory.container(name);
        if self.held_back(record.retry_at) {
            return;
        }
        let before = before.or(self.running.latest(name));
        let images = self.desired.images(container);
        let pull = images.iter().filter_map(|image| self.memory.pull_due(image, self.now)).min();
        let restart = self.memory.restart_due(before).filter(|due| *due > self.now);
        if let Some(due) = restart.or(pull) {
            return self.wake(due);
        }
        // An engine that has forgotten its containers does not make the count begin anew.
        let last = before.map(|r| r.restarts).or(record.restarts);
        let mut restarts = last.map_or(0, |r| r + 1);
        // The kubelet ended between the engine's two calls. The engine may still be starting that container, and refuses to remove it
        // then: two of one name never run beside each other.
        if let Some(made) = before.filter(|ran| ran.state == State::Created) {
            self.out.steps.push(Step::Remove { id: made.id.clone() });
            restarts = made.restarts;
        }
        self.out.steps.push(Step::Start { name: name.clone(), restarts });
    }

    /// Whether it is too early for another try.
    fn held_back(&mut self, retry_at: Option<Timestamp>) -> bool {
        let due = retry_at.filter(|at| *at > self.now);
        due.into_iter().for_each(|at| self.wake(at));
        due.is_some()
    }

    fn wake(&mut self, at: Timestamp) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |w| w.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{
        backoff::{Backoff, Pauses, Pull},
        fixture::{at, now, pod_of, running},
        memory::Life,
        running::Sandbox,
    };

    fn desired(policy: &str, ending: bool) -> DesiredPod {
        pod_of(json::json!({
            "metadata": { "deletionTimestamp": ending.then_some("2026-01-01T00:00:00Z") },
            "spec": {
                "restartPolicy": policy,
                "initContainers": [{ "name": "i", "image": "x" }, { "name": "s", "image": "x", "restartPolicy": "Always" }],
                "containers": [{ "name": "m", "image": "y" }],
            },
        }))
    }

    /// The sidecar has started.
    fn started() -> Memory {
        let mut memory = prepared();
        memory.run_mut("s1").started = true;
        memory
    }

    /// The Pod's volumes are mounted.
    fn prepared() -> Memory {
        let mut memory = Memory::default();
        memory.life = Life::Prepared(Default::default());
        memory
    }

    fn in_words(decision: &Decision) -> String {
        let words = |step: &Step| match step {
            Step::Start { name, restarts } => format!("start {name} {restarts}"),
            Step::Kill { name, .. } => format!("kill {name}"),
            Step::Remove { id } | Step::RemoveSandbox { id } => format!("remove {id}"),
            other => format!("{other:?}").split(' ').next().unwrap_or_default().to_lowercase(),
        };
        let steps: Vec<String> = decision.steps.iter().map(words).collect();
        let wake = decision.wake_at.map(|at| format!(" wait {}", at.as_second() - now().as_second()));
        format!("{}{}", steps.join(", "), wake.unwrap_or_default())
    }

    fn check(policy: &str, text: &str, memory: &Memory, expected: &str) {
        let (policy, ending) = policy.strip_prefix("deleted ").map_or((policy, false), |p| (p, true));
        let desired = desired(policy, ending);
        let decision = decide(&desired, &running(&desired, text), memory, now());
        assert_eq!(in_words(&decision), expected, "{policy}: {text}");
    }

    #[test]
    fn a_pod_starts_in_order_restarts_by_policy_and_ends() {
        let started = started();
        let none = prepared();
        check("Always", "nothing", &Memory::default(), "prepare, makesandbox");
        check("Always", "nothing", &none, "makesandbox");
        // An older kubelet has left no record of what it mounted.
        check("Always", "i:up", &Memory::default(), "prepare");
        check("Always", "", &none, "start i 0");
        check("Always", "i:up", &none, "");
        check("Always", "i:1", &none, "start i 1");
        check("Never", "i:1", &none, "stopsandbox");
        check("Always", "i:0", &none, "start s 0");
        check("Always", "i:0 s:up", &none, "");
        check("Always", "i:0 s:up", &started, "start m 0");
        check("Always", "i:0 s:up m:up", &started, "");
        check("Always", "i:0 s:up m:0", &started, "start m 1");
        check("Always", "i:0 s:up m:up s:1", &started, "start s 2");
        check("OnFailure", "i:0 s:up m:1", &started, "start m 1");
        check("Never", "i:0 s:up m:1", &started, "killall");
        // Done: the sidecar goes with the main container.
        check("OnFailure", "i:0 s:up m:0", &started, "killall");
        check("deleted Always", "i:0 s:up m:up", &started, "killall");
        check("deleted Always", "i:0 s:0 m:0", &started, "stopsandbox");
        check("deleted Always", "nothing", &none, "finish");
    }

    #[test]
    fn a_sidecar_that_waits_for_its_restart_holds_back_none_that_comes_after_it() {
        let pod = pod_of(json::json!({"spec": {
            "restartPolicy": "Always",
            "initContainers": [
                { "name": "s", "restartPolicy": "Always" }, { "name": "i" }, { "name": "t", "restartPolicy": "Always" }, { "name": "j" },
            ],
            "containers": [{ "name": "m" }],
        }}));
        let mut memory = prepared();
        memory.container_mut("s").backoff = Some(Backoff::next(None, now(), now(), Pauses::USUAL));
        memory.run_mut("t2").started = true;
        let check = |text: &str, memory: &Memory, expected: &str| {
            assert_eq!(in_words(&decide(&pod, &running(&pod, text), memory, now())), expected, "{text}");
        };
        // It has to start once before others may.
        check("s:1", &memory, " wait 10");
        check("s:1 i:up", &memory, " wait 10");
        check("s:1 i:1", &memory, "start i 1 wait 10");
        check("s:1 i:0", &memory, "start t 0 wait 10");
        check("s:1 i:0 t:up", &memory, "start j 0 wait 10");
        check("s:1 i:0 t:up j:0", &memory, "start m 0 wait 10");
        check("s:1 i:0 t:0 j:up", &memory, "start t 1 wait 10");
        check("s:1 i:0 t:0 j:0 m:up", &memory, "start t 1 wait 10");
        let mut condemned = memory.clone();
        condemned.run_mut("t2").started = false;
        condemned.run_mut("t2").condemned = Some(KillReason::default());
        check("s:1 i:0 t:up", &condemned, "kill t wait 10");
    }

    #[test]
    fn a_container_that_fails_again_waits_and_one_that_a_probe_condemns_is_killed() {
        let mut memory = started();
        memory.container_mut("m").backoff = Some(Backoff::next(None, now(), now(), Pauses::USUAL));
        check("Always", "i:0 s:up m:1", &memory, " wait 10");
        memory.run_mut("m2").condemned = Some(KillReason::default());
        check("Always", "i:0 s:up m:up", &memory, "kill m");
    }

    #[test]
    fn a_container_whose_definition_has_changed_starts_with_it_whatever_its_policy() {
        let changed = |policy: &str, name: &str| {
            let desired = desired(policy, false);
            let mut found = running(&desired, "i:0 s:up m:up");
            found.containers.iter_mut().filter(|ran| ran.name == name).for_each(|ran| ran.hash = "other".to_owned());
            decide(&desired, &found, &started(), now()).steps
        };
        for policy in ["Always", "OnFailure", "Never"] {
            for (name, id, message) in [
                ("m", "m2", "Container m definition changed, will be restarted"),
                ("s", "s1", "Init container s definition changed"),
            ] {
                let renewal = Some(Renewal::Definition);
                let why = KillReason { message: message.to_owned(), grace_seconds: None, renewal };
                let expected = Step::Kill { id: id.to_owned(), name: name.to_owned(), why };
                assert_eq!(changed(policy, name), [expected], "{policy} {name}");
            }
            // An init container has done its part.
            assert_eq!(changed(policy, "i"), [], "{policy}");
        }
        let mut memory = started();
        memory.container_mut("m").renewal = Some(Renewal::Definition);
        memory.container_mut("m").backoff = Some(Backoff::next(None, now(), now(), Pauses::USUAL));
        check("Never", "i:0 s:up m:0", &memory, "start m 1");
        check("OnFailure", "i:0 s:up m:137", &memory, "start m 1");
        check("deleted Never", "i:0 s:up m:137", &memory, "killall");
    }

    #[test]
    fn a_container_restarts_by_rules_and_a_policy_of_its_own() {
        let check = |text: &str, expected: &str| {
            let rule = json::json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
            let desired = pod_of(json::json!({"spec": {
                "restartPolicy": "Never",
                "initContainers": [{ "name": "i", "restartPolicy": "Never", "restartPolicyRules": [rule] }],
                "containers": [
                    { "name": "m", "restartPolicy": "Never", "restartPolicyRules": [rule] },
                    { "name": "n", "restartPolicy": "OnFailure" }, { "name": "o" },
                ],
            }}));
            assert_eq!(in_words(&decide(&desired, &running(&desired, text), &prepared(), now())), expected, "{text}");
        };
        check("i:42", "start i 1");
        check("i:1", "stopsandbox");
        check("i:0 m:42 n:up o:up", "start m 1");
        check("i:0 m:1 n:up o:up", "");
        check("i:0 m:1 n:1 o:up", "start n 1");
        check("i:0 m:1 n:0 o:up", "");
        // As long as one of them restarts, the Pod is not done, whatever its own policy.
        check("i:0 m:42 n:0 o:1", "start m 1");
        check("i:0 m:1 n:0 o:1", "stopsandbox");
    }

    #[test]
    fn the_end_of_one_container_may_begin_the_whole_pod_anew() {
        let pod = |ending: bool| {
            let rule = json::json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
            pod_of(json::json!({
                "metadata": { "deletionTimestamp": ending.then_some("2026-01-01T00:00:00Z") },
                "spec": {
                    "restartPolicy": "Never",
                    "initContainers": [{ "name": "i" }, { "name": "s", "restartPolicy": "Always" }],
                    "containers": [{ "name": "m", "restartPolicy": "Never", "restartPolicyRules": [rule] }, { "name": "n" }],
                    "ephemeralContainers": [{ "name": "e" }],
                },
            }))
        };
        let check = |text: &str, memory: &Memory, expected: &str| {
            let desired = pod(false);
            assert_eq!(in_words(&decide(&desired, &running(&desired, text), memory, now())), expected, "{text}");
        };
        let mut plain = started();
        plain.container_mut("e").restarts = Some(0);
        check("i:0 s:up m:42 n:up e:up", &plain, "interrupt");
        check("i:0 s:up m:1 n:up e:up", &plain, "");
        // The others first, also what is older; what looks into the Pod stays.
        check(
            "i:1 i:0 s:137 m:1 m:42 n:137 e:up",
            &plain,
            "remove n5, remove m3, remove s2, remove i1, remove i0, remove m4",
        );
        check("s:137 m:42 e:up", &plain, "remove s0, remove m1");
        check("e:up", &plain, "start i 0");
        // Although all have ended, by the policy of the Pod for good.
        check("i:0 s:137 m:42 n:0", &plain, "remove n3, remove s1, remove i0, remove m2");
        let mut again = plain.clone();
        again.container_mut("i").restarts = Some(0);
        check("e:up", &again, "start i 1");
        // A Pod that does this again and again waits, and runs on meanwhile.
        again.container_mut("m").backoff = Some(Backoff::next(None, now(), now(), Pauses::USUAL));
        check("i:0 s:up m:42 n:up e:up", &again, " wait 10");
        let ending = pod(true);
        let found = running(&ending, "i:0 s:up m:42 n:up");
        assert_eq!(in_words(&decide(&ending, &found, &plain, now())), "killall");
        let mut evicted = plain.clone();
        evicted.life = Life::Ending(crate::pod::memory::End::Finished);
        check("i:0 s:up m:42 n:up", &evicted, "killall");
    }

    #[test]
    fn an_image_that_cannot_be_pulled_holds_back_only_its_containers() {
        let mut memory = started();
        let pull = |seconds: i64| Pull {
            backoff: Backoff { delay: Pauses::USUAL.first, since: at(-seconds) },
            reason: "ErrImagePull",
            error: "no".to_owned(),
        };
        // The error is shown for a second, the wait afterwards.
        for (seconds, expected) in [(0, " wait 1"), (1, " wait 9"), (9, " wait 1"), (10, "start m 0")] {
            memory.pulls.insert("y".to_owned(), pull(seconds));
            check("Always", "i:0 s:up", &memory, expected);
        }
        memory.pulls.insert("y".to_owned(), pull(0));
        check("Always", "i:0 s:1", &memory, "start s 1");
        // An image that is mounted holds back whoever mounts it.
        let volumes = pod_of(json::json!({"spec": {
            "containers": [
                { "name": "m", "image": "x", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }, { "name": "n", "image": "x" }],
            "volumes": [{ "name": "v", "image": { "reference": "y" } }],
        }}));
        let decision = decide(&volumes, &running(&volumes, ""), &memory, now());
        assert_eq!(in_words(&decision), "start n 0 wait 1");
    }

    #[test]
    fn the_count_of_restarts_outlives_the_engine() {
        let mut memory = prepared();
        memory.container_mut("i").restarts = Some(4);
        check("Always", "", &memory, "start i 5");
        check("Always", "i:1", &memory, "start i 1");
    }

    #[test]
    fn a_debugging_container_starts_beside_the_others_and_only_once() {
        let check = |text: &str, memory: &Memory, expected: &str| {
            let desired = pod_of(json::json!({"spec": {
                "restartPolicy": "Always",
                "initContainers": [{ "name": "i", "image": "x" }],
                "containers": [{ "name": "m", "image": "y" }],
                "ephemeralContainers": [{ "name": "e", "image": "z" }],
            }}));
            assert_eq!(in_words(&decide(&desired, &running(&desired, text), memory, now())), expected, "{text}");
        };
        let none = prepared();
        check("i:up", &none, "start e 0");
        check("i:0 m:up", &none, "start e 0");
        check("i:0 m:up e:up", &none, "");
        check("i:0 m:up e:1", &none, "");
        check("i:0 m:0 e:up", &none, "start m 1");
        let mut ran_before = prepared();
        ran_before.container_mut("e").restarts = Some(0);
        check("i:0 m:up", &ran_before, "");
    }

    #[test]
    fn a_container_that_was_made_and_never_started_gives_its_place_and_its_number_to_the_next() {
        let started = started();
        check("Always", "i:made", &prepared(), "remove i0, start i 0");
        check("Never", "i:0 s:up m:made", &started, "remove m2, start m 0");
        // The end of the run before it stays.
        check("Always", "i:0 s:up m:1 m:made", &started, "remove m3, start m 1");
        check("Always", "i:made i:up", &prepared(), "remove i0");
        let mut waits = prepared();
        waits.container_mut("i").retry_at = Some(at(5));
        check("Always", "i:made", &waits, " wait 5");
    }

    #[test]
    fn of_what_is_over_the_newest_stays() {
        let started = started();
        check("Always", "i:1 i:0 s:up m:1 m:1 m:up", &started, "remove m3, remove i0");
        let mut waiting = started.clone();
        waiting.container_mut("m").backoff = Some(Backoff::next(None, now(), now(), Pauses::USUAL));
        check("Always", "i:0 s:up m:1 m:1 m:1", &waiting, "remove m3, remove m2 wait 10");

        let desired = desired("Always", false);
        let mut found = running(&desired, "i:0 s:up m:up");
        let old = |id: &str| Sandbox { id: id.into(), ready: false, attempt: 0, ips: Vec::new(), created_at: 0 };
        found.sandboxes.extend([old("empty"), old("used")]);
        let last = ContainerRun {
            sandbox: "used".into(),
            state: State::Exited,
            id: "m-old".into(),
            ..found.containers[0].clone()
        };
        found.containers.push(last);
        assert_eq!(in_words(&decide(&desired, &found, &started, now())), "remove empty");
    }
}
