//! The one owner of a Pod on this node, from admission to removal: observe, decide, act, report, wait.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::EventKind;
use clock::Timestamp;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodStatus, Secret};
use kube::{Api, runtime::watcher};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};

use crate::{
    kubelet::Node,
    pod::{
        act,
        admit::Refusal,
        backoff,
        decide::{self, Decision, Memory, Step},
        kill, mounts,
        probe::{News, Probes},
        report,
        running::{self, Ran, Running, State},
        status::{self, Place},
        wanted::Wanted,
    },
    volumes,
};

/// How others speak to a worker.
#[derive(Clone)]
pub struct Handle {
    pub wanted: watch::Sender<Wanted>,
    /// The engine may have something new.
    pub look: Arc<Notify>,
    /// What a static Pod's mirror was reported under: the mirror's uid.
    pub mirror: watch::Sender<Option<Arc<Pod>>>,
}

pub struct Worker {
    node: Arc<Node>,
    wanted: watch::Receiver<Wanted>,
    mirror: watch::Receiver<Option<Arc<Pod>>>,
    look: Arc<Notify>,
    memory: Memory,
    reported: PodStatus,
    probes: Probes,
    news: (mpsc::Sender<News>, mpsc::Receiver<News>),
    followers: JoinSet<()>,
    refresh: Arc<Notify>,
    /// The sources of its volumes are watched.
    follows: bool,
    /// When volumes that could not be refreshed are tried again.
    refresh_at: Option<Timestamp>,
}

const REFRESH_RETRY: Duration = Duration::from_secs(60);

/// Just past that moment.
fn until_then(at: Timestamp) -> Duration {
    let left = at.duration_since(clock::now());
    Duration::try_from(left).unwrap_or_default() + Duration::from_millis(5)
}

/// Starts the worker of a Pod; the task ends when the Pod has gone.
pub fn spawn(node: Arc<Node>, wanted: Wanted, refusal: Option<Refusal>) -> (Handle, tokio::task::JoinHandle<()>) {
    let reported = wanted.pod.status.clone().unwrap_or_default();
    let mut memory =
        Memory { done: api::rules::pod::is_terminal(&wanted.pod), restarts: counted(&reported), ..Default::default() };
    if let Some(refusal) = refusal {
        node.pod_event(&wanted, None, EventKind::Warning, &refusal.reason, &refusal.message);
        memory.refused = true;
        memory.failed = Some((refusal.reason, format!("Pod was rejected: {}", refusal.message)));
    }
    node.statuses.lock().insert(wanted.uid().to_owned(), reported.clone());
    // What was found out before a restart of the kubelet still holds.
    for (id, is_ready) in found_out(&reported) {
        if is_ready {
            memory.ready.insert(id.clone());
        }
        memory.started.insert(id);
    }
    let (wanted_tx, wanted_rx) = watch::channel(wanted);
    let (mirror_tx, mirror_rx) = watch::channel(None);
    let look = Arc::new(Notify::new());
    let worker = Worker {
        node,
        wanted: wanted_rx,
        mirror: mirror_rx,
        look: look.clone(),
        memory,
        reported,
        probes: Probes::default(),
        news: mpsc::channel(16),
        followers: JoinSet::new(),
        refresh: Arc::new(Notify::new()),
        follows: false,
        refresh_at: None,
    };
    (Handle { wanted: wanted_tx, look, mirror: mirror_tx }, tokio::spawn(worker.run()))
}

/// The restarts of containers that have run, as reported.
fn counted(reported: &PodStatus) -> BTreeMap<String, i32> {
    let lists =
        [&reported.init_container_statuses, &reported.container_statuses, &reported.ephemeral_container_statuses];
    let all = lists.into_iter().flatten().flatten();
    let ran = all.filter(|s| s.container_id.is_some() || s.restart_count > 0);
    ran.map(|s| (s.name.clone(), s.restart_count)).collect()
}

/// The containers (by id) that were reported as started, and whether as ready.
fn found_out(reported: &PodStatus) -> Vec<(String, bool)> {
    let all = reported.init_container_statuses.iter().chain(&reported.container_statuses).flatten();
    let started = all.filter(|s| s.started == Some(true) && s.state.as_ref().is_some_and(|s| s.running.is_some()));
    let bare = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    started.filter_map(|s| Some((bare(s.container_id.as_deref()?), s.ready))).collect()
}

impl Worker {
    async fn run(mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let name = wanted.full_name();
            waypoint::kubelet::worker_loop(&name);
            let running = match running::observe(&*self.node.config.runtime, wanted.uid()).await {
                Ok(running) => running,
                Err(error) => {
                    tracing::warn!(pod = name, %error, "the engine does not answer");
                    clock::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            self.learn(&wanted, &running);
            self.hear_eviction(&wanted);
            waypoint::kubelet::plan_pod(&name);
            let decision = decide::decide(&wanted, &running, &self.memory, clock::now());
            if !self.memory.settled {
                let alive: Vec<Ran> = if wanted.is_ending() { Vec::new() } else { running.alive().cloned().collect() };
                let ips = running.sandbox().map(|s| s.ips.clone()).unwrap_or_default();
                self.probes.follow(&self.node, &wanted, (&ips, &alive), &self.memory.started, &self.news.0);
            }
            self.note_waits(&wanted, &running);
            let written = self.report(&wanted, &running).await;
            if decision.steps.is_empty() {
                self.wait(decision.wake_at, written, &wanted).await;
                continue;
            }
            waypoint::kubelet::sync_pod(&name);
            if self.act(&wanted, &running, decision).await {
                waypoint::kubelet::worker_complete(&name);
                return;
            }
        }
    }

    /// Takes in what the running containers tell without being asked.
    fn learn(&mut self, wanted: &Wanted, running: &Running) {
        for ran in &running.containers {
            let Some(container) = wanted.container(&ran.name) else { continue };
            if ran.state == State::Running {
                if container.startup_probe.is_none() {
                    self.memory.started.insert(ran.id.clone());
                    if container.readiness_probe.is_none() {
                        self.memory.ready.insert(ran.id.clone());
                    }
                }
            } else if ran.state == State::Exited && !self.memory.messages.contains_key(&ran.id) {
                let text = act::termination_message(&self.node, wanted, container, ran);
                self.memory.messages.insert(ran.id.clone(), text);
            }
        }
        let known = |id: &String| running.containers.iter().any(|r| r.id == *id);
        self.memory.messages.retain(|id, _| known(id));
        self.memory.started.retain(known);
        self.memory.ready.retain(known);
        self.memory.condemned.retain(|id, _| known(id));
        // A Pod found running after a restart of ours has its volumes.
        if running.sandbox().is_some() && !self.memory.prepared {
            self.memory.prepared = true;
            self.follow_sources(wanted);
            // What they show may have changed meanwhile, and the tokens in them are not known here.
            self.refresh.notify_one();
        }
    }

    /// The node is short of something, and this Pod has to go.
    fn hear_eviction(&mut self, wanted: &Wanted) {
        let Some(message) = self.node.evictions.lock().remove(wanted.uid()) else { return };
        if self.memory.failed.is_none() && !self.memory.done {
            self.node.pod_event(wanted, None, EventKind::Warning, "Evicted", &message);
            self.memory.evicted = true;
            self.memory.failed = Some(("Evicted".to_owned(), message));
        }
    }

    /// A container that waits for its next start or its image says so, once.
    fn note_waits(&mut self, wanted: &Wanted, running: &Running) {
        for wait in backoff::waits(wanted, running, &self.memory, clock::now()) {
            let fresh = (wait.reason.to_owned(), wait.message.clone());
            if self.memory.waiting.get(&wait.container) != Some(&fresh) {
                self.node.tell_wait(wanted, &wait);
                self.memory.waiting.insert(wait.container, fresh);
            }
        }
    }

    async fn report(&mut self, wanted: &Wanted, running: &Running) -> bool {
        let host_ip = self.node.config.node_ip.to_string();
        let place = Place { host_ip: &host_ip, now: clock::now_seconds(), before: &self.reported };
        if self.memory.done {
            return true;
        }
        let fresh = status::status(wanted, running, &self.memory, &place);
        self.node.statuses.lock().insert(wanted.uid().to_owned(), fresh.clone());
        let uid = if wanted.is_static {
            let Some(mirror) = self.mirror.borrow().clone() else {
                return true;
            };
            mirror.metadata.uid.clone().unwrap_or_default()
        } else {
            wanted.uid().to_owned()
        };
        if wanted.removed {
            return true;
        }
        let written = report::write(&self.node, wanted, &uid, &self.reported, &fresh).await;
        if written {
            self.reported = fresh;
        }
        written
    }

    async fn wait(&mut self, wake_at: Option<Timestamp>, written: bool, wanted: &Wanted) {
        let mut until = wake_at.map(until_then);
        if !written {
            until = Some(until.unwrap_or(Duration::MAX).min(Duration::from_secs(2)));
        }
        if let Some(seconds) = wanted.spec().active_deadline_seconds.filter(|_| !self.memory.settled) {
            let start = self.reported.start_time.as_ref().map_or(clock::now(), |t| t.0);
            let left = start.as_second() + seconds - clock::now().as_second();
            if left <= 0 {
                if self.memory.failed.is_none() {
                    let text = "Pod was active on the node longer than the specified deadline";
                    self.node.pod_event(wanted, None, EventKind::Normal, "DeadlineExceeded", text);
                    self.memory.failed = Some(("DeadlineExceeded".to_owned(), text.to_owned()));
                }
                return;
            }
            until = Some(until.unwrap_or(Duration::MAX).min(Duration::from_secs(left.unsigned_abs())));
        }
        // Tokens are renewed when they are due; all else that volumes show is watched.
        let renewal = self.node.sources.renewal(wanted.uid()).into_iter().chain(self.refresh_at).min();
        let renewal = renewal.filter(|_| self.memory.prepared && !self.memory.settled).map(until_then);
        tokio::select! {
            changed = self.wanted.changed() => {
                if changed.is_err() {
                    // The kubelet ends; the Pod stays.
                    std::future::pending::<()>().await;
                }
                waypoint::kubelet::worker_update(&wanted.full_name());
                if self.memory.prepared && !self.memory.settled {
                    self.refresh.notify_one();
                }
            }
            _ = self.mirror.changed() => self.reported = PodStatus { start_time: self.reported.start_time.clone(), ..Default::default() },
            () = self.look.notified() => waypoint::kubelet::pod_synced(&wanted.full_name()),
            Some(news) = self.news.1.recv() => self.hear(news),
            () = self.refresh.notified() => {
                if self.memory.prepared {
                    self.refresh_volumes(wanted).await;
                } else {
                    // What was missing may be there now.
                    self.memory.retry_at.remove("");
                }
            }
            () = clock::sleep(renewal.unwrap_or_default()), if renewal.is_some() => self.refresh_volumes(wanted).await,
            () = clock::sleep(until.unwrap_or_default()), if until.is_some() => {}
        }
    }

    async fn refresh_volumes(&mut self, wanted: &Wanted) {
        let folder = volumes::PodFolder::new(&self.node.config.root_dir, wanted.uid());
        let facts = self.node.facts(Vec::new());
        self.refresh_at = None;
        if let Err(error) = volumes::mount(&wanted.pod, &folder, &facts, &self.node.sources).await {
            tracing::warn!(pod = wanted.full_name(), %error, "a volume could not be refreshed");
            self.refresh_at = clock::now().checked_add(REFRESH_RETRY).ok();
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Started(id) => drop(self.memory.started.insert(id)),
            News::Ready(id, true) => drop(self.memory.ready.insert(id)),
            News::Ready(id, false) => drop(self.memory.ready.remove(&id)),
            News::Condemned(id, why) => drop(self.memory.condemned.insert(id, why)),
        }
    }

    /// One watch per ConfigMap and Secret that a volume shows.
    fn follow_sources(&mut self, wanted: &Wanted) {
        if std::mem::replace(&mut self.follows, true) {
            return;
        }
        let (maps, secrets) = mounts::followed(wanted);
        let client = &self.node.config.client;
        for name in maps {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), wanted.namespace());
            self.followers.spawn(follow(api, name, self.refresh.clone()));
        }
        for name in secrets {
            let api: Api<Secret> = Api::namespaced(client.clone(), wanted.namespace());
            self.followers.spawn(follow(api, name, self.refresh.clone()));
        }
    }

    /// Carries the steps out in their order; the first that fails ends the round. True when the Pod has gone.
    async fn act(&mut self, wanted: &Wanted, running: &Running, decision: Decision) -> bool {
        for step in decision.steps {
            match step {
                Step::KillAll => {
                    // Upstream's grace for Pods that are evicted at a hard threshold.
                    let most = self.memory.evicted.then_some(1);
                    kill::all(&self.node, &mut self.wanted, running, most).await;
                }
                Step::Settle => {
                    self.settle(wanted).await;
                }
                Step::Finish => {
                    waypoint::kubelet::terminated(&wanted.full_name());
                    self.settle(wanted).await;
                    for sandbox in &running.sandboxes {
                        if let Err(error) = self.node.config.runtime.remove_sandbox(&sandbox.id).await {
                            tracing::warn!(pod = wanted.full_name(), %error, "the sandbox could not be removed");
                        }
                    }
                    let logs = self.node.config.pod_log_dir(wanted.namespace(), wanted.name(), wanted.uid());
                    // Logs that stay are found by the next clean-up.
                    let _ = files::remove(&logs);
                    if wanted.removed || wanted.is_static || report::delete(&self.node, wanted).await {
                        return true;
                    }
                    clock::sleep(Duration::from_secs(1)).await;
                }
                other => {
                    let mut changed = self.wanted.clone();
                    changed.mark_unchanged();
                    let ending = async {
                        // Pulling, starting and hooks give way to a deletion.
                        while changed.changed().await.is_ok() {
                            if changed.borrow_and_update().is_ending() {
                                return;
                            }
                        }
                        std::future::pending::<()>().await;
                    };
                    if other == Step::Prepare {
                        self.follow_sources(wanted);
                    }
                    let done = tokio::select! {
                        done = act::step(&self.node, wanted, running, &mut self.memory, &other) => done,
                        () = ending => false,
                    };
                    if !done {
                        return false;
                    }
                }
            }
        }
        false
    }

    async fn settle(&mut self, wanted: &Wanted) {
        self.followers.abort_all();
        self.probes = Probes::default();
        let folder = volumes::PodFolder::new(&self.node.config.root_dir, wanted.uid());
        if let Err(error) = volumes::unmount(&folder).await {
            tracing::warn!(pod = wanted.full_name(), %error, "the Pod's folder could not be removed");
        }
        self.node.cgroups.remove(&self.node.cgroups.path(api::rules::pod::qos(&wanted.pod), wanted.uid()));
        self.memory.settled = true;
        if let Err(error) = self.node.weigh() {
            tracing::debug!(%error, "the classes of Pods keep their weights");
        }
    }
}

async fn follow<K: client::Kind>(api: Api<K>, name: String, refresh: Arc<Notify>) {
    let mut changes = watcher::watch_object(api, &name).boxed();
    // The first is what the volume was made from.
    let mut first = true;
    while let Some(change) = changes.next().await {
        match change {
            Ok(_) if std::mem::take(&mut first) => {}
            Ok(_) => refresh.notify_one(),
            Err(error) => {
                tracing::debug!(name, %error, "a watched object is out of reach");
                clock::sleep(Duration::from_secs(5)).await;
            }
        }
    }
}
