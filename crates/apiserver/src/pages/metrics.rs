//! The server's metrics, in Prometheus' text form at `/metrics`.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use api::rules::metrics_text::escaped;
use http::StatusCode;
use listener::Figures;
use parking_lot::RwLock;

use crate::http::request::Info;

/// Upper bounds of the latency histogram, in seconds, as upstream has them.
const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// The labels under which a request is counted. Requests for what is not served have no names, and are counted together: there are as
/// many series as there are things to ask for, whatever strangers ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Labels<'a> {
    verb: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'static str,
    /// 0 for those that HTTP does not know, which only others' answers have that are passed on.
    code: u16,
}

impl<'a> Labels<'a> {
    pub fn of(info: &'a Info, code: StatusCode) -> Self {
        Labels {
            verb: if info.verb.is_empty() { "other" } else { info.verb },
            group: info.group(),
            version: info.version(),
            // The name of another API server's resource is the client's to say here.
            resource: if info.remote.is_some() { "" } else { info.resource() },
            subresource: info.subresource,
            code: if code.canonical_reason().is_some() { code.as_u16() } else { 0 },
        }
    }

    fn series(&self) -> Series {
        Series {
            verb: self.verb,
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            resource: self.resource.to_owned(),
            subresource: self.subresource,
            code: self.code,
        }
    }
}

/// The labels of one request series.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: &'static str,
    code: u16,
}

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    microseconds: AtomicU64,
    buckets: [AtomicU64; 24],
}

/// The series with one fingerprint: hardly ever more than one.
type Bucket = Vec<(Series, Arc<Counter>)>;

/// All counters of one server.
#[derive(Default)]
pub struct Metrics {
    requests: RwLock<HashMap<u64, Bucket>>,
    pub long_running: AtomicI64,
    pub watch_events: AtomicU64,
    pub watchers_cut: AtomicU64,
    pub rejected: AtomicU64,
    pub connections: Arc<Figures>,
    /// The lines of other components.
    pub others: RwLock<Vec<Box<dyn Fn() -> String + Send + Sync>>>,
}

fn fingerprint(labels: &Labels<'_>) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    labels.hash(&mut hasher);
    hasher.finish()
}

impl Metrics {
    /// Counts one finished request.
    pub fn finished(&self, labels: &Labels<'_>, took: Duration) {
        let fingerprint = fingerprint(labels);
        let matches = |s: &Series| {
            s.verb == labels.verb
                && s.code == labels.code
                && s.resource == labels.resource
                && s.subresource == labels.subresource
                && s.group == labels.group
                && s.version == labels.version
        };
        let known = self
            .requests
            .read()
            .get(&fingerprint)
            .and_then(|list| list.iter().find(|(s, _)| matches(s)).map(|(_, c)| c.clone()));
        let counter = known.unwrap_or_else(|| {
            let mut requests = self.requests.write();
            let list = requests.entry(fingerprint).or_default();
            // Another request may have been faster.
            match list.iter().find(|(s, _)| matches(s)) {
                Some((_, counter)) => counter.clone(),
                None => {
                    let counter = Arc::new(Counter::default());
                    list.push((labels.series(), counter.clone()));
                    counter
                }
            }
        });
        counter.count.fetch_add(1, Ordering::Relaxed);
        counter.microseconds.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        let bucket = BUCKETS.iter().position(|b| took.as_secs_f64() <= *b).unwrap_or(BUCKETS.len());
        counter.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The page at `/metrics`.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let requests = self.requests.read();
        let mut series: Vec<_> = requests.values().flatten().collect();
        series.sort_by_key(|(s, _)| (s.group.clone(), s.resource.clone(), s.subresource, s.verb, s.code));
        out.push_str("# HELP apiserver_request_total Counter of apiserver requests by verb, group, version, resource and code.\n# TYPE apiserver_request_total counter\n");
        for (s, counter) in &series {
            let count = counter.count.load(Ordering::Relaxed);
            let _ = writeln!(out, "apiserver_request_total{{{}}} {count}", labels(s));
        }
        out.push_str("# HELP apiserver_request_duration_seconds Response latency distribution in seconds.\n# TYPE apiserver_request_duration_seconds histogram\n");
        for (s, counter) in &series {
            let labels = labels(s);
            let mut sum = 0;
            for (bucket, bound) in counter.buckets.iter().zip(BUCKETS) {
                sum += bucket.load(Ordering::Relaxed);
                let _ = writeln!(out, "apiserver_request_duration_seconds_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let count = counter.count.load(Ordering::Relaxed);
            let seconds = counter.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
            let _ = writeln!(out, "apiserver_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "apiserver_request_duration_seconds_sum{{{labels}}} {seconds}");
            let _ = writeln!(out, "apiserver_request_duration_seconds_count{{{labels}}} {count}");
        }
        let gauges = [
            (
                "apiserver_longrunning_requests",
                "gauge",
                "Requests open without a deadline, such as watches.",
                self.long_running.load(Ordering::Relaxed).max(0) as u64,
            ),
            (
                "apiserver_watch_events_total",
                "counter",
                "Events put into the queues of watchers.",
                self.watch_events.load(Ordering::Relaxed),
            ),
            (
                "apiserver_terminated_watchers_total",
                "counter",
                "Watchers cut off because they did not keep up.",
                self.watchers_cut.load(Ordering::Relaxed),
            ),
            (
                "apiserver_rejected_requests_total",
                "counter",
                "Requests answered 429 because too many were in flight.",
                self.rejected.load(Ordering::Relaxed),
            ),
            (
                "apiserver_connections_refused_total",
                "counter",
                "Connections closed at once because there were too many.",
                self.connections.refused.load(Ordering::Relaxed),
            ),
            (
                "apiserver_connections_cut_total",
                "counter",
                "Connections ended because their client did not read its answers.",
                self.connections.cut.load(Ordering::Relaxed),
            ),
        ];
        for (name, sort, help, value) in gauges {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {sort}\n{name} {value}");
        }
        out.extend(self.others.read().iter().map(|lines| lines()));
        out
    }
}

fn labels(s: &Series) -> String {
    let verb = s.verb.to_uppercase();
    let code = if s.code == 0 { "other".to_owned() } else { s.code.to_string() };
    let [group, version, resource, subresource] = [&*s.group, &*s.version, &*s.resource, s.subresource].map(escaped);
    format!(
        "verb=\"{verb}\",group=\"{group}\",version=\"{version}\",resource=\"{resource}\",\
         subresource=\"{subresource}\",code=\"{code}\""
    )
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::tests::conversation::Conversation;

    #[tokio::test(start_paused = true)]
    async fn strangers_make_no_series() {
        let conversation = Conversation::start().await;
        let check = |request: &str, code: u16, expected: &str| {
            let (method, path) = request.split_once(' ').unwrap();
            let kinds = conversation.server.objects().kinds.table();
            let registrations = Default::default();
            let served = crate::http::request::Served { kinds: &kinds, registrations: &registrations };
            let info = Info::resolve(&method.parse::<Method>().unwrap(), path, "", served);
            let labels = Labels::of(&info, StatusCode::from_u16(code).unwrap());
            let Labels { verb, group, version, resource, subresource, code } = labels;
            assert_eq!(format!("{verb} {group}/{version}/{resource}/{subresource} {code}"), expected, "{request}");
        };
        check("GET /api/v1/namespaces/a/pods/b", 200, "get /v1/pods/ 200");
        check("PUT /api/v1/namespaces/a/pods/b/status", 200, "update /v1/pods/status 200");
        check("PUT /apis/apps/v1/namespaces/a/deployments/b/scale", 409, "update apps/v1/deployments/scale 409");
        check("POST /api/v1/namespaces/a/pods/b/eviction", 201, "create /v1/pods/eviction 201");
        check("GET /api/v1/namespaces/a/pods/b/proxy/c/d", 599, "get /v1/pods/proxy 0");
        check("GET /api/v1/x\"}/y", 404, "get /// 404");
        check("GET /api/v1/namespaces/a/pods/b/other", 404, "get /// 404");
        check("GET /apis/apps/v7/deployments", 404, "get /// 404");
        check("GET /apis/other/v1/pods", 404, "get /// 404");
        check("GET /anything", 404, "get /// 404");
        check("BREW /anything", 405, "other /// 405");
        check("BREW /api/v1/pods", 405, "other /// 405");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_has_a_line_for_each_label_set_and_no_other() {
        let conversation = Conversation::start().await;
        for n in 0..50 {
            conversation.say(&format!("GET /api/v1/x{n}%22%7D%20y%0Ametric/{n}"), "").await;
            conversation.say(&format!("GET /x{n}"), "").await;
        }
        let page = conversation.say("GET /metrics", "").await.text;
        let lines: Vec<_> = page.lines().filter(|l| l.starts_with("apiserver_request_total")).collect();
        let line =
            r#"apiserver_request_total{verb="GET",group="",version="",resource="",subresource="",code="404"} 100"#;
        assert_eq!(lines, [line]);
        assert!(page.lines().all(|l| l.starts_with("# ") || l.starts_with("apiserver_")), "{page}");
    }
}
