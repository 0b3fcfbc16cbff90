//! A decision that waits for what extenders say.

use std::sync::Arc;

use crate::{candidates::Possible, failure::Failure, node_id::NodeId, queue::Waiting};

/// Where a decision stopped.
pub(crate) enum Asked {
    Nodes {
        pod: Waiting,
        feasible: Vec<NodeId>,
        /// Why the other nodes do not fit.
        failure: Failure,
        /// Only the node was looked at where room was made for the Pod.
        nominated: bool,
    },
    Victims {
        pod: Waiting,
        failure: Arc<Failure>,
        plugins: u32,
        possible: Possible,
    },
}
