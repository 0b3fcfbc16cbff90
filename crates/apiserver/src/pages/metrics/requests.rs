//! The metrics of requests: how many there were of which sort, how long they took, how large what was read is, which the server
//! broke off and which their clients gave up.
//! Upstream counterpart: k8s.io/apiserver/pkg/endpoints/metrics.

use std::{collections::HashMap, sync::Arc};

use api::rules::url::query_pairs;
use clock::Instant;
use http::{StatusCode, header, request::Parts};
use http_body::Body as _;
use listener::Answering;
use meter::{Metric, Metrics, Series};
use parking_lot::RwLock;

use crate::http::{
    body::{Along, Body, Response},
    request::{Info, method_verb},
    timing::Timing,
};

static REQUESTS: Metric = Metric::counter(
    "apiserver_request_total",
    "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and \
     HTTP response code.",
);
static DURATION: Metric = Metric::histogram(
    "apiserver_request_duration_seconds",
    "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and \
     component.",
    meter::REQUESTS,
);
static SLI: Metric = Metric::histogram(
    "apiserver_request_sli_duration_seconds",
    "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for \
     each verb, group, version, resource, subresource, scope and component.",
    meter::REQUESTS.split_at(2).1,
);
static SIZES: Metric = Metric::histogram(
    "apiserver_response_sizes",
    "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
    &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9],
);
static OPEN: Metric = Metric::gauge(
    "apiserver_longrunning_requests",
    "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. \
     Not all requests are tracked this way.",
);
static TERMINATED: Metric = Metric::counter(
    "apiserver_request_terminations_total",
    "[ALPHA] Number of requests which apiserver terminated in self-defense.",
);
static ABORTED: Metric = Metric::counter(
    "apiserver_request_aborts_total",
    "[ALPHA] Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, \
     subresource and scope",
);

/// More label sets are looked up each time.
const KEPT: usize = 10_000;

/// The labels under which a request is counted. Requests for what is not served have no names, and are counted together: there are as
/// many series as there are things to ask for, whatever strangers ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Labels<'a> {
    verb: &'static str,
    dry_run: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    scope: &'static str,
    component: &'static str,
}

/// The parts of the labels that the resource does not say.
#[derive(Debug, Clone, Copy)]
struct Sort {
    verb: &'static str,
    dry_run: &'static str,
    scope: &'static str,
}

impl Sort {
    fn of(info: &Info, parts: &Parts) -> Sort {
        let (verb, scope) = verb_and_scope(info, parts);
        Sort { verb, dry_run: dry_run(parts.uri.query().unwrap_or("")), scope }
    }
}

/// Upstream's words for what a request does, and to how much.
pub fn verb_and_scope(info: &Info, parts: &Parts) -> (&'static str, &'static str) {
    let scope = scope(info);
    (verb(info, parts, scope), scope)
}

fn scope(info: &Info) -> &'static str {
    match info {
        _ if !info.is_served_resource() => "",
        _ if !info.name.is_empty() || info.verb == "create" => "resource",
        _ if !info.namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}

fn verb(info: &Info, parts: &Parts, scope: &str) -> &'static str {
    let streams = ["log", "exec", "portforward", "attach", "proxy"];
    if info.is_served_resource() && streams.contains(&info.subresource_name()) {
        return "CONNECT";
    }
    match if info.refusal.is_some() { method_verb(&parts.method) } else { info.verb } {
        "watch" => "WATCH",
        // A list of one name is a get.
        "list" if scope != "resource" => "LIST",
        "get" | "list" | "head" => "GET",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "delete" | "deletecollection" => "DELETE",
        "patch" => {
            let apply = parts.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
            if apply == Some(b"application/apply-patch+yaml") { "APPLY" } else { "PATCH" }
        }
        _ => "other",
    }
}

fn dry_run(query: &str) -> &'static str {
    if !query.contains("dryRun") {
        return "";
    }
    let mut given = query_pairs(query).filter(|(key, _)| key == "dryRun").peekable();
    match (given.peek().is_some(), given.all(|(_, value)| value == "All")) {
        (false, _) => "",
        (true, true) => "All",
        (true, false) => "invalid",
    }
}

impl<'a> Labels<'a> {
    fn of(info: &'a Info, Sort { verb, dry_run, scope }: Sort) -> Self {
        if info.refusal.is_some() {
            return Labels { verb, dry_run, scope, ..Labels::default() };
        }
        let is_health = || matches!(info.path.as_str(), "/healthz" | "/livez" | "/readyz");
        // The resources of another API server have the names that the client gives them here.
        let (resource, subresource) = match &info.remote {
            Some(_) => ("", ""),
            None if is_health() => ("", info.path.as_str()),
            None => (info.resource(), info.subresource),
        };
        let component = if info.is_resource() { "apiserver" } else { "" };
        Labels { verb, dry_run, group: info.group(), version: info.version(), resource, subresource, scope, component }
    }

    /// In the order of the alphabet, without `code` and `dry_run`.
    fn usual(&self) -> [(&'static str, &'a str); 7] {
        [
            ("component", self.component),
            ("group", self.group),
            ("resource", self.resource),
            ("scope", self.scope),
            ("subresource", self.subresource),
            ("verb", self.verb),
            ("version", self.version),
        ]
    }

    fn series(&self, all: &Metrics, code: u16) -> Arc<Counted> {
        // Those that HTTP does not know come from others whose answers are passed on.
        let known = StatusCode::from_u16(code).is_ok_and(|code| code.canonical_reason().is_some());
        let code = if known { code.to_string() } else { "other".to_owned() };
        let usual = self.usual();
        let with_dry_run = [&usual[..], &[("dry_run", self.dry_run)]].concat();
        let with_code = [&[("code", code.as_str())], &with_dry_run[..]].concat();
        let reads = matches!(self.verb, "GET" | "LIST");
        Arc::new(Counted {
            requests: all.series(&REQUESTS, &with_code),
            seconds: all.series(&DURATION, &with_dry_run),
            own_seconds: self.dry_run.is_empty().then(|| all.series(&SLI, &usual)),
            bytes: reads.then(|| all.series(&SIZES, &usual)),
        })
    }
}

/// The series of all requests with the same labels and code.
struct Counted {
    requests: Arc<Series>,
    seconds: Arc<Series>,
    /// Without the time of others; dry runs are not among them.
    own_seconds: Option<Arc<Series>>,
    bytes: Option<Arc<Series>>,
}

/// Labels as they are kept.
#[derive(PartialEq)]
struct Key {
    sort: (&'static str, &'static str, &'static str, &'static str),
    names: [String; 4],
    code: u16,
}

impl Key {
    fn of(labels: &Labels<'_>, code: u16) -> Key {
        let Labels { verb, dry_run, group, version, resource, subresource, scope, component } = *labels;
        let names = [group, version, resource, subresource].map(str::to_owned);
        Key { sort: (verb, dry_run, scope, component), names, code }
    }

    fn is(&self, labels: &Labels<'_>, code: u16) -> bool {
        let Labels { verb, dry_run, group, version, resource, subresource, scope, component } = *labels;
        self.code == code
            && self.sort == (verb, dry_run, scope, component)
            && self.names.iter().zip([group, version, resource, subresource]).all(|(known, name)| known == name)
    }
}

/// Those with one fingerprint: hardly ever more than one.
type Known = Vec<(Key, Arc<Counted>)>;

/// The series of requests, found again by a fingerprint of their labels.
#[derive(Default)]
pub struct Requests {
    known: RwLock<HashMap<u64, Known>>,
}

fn fingerprint(labels: &Labels<'_>, code: u16) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (labels, code).hash(&mut hasher);
    hasher.finish()
}

impl Requests {
    fn of(&self, all: &Metrics, labels: &Labels<'_>, code: u16) -> Arc<Counted> {
        let fingerprint = fingerprint(labels, code);
        let is = |(key, _): &&(Key, Arc<Counted>)| key.is(labels, code);
        let known = self.known.read().get(&fingerprint).and_then(|list| list.iter().find(is).map(|(_, c)| c.clone()));
        known.unwrap_or_else(|| {
            let counted = labels.series(all, code);
            let mut known = self.known.write();
            if known.len() < KEPT {
                // Another request may have been faster; both have the same series.
                known.entry(fingerprint).or_default().push((Key::of(labels, code), counted.clone()));
            }
            counted
        })
    }
}

/// One request, from its beginning until its answer is sent or given up. It is counted when it ends.
pub struct Running {
    metrics: Arc<super::Metrics>,
    info: Arc<Info>,
    sort: Sort,
    started: Instant,
    /// Among the long-running requests that are open.
    open: Option<Arc<Series>>,
    pub timing: Arc<Timing>,
    /// `None` until there is an answer.
    code: Option<u16>,
    bytes: u64,
}

impl Running {
    pub fn begin(metrics: &Arc<super::Metrics>, info: &Arc<Info>, parts: &Parts) -> Running {
        let sort = Sort::of(info, parts);
        let open = info.long_running().then(|| metrics.all.series(&OPEN, &Labels::of(info, sort).usual()));
        if let Some(open) = &open {
            open.shift(1.0);
        }
        let (metrics, info, started) = (metrics.clone(), info.clone(), Instant::now());
        Running { metrics, info, sort, started, open, timing: Arc::default(), code: None, bytes: 0 }
    }

    /// Goes along with the answer, or with the connection that it makes of its own.
    pub fn answered(mut self, response: Response, answering: Option<&Answering>) -> Response {
        self.code = Some(response.status().as_u16());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(answering) = answering
        {
            answering.keep(Box::new(self));
            return response;
        }
        if let Body::Whole(_) = response.body() {
            self.bytes = response.body().size_hint().exact().unwrap_or(0);
            return response;
        }
        response.map(|body| body.along(self))
    }
}

impl Along for Running {
    fn piece(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            open.shift(-1.0);
        }
        let (all, labels) = (&self.metrics.all, Labels::of(&self.info, self.sort));
        let Some(code) = self.code else {
            let names = labels.usual();
            return all.count(&ABORTED, &names[1..]);
        };
        let took = self.started.elapsed();
        let counted = self.metrics.requests.of(all, &labels, code);
        counted.requests.count();
        counted.seconds.observe(took.as_secs_f64());
        if let Some(own) = &counted.own_seconds {
            own.observe(took.saturating_sub(self.timing.of_others()).as_secs_f64());
        }
        if let Some(bytes) = &counted.bytes {
            bytes.observe(self.bytes as f64);
        }
        if self.timing.is_broken_off() {
            let code = code.to_string();
            all.count(&TERMINATED, &[&[("code", code.as_str())], &labels.usual()[..]].concat());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::tests::conversation::Conversation;

    #[tokio::test(start_paused = true)]
    async fn strangers_make_no_series() {
        let conversation = Conversation::start().await;
        let check = |request: &str, expected: &str| {
            let (method, uri) = request.split_once(' ').unwrap();
            let (uri, kind) = uri.split_once(" as ").unwrap_or((uri, ""));
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let kinds = conversation.server.objects().kinds.table();
            let registrations = Default::default();
            let served = crate::http::request::Served { kinds: &kinds, registrations: &registrations };
            let info = Info::resolve(&method.parse().unwrap(), path, query, served);
            let uri = uri.replace(['"', '}'], "");
            let request = Request::builder().method(method).uri(uri).header("content-type", kind);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let labels = Labels::of(&info, Sort::of(&info, &parts));
            let Labels { verb, dry_run, group, version, resource, subresource, scope, component } = labels;
            let found = format!("{verb} {group}/{version}/{resource}/{subresource} {scope} {component} {dry_run}");
            assert_eq!(found.trim_end(), expected, "{method} {path}");
        };
        check("GET /api/v1/namespaces/a/pods/b", "GET /v1/pods/ resource apiserver");
        check("GET /api/v1/namespaces/a/pods", "LIST /v1/pods/ namespace apiserver");
        check("GET /api/v1/pods?watch=1", "WATCH /v1/pods/ cluster apiserver");
        check("GET /api/v1/pods?fieldSelector=metadata.name%3Db", "GET /v1/pods/ resource apiserver");
        check("POST /api/v1/namespaces/a/pods?dryRun=All", "POST /v1/pods/ resource apiserver All");
        check("POST /api/v1/namespaces/a/pods?dryRun=Some", "POST /v1/pods/ resource apiserver invalid");
        check("PUT /api/v1/namespaces/a/pods/b/status", "PUT /v1/pods/status resource apiserver");
        check("PUT /apis/apps/v1/namespaces/a/deployments/b/scale", "PUT apps/v1/deployments/scale resource apiserver");
        check("PATCH /api/v1/namespaces/a/pods/b as application/json-patch+json", "PATCH /v1/pods/ resource apiserver");
        check(
            "PATCH /api/v1/namespaces/a/pods/b as application/apply-patch+yaml",
            "APPLY /v1/pods/ resource apiserver",
        );
        check("DELETE /api/v1/namespaces/a/pods", "DELETE /v1/pods/ namespace apiserver");
        check("POST /api/v1/namespaces/a/pods/b/eviction", "POST /v1/pods/eviction resource apiserver");
        check("GET /api/v1/namespaces/a/pods/b/proxy/c/d", "CONNECT /v1/pods/proxy resource apiserver");
        check("GET /readyz", "GET ////readyz");
        check("GET /readyz/etcd", "GET ///");
        check("GET /api/v1/x\"}/y", "GET ///");
        check("GET /api/v1/namespaces/a/pods/b/other", "GET ///");
        check("GET /apis/apps/v7/deployments", "GET ///");
        check("GET /apis/other/v1/pods", "GET ///");
        check("GET /anything", "GET ///");
        check("BREW /anything", "other ///");
        check("BREW /api/v1/pods", "other ///");
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
        let line = r#"apiserver_request_total{code="404",component="",group="",resource="",scope="",subresource="",verb="GET",version="",dry_run=""} 100"#;
        assert_eq!(lines, [line]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_open_until_its_client_leaves_and_counted_then() {
        let conversation = Conversation::start().await;
        let labels = r#"{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"}"#;
        let has = async |line: String| {
            let page = conversation.say("GET /metrics", "").await.text;
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        };
        let watch = conversation.watch("/api/v1/pods?watch=1").await;
        has(format!("apiserver_longrunning_requests{labels} 1")).await;
        clock::sleep(clock::Duration::from_secs(50)).await;
        drop(watch);
        has(format!("apiserver_longrunning_requests{labels} 0")).await;
        let of_labels = labels.replace('}', "");
        has(format!("apiserver_request_sli_duration_seconds_bucket{of_labels},le=\"45\"}} 0")).await;
        has(format!("apiserver_request_sli_duration_seconds_bucket{of_labels},le=\"60\"}} 1")).await;
    }
}
