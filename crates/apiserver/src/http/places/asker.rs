//! The sender of a request as far as places are concerned, and the answer to one that finds none.

use std::{
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use api::status::StatusError;
use clock::Seldom;

use crate::{
    auth::{User, user},
    pages::metrics::Metrics,
};

/// The sender of a request over the network, whomever the request acts for: an extension of the request.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) user: Arc<User>,
    pub(super) address: IpAddr,
}

impl Asker {
    pub(super) fn is_stranger(&self) -> bool {
        self.user.name == user::ANONYMOUS
    }
}

/// Of strangers each address is one asker.
impl Hash for Asker {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if self.is_stranger() { self.address.hash(state) } else { self.user.name.hash(state) }
    }
}

/// The answer to a request of a user for which there is no place among these.
pub(super) fn full(metrics: &Metrics, user: &str, what: &'static str) -> StatusError {
    static SELDOM: Seldom = Seldom::new();
    metrics.rejected.fetch_add(1, Ordering::Relaxed);
    if let Some(more) = SELDOM.turn() {
        tracing::warn!(user, of = what, more, "too many at once, a request was turned away");
    }
    StatusError::too_many_requests("Too many requests, please try again later.", 1)
}
