//! The members of an etcd cluster. One is asked for everything; when it fails, the next one is.
//!
//! A balancer that spreads calls would go on giving a part of them to a member that is gone, and each of these would fail.

use std::sync::atomic::{AtomicUsize, Ordering};

use clock::{Duration, timeout};
use etcd_client::{Client, ConnectOptions};
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;

use super::words;
use crate::{Result, StoreError};

/// How long connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long members that are slow to tell their version are waited for once another one has.
const OTHERS: Duration = Duration::from_secs(1);
const SILENT: &str = "it does not answer in time; check the address, and whether a firewall is in between";

pub(super) struct Members {
    clients: Vec<(String, Client)>,
    /// The number of moves so far, by which the member is known that is asked. Every failure of it moves on once,
    /// however many calls see it.
    turn: watch::Sender<usize>,
    /// The move after which a member has answered last.
    answered: AtomicUsize,
}

impl Members {
    /// Connects, and fails when no member answers. The versions are those of the members that did.
    pub async fn connect(endpoints: &[String], options: &ConnectOptions) -> Result<(Members, Vec<String>)> {
        let unusable =
            |why: String| StoreError::Unavailable(format!("etcd at {} cannot be used: {why}", endpoints.join(", ")));
        let mut clients = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let client = Client::connect([endpoint], Some(options.clone())).await;
            clients
                .push((endpoint.clone(), client.map_err(|error| unusable(words::plain_at_first(&error, endpoint)))?));
        }
        let ask = |at: usize, endpoint: String, mut client: Client| async move {
            match timeout(CONNECT_TIMEOUT, client.status()).await {
                Ok(Ok(status)) => (at, Ok(status.version().to_owned())),
                Ok(Err(error)) => (at, Err(words::plain_at_first(&error, &endpoint))),
                Err(_) => (at, Err(SILENT.to_owned())),
            }
        };
        let mut asked: FuturesUnordered<_> =
            clients.iter().enumerate().map(|(at, (name, client))| ask(at, name.clone(), client.clone())).collect();
        let (mut first, mut versions, mut why) = (None, Vec::new(), None);
        let mut patience = CONNECT_TIMEOUT * 2;
        while let Ok(Some((at, version))) = timeout(patience, asked.next()).await {
            match version {
                Ok(version) => {
                    first = first.or(Some(at));
                    versions.push(version);
                    patience = OTHERS;
                }
                Err(error) => why = why.or(Some(error)),
            }
        }
        drop(asked);
        let first = first.ok_or_else(|| unusable(why.unwrap_or_else(|| "no address is given".to_owned())))?;
        Ok((Members { clients, turn: watch::Sender::new(first), answered: AtomicUsize::new(first) }, versions))
    }

    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// The member that is asked now, and by what to say that it failed.
    pub fn now(&self) -> (usize, &Client) {
        let turn = *self.turn.borrow();
        (turn, &self.clients[turn % self.clients.len()].1)
    }

    /// The next member is asked from now on, unless it is already. Where there is no other the one is not given up.
    pub fn failed(&self, turn: usize) {
        if self.count() > 1 {
            self.turn.send_if_modified(|now| {
                let is_asked = *now == turn;
                *now += usize::from(is_asked);
                is_asked
            });
        }
    }

    /// Says which member is asked from now on: only of one that answers, so that it is said once while all are away.
    pub fn answered(&self, turn: usize) {
        if self.answered.load(Ordering::Relaxed) != turn && self.answered.swap(turn, Ordering::Relaxed) != turn {
            let member = &*self.clients[turn % self.clients.len()].0;
            tracing::info!(member, "another member of etcd is asked from now on");
        }
    }

    /// Tells when another member is asked than now.
    pub fn moves(&self) -> watch::Receiver<usize> {
        self.turn.subscribe()
    }
}
