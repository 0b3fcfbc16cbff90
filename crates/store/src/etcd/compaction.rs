//! etcd forgets its history, which it keeps until it is told: now and then one of the servers over it says up to where.
//!
//! Servers agree by a key outside of every prefix, as upstream's do, so that both may be at work on one etcd: whoever comes first
//! behind the pause writes it, and what was the newest revision at the turn before is where the history begins then. The others
//! see that the key was written and wait for another pause.
//! Upstream counterpart: apiserver/pkg/storage/etcd3/compact.go.

use std::sync::Arc;

use clock::Duration;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use super::{Etcd, Repeats, kv, revision_of};
use crate::{Result, Revision, Store};

/// The key by which servers agree.
const KEY: &str = "compact_rev_key";

/// The state of things as one server knows it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// How often the key was written.
    pub version: i64,
    /// The newest revision at that time; 0 before the first turn.
    pub revision: Revision,
}

impl Etcd {
    /// One turn: writes the key if nobody else did since the last one, and has the history before that forgotten. Returns the
    /// state for the next turn.
    pub(super) async fn take_turn(&self, last: Turn) -> Result<Turn> {
        let ask = |member: &Client| {
            let txn = Txn::new()
                .when([Compare::version(KEY, CompareOp::Equal, last.version)])
                .and_then([TxnOp::put(KEY, last.revision.to_string(), None)])
                .or_else([TxnOp::get(KEY, None)]);
            let mut kv = kv(member);
            async move { kv.txn(txn).await }
        };
        let answer = self.call(Repeats::Unsent, None, ask).await?;
        let revision = revision_of(answer.header());
        if answer.succeeded() {
            // At the first turn nobody knows how old the history is.
            if last.revision > 0 {
                self.compact(last.revision).await?;
            }
            return Ok(Turn { version: last.version + 1, revision });
        }
        let version = |response| match response {
            TxnOpResponse::Get(get) => get.kvs().first().map(etcd_client::KeyValue::version),
            _ => None,
        };
        let version = answer.op_responses().into_iter().find_map(version);
        Ok(Turn { version: version.unwrap_or_default(), revision })
    }
}

/// Takes turns for as long as it runs.
pub(super) async fn run(etcd: Arc<Etcd>, every: Duration) {
    let mut turn = Turn::default();
    loop {
        clock::sleep(every).await;
        match etcd.take_turn(turn).await {
            Ok(next) => turn = next,
            Err(error) => tracing::debug!(%error, "etcd's history cannot be compacted now"),
        }
    }
}
