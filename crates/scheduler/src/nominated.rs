//! Room that preemption made for a waiting Pod, which Pods of lower priority must leave to it.

use crate::{class::ClassId, node_id::NodeId};

/// Room that was made for a waiting Pod.
#[derive(Debug, Clone)]
pub(crate) struct Nominated {
    pub node: NodeId,
    pub class: ClassId,
    pub priority: i32,
}
