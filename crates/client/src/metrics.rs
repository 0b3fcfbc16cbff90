//! The metrics of requests to API servers and of elections, for the whole process, under upstream's names. Nothing here limits how
//! often a client asks or asks again by itself, so that of such times nothing is counted.
//! Upstream counterpart: k8s.io/component-base/metrics/prometheus/{restclient,clientgo}.

use std::sync::Arc;

use clock::Duration;
use http::Method;
use meter::{Metric, Metrics, Series};

static REQUESTS: Metric = Metric::counter(
    "rest_client_requests_total",
    "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
);
static SECONDS: Metric = Metric::histogram(
    "rest_client_request_duration_seconds",
    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
    &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
);
static LEADS: Metric = Metric::gauge(
    "leader_election_master_status",
    "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the \
     string used to identify the lease. Please make sure to group by name.",
);

static METRICS: Metrics = Metrics::new();

/// How requests inside this process name their host.
pub(crate) const OWN: &str = "localhost";

/// The lines of the page.
pub fn render() -> String {
    METRICS.render()
}

/// A request has ended: `code` is that of its answer, if it got one.
pub(crate) fn asked(host: &str, method: &Method, code: Option<u16>, took: Duration) {
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    METRICS.count(&REQUESTS, &[("code", &code), ("method", method.as_str()), ("host", host)]);
    METRICS.observe(&SECONDS, &[("verb", method.as_str()), ("host", host)], took.as_secs_f64());
}

/// Whether this process leads, for as long as it is a candidate.
pub(crate) struct Leads(Arc<Series>);

impl Leads {
    pub(crate) fn not_yet(lease: &str) -> Self {
        let leads = Leads(METRICS.series(&LEADS, &[("name", lease)]));
        leads.0.set(0.0);
        leads
    }

    pub(crate) fn now(&self) {
        self.0.set(1.0);
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        self.0.set(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_with_their_ends() {
        asked("a:1", &Method::GET, Some(200), Duration::from_millis(30));
        asked("a:1", &Method::GET, None, Duration::from_secs(70));
        let page = render();
        for line in [
            r#"rest_client_requests_total{code="200",method="GET",host="a:1"} 1"#,
            r#"rest_client_requests_total{code="<error>",method="GET",host="a:1"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{verb="GET",host="a:1",le="0.1"} 1"#,
            r#"rest_client_request_duration_seconds_count{verb="GET",host="a:1"} 2"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
    }

    #[test]
    fn only_a_candidate_leads() {
        let line = |value: u8| format!("leader_election_master_status{{name=\"a lease\"}} {value}\n");
        let leads = Leads::not_yet("a lease");
        assert!(render().contains(&line(0)));
        leads.now();
        assert!(render().contains(&line(1)));
        drop(leads);
        assert!(render().contains(&line(0)));
    }
}
