//! Follows logind for as long as the kubelet runs: holds the lock, and ends the Pods when the machine is about to end. Only this
//! says whether it is. Upstream counterpart: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go.

use std::{sync::Arc, time::Duration};

use api::features::Feature;
use client::EventKind;
use futures::future::join_all;

use crate::{
    configuration::shutdown::Period,
    kubelet::Kubelet,
    pod::{admit::Refusal, workers::Handle},
    shutdown::{
        logind::{Error, Lock, Logind, Place},
        periods,
        record::Record,
    },
};

/// Why the node is not ready meanwhile.
pub const NOT_READY: &str = "node is shutting down";
const EVENT: &str = "Shutdown";
/// The bus, or logind, is looked for again after this pause.
const RECONNECT: Duration = Duration::from_secs(1);

/// The verdict about every new Pod of a machine that is about to end.
pub fn admit(kubelet: &Kubelet) -> Result<(), Refusal> {
    if *kubelet.shuts_down.borrow() {
        return Err(Refusal::new("NodeShutdown", "Pod was rejected as the node is shutting down.".to_owned()));
    }
    Ok(())
}

struct Follower {
    kubelet: Arc<Kubelet>,
    periods: Vec<Period>,
    place: Place,
    lock: Option<Lock>,
    /// The machine's end began before this kubelet did, or while logind was not heard.
    is_late: bool,
}

/// Runs for ever. Where there is no logind at the start, the machine's end is nobody's concern.
pub async fn run(kubelet: Arc<Kubelet>) {
    let config = &kubelet.config;
    // Settings that cannot be have ended the kubelet before.
    let periods = periods::of(&config.settings.shutdown, &config.features).unwrap_or_default();
    let Some(place) = kubelet.host.logind.clone().filter(|_| !periods.is_empty()) else {
        return std::future::pending().await;
    };
    let mut follower = Follower { kubelet: kubelet.clone(), periods, place, lock: None, is_late: false };
    let mut logind = match follower.begin().await {
        Ok(logind) => logind,
        Err(error) => {
            let text = format!(
                "shutdownGracePeriod has no effect, Pods are not ended before the machine is: \
                 Failed to start node shutdown manager: {error}"
            );
            tracing::error!("{text}");
            kubelet.events.node(EventKind::Warning, EVENT, &text);
            return std::future::pending().await;
        }
    };
    follower.show_record();
    loop {
        let end = follower.follow(&mut logind).await;
        tracing::warn!(%end, "Ended to watching the node for shutdown events");
        logind = follower.begin_again().await;
    }
}

impl Follower {
    /// Finds logind, and takes the lock unless the machine is about to end.
    async fn begin(&mut self) -> Result<Logind, Error> {
        let mut logind = Logind::connect(&self.place.socket).await?;
        let knows = *self.kubelet.shuts_down.borrow();
        if logind.is_preparing().await? {
            self.is_late = !knows;
            return Ok(logind);
        }
        logind.wait_for(periods::whole(&self.periods), &self.place.drop_ins).await?;
        // A lock of before is given back when the next one is there.
        self.lock = Some(logind.inhibit().await?);
        if knows {
            self.note(false);
        }
        Ok(logind)
    }

    async fn begin_again(&mut self) -> Logind {
        let mut told = String::new();
        loop {
            clock::sleep(RECONNECT).await;
            match self.begin().await {
                Ok(logind) => {
                    tracing::info!("the node is watched for shutdown events again");
                    return logind;
                }
                Err(error) if error.to_string() == told => {}
                Err(error) => {
                    tracing::error!(%error, "Unable to watch the node for shutdown events");
                    told = error.to_string();
                }
            }
        }
    }

    /// Does what logind says, until it can say no more.
    async fn follow(&mut self, logind: &mut Logind) -> Error {
        loop {
            if let Err(error) = self.one(logind).await {
                return error;
            }
        }
    }

    async fn one(&mut self, logind: &mut Logind) -> Result<(), Error> {
        let begins = std::mem::take(&mut self.is_late) || logind.next().await?;
        self.note(begins);
        if begins {
            self.end_all().await;
            self.lock = None;
        } else {
            self.lock = Some(logind.inhibit().await?);
        }
        Ok(())
    }

    /// The machine is about to end, or goes on.
    fn note(&self, begins: bool) {
        let what = if begins { "event" } else { "cancellation" };
        let text = format!("Shutdown manager detected shutdown {what}");
        tracing::info!("{text}");
        self.kubelet.events.node(EventKind::Normal, EVENT, &text);
        self.kubelet.shuts_down.send_replace(begins);
    }

    /// Ends the Pods, one group after the other.
    async fn end_all(&self) {
        let mut record = Record { began: Some(clock::now()), ended: None };
        self.write(record);
        let mut groups = vec![Vec::new(); self.periods.len()];
        for pod in self.kubelet.pods.all().into_iter().filter(|pod| !pod.is_refused && !pod.has_left()) {
            groups[periods::group(&self.periods, api::rules::pod::priority(&pod.desired().pod))].push(pod);
        }
        for (period, pods) in self.periods.iter().zip(groups) {
            if !pods.is_empty() {
                end(*period, &pods).await;
            }
        }
        record.ended = Some(clock::now());
        self.write(record);
        tracing::info!("Shutdown manager completed processing shutdown event, node will shutdown shortly");
    }

    fn is_recorded(&self) -> bool {
        self.kubelet.config.features.enabled(Feature::GracefulNodeShutdownBasedOnPodPriority)
    }

    fn write(&self, record: Record) {
        if !self.is_recorded() {
            return;
        }
        if let Err(error) = record.write(&self.kubelet.config.root_dir) {
            tracing::error!(%error, "Failed to store graceful shutdown state");
        }
        self.kubelet.figures.shut_down(record.began, record.ended);
    }

    /// The metrics tell the last graceful end of the machine.
    fn show_record(&self) {
        if !self.is_recorded() {
            return;
        }
        match Record::read(&self.kubelet.config.root_dir) {
            Ok(record) if record.began.is_none() => {}
            Ok(record) => self.kubelet.figures.shut_down(record.began, record.ended),
            Err(error) => tracing::error!(%error, "Failed to load graceful shutdown state"),
        }
    }
}

/// Ends the Pods of a group, and waits until their volumes are unmounted too: a driver that does it may be in a later group.
async fn end(period: Period, pods: &[Handle]) {
    for pod in pods {
        tracing::info!(pod = pod.desired().full_name(), "Shutdown manager killing pod with gracePeriod");
        pod.shut_down(period.seconds.into());
    }
    let gone = join_all(pods.iter().cloned().map(Handle::settled));
    if clock::timeout(Duration::from_secs(period.seconds.into()), gone).await.is_err() {
        let left = pods.iter().filter(|pod| !pod.is_settled()).map(|pod| pod.desired().full_name());
        tracing::warn!(
            pods = left.collect::<Vec<_>>().join(", "),
            period.seconds,
            period.priority,
            "Shutdown manager pod killing time out"
        );
    }
}
