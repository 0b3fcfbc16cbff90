//! Whether the proxy keeps up, for those who ask at its health port: load balancers (`/healthz`, which also says whether the node
//! takes traffic at all) and whoever restarts it (`/livez`).
//! Upstream counterpart: pkg/proxy/healthcheck/proxy_health.go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clock::{Instant, Timestamp};
use http::{Response, StatusCode};
use json::{Value, json};
use k8s_openapi::api::core::v1::Node;
use nft::Family;
use parking_lot::Mutex;

use crate::answers::{Body, json_answer};

/// A change that waits longer is late: twice upstream's sync period.
const PATIENCE: Duration = Duration::from_secs(60);
/// The taint with which the cluster autoscaler says that a node is about to go.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The state of the proxy's work; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, Work>,
    /// The node is there and nobody is about to remove it.
    eligible: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Since when the oldest change waits that is not in the kernel.
    waiting_since: Option<Instant>,
    /// When the kernel last had everything; before that the family is not reported.
    updated: Option<Timestamp>,
}

/// The outcome at one moment.
struct Health {
    healthy: bool,
    updated: Option<Timestamp>,
    status: BTreeMap<&'static str, Value>,
}

impl Liveness {
    /// Changes of this family wait to be written.
    pub fn queued(&self, family: Family) {
        self.0.lock().families.entry(family).or_default().waiting_since.get_or_insert_with(Instant::now);
    }

    /// The kernel has everything of this family.
    pub fn updated(&self, family: Family) {
        let work = Work { waiting_since: None, updated: Some(clock::now()) };
        self.0.lock().families.insert(family, work);
    }

    /// The node as it is now; `None` when it is gone.
    pub fn node(&self, node: Option<&Node>) {
        let is_leaving = |node: &Node| {
            let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            node.metadata.deletion_timestamp.is_some() || taints.any(|taint| taint.key == TO_BE_DELETED)
        };
        self.0.lock().eligible = node.is_some_and(|node| !is_leaving(node));
    }

    /// Whether no change waits for too long.
    pub fn is_healthy(&self) -> bool {
        self.health(Instant::now()).healthy
    }

    fn health(&self, now: Instant) -> Health {
        let state = self.0.lock();
        let mut health = Health { healthy: true, updated: None, status: BTreeMap::new() };
        for (family, work) in &state.families {
            let Some(updated) = work.updated else { continue };
            let late = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
            let is_late = work.waiting_since.is_some_and(late);
            health.healthy &= !is_late;
            health.updated = health.updated.max(Some(updated));
            health.status.insert(family.name(), json!({"lastUpdated": updated.to_string(), "healthy": !is_late}));
        }
        health
    }

    /// The answer at `/healthz`, where the node counts too, or at `/livez`. A healthy proxy says that it was updated just now, as
    /// upstream's does: it has nothing to write.
    pub fn answer(&self, with_node: bool) -> Response<Body> {
        self.answer_at(with_node, Instant::now(), clock::now())
    }

    fn answer_at(&self, with_node: bool, now: Instant, time: Timestamp) -> Response<Body> {
        let (Health { healthy, updated, status }, eligible) = (self.health(now), self.0.lock().eligible);
        let good = healthy && (eligible || !with_node);
        let never = || "0001-01-01T00:00:00Z".to_owned();
        let updated = if good { time.to_string() } else { updated.map_or_else(never, |updated| updated.to_string()) };
        let eligible = if with_node { format!(r#""nodeEligible":{eligible},"#) } else { String::new() };
        let status = if status.is_empty() { String::new() } else { format!(r#","status":{}"#, json!(status)) };
        let body =
            format!(r#"{{"lastUpdated":"{updated}","currentTime":"{time}",{eligible}"healthy":{healthy}{status}}}"#);
        json_answer(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(object: Value) -> Node {
        json::from_value(object).unwrap()
    }

    #[test]
    fn a_change_that_waits_too_long_is_unhealthy() {
        let liveness = Liveness::default();
        let (begun, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let check = |after: u64, with_node: bool| {
            let answer = liveness.answer_at(with_node, begun + Duration::from_secs(after), time);
            answer.status().as_u16()
        };
        liveness.queued(Family::V4);
        assert_eq!((check(1000, false), check(0, true)), (200, 503), "it begins, and no node is known");
        liveness.node(Some(&node(json!({"metadata": {"name": "n"}}))));
        liveness.updated(Family::V4);
        liveness.updated(Family::V6);
        assert_eq!((check(1000, false), check(1000, true)), (200, 200), "nothing waits");
        liveness.queued(Family::V6);
        assert_eq!((check(50, true), check(70, true), check(70, false)), (200, 503, 503));
        assert!(liveness.is_healthy());
        liveness.updated(Family::V6);
        assert_eq!(check(1000, true), 200);
    }

    #[test]
    fn a_node_that_is_about_to_go_takes_no_traffic() {
        let liveness = Liveness::default();
        let check = |object: Option<Value>, expected: (u16, u16)| {
            liveness.node(object.map(node).as_ref());
            let status = |with_node| liveness.answer(with_node).status().as_u16();
            assert_eq!((status(true), status(false)), expected);
        };
        check(Some(json!({"metadata": {"name": "n"}})), (200, 200));
        check(
            Some(json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}})),
            (503, 200),
        );
        check(Some(json!({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}})), (200, 200));
        check(Some(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), (503, 200));
        check(None, (503, 200));
    }

    #[test]
    fn the_words_are_upstreams() {
        let liveness = Liveness::default();
        liveness.node(Some(&Node::default()));
        liveness.updated(Family::V4);
        let (now, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let body = |with_node| {
            let answer = liveness.answer_at(with_node, now, time);
            let bytes = futures::executor::block_on(http_body_util::BodyExt::collect(answer.into_body())).unwrap();
            String::from_utf8(bytes.to_bytes().to_vec()).unwrap()
        };
        let begin = r#"{"lastUpdated":"1970-01-01T00:00:00Z","currentTime":"1970-01-01T00:00:00Z","#;
        let (health, live) = (body(true), body(false));
        assert!(
            health.starts_with(&format!(r#"{begin}"nodeEligible":true,"healthy":true,"status":{{"IPv4":{{"#)),
            "{health}"
        );
        assert!(live.starts_with(&format!(r#"{begin}"healthy":true,"status":{{"IPv4":{{"#)), "{live}");
    }
}
