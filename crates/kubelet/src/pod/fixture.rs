//! Pods and what runs of them, written down shortly for the tests of the pure functions.

use std::sync::Arc;

use clock::{Duration, Timestamp};
use json::{Value, json};

use crate::{
    node::cgroup::Cgroups,
    pod::{
        desired::{DesiredPod, hash},
        running::{ContainerRun, RunningPod, Sandbox, State},
        spec::resources::Limits,
    },
};

/// The moment at which all tests decide.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// The moment this many seconds after it, or before it.
pub fn at(seconds: i64) -> Timestamp {
    let span = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { now().checked_sub(span).unwrap() } else { now().checked_add(span).unwrap() }
}

/// Pod `d/p` with uid `u` and this spec.
pub fn pod(spec: &str) -> DesiredPod {
    pod_of(json!({ "spec": serde_json::from_str::<Value>(spec).unwrap() }))
}

/// A desired Pod from a whole object, whose metadata is filled up.
pub fn pod_of(mut object: Value) -> DesiredPod {
    for (name, value) in [("name", "p"), ("namespace", "d"), ("uid", "u")] {
        if object["metadata"][name].is_null() {
            object["metadata"][name] = json!(value);
        }
    }
    DesiredPod::new(Arc::new(json::from_value(object).unwrap()), false)
}

/// A node with this engine and folder, and an API server that answers as it is told: the body for a method and path, or 404.
pub fn kubelet(
    folder: &std::path::Path,
    engine: runtime::fake::Fake,
    answer: impl Fn(&http::Method, &str) -> Option<Value> + Clone + Send + Sync + 'static,
) -> Arc<crate::kubelet::Kubelet> {
    kubelet_with(folder, engine, answer, |_| ())
}

/// The same, with a configuration that is changed before it starts.
pub fn kubelet_with(
    folder: &std::path::Path,
    engine: runtime::fake::Fake,
    answer: impl Fn(&http::Method, &str) -> Option<Value> + Clone + Send + Sync + 'static,
    change: impl FnOnce(&mut crate::config::Config),
) -> Arc<crate::kubelet::Kubelet> {
    let client = client::in_process(tower::service_fn(move |request: http::Request<client::Body>| {
        let body = answer(request.method(), request.uri().path());
        async move {
            let missing = json!({"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"});
            let code = if body.is_some() { 200 } else { 404 };
            let body = bytes::Bytes::from(body.unwrap_or(missing).to_string());
            let answer = http::Response::builder().status(code).body(http_body_util::Full::new(body));
            Ok::<_, std::convert::Infallible>(answer.expect("a plain answer"))
        }
    }));
    let mut config = crate::config::Config {
        node_name: "n1".into(),
        node_ip: std::net::Ipv4Addr::LOCALHOST.into(),
        second_node_ip: None,
        root_dir: folder.join("kubelet"),
        log_dir: folder.join("logs"),
        shared_logs: None,
        local_volumes: None,
        client: client.clone(),
        runtime: Arc::new(engine),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        resolv_conf: "/etc/resolv.conf".into(),
        manifest_dir: None,
        cgroup_root: "/".into(),
        max_pods: 110,
        users_part: None,
        evictions: Default::default(),
        sysctls: crate::pod::spec::hardening::Sysctls::new(&[]).unwrap(),
        selinux_labels: false,
        features: Default::default(),
        settings: Default::default(),
        document: None,
        node_labels: Default::default(),
        node_annotations: Default::default(),
        gate: None,
        sharing: None,
        serving: None,
    };
    change(&mut config);
    let cgroups = Cgroups::new(&folder.join("cgroup"), &config.cgroup_root);
    let host = crate::kubelet::Host::here(&config, cgroups);
    let (_, pressures) = tokio::sync::watch::channel(Default::default());
    crate::kubelet::Kubelet::new(config, host, &client::Caches::new(client), pressures).unwrap()
}

/// `name:up`, `name:made` or `name:exit code`, the oldest first, in a sandbox that is ready; `nothing` is no sandbox either. Ids are the
/// name and the place in the text.
pub fn running(desired: &DesiredPod, text: &str) -> RunningPod {
    let mut found = RunningPod::default();
    if text == "nothing" {
        return found;
    }
    found.sandboxes.push(Sandbox { id: "s1".into(), ready: true, attempt: 0, ips: Vec::new(), created_at: 1 });
    for (index, word) in text.split_whitespace().enumerate() {
        let (name, state) = word.split_once(':').unwrap();
        let before = found.containers.iter().filter(|c| c.name == name).count();
        let ran = ContainerRun {
            id: format!("{name}{index}"),
            name: name.into(),
            sandbox: "s1".into(),
            state: match state {
                "up" => State::Running,
                "made" => State::Created,
                _ => State::Exited,
            },
            restarts: i32::try_from(before).unwrap(),
            hash: desired.container(name).map(hash).unwrap_or_default(),
            exit_code: state.parse().unwrap_or(0),
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_ref: String::new(),
            log_path: String::new(),
            started_at: Some(now()),
            finished_at: state.parse::<i32>().is_ok().then(now),
            created_at: i64::try_from(index).unwrap(),
            user: None,
            stop_signal: None,
            read_only_below: Default::default(),
            limits: desired.container(name).map(|c| Limits::wanted(desired.spec(), c, Default::default())),
        };
        found.containers.insert(0, ran);
    }
    found
}
