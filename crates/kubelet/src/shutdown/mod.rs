//! The end of the machine: logind says when it is about to end, waits while the kubelet ends its Pods in the order of their
//! importance, and is let go on then. Upstream counterpart: pkg/kubelet/nodeshutdown.

pub mod follow;
pub mod logind;
pub mod periods;
mod record;
