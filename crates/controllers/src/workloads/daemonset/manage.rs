//! One Pod on each node that runs one, and none where none belongs.

use api::rules::pod;
use controller::Note;
use k8s_openapi::api::core::v1::Pod;

use super::{Fit, OnNode, Sync, hash_of_pod, name};

/// The Pods to make and to delete, collected over the nodes.
#[derive(Default)]
struct Changes<'a> {
    create: Vec<&'a str>,
    delete: Vec<&'a Pod>,
}

impl<'a> Sync<'a> {
    /// Whether anything has to be made or deleted.
    pub fn manage(&mut self) -> bool {
        let mut changes = Changes::default();
        let nodes = std::mem::take(&mut self.nodes);
        for node in &nodes {
            self.manage_node(node, &mut changes);
        }
        self.nodes = nodes;
        self.apply(&changes.create, &changes.delete)
    }

    fn manage_node(&mut self, node: &OnNode<'a>, changes: &mut Changes<'a>) {
        let staying = node.pods.iter().copied().filter(|pod| !pod::is_deleted(pod));
        match node.fit {
            // Bound Pods of a node that is gone are the Pod garbage collector's; others would wait for ever.
            None => changes.delete.extend(staying.filter(|p| p.spec.as_ref().is_none_or(|s| s.node_name.is_none()))),
            Some(Fit::Refuses) => changes.delete.extend(staying),
            Some(Fit::Runs) if node.pods.is_empty() => changes.create.push(node.name),
            Some(fit) => {
                let running: Vec<&Pod> = staying.filter(|pod| self.is_running(pod, node.name, changes)).collect();
                if self.max_surge(1) == 0 {
                    changes.delete.extend(running.iter().skip(1));
                } else if running.is_empty() && fit == Fit::Runs {
                    changes.create.push(node.name);
                } else {
                    self.keep_two(&running, changes);
                }
            }
        }
    }

    /// Whether the Pod has not ended. One that has is replaced, and the set's readers are told.
    fn is_running(&mut self, pod: &'a Pod, node: &str, changes: &mut Changes<'a>) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let name = name(pod);
        match pod::phase(pod) {
            "Failed" => match self.observed.kept.get(name) {
                Some(left) => {
                    self.plan.again_after(*left);
                }
                None => {
                    let message =
                        format!("Found failed daemon pod {namespace}/{name} on node {node}, will try to kill it");
                    self.plan.tell(Note::warning("FailedDaemonPod", message));
                    changes.delete.push(pod);
                }
            },
            "Succeeded" => {
                let message =
                    format!("Found succeeded daemon pod {namespace}/{name} on node {node}, will try to delete it");
                self.plan.tell(Note::normal("SucceededDaemonPod", message));
                changes.delete.push(pod);
            }
            _ => return true,
        }
        false
    }

    /// While a surge is allowed, a node has an old Pod that is ready and a new one that is not available yet; whatever is
    /// there besides goes.
    fn keep_two(&self, running: &[&'a Pod], changes: &mut Changes<'a>) {
        let (new, old): (Vec<&Pod>, Vec<&Pod>) =
            running.iter().copied().partition(|pod| hash_of_pod(pod) == self.hash());
        changes.delete.extend(new.iter().skip(1));
        changes.delete.extend(old.iter().skip(1));
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!pod::is_ready(old) || self.is_available(new))
        {
            changes.delete.push(old);
        }
    }
}
