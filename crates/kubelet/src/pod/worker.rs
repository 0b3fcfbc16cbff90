//! The one owner of a Pod on this node, from admission to removal: observe, decide, act, report, wait.

use std::{sync::Arc, time::Duration};

use api::features::Feature;
use client::EventKind;
use clock::Timestamp;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, PodStatus};
use tokio::sync::{Mutex, watch};

use crate::{
    kubelet::Kubelet,
    node::network,
    pod::{
        act::{self, Round},
        admit::Refusal,
        decide::{self, Decision, Step},
        desired::DesiredPod,
        follow::Follower,
        health, kill,
        memory::{Cause, End, Life, Memory},
        probes::{
            findings::{Findings, News},
            probe::Probes,
        },
        report,
        resize::{self, Change},
        resize_event,
        running::{self, Asked, ContainerRun, RunningPod, State, Unseen},
        spec::{
            quota::Cfs,
            resources::{self, Limits},
        },
        status::{self, Place},
        take, waiting,
        workers::{self, Eviction, Handle, Inbox},
    },
    volumes,
};

struct Worker {
    kubelet: Arc<Kubelet>,
    inbox: Inbox,
    memory: Memory,
    /// The newest status, and the way to the API, which shows it as soon as it can.
    reported: Arc<PodStatus>,
    outbox: report::Outbox,
    probes: Probes,
    findings: Arc<Findings>,
    follower: Follower,
    /// When volumes that could not be refreshed are tried again.
    refresh_at: Option<Timestamp>,
    /// Why the engine does not say what there is of the Pod, as it was told last.
    unseen: Option<String>,
    /// A sandbox was made, and nobody has seen it yet.
    has_new_sandbox: bool,
    /// Held while the engine starts a container of the Pod.
    at_engine: Mutex<()>,
    /// How often unmounting its volumes has failed in a row.
    failed_unmounts: u32,
    /// When this kubelet saw the Pod first.
    seen: clock::Instant,
}

/// The way on after a round.
enum Next {
    Round,
    /// There is nothing to do, at the longest until then.
    Wait {
        until: Option<Timestamp>,
    },
    /// The Pod has gone.
    End,
}

/// How long a worker waits for anything, and how long until its volumes are to be refreshed.
struct Alarms {
    until: Option<Duration>,
    renewal: Option<Duration>,
}

const REFRESH_RETRY: Duration = Duration::from_secs(60);
/// The end of a Pod waits this long for a start that the engine works on. containerd kills what it is starting when the call is
/// dropped, and a container that nobody has let run yet would be shown as one that failed (StartError). One that hangs is given up.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Drivers that have not taken back their devices are asked again after this pause.
const UNPREPARE_RETRY: Duration = Duration::from_secs(5);

/// Just past that moment.
fn until_then(at: Timestamp) -> Duration {
    let left = at.duration_since(clock::now());
    Duration::try_from(left).unwrap_or_default() + Duration::from_millis(5)
}

/// A Pod's worker, which ends when the Pod has gone, and the handle to it.
pub fn new(kubelet: Arc<Kubelet>, desired: DesiredPod, refusal: Option<Refusal>) -> (Handle, BoxFuture<'static, ()>) {
    let mut memory = remembered(&desired, kubelet.config.settings.cfs);
    let is_refused = refusal.is_some();
    if let Some(refusal) = refusal {
        refuse(&kubelet, &desired, &mut memory, refusal);
    }
    let (handle, inbox) = workers::channels(desired, is_refused);
    let (outbox, reporter) = report::outbox(kubelet.clone(), &inbox);
    let worker = Box::new(Worker {
        kubelet,
        memory,
        reported: handle.status(),
        outbox,
        inbox,
        probes: Probes::default(),
        findings: Arc::default(),
        follower: Follower::default(),
        refresh_at: None,
        unseen: None,
        has_new_sandbox: false,
        at_engine: Mutex::default(),
        failed_unmounts: 0,
        seen: clock::Instant::now(),
    });
    // Futures have room for all that they move: these two move pointers.
    let reporter = Box::new(reporter);
    let both = async {
        tokio::select! {
            () = worker.run() => {}
            () = reporter.run() => {}
        }
    };
    (handle, Box::pin(both))
}

/// Does not let a Pod in, and says why.
fn refuse(kubelet: &Kubelet, desired: &DesiredPod, memory: &mut Memory, refusal: Refusal) {
    kubelet.events.pod(desired, EventKind::Warning, &refusal.reason, &refusal.message);
    memory.life.refuse(refusal);
}

/// Waits until the Pod is asked to end.
async fn until_ending(mut changes: watch::Receiver<DesiredPod>) {
    if changes.wait_for(DesiredPod::is_ending).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the node sends the Pod away.
async fn until_sent_away(mut evictions: watch::Receiver<Option<Eviction>>) {
    if evictions.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until what is done for the Pod has to give way to its end. Pulling, preparing and hooks do at once; a start that the engine
/// works on has a while to come to its end.
async fn until_given_way(inbox: &Inbox, at_engine: &Mutex<()>, desired: &DesiredPod, lives: bool) {
    tokio::select! {
        () = until_ending(inbox.desired.clone()), if !desired.is_ending() => {}
        () = until_sent_away(inbox.eviction.clone()), if lives => {}
        else => std::future::pending().await,
    }
    let _ = clock::timeout(START_PATIENCE, at_engine.lock()).await;
}

/// The memory that an earlier kubelet had of the Pod, as far as it still holds.
fn remembered(desired: &DesiredPod, cfs: Cfs) -> Memory {
    let mut memory = Memory::on(cfs);
    if api::rules::pod::is_terminal(&desired.pod) {
        memory.life = Life::Ending(End::WasOver);
    }
    memory.resize.completed = desired.resized;
    let Some(reported) = &desired.pod.status else { return memory };
    let lists =
        [&reported.init_container_statuses, &reported.container_statuses, &reported.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    for status in all.filter(|s| s.container_id.is_some() || s.restart_count > 0) {
        memory.container_mut(&status.name).restarts = Some(status.restart_count);
    }
    for status in lists[..2].iter().copied().flatten().flatten() {
        let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
        if let Some(id) = status.container_id.as_deref().filter(|_| runs && status.started == Some(true)) {
            let run = memory.run_mut(id.rsplit('/').next().unwrap_or_default());
            (run.started, run.ready) = (true, status.ready);
        }
        if let Some(id) = status.container_id.as_deref().filter(|_| runs) {
            let requests = status.resources.as_ref().and_then(|r| r.requests.as_ref());
            let request = requests.and_then(|r| r.get("memory")).map(api::rules::quantity::parse);
            let run = memory.run_mut(id.rsplit('/').next().unwrap_or_default());
            run.memory_request = status.resources.as_ref().map(|_| request.unwrap_or_default());
        }
    }
    memory
}

/// The limits that the kernel holds a container to that an earlier kubelet has started, for an engine that does not
/// tell.
fn limits_held(kubelet: &Kubelet, desired: &DesiredPod, container: &Container, ran: &ContainerRun) -> Option<Limits> {
    let cgroups = &kubelet.host.cgroups;
    let of_pod = cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid());
    let held = Limits::held(cgroups.limits(&cgroups.of_container(&of_pod, &ran.id))?);
    let wanted = Limits::wanted(desired.spec(), container, kubelet.config.settings.cfs);
    let shares = if cgroups.are_same_shares(held.shares, wanted.shares) { wanted.shares } else { held.shares };
    Some(Limits { shares, ..held })
}

impl Worker {
    /// A Pod gets what is for itself before anything else, or is not let in; one that an earlier kubelet has let in is looked at
    /// again. Unless NUMA nodes are chosen, only this Pod waits for the plugins of its devices.
    async fn take(&mut self) {
        let (desired, kubelet) = (self.inbox.desired.borrow().clone(), self.kubelet.clone());
        if self.memory.life.end().is_some() || desired.is_ending() || !take::concerns(&kubelet, &desired.pod) {
            return;
        }
        let ending = until_ending(self.inbox.desired.clone());
        let take = async {
            let running = self.seen(&desired).await;
            let mut given = take::take(&kubelet, &desired, &running).await;
            // For the API server a Pod that was deleted without a grace is gone; what it has is free once its containers are.
            let is_leaving = |pod: &Handle| pod.desired().removed && pod.desired().uid() != desired.uid();
            let leaving: Vec<Handle> = kubelet.pods.all().into_iter().filter(is_leaving).collect();
            if given.is_err() && !leaving.is_empty() {
                futures::future::join_all(leaving.into_iter().map(Handle::left)).await;
                given = take::take(&kubelet, &desired, &running).await;
            }
            if given.is_err() && running.alive().next().is_none() {
                take::release(&kubelet, desired.uid()).await;
            }
            given
        };
        let given = tokio::select! {
            given = take => given,
            () = ending => return,
        };
        if let Err(refusal) = given {
            refuse(&kubelet, &desired, &mut self.memory, refusal);
        }
    }

    /// The engine's containers and sandboxes of the Pod, once it answers.
    async fn seen(&mut self, desired: &DesiredPod) -> RunningPod {
        loop {
            match running::observe(&self.kubelet.config, desired.uid()).await {
                Ok(running) => {
                    self.unseen = None;
                    return running;
                }
                Err(unseen) => self.miss_engine(desired, &unseen).await,
            }
        }
    }

    /// The engine is asked again in a moment. A failure that is about this Pod is told, once while it goes on: events about a Pod are
    /// rationed, and others may be waiting to be told.
    async fn miss_engine(&mut self, desired: &DesiredPod, unseen: &Unseen) {
        let Unseen { asked, error } = unseen;
        tracing::warn!(pod = desired.full_name(), %error, "the engine does not answer");
        let (reason, text) = match asked {
            Asked::Sandbox if self.has_new_sandbox => {
                ("FailedPodSandBoxStatus", format!("Unable to get pod sandbox status: {error}"))
            }
            _ => ("FailedSync", format!("error determining status: {error}")),
        };
        let is_about_pod = *asked != Asked::List && !matches!(error, runtime::Error::Unreachable { .. });
        if is_about_pod && self.unseen.as_ref() != Some(&text) {
            self.kubelet.events.pod(desired, EventKind::Warning, reason, &text);
            self.unseen = Some(text);
        }
        clock::sleep(Duration::from_secs(1)).await;
    }

    /// Mostly a worker waits. The future of a round is large, and holds the Pod as it is seen: it is there only while it lasts.
    async fn run(mut self: Box<Self>) {
        Box::pin(self.take()).await;
        loop {
            match Box::pin(self.round()).await {
                Next::Round => {}
                Next::Wait { until } => {
                    if self.wait(until).await {
                        Box::pin(self.refresh_volumes()).await;
                    }
                }
                Next::End => return,
            }
        }
    }

    async fn round(&mut self) -> Next {
        let (kubelet, desired) = (self.kubelet.clone(), self.inbox.desired.borrow_and_update().clone());
        let name = desired.full_name();
        waypoint::kubelet::worker_loop(&name);
        let observed = async {
            let engine = kubelet.engine_name().await?;
            Ok::<_, Unseen>((engine, running::observe(&kubelet.config, desired.uid()).await?))
        };
        let (engine, running) = match observed.await {
            Ok(observed) => observed,
            Err(unseen) => {
                self.miss_engine(&desired, &unseen).await;
                return Next::Round;
            }
        };
        (self.unseen, self.has_new_sandbox) = (None, false);
        self.learn(&desired, &running).await;
        self.hear_eviction(&desired);
        waypoint::kubelet::plan_pod(&name);
        let decision = decide::decide(&desired, &running, &self.memory, clock::now());
        let decision = self.wait_for_network(&desired, &running, decision).await;
        if !self.memory.life.is_settled() {
            if desired.is_ending() || self.memory.life.end().is_some() {
                self.probes.end_with_pod();
            }
            let alive: Vec<ContainerRun> = running.alive().cloned().collect();
            let ips = running.sandbox().map(|s| s.ips.clone()).unwrap_or_default();
            self.probes.follow(&kubelet, &self.inbox.desired, (&ips, &alive), &self.memory, &self.findings);
        }
        self.note_waits(&desired, &running);
        self.note_resize(&desired, &running);
        self.report(&desired, &running, engine);
        if decision.steps.is_empty() {
            return Next::Wait { until: decision.wake_at };
        }
        waypoint::kubelet::sync_pod(&name);
        let (begun, is_first) = (clock::Instant::now(), self.memory.life == Life::Preparing { failed_mounts: 0 });
        let update = if is_first { "create" } else { "sync" };
        self.has_new_sandbox = decision.steps.iter().any(|step| matches!(step, Step::MakeSandbox { .. }));
        let span = kubelet.traces.pod(&desired, &decision.steps, update);
        let has_gone = spans::within(span, || self.act(&desired, &running, decision)).await;
        kubelet.figures.worked(update, begun.elapsed());
        if !has_gone {
            return Next::Round;
        }
        waypoint::kubelet::worker_complete(&name);
        Next::End
    }

    /// Nothing is done for a Pod that lives as long as the engine has no network for Pods. The node's own is always there.
    async fn wait_for_network(&self, desired: &DesiredPod, running: &RunningPod, decision: Decision) -> Decision {
        let is_over = desired.is_ending() || decide::is_done(desired, running, &self.memory);
        if is_over || desired.host_network() || decision.steps.is_empty() {
            return decision;
        }
        let Some(why) = self.kubelet.network.trouble(&*self.kubelet.config.runtime).await else { return decision };
        let text = format!("network is not ready: {why}");
        self.kubelet.events.pod(desired, EventKind::Warning, "NetworkNotReady", &text);
        Decision { steps: Vec::new(), wake_at: Some(act::after(network::PAUSE)) }
    }

    /// Takes in what the running containers tell without being asked.
    async fn learn(&mut self, desired: &DesiredPod, running: &RunningPod) {
        for container in desired.containers() {
            self.memory.container_mut(&container.name).forgive(container);
        }
        let cfs = self.memory.cfs;
        for ran in &running.containers {
            let Some(container) = desired.container(&ran.name) else { continue };
            if ran.state == State::Running {
                let run = self.memory.run_mut(&ran.id);
                run.memory_request.get_or_insert(resize::memory_request(container));
                if run.applied.is_none() && ran.limits.is_none() {
                    run.applied = limits_held(&self.kubelet, desired, container, ran);
                }
                if self.kubelet.affinity.frees_quota(desired.uid(), &ran.name)
                    && let Some(held) = run.applied.or(ran.limits)
                {
                    // Its own processors are all that bounds it.
                    let wanted = Limits::wanted(desired.spec(), container, cfs);
                    run.applied = Some(Limits { quota: wanted.quota, ..held });
                }
                if container.startup_probe.is_none() {
                    run.started = true;
                    run.ready |= container.readiness_probe.is_none();
                }
            } else if ran.state == State::Exited && self.memory.run(&ran.id).message.is_none() {
                let text = act::termination_message(&self.kubelet, desired, container, ran);
                self.memory.run_mut(&ran.id).message = Some(text);
            }
        }
        self.memory.retain_runs(|id| running.containers.iter().any(|r| r.id == id));
        // A Pod that was found running after a restart of the kubelet has its volumes.
        if running.sandbox().is_some()
            && matches!(self.memory.life, Life::Preparing { .. })
            && let Some(mounted) = volumes::mounted(&desired.pod, &self.kubelet.pod_folder(desired.uid())).await
        {
            self.memory.life = Life::Prepared(mounted);
            // An earlier kubelet may have been on its way from one size to another.
            let cgroups = &self.kubelet.host.cgroups;
            self.memory.cgroup = cgroups.limits(&cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid()));
            if let Some(held) =
                self.memory.cgroup.as_mut().filter(|_| self.kubelet.affinity.frees_quota_of_pod(desired.uid()))
            {
                held.quota = resources::of_pod(desired.spec(), self.memory.cfs).quota;
            }
            self.follower.begin(&self.kubelet, desired);
            // The objects that they show may have changed meanwhile, and the tokens in them are not known here.
            self.follower.note_change();
        }
    }

    /// The node is short of something, and this Pod has to go.
    fn hear_eviction(&mut self, desired: &DesiredPod) {
        let eviction = self.inbox.eviction.borrow_and_update().clone();
        let Some(Eviction { reason, message, most, is_told }) = eviction else { return };
        let cause = Cause::new(reason, message.as_str());
        if self.memory.life.end_by(End::Evicted { cause, most }) && is_told {
            self.kubelet.events.pod(desired, EventKind::Warning, reason, &message);
        }
    }

    /// A container that waits for its next start or its image says so, once.
    fn note_waits(&mut self, desired: &DesiredPod, running: &RunningPod) {
        for wait in waiting::waits(desired, running, &self.memory, clock::now()) {
            let fresh = Cause::new(wait.reason, wait.message.as_str());
            let record = self.memory.container_mut(&wait.container);
            if record.waiting.as_ref() != Some(&fresh) {
                record.waiting = Some(fresh);
                self.kubelet.events.waits(desired, &wait);
            }
        }
    }

    /// A resize that has come to its end says so, once.
    fn note_resize(&mut self, desired: &DesiredPod, running: &RunningPod) {
        let changes = resize::changes(desired, running, &self.memory);
        let restarts = |name: &str| changes.iter().any(|(c, _, change)| c.name == name && *change == Change::Restart);
        for ran in running.alive().filter(|ran| !restarts(&ran.name)) {
            self.memory.container_mut(&ran.name).renewal = None;
        }
        let is_under_way = resize::is_under_way(desired, running, &self.memory);
        let resize = &mut self.memory.resize;
        if is_under_way {
            resize.completed = None;
            return;
        }
        (resize.error, resize.retry_at) = (None, None);
        if resize.completed != desired.resized && !desired.is_ending() {
            let message = resize_event::message("completed", &desired.pod, desired.resized, None);
            self.kubelet.events.pod(desired, EventKind::Normal, "ResizeCompleted", &message);
        }
        resize.completed = desired.resized;
    }

    fn report(&mut self, desired: &DesiredPod, running: &RunningPod, engine: &str) {
        let host_ips: Vec<String> = self.kubelet.config.node_ips().map(|ip| ip.to_string()).collect();
        let place = Place { engine, host_ips: &host_ips, now: clock::now_seconds(), before: &self.reported };
        if self.memory.life.was_over() {
            return;
        }
        let mut fresh = status::status(desired, running, &self.memory, &place);
        if self.kubelet.claims.holds(desired.uid()) {
            status::hold_back(&mut fresh, &self.reported);
        }
        if self.kubelet.config.features.enabled(Feature::InPlacePodLevelResourcesVerticalScaling) {
            resize::show_whole(desired, &self.memory, &self.reported, &mut fresh);
        }
        if self.kubelet.config.features.enabled(Feature::ResourceHealthStatus) {
            health::show(&self.kubelet, &desired.pod, &mut fresh);
        }
        // The node itself goes by what is decided; everybody else is told that the Pod is over once nothing of it runs.
        let mut fresh = if fresh == *self.reported { self.reported.clone() } else { Arc::new(fresh) };
        self.inbox.status.send_replace(fresh.clone());
        if running.alive().next().is_some() && status::is_over(&fresh) {
            status::hold_back(Arc::make_mut(&mut fresh), &self.reported);
        }
        let begins = |status: &PodStatus| status.phase.as_deref() == Some("Running");
        if begins(&fresh) && !begins(&self.reported) {
            self.kubelet.figures.runs(desired, self.seen);
        }
        let mirror = self.inbox.mirror.borrow();
        let mirror = mirror.as_ref().and_then(|mirror| mirror.metadata.uid.as_deref());
        let shown_as = if desired.is_static { mirror } else { Some(desired.uid()) };
        if let Some(uid) = shown_as.filter(|_| !desired.removed) {
            self.outbox.show(uid, &fresh);
        }
        self.reported = fresh;
    }

    /// Waits for something to do, at the longest until then. Whether volumes are to be refreshed.
    async fn wait(&mut self, until: Option<Timestamp>) -> bool {
        let Some(Alarms { until, renewal }) = self.alarms(until) else { return false };
        tokio::select! {
            changed = self.inbox.desired.changed() => {
                if changed.is_err() {
                    // The kubelet ends; the Pod stays.
                    std::future::pending::<()>().await;
                }
                waypoint::kubelet::worker_update(&self.inbox.desired.borrow().full_name());
                if self.memory.life.is_prepared() {
                    self.follower.note_change();
                }
                false
            }
            _ = self.inbox.mirror.changed() => false,
            () = self.inbox.wake.notified() => {
                waypoint::kubelet::pod_synced(&self.inbox.desired.borrow().full_name());
                false
            }
            news = self.findings.next() => {
                self.hear(news);
                false
            }
            () = self.follower.changed() => {
                let is_prepared = self.memory.life.is_prepared();
                if !is_prepared {
                    // A missing part may be there now.
                    self.memory.retry_at = None;
                }
                is_prepared
            }
            () = clock::sleep(renewal.unwrap_or_default()), if renewal.is_some() => true,
            () = clock::sleep(until.unwrap_or_default()), if until.is_some() => false,
        }
    }

    /// How long the worker waits without any news; `None` when there is something to do at once, as the Pod has come to its end.
    fn alarms(&mut self, until: Option<Timestamp>) -> Option<Alarms> {
        let desired = self.inbox.desired.borrow();
        let mut until = until.map(until_then);
        if let Some(seconds) = desired.spec().active_deadline_seconds.filter(|_| !self.memory.life.is_settled()) {
            let start = self.reported.start_time.as_ref().map_or(clock::now(), |t| t.0);
            let left = start.as_second() + seconds - clock::now().as_second();
            if left <= 0 {
                let text = "Pod was active on the node longer than the specified deadline";
                if self.memory.life.end_by(End::Late(Cause::new("DeadlineExceeded", text))) {
                    self.kubelet.events.pod(&desired, EventKind::Normal, "DeadlineExceeded", text);
                }
                return None;
            }
            until = Some(until.unwrap_or(Duration::MAX).min(Duration::from_secs(left.unsigned_abs())));
        }
        // Tokens are renewed when they are due; all else that volumes show is watched.
        let republish = self.kubelet.csi.next_due(desired.uid());
        let renewal =
            self.kubelet.sources.renewal(desired.uid()).into_iter().chain(self.refresh_at).chain(republish).min();
        let renewal = renewal.filter(|_| self.memory.life.is_prepared()).map(until_then);
        Some(Alarms { until, renewal })
    }

    async fn refresh_volumes(&mut self) {
        let desired = &self.inbox.desired.borrow().clone();
        let folder = self.kubelet.pod_folder(desired.uid());
        self.refresh_at = None;
        self.follower.begin(&self.kubelet, desired);
        match volumes::mount(&desired.pod, &folder, &self.kubelet.volume_means()).await {
            Ok(mounted) => self.memory.life = Life::Prepared(mounted),
            Err(errors) => {
                for error in errors {
                    tracing::warn!(pod = desired.full_name(), %error, "a volume could not be refreshed");
                    let text = error.to_string();
                    let tell = |reason: &&str| self.kubelet.events.pod(desired, EventKind::Warning, reason, &text);
                    error.reasons().iter().for_each(tell);
                }
                self.refresh_at = clock::now().checked_add(REFRESH_RETRY).ok();
            }
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Started(id) => self.memory.run_mut(&id).started = true,
            News::Ready(id, ready) => self.memory.run_mut(&id).ready = ready,
            News::Condemned(id, why) => self.memory.run_mut(&id).condemned = Some(why),
        }
    }

    /// Carries the steps out in their order; the first that fails ends the round. True when the Pod has gone.
    async fn act(&mut self, desired: &DesiredPod, running: &RunningPod, decision: Decision) -> bool {
        for step in decision.steps {
            match step {
                Step::KillAll => {
                    self.end_all(desired, running).await;
                }
                Step::Settle => {
                    if !self.settle(desired).await {
                        return false;
                    }
                }
                Step::Finish => {
                    waypoint::kubelet::terminated(&desired.full_name());
                    if !self.settle(desired).await {
                        return false;
                    }
                    for sandbox in &running.sandboxes {
                        if let Err(error) = self.kubelet.config.runtime.remove_sandbox(&sandbox.id).await {
                            tracing::warn!(pod = desired.full_name(), %error, "the sandbox could not be removed");
                        }
                    }
                    // Logs that stay are found by the next clean-up.
                    let _ = self.kubelet.logs.remove(desired.uid());
                    if desired.removed || desired.is_static || self.take_leave(desired, running).await {
                        return true;
                    }
                    clock::sleep(Duration::from_secs(1)).await;
                }
                other => {
                    if other == Step::Prepare {
                        self.follower.begin(&self.kubelet, desired);
                    }
                    let lives = !desired.is_ending() && self.memory.life.end().is_none();
                    let (kubelet, memory, at_engine) = (&*self.kubelet, &mut self.memory, &self.at_engine);
                    let mut round = Round { kubelet, desired, running, memory, at_engine };
                    let done = tokio::select! {
                        biased;
                        () = until_given_way(&self.inbox, at_engine, desired, lives) => false,
                        done = round.step(&other) => done,
                    };
                    if !done {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Says how the Pod has ended, which whoever keeps the object with a finalizer waits for, and lets the object go.
    async fn take_leave(&mut self, desired: &DesiredPod, running: &RunningPod) -> bool {
        let kubelet = self.kubelet.clone();
        let Ok(engine) = kubelet.engine_name().await else { return false };
        self.report(desired, running, engine);
        // The last status is seen before the Pod goes.
        self.outbox.tried().await;
        report::delete(&kubelet, desired).await
    }

    /// Ends all containers. Meanwhile the Pod says whether those that still run serve.
    async fn end_all(&mut self, desired: &DesiredPod, running: &RunningPod) {
        let (kubelet, most) = (self.kubelet.clone(), self.memory.life.most_grace());
        let (mut changes, mut evictions) = (self.inbox.desired.clone(), self.inbox.eviction.clone());
        let patience = clock::sleep(kill::patience(desired, most));
        let ending = kill::all(&kubelet, (&mut changes, &mut evictions), running, most);
        tokio::pin!(ending, patience);
        let mut is_waited_for = self.memory.life.is_evicted();
        loop {
            let news = tokio::select! {
                () = &mut ending => return,
                news = self.findings.next() => news,
                () = &mut patience, if is_waited_for => {
                    let text = "Container runtime did not kill the pod within specified grace period.";
                    kubelet.events.pod(desired, EventKind::Warning, "ExceededGracePeriod", text);
                    is_waited_for = false;
                    continue;
                }
            };
            self.hear(news);
            if let Ok(engine) = kubelet.engine_name().await {
                self.report(desired, running, engine);
            }
        }
    }

    /// Undoes what was made for the Pod. False when drivers of its devices have not taken back what they prepared, or its volumes
    /// could not be unmounted: it stays until then, or others would count on what is still here.
    async fn settle(&mut self, desired: &DesiredPod) -> bool {
        self.follower.end();
        self.probes = Probes::default();
        if let Err(why) = self.kubelet.claims.unprepare(desired.uid()).await {
            tracing::warn!(pod = desired.full_name(), "unprepare dynamic resources: {why}");
            clock::sleep(UNPREPARE_RETRY).await;
            return false;
        }
        let folder = self.kubelet.pod_folder(desired.uid());
        let Kubelet { host, csi, remote, figures, .. } = &*self.kubelet;
        let qos = api::rules::pod::qos(&desired.pod);
        // The folder says that the Pod was this kubelet's: it goes later, also when the kubelet is killed meanwhile.
        host.cgroups.end_pod(qos, desired.uid());
        if let Err(error) = volumes::unmount(&folder, &host.mounter, (csi, remote), figures).await {
            tracing::warn!(pod = desired.full_name(), %error, "the Pod's folder could not be removed");
            clock::sleep(act::mount_wait(self.failed_unmounts)).await;
            self.failed_unmounts += 1;
            return false;
        }
        let begun = clock::Instant::now();
        host.cgroups.remove(&host.cgroups.path(qos, desired.uid()));
        figures.cgroup("destroy", begun.elapsed());
        self.kubelet.sources.forget(desired.uid());
        self.kubelet.probe_counts.forget(desired);
        self.kubelet.figures.forget(desired.uid());
        take::release(&self.kubelet, desired.uid()).await;
        self.kubelet.users.release(desired.uid());
        self.memory.life.settle();
        self.inbox.settled.send_replace(true);
        if let Err(error) = self.kubelet.weigh() {
            tracing::debug!(%error, "the classes of Pods keep their weights");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use runtime::fake::Fake;

    use super::*;
    use crate::pod::fixture;

    /// A future has room for the largest of all that it may ever do: what a worker rarely does has to be in a box of its own.
    #[tokio::test]
    async fn a_worker_that_waits_takes_little() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), Fake::default(), |_, _| None);
        let (_, work) = new(kubelet, fixture::pod(r#"{"containers": []}"#), None);
        let sizes = (size_of_val(&*work), size_of::<Worker>());
        assert!(sizes.0 <= 2 << 10 && sizes.1 <= 1 << 10, "{sizes:?}");
    }
}
