//! Ending containers: preStop hook, stop signal, grace, kill; main containers first, then the sidecars.

use std::{sync::Arc, time::Duration};

use api::pod::is_sidecar;
use client::EventKind;
use k8s_openapi::api::core::v1::Container;
use tokio::sync::watch;

use crate::{
    hook,
    node::Node,
    running::{Ran, Running},
    wanted::Wanted,
};

/// Ends one container. The hook's time counts against the grace period, of which the signal gets two seconds at least.
pub async fn one(node: &Node, wanted: &Wanted, running: &Running, ran: &Ran, why: &str, grace: Duration) {
    waypoint::kubelet::kill_pod(&wanted.full_name());
    let container = wanted.container(&ran.name);
    let message = if why.is_empty() { format!("Stopping container {}", ran.name) } else { why.to_owned() };
    node.pod_event(wanted, Some(&ran.name), EventKind::Normal, "Killing", &message);
    let begun = clock::Instant::now();
    let pre_stop = container.and_then(|c: &Container| c.lifecycle.as_ref()?.pre_stop.as_ref());
    if let (Some(handler), Some(container)) = (pre_stop, container) {
        let ip = running.sandbox().and_then(|s| s.ips.first().cloned()).unwrap_or_default();
        let hook = hook::run(node, handler, container, &ran.id, &ip);
        let failure = match clock::timeout(grace, hook).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some("it did not end within the grace period".to_owned()),
        };
        if let Some(error) = failure {
            let text = format!("PreStopHook failed: {error}");
            node.pod_event(wanted, Some(&ran.name), EventKind::Warning, "FailedPreStopHook", &text);
        }
    }
    let left = grace.saturating_sub(begun.elapsed()).max(Duration::from_secs(2).min(grace));
    if let Err(error) = node.config.runtime.stop_container(&ran.id, left).await
        && !error.is_not_found()
    {
        tracing::warn!(pod = wanted.full_name(), container = ran.name, %error, "the container could not be stopped");
        clock::sleep(Duration::from_millis(500)).await;
    }
}

/// Ends all that lives, within `most` seconds if that is less than the Pod's own. A deletion with a shorter grace period
/// that comes meanwhile takes over.
pub async fn all(node: &Arc<Node>, changes: &mut watch::Receiver<Wanted>, running: &Running, most: Option<i64>) {
    loop {
        let wanted = changes.borrow_and_update().clone();
        waypoint::kubelet::terminating(&wanted.full_name());
        let seconds = most.map_or(wanted.grace_seconds(), |most| most.min(wanted.grace_seconds()));
        let grace = Duration::from_secs(seconds.unsigned_abs());
        let shorter = async {
            while changes.changed().await.is_ok() {
                if changes.borrow().grace_seconds() < wanted.grace_seconds() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = within(node, &wanted, running, grace) => return,
            () = shorter => {}
        }
    }
}

async fn within(node: &Node, wanted: &Wanted, running: &Running, grace: Duration) {
    let end = clock::Instant::now() + grace;
    let sidecar = |ran: &Ran| wanted.init_containers().iter().any(|c| c.name == ran.name && is_sidecar(c));
    let (sidecars, mains): (Vec<&Ran>, Vec<&Ran>) = running.alive().partition(|r| sidecar(r));
    futures::future::join_all(mains.iter().map(|ran| one(node, wanted, running, ran, "", grace))).await;
    // The last started goes first; each gets what is left of the Pod's time.
    let order = |ran: &&Ran| wanted.init_containers().iter().position(|c| c.name == ran.name);
    let mut sidecars = sidecars;
    sidecars.sort_by_key(|ran| std::cmp::Reverse(order(ran)));
    for ran in sidecars {
        let left = end.saturating_duration_since(clock::Instant::now()).max(Duration::from_secs(1));
        one(node, wanted, running, ran, "", left).await;
    }
}
