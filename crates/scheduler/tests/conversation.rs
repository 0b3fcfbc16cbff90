//! The reads and writes of the running scheduler, against a server that is a list of objects.

use std::{convert::Infallible, sync::Arc};

use api::features::{Feature, Features};
use bytes::Bytes;
use client::{Body, Caches};
use clock::Duration;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use json::{Value, json};
use parking_lot::Mutex;
use scheduler::{Metrics, Settings, args::Args, extender::Extender, plugin::Plugin, run};
use tokio::sync::Notify;

/// Objects to list, writes that came, and how many bindings are refused first.
#[derive(Default)]
struct Server {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    claims: Vec<Value>,
    classes: Vec<Value>,
    refuse: usize,
    writes: Vec<String>,
    /// Told of every write.
    wrote: Arc<Notify>,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(code: u16, body: Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(code).body(body).expect("a response")
}

async fn serve(server: Arc<Mutex<Server>>, request: Request<Body>) -> Result<Answer, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.method == Method::GET {
        if parts.uri.query().is_some_and(|q| q.contains("watch=")) {
            let quiet = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            return Ok(Response::new(StreamBody::new(quiet).boxed_unsync()));
        }
        if path.ends_with("/workloads") || path.ends_with("/devicetaintrules") {
            return Ok(answer(404, json!({"kind": "Status", "message": "no", "reason": "NotFound", "code": 404})));
        }
        let server = server.lock();
        let items = match path.rsplit('/').next() {
            Some("nodes") => server.nodes.clone(),
            Some("pods") => server.pods.clone(),
            Some("persistentvolumeclaims") => server.claims.clone(),
            Some("storageclasses") => server.classes.clone(),
            _ => Vec::new(),
        };
        return Ok(answer(200, json!({"metadata": {"resourceVersion": "5"}, "items": items})));
    }
    let bytes = body.collect().await.expect("a whole body").to_bytes();
    let body: Value = serde_json::from_slice(&bytes).expect("JSON");
    let mut server = server.lock();
    let what = match path.rsplit('/').next() {
        Some("binding") => format!("bind {} to {}", body["metadata"]["name"], body["target"]["name"]),
        Some("status") => {
            let condition = &body["status"]["conditions"][0];
            format!("condition {}: {}", condition["reason"], condition["message"])
        }
        Some("data") => format!("claim {}", body["metadata"]["annotations"]),
        _ => format!("event {} {}: {}", body["reason"], body["action"], body["note"]),
    };
    server.writes.push(what.replace('"', ""));
    server.wrote.notify_one();
    if path.ends_with("/binding") && server.refuse > 0 {
        server.refuse -= 1;
        return Ok(answer(500, json!({"kind": "Status", "message": "no", "reason": "InternalError", "code": 500})));
    }
    Ok(answer(201, json!({"metadata": {"name": "x", "resourceVersion": "6"}})))
}

/// The writes within a minute.
async fn writes(server: Server) -> Vec<String> {
    writes_with(server, Settings::default()).await
}

async fn writes_with(server: Server, settings: Settings) -> Vec<String> {
    counted(server, settings, Arc::default()).await
}

/// The writes within a minute, with metrics to read afterwards.
async fn counted(server: Server, settings: Settings, metrics: Arc<Metrics>) -> Vec<String> {
    clock::simulate(clock::Timestamp::UNIX_EPOCH, 1);
    let server = Arc::new(Mutex::new(server));
    let shared = server.clone();
    let client = client::in_process(tower::service_fn(move |request| serve(shared.clone(), request)));
    let scheduling = run(Caches::new(client), settings, metrics);
    assert!(clock::timeout(Duration::from_secs(60), scheduling).await.is_err(), "it runs for ever");
    std::mem::take(&mut server.lock().writes)
}

/// The writes until one begins like this, in real time.
async fn writes_until(server: Server, settings: Settings, last: &str) -> Vec<String> {
    let wrote = server.wrote.clone();
    let server = Arc::new(Mutex::new(server));
    let shared = server.clone();
    let client = client::in_process(tower::service_fn(move |request| serve(shared.clone(), request)));
    let written = async {
        while !server.lock().writes.iter().any(|write| write.starts_with(last)) {
            wrote.notified().await;
        }
    };
    tokio::select! {
        () = run(Caches::new(client), settings, Arc::default()) => unreachable!("it runs for ever"),
        () = written => {}
    }
    std::mem::take(&mut server.lock().writes)
}

fn node(cpu: &str) -> Value {
    json!({"metadata": {"name": "n", "resourceVersion": "1"}, "status": {"allocatable": {"cpu": cpu, "pods": "9"}}})
}

fn pod() -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
    json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "2"},
        "spec": {"containers": [container]}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_is_bound_and_its_event_says_so() {
    let server = Server { nodes: vec![node("1")], pods: vec![pod()], ..Server::default() };
    assert_eq!(writes(server).await, ["bind p to n", "event Scheduled Binding: Successfully assigned d/p to n"]);
}

#[tokio::test(start_paused = true)]
async fn kinds_of_features_that_are_not_served_keep_nobody_waiting() {
    let on =
        [Feature::GenericWorkload, Feature::GangScheduling, Feature::DRADeviceTaints, Feature::DRADeviceTaintRules];
    let features = on.into_iter().fold(Features::default(), |features, feature| features.with(feature, true));
    let server = Server { nodes: vec![node("1")], pods: vec![pod()], ..Server::default() };
    let writes = writes_with(server, Settings { features, ..Settings::default() }).await;
    assert_eq!(writes[0], "bind p to n");
}

#[tokio::test(start_paused = true)]
async fn what_happens_is_counted_under_upstreams_names() {
    let mut large = pod();
    large["metadata"]["name"] = "large".into();
    large["metadata"]["uid"] = "v".into();
    large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9".into();
    let mut gated = pod();
    gated["metadata"]["name"] = "gated".into();
    gated["metadata"]["uid"] = "w".into();
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    let server = Server { nodes: vec![node("1")], pods: vec![pod(), large, gated], refuse: 1, ..Server::default() };
    let metrics = Arc::<Metrics>::default();
    counted(server, Settings::default(), metrics.clone()).await;
    let page = metrics.render();
    for line in [
        "# TYPE scheduler_schedule_attempts_total counter",
        r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1"#,
        r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1"#,
        r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="error"} 1"#,
        r#"scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"} 1"#,
        r#"scheduler_pod_scheduling_sli_duration_seconds_count{attempts="2"} 1"#,
        "scheduler_pod_scheduling_attempts_sum 2.0",
        "scheduler_preemption_attempts_total 1",
        r#"scheduler_pending_pods{queue="unschedulable"} 1"#,
        r#"scheduler_pending_pods{queue="gated"} 1"#,
        r#"scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} 2"#,
        r#"scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"} 1"#,
        r#"scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="backoff"} 1"#,
        r#"scheduler_queue_incoming_pods_total{event="BackoffComplete",queue="active"} 1"#,
        r#"scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1"#,
        r#"scheduler_cache_size{type="nodes"} 1"#,
        r#"scheduler_batch_attempts_total{profile="default-scheduler",result="no_hint"} 2"#,
        r#"scheduler_get_node_hint_duration_seconds_count{hinted="no_hint",profile="default-scheduler"} 2"#,
        r#"scheduler_store_schedule_results_duration_seconds_count{profile="default-scheduler"} 1"#,
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_binding_is_tried_again() {
    let server = Server { nodes: vec![node("1")], pods: vec![pod()], refuse: 2, ..Server::default() };
    let writes = writes(server).await;
    assert_eq!(writes.iter().filter(|w| w.starts_with("bind")).count(), 3);
    let why = r"running Bind plugin \DefaultBinder\: no";
    for said in ["event FailedScheduling Scheduling", "condition SchedulerError"] {
        assert!(writes.contains(&format!("{said}: {why}")), "{said} {writes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_gets_a_condition_and_an_event() {
    let server = Server { nodes: vec![node("500m")], pods: vec![pod()], ..Server::default() };
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are \
                   available: 1 Preemption is not helpful for scheduling.";
    let mut writes = writes(server).await;
    writes.sort();
    assert_eq!(
        writes,
        [format!("condition Unschedulable: {message}"), format!("event FailedScheduling Scheduling: {message}")]
    );
}

/// Its first attempt fails.
const LATE: Plugin = Plugin {
    name: "Late",
    pre_bind: Some(|preparing| {
        Box::pin(async move {
            match clock::now().as_second() {
                0 => Err(format!("the volume of {} is not on {} yet", preparing.pod.key.name, preparing.node)),
                _ => Ok(()),
            }
        })
    }),
    ..Plugin::NONE
};

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_after_its_plugins_are_done() {
    let server = Server { nodes: vec![node("1")], pods: vec![pod()], ..Server::default() };
    let settings = Settings::with(&[LATE]);
    let why = r"running PreBind plugin \Late\: the volume of p is not on n yet";
    let mut writes = writes_with(server, settings).await;
    writes.sort();
    let expected = [
        "bind p to n",
        &format!("condition SchedulerError: {why}"),
        &format!("event FailedScheduling Scheduling: {why}"),
        "event Scheduled Binding: Successfully assigned d/p to n",
    ];
    assert_eq!(writes, expected);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_ordered_for_the_node_and_waited_for() {
    let mut pod = pod();
    pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let claim = json!({"metadata": {"name": "data", "namespace": "d", "uid": "c", "resourceVersion": "3"},
        "spec": {"storageClassName": "fast"}});
    let class = json!({"metadata": {"name": "fast", "resourceVersion": "4"}, "provisioner": "example.com/disks",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let server = Server {
        nodes: vec![node("1")],
        pods: vec![pod],
        claims: vec![claim],
        classes: vec![class],
        ..Server::default()
    };
    let mut settings = Settings::default();
    let timeout = Args { bind_timeout: Duration::from_secs(40), ..Args::default() };
    settings.profiles[0].args = Arc::new(timeout);
    let mut writes = writes_with(server, settings).await;
    writes.sort();
    let late = r"running PreBind plugin \VolumeBinding\: binding volumes: context deadline exceeded";
    let ordered = "claim {volume.kubernetes.io/selected-node:n}";
    let expected = [
        ordered,
        ordered,
        &format!("condition SchedulerError: {late}"),
        &format!("event FailedScheduling Scheduling: {late}"),
    ];
    assert_eq!(writes, expected, "nobody makes the volume, so it is ordered again");
}

/// An extender on a port of its own, which answers each path with what `said` says, and what it was asked.
async fn extender(said: fn(&str, &Value) -> Value) -> (String, Arc<Mutex<Vec<(String, Value)>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/prefix", listener.local_addr().expect("an address"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let answer = move |request: Request<hyper::body::Incoming>| {
        let log = log.clone();
        async move {
            let path = request.uri().path().to_owned();
            let bytes = request.into_body().collect().await.expect("a whole body").to_bytes();
            let body: Value = serde_json::from_slice(&bytes).expect("JSON");
            let answer = said(&path, &body);
            log.lock().push((path, body));
            let code = if answer.is_null() { 500 } else { 200 };
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(Response::builder().status(code).body(body).expect("a response"))
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(answer.clone());
            let connection = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(connection, service));
        }
    });
    (url, asked)
}

fn nodes(names: &[&str]) -> Vec<Value> {
    let one = |name: &&str| {
        let mut node = node("4");
        node["metadata"]["name"] = json!(name);
        node
    };
    names.iter().map(one).collect()
}

fn asking(extender: Extender) -> Settings {
    let extender = Extender { timeout: Duration::from_secs(60), ..extender };
    Settings { extenders: vec![extender], ..Settings::default() }
}

#[tokio::test]
async fn extenders_choose_the_node_and_bind() {
    let (url, asked) = extender(|path, body| match path {
        "/prefix/filter" => {
            assert_eq!(body["Nodes"]["items"].as_array().map(Vec::len), Some(3), "{body}");
            assert_eq!((&body["Pod"]["metadata"]["name"], &body["NodeNames"]), (&json!("p"), &Value::Null));
            let left: Vec<_> = ["b", "c"].iter().map(|name| json!({"metadata": {"name": name}})).collect();
            json!({"Nodes": {"items": left}, "NodeNames": null, "FailedNodes": {"a": "too loud"}, "Error": ""})
        }
        "/prefix/prioritize" => json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 9}]),
        _ => json!({"Error": ""}),
    })
    .await;
    let verbs = Extender {
        url,
        filter: "filter".to_owned(),
        prioritize: "prioritize".to_owned(),
        bind: "bind".to_owned(),
        weight: 1,
        ..Extender::default()
    };
    let server = Server { nodes: nodes(&["a", "b", "c"]), pods: vec![pod()], ..Server::default() };
    let writes = writes_until(server, asking(verbs), "event Scheduled").await;
    assert_eq!(writes, ["event Scheduled Binding: Successfully assigned d/p to c"], "the extender bound it");
    let asked = asked.lock();
    let paths: Vec<&str> = asked.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/prefix/filter", "/prefix/prioritize", "/prefix/bind"]);
    assert_eq!(asked[2].1, json!({"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "c"}));
}

#[tokio::test]
async fn an_extender_that_takes_no_node_is_a_reason() {
    let (url, asked) = extender(|_, body| {
        assert_eq!(body["NodeNames"].as_array().map(Vec::len), Some(2), "{body}");
        json!({"nodenames": [], "failedNodes": {"a": "too loud"}, "failedAndUnresolvableNodes": {"b": "too far"}})
    })
    .await;
    let knows = Extender { url, filter: "filter".to_owned(), knows_nodes: true, ..Extender::default() };
    let server = Server { nodes: nodes(&["a", "b"]), pods: vec![pod()], ..Server::default() };
    let writes = writes_until(server, asking(knows), "condition").await;
    let why = "0/2 nodes are available: 1 too far, 1 too loud.";
    assert!(writes.iter().any(|write| write.starts_with(&format!("condition Unschedulable: {why}"))), "{writes:?}");
    assert!(!asked.lock().is_empty());
}

#[tokio::test]
async fn only_an_ignorable_extender_may_fail() {
    let (url, _asked) = extender(|_, _| Value::Null).await;
    let failing = Extender { url: url.clone(), filter: "filter".to_owned(), ..Extender::default() };
    let server = || Server { nodes: nodes(&["a"]), pods: vec![pod()], ..Server::default() };
    let writes = writes_until(server(), asking(failing.clone()), "condition").await;
    let why = format!("condition SchedulerError: failed filter with extender at URL {url}, code 500");
    assert!(writes.contains(&why), "{writes:?}");
    let ignorable = Extender { ignorable: true, ..failing.clone() };
    let writes = writes_until(server(), asking(ignorable), "event Scheduled").await;
    assert!(writes.contains(&"bind p to a".to_owned()), "{writes:?}");
    let of_others = Extender { managed: vec!["example.com/thing".to_owned()], ..failing };
    let writes = writes_until(server(), asking(of_others), "event Scheduled").await;
    assert!(writes.contains(&"bind p to a".to_owned()), "the Pod requests nothing of it: {writes:?}");
}
