//! The duty of each component: each status has one writer, and no component does the work of another.

use http::Method;

use crate::hollow::Profile;

/// A part that can be killed and started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// A controller manager; of several, one leads.
    Manager(usize),
    Scheduler,
    Node(usize),
    /// The attacher, which a storage driver brings.
    Attacher,
}

/// The parts of a path behind the group and version: namespace, resource, name, subresource; empty where there is none.
pub fn parts(path: &str) -> [&str; 4] {
    let mut words = path.split('/').skip(1);
    let mut next = || words.next().unwrap_or("");
    if next() == "apis" {
        next();
    }
    next();
    let (mut namespace, mut resource) = ("", next());
    if resource == "namespaces" {
        let name = next();
        match next() {
            "" => return ["", "namespaces", name, ""],
            inner @ ("status" | "finalize") => return ["", "namespaces", name, inner],
            inner => (namespace, resource) = (name, inner),
        }
    }
    [namespace, resource, next(), next()]
}

/// Whether a component may send this request.
pub fn may_send(component: Component, method: &Method, path: &str) -> bool {
    if method == Method::GET {
        return true;
    }
    let [namespace, resource, name, subresource] = parts(path);
    match (component, resource, subresource) {
        (_, "events", "") => true,
        (Component::Node(number), _, _) => {
            let own = name.is_empty() || name == Profile::new(number).name;
            match (resource, subresource) {
                ("nodes", "" | "status") => own,
                ("leases", "") => own && namespace == "kube-node-lease",
                ("pods", "status") => true,
                ("pods", "") => method == Method::DELETE,
                _ => false,
            }
        }
        (Component::Scheduler, "pods", "binding" | "status") => true,
        (Component::Scheduler, "pods", "") => method == Method::DELETE,
        // A claim gets its devices with the node of its Pod.
        (Component::Scheduler, "resourceclaims", "" | "status") => method == Method::PATCH,
        // It reserves volumes, and tells the node that it chose for a claim.
        (Component::Scheduler, "persistentvolumes" | "persistentvolumeclaims", "") => {
            method == Method::PATCH || method == Method::PUT
        }
        (Component::Scheduler, _, _) => false,
        (Component::Attacher, "volumeattachments", "" | "status") => method == Method::PATCH,
        (Component::Attacher, _, _) => false,
        (Component::Manager(_), "pods", "binding") => false,
        // Its own, by which one of several leads.
        (Component::Manager(_), "leases", _) => namespace == "kube-system",
        (Component::Manager(_), _, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_keep_to_their_own() {
        let check = |component: Component, request: &str, expected: bool| {
            let (method, path) = request.split_once(' ').unwrap();
            assert_eq!(may_send(component, &method.parse().unwrap(), path), expected, "{component:?} {request}");
        };
        let (node, lease) = ("/api/v1/nodes/node-01", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases");
        let pod = "/api/v1/namespaces/d/pods/p";
        check(Component::Node(1), &format!("PATCH {node}/status"), true);
        check(Component::Node(2), &format!("PATCH {node}/status"), false);
        check(Component::Node(1), &format!("POST {lease}"), true);
        check(Component::Node(2), &format!("PATCH {lease}/node-01"), false);
        check(Component::Node(1), &format!("PATCH {pod}/status"), true);
        check(Component::Node(1), &format!("POST {pod}/binding"), false);
        check(Component::Node(1), "PUT /apis/apps/v1/namespaces/d/replicasets/r/status", false);
        check(Component::Scheduler, &format!("POST {pod}/binding"), true);
        check(Component::Scheduler, &format!("PATCH {node}/status"), false);
        check(Component::Scheduler, &format!("GET {node}"), true);
        check(Component::Scheduler, "PUT /api/v1/persistentvolumes/v", true);
        check(Component::Scheduler, "DELETE /api/v1/persistentvolumes/v", false);
        let attachment = "/apis/storage.k8s.io/v1/volumeattachments/a";
        check(Component::Attacher, &format!("PATCH {attachment}/status"), true);
        check(Component::Attacher, &format!("DELETE {attachment}"), false);
        check(Component::Attacher, &format!("PATCH {node}"), false);
        let manager = Component::Manager(0);
        check(manager, &format!("POST {pod}/binding"), false);
        check(manager, "PUT /apis/apps/v1/namespaces/d/replicasets/r/status", true);
        check(manager, "PUT /api/v1/namespaces/d/finalize", true);
        check(manager, &format!("PATCH {lease}/node-01"), false);
        check(manager, &format!("POST {}", lease.replace("kube-node-lease", "kube-system")), true);
    }
}
