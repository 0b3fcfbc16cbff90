//! The leader among several controller managers: nobody else does its work. The leader is learned from the writes of
//! the Lease that the server carries out.

use std::sync::Arc;

use http::Method;
use parking_lot::Mutex;

use crate::duty::{Component, parts};

/// The Lease of the controller managers.
pub const LEASE: &str = "kube-controller-manager";

/// The manager that leads, once one does. A single manager asks for no Lease.
#[derive(Clone, Default)]
pub struct Leader(Arc<Mutex<Option<usize>>>);

fn is_lease(path: &str) -> bool {
    matches!(parts(path), ["kube-system", "leases", LEASE | "", ""])
}

impl Leader {
    /// Whether the server may be sent this request by somebody who does not lead.
    pub fn objects(&self, sender: Component, method: &Method, path: &str) -> bool {
        let (Component::Manager(number), Some(leader)) = (sender, *self.0.lock()) else { return false };
        let is_work = method != Method::GET && !is_lease(path) && parts(path)[1] != "events";
        is_work && number != leader
    }

    /// Notes a request that the server carried out.
    pub fn note(&self, sender: Component, method: &Method, path: &str) {
        if let (Component::Manager(number), true) = (sender, method != Method::GET && is_lease(path)) {
            *self.0.lock() = Some(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_leader_works() {
        let leader = Leader::default();
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        let pods = "/api/v1/namespaces/d/pods";
        let objects = |component, method: Method, path: &str| leader.objects(component, &method, path);
        let (first, second) = (Component::Manager(0), Component::Manager(1));
        assert!(!objects(first, Method::POST, pods), "without an election all work");
        leader.note(first, &Method::GET, lease);
        assert!(!objects(second, Method::POST, pods));
        leader.note(second, &Method::POST, lease);
        assert!(objects(first, Method::POST, pods) && !objects(second, Method::POST, pods));
        assert!(!objects(first, Method::GET, pods) && !objects(first, Method::PUT, &format!("{lease}/{LEASE}")));
        assert!(!objects(first, Method::POST, "/api/v1/namespaces/kube-system/events"));
        assert!(!objects(Component::Scheduler, Method::POST, pods));
        leader.note(first, &Method::PUT, &format!("{lease}/{LEASE}"));
        assert!(objects(second, Method::POST, pods) && !objects(first, Method::POST, pods));
    }
}
