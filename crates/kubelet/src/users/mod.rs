//! Users of Pods that are none of the node's (`hostUsers: false`): each such Pod has a range of the node's ids for itself, from its
//! first sandbox until nothing of it is left. Upstream counterpart: pkg/kubelet/userns.

pub mod held;
pub mod range;
mod record;
