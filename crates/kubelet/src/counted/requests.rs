//! The requests that the kubelet's server answers, by their kind, not by their path: whoever asks chooses that.
//! Upstream counterpart: pkg/kubelet/server/metrics.

use std::sync::Arc;

use clock::Instant;
use http::Method;
use meter::{Metric, Series, USUAL};

use super::Figures;
use crate::server::endpoint::Endpoint;

static ASKED: Metric =
    Metric::counter("kubelet_http_requests_total", "[ALPHA] Requests that the kubelet's server has begun to answer");
static TOOK: Metric = Metric::histogram(
    "kubelet_http_requests_duration_seconds",
    "[ALPHA] Seconds that the kubelet's server was busy with a request",
    USUAL,
);
static UNDER_WAY: Metric =
    Metric::gauge("kubelet_http_inflight_requests", "[ALPHA] Requests that the kubelet's server is answering now");

/// A request under way. It is over when this is dropped.
pub struct Request {
    begun: Instant,
    under_way: Arc<Series>,
    took: Arc<Series>,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.under_way.shift(-1.0);
        self.took.observe(self.begun.elapsed().as_secs_f64());
    }
}

/// A method by its name, if it has one that everybody knows.
fn word(method: &Method) -> &str {
    let known = [
        Method::GET,
        Method::POST,
        Method::HEAD,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ];
    if known.contains(method) { method.as_str() } else { "other" }
}

impl Figures {
    /// Counts a request that has come.
    pub fn asked(&self, method: &Method, endpoint: &Endpoint<'_>) -> Request {
        let path = endpoint.root();
        let is_long = matches!(endpoint, Endpoint::Stream(_) | Endpoint::Profile(_) | Endpoint::DebugFlags(_));
        let of = [
            ("long_running", if is_long { "true" } else { "false" }),
            ("method", word(method)),
            ("path", path),
            ("server_type", "readwrite"),
        ];
        self.metrics.count(&ASKED, &of);
        let (under_way, took) = (self.metrics.series(&UNDER_WAY, &of), self.metrics.series(&TOOK, &of));
        under_way.shift(1.0);
        Request { begun: Instant::now(), under_way, took }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::endpoint::resolve;

    #[test]
    fn requests_are_counted_by_what_they_are_for() {
        let figures = Figures::default();
        let ask = |method: &Method, path: &str| figures.asked(method, &resolve(method, path).endpoint);
        let open = ask(&Method::POST, "/exec/ns/p/c");
        for path in ["/metrics/cadvisor", "/containerLogs/ns/p/c", "/a-path-of-my-own", "/stats/summary"] {
            drop(ask(&Method::GET, path));
        }
        drop(ask(&Method::from_bytes(b"MINE").unwrap(), "/pods"));
        let text = figures.render();
        let of = |long: bool, method: &str, path: &str| {
            format!(r#"long_running="{long}",method="{method}",path="{path}",server_type="readwrite""#)
        };
        for (of, under_way, ended) in [
            (of(true, "POST", "exec"), 1, 0),
            (of(false, "GET", "metrics/cadvisor"), 0, 1),
            (of(false, "GET", "containerLogs"), 0, 1),
            (of(false, "GET", "stats"), 0, 1),
            (of(false, "GET", "other"), 0, 1),
            (of(false, "other", "other"), 0, 1),
        ] {
            for row in [
                format!("kubelet_http_requests_total{{{of}}} 1"),
                format!("kubelet_http_inflight_requests{{{of}}} {under_way}"),
                format!("kubelet_http_requests_duration_seconds_count{{{of}}} {ended}"),
            ] {
                assert!(text.lines().any(|line| line == row), "{row}\n{text}");
            }
        }
        drop(open);
        let over = format!("kubelet_http_inflight_requests{{{}}} 0", of(true, "POST", "exec"));
        assert!(figures.render().contains(&over));
    }
}
