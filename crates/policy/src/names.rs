//! The door between cluster DNS and the policies: an answer about a domain that a policy names reaches its Pod when the kernel
//! lets connections to its addresses through.

use std::{net::IpAddr, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};

use crate::domain::Domain;

/// How long an answer waits for the kernel. Its Pod may find the way closed then, for a moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// Answers that wait beyond these wait outside.
const WAITING: usize = 64;
/// The shortest time that addresses are good for: who has an answer that may not be kept still connects with it.
const LEAST: Duration = Duration::from_secs(5);

/// The addresses of a name, each good until a moment.
#[derive(Debug)]
pub(crate) struct Learned {
    pub name: String,
    pub addresses: Vec<(IpAddr, clock::Instant)>,
    pub done: oneshot::Sender<()>,
}

/// The end for cluster DNS.
#[derive(Debug, Clone)]
pub struct Names {
    wanted: watch::Receiver<Vec<Domain>>,
    learned: mpsc::Sender<Learned>,
}

/// The other end, for [`run`](crate::run).
#[derive(Debug)]
pub struct Heard {
    wanted: watch::Sender<Vec<Domain>>,
    pub(crate) learned: mpsc::Receiver<Learned>,
}

pub fn names() -> (Names, Heard) {
    let (learned, receiver) = mpsc::channel(WAITING);
    let (sender, wanted) = watch::channel(Vec::new());
    (Names { wanted, learned }, Heard { wanted: sender, learned: receiver })
}

impl Names {
    /// Whether a policy of this node asks for a name, in lower case and without a dot at its end.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.borrow().iter().any(|domain| domain.has(name))
    }

    /// Takes in the addresses of a name with the time that each is good for. Returns when the kernel knows them.
    pub async fn learned(&self, name: &str, addresses: &[(IpAddr, Duration)]) {
        let now = clock::Instant::now();
        let until = |(address, time): &(IpAddr, Duration)| (*address, now + (*time).max(LEAST));
        let addresses = addresses.iter().map(until).collect();
        let told = async {
            let (done, answer) = oneshot::channel();
            // Both fail only when nobody enforces policies any more, because the node ends.
            let _ = self.learned.send(Learned { name: name.to_owned(), addresses, done }).await;
            let _ = answer.await;
        };
        if clock::timeout(PATIENCE, told).await.is_err() {
            tracing::warn!(name, "the addresses of a domain that a policy names are not in the kernel yet");
        }
    }
}

impl Heard {
    /// Tells which domains are asked for.
    pub(crate) fn want(&self, domains: Vec<Domain>) {
        self.wanted.send_if_modified(|known| {
            let is_new = *known != domains;
            if is_new {
                *known = domains;
            }
            is_new
        });
    }
}
