//! The server's metrics, in Prometheus' text form at `/metrics`.

pub mod issued;
pub mod load;
pub mod requests;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use listener::Figures;
use meter::{Metric, process, told};
use parking_lot::RwLock;

use crate::auth::metrics::Access;
use load::Load;
use requests::Requests;

static REJECTED: Metric =
    Metric::counter("apiserver_rejected_requests_total", "Requests answered 429 because too many were in flight.");
static REFUSED: Metric =
    Metric::counter("apiserver_connections_refused_total", "Connections closed at once because there were too many.");
static CUT: Metric = Metric::counter(
    "apiserver_connections_cut_total",
    "Connections ended because their client did not read its answers.",
);
static HANDSHAKES: Metric = Metric::counter(
    "apiserver_tls_handshake_errors_total",
    "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
);

/// All counters of one server.
#[derive(Default)]
pub struct Metrics {
    /// The metrics with labels.
    pub all: meter::Metrics,
    requests: Requests,
    pub access: Access,
    pub load: Load,
    pub rejected: AtomicU64,
    pub connections: Arc<Figures>,
    /// The lines of other components.
    pub others: RwLock<Vec<Box<dyn Fn() -> String + Send + Sync>>>,
}

impl Metrics {
    /// The page at `/metrics`.
    pub fn render(&self) -> String {
        let one = |metric, count: &AtomicU64| told(metric, [(String::new(), count.load(Ordering::Relaxed) as f64)]);
        let mut page = self.all.render() + &self.load.render() + &process::page();
        page += &one(&REJECTED, &self.rejected);
        page += &one(&REFUSED, &self.connections.refused);
        page += &one(&CUT, &self.connections.cut);
        page += &one(&HANDSHAKES, &self.connections.handshakes);
        page.extend(self.others.read().iter().map(|lines| lines()));
        page
    }
}
