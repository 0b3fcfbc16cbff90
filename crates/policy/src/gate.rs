//! The door between the kubelet and the policies: a Pod's containers begin when the kernel holds what policies say about it.
//!
//! The kubelet knows a Pod's address before anybody else does: the engine has just given it, and the status that tells the
//! API server comes later. So it hands the Pod over here, and waits.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::core::v1 as core;
use tokio::sync::{mpsc, oneshot};

use crate::pod::Pod;

/// How long a Pod waits before its start counts as failed, and is tried again later.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pods that wait beyond these wait outside.
const WAITING: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("the network policies that may select the Pod are not in the kernel yet")]
    NotYet,
}

/// A Pod of this node that has an address and has not begun.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub pod: Pod,
    pub addresses: Vec<IpAddr>,
    pub done: oneshot::Sender<()>,
}

#[derive(Debug, Clone)]
pub struct Gate {
    arrivals: mpsc::Sender<Arrival>,
}

/// The other end, for [`run`](crate::run).
#[derive(Debug)]
pub struct Arrivals(pub(crate) mpsc::Receiver<Arrival>);

pub fn gate() -> (Gate, Arrivals) {
    let (arrivals, receiver) = mpsc::channel(WAITING);
    (Gate { arrivals }, Arrivals(receiver))
}

impl Gate {
    /// Returns when the kernel enforces all policies that select this Pod at these addresses.
    pub async fn pass(&self, pod: &core::Pod, addresses: Vec<IpAddr>) -> Result<(), GateError> {
        let pod = Pod::of(pod);
        let passed = async {
            let (done, answer) = oneshot::channel();
            // Both fail only when nobody enforces policies any more, because the node ends.
            let _ = self.arrivals.send(Arrival { pod, addresses, done }).await;
            answer.await
        };
        match clock::timeout(PATIENCE, passed).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(GateError::NotYet),
        }
    }
}
