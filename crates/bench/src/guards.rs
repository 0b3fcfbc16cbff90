//! The cost of guards: authorization with many bindings, admission with policies and webhooks, audit, encryption at rest, each beside
//! the row without it; and what one client with a thousand connections takes from another one.

use std::{net::SocketAddr, path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{
    api::Api,
    load::{Run, drive},
    objects::{config_map, pod},
    report::{
        Goal::{AtLeast, AtMost},
        Report,
    },
    rows::PODS,
    subject::{Server, scratch},
};

const QUIET: &str = "--disable=scheduler,controllers";
const MAPS: &str = "/api/v1/namespaces/bench/configmaps";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const BINDINGS: usize = 10_000;
const POLICIES: usize = 20;
const WEBHOOKS: usize = 5;
const GREEDY_CONNECTIONS: usize = 1000;

pub async fn measure(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    authorization(skiff, count, report).await?;
    admission(skiff, count, report).await?;
    audit(skiff, count, report).await?;
    encryption(skiff, count, report).await?;
    fairness(skiff, count, report).await
}

/// A row, and how it stands to the one without. The part that is left of the throughput is a goal where there is one.
fn beside(report: &mut Report, what: &str, without: &Run, with: &Run, least: Option<f64>) {
    report.add(&format!("{what}: without"), without.per_second(), "/s", None, without.latencies());
    report.add(what, with.per_second(), "/s", None, with.latencies());
    report.add(&format!("{what}: part left"), with.per_second() / without.per_second(), "", least.map(AtLeast), "");
    let more = with.cpu_micros - without.cpu_micros;
    let note = format!("{:.0} \u{b5}s without", without.cpu_micros);
    report.add(&format!("{what}: more CPU in the server"), more, "\u{b5}s", None, note);
}

/// Drives the same calls to two servers, some to the one and then some to the other: whatever the machine does beside meets both
/// alike. One run of a third of a second after the other told more about the machine than about the servers.
async fn by_turns(
    servers: &[Server; 2],
    count: usize,
    call: impl AsyncFn(Api, usize) -> anyhow::Result<usize>,
) -> anyhow::Result<[Run; 2]> {
    const TURNS: usize = 10;
    let mut runs = [Run::default(), Run::default()];
    let before = servers.each_ref().map(Server::cpu_seconds);
    for turn in 0..TURNS {
        let (first, end) = (count * turn / TURNS, count * (turn + 1) / TURNS);
        for (server, run) in servers.iter().zip(&mut runs) {
            run.add(drive(end - first, 32, |i| call(server.api.clone(), first + i)).await?);
        }
    }
    for ((server, run), before) in servers.iter().zip(&mut runs).zip(before) {
        run.cpu_micros = (server.cpu_seconds() - before) / count as f64 * 1e6;
    }
    Ok(runs)
}

/// Lets the workers edit, and makes their namespace with one Pod in it.
async fn prepared(server: &Server) -> anyhow::Result<()> {
    server.api.namespace("bench").await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "workers"});
    let binding = json!({"metadata": {"name": "bench-workers"}, "roleRef": role, "subjects": [subject]});
    server.api.post(&format!("{RBAC}/clusterrolebindings"), &binding).await?;
    server.api.post(PODS, &pod(0)).await?;
    Ok(())
}

async fn authorization(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &[QUIET]).await?;
    prepared(&server).await?;
    let worker = &server.user("worker", 4).await?;
    let get = |_: usize| async move { worker.get(&format!("{PODS}/o-0")).await };
    let without = server.drive(count * 2, 32, get).await?;
    let api = &server.api;
    let bind = |i: usize| async move {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
        let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": format!("user-{i}")});
        let binding = json!({"metadata": {"name": format!("many-{i}")}, "roleRef": role, "subjects": [subject]});
        let place = if i.is_multiple_of(2) { "clusterrolebindings" } else { "namespaces/bench/rolebindings" };
        api.post(&format!("{RBAC}/{place}"), &binding).await
    };
    drive(BINDINGS, 32, bind).await?;
    let with = server.drive(count * 2, 32, get).await?;
    beside(report, "get Pods, 10,000 bindings", &without, &with, Some(0.9));
    Ok(())
}

async fn admission(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &[QUIET]).await?;
    server.api.namespace("bench").await?;
    let api = &server.api;
    let create = |name: String| async move { api.post(MAPS, &config_map(name)).await };
    let without = server.drive(count, 32, |i| create(format!("without-{i}"))).await?;
    for i in 0..POLICIES {
        let rules =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
        let validations = json!([{"expression": "object.metadata.name.size() < 200 && object.data.key.size() < 5000"}]);
        let policy = json!({"metadata": {"name": format!("p-{i}")},
            "spec": {"matchConstraints": {"resourceRules": rules}, "validations": validations}});
        api.post(&format!("{REGISTRATION}/validatingadmissionpolicies"), &policy).await?;
        let binding = json!({"metadata": {"name": format!("p-{i}")},
            "spec": {"policyName": format!("p-{i}"), "validationActions": ["Deny"]}});
        api.post(&format!("{REGISTRATION}/validatingadmissionpolicybindings"), &binding).await?;
    }
    let policies = server.drive(count, 32, |i| create(format!("policies-{i}"))).await?;
    beside(report, "create ConfigMaps, 20 policies", &without, &policies, None);
    let hook = Hook::start().await?;
    let webhooks: Vec<Value> = (0..WEBHOOKS).map(|i| hook.webhook(i)).collect();
    let configuration = json!({"metadata": {"name": "bench"}, "webhooks": webhooks});
    api.post(&format!("{REGISTRATION}/validatingwebhookconfigurations"), &configuration).await?;
    let with = server.drive(count, 32, |i| create(format!("webhooks-{i}"))).await?;
    beside(report, "create ConfigMaps, 20 policies and 5 webhooks", &without, &with, None);
    Ok(())
}

async fn audit(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let policy = scratch("audit-policy.yaml")?;
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")?;
    let log = scratch("audit.log")?;
    let flags = [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let flags: Vec<&str> = [QUIET].into_iter().chain(flags.iter().map(String::as_str)).collect();
    let servers = [Server::start(skiff, &[QUIET, "--audit-log-path="]).await?, Server::start(skiff, &flags).await?];
    for server in &servers {
        server.api.namespace("bench").await?;
    }
    let create = async |api: Api, i: usize| api.post(PODS, &pod(i)).await;
    let [without, with] = by_turns(&servers, count, create).await?;
    beside(report, "create Pods, audit of all metadata", &without, &with, Some(0.9));
    let get = async |api: Api, i: usize| api.get(&format!("{PODS}/o-{}", i % count)).await;
    let gets = count * 6;
    let [without, with] = by_turns(&servers, gets, get).await?;
    beside(report, "get Pods, audit of all metadata", &without, &with, Some(0.9));
    let lines = std::fs::read_to_string(&log)?.lines().count();
    anyhow::ensure!(lines >= count + gets, "the audit log has {lines} events of {}", count + gets);
    Ok(())
}

async fn encryption(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let plain = scratch("plain.yaml")?;
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n\
                resources: [{resources: [secrets], providers: [{identity: {}}]}]\n";
    std::fs::write(&plain, text)?;
    let plain = format!("--encryption-provider-config={}", plain.display());
    let servers = [Server::start(skiff, &[QUIET, plain.as_str()]).await?, Server::start(skiff, &[QUIET]).await?];
    for server in &servers {
        server.api.namespace("bench").await?;
    }
    let create = async |api: Api, i: usize| {
        let secret = json!({"metadata": {"name": format!("s-{i}")}, "data": {"key": STANDARD.encode("x".repeat(900))}});
        api.post("/api/v1/namespaces/bench/secrets", &secret).await
    };
    let [without, with] = by_turns(&servers, count, create).await?;
    beside(report, "create Secrets, encrypted", &without, &with, Some(0.9));
    Ok(())
}

/// A client that asks for lists over a thousand connections, and another one that reads single objects beside it.
async fn fairness(skiff: &Path, count: usize, report: &mut Report) -> anyhow::Result<()> {
    let server = Server::start(skiff, &[QUIET]).await?;
    prepared(&server).await?;
    let api = &server.api;
    drive(500, 32, |i| async move { api.post(PODS, &pod(i + 1)).await }).await?;
    let alone = on_its_own(&server, count.min(2000)).await?;
    let glutton = server.user("glutton", GREEDY_CONNECTIONS).await?;
    let greedy: Vec<JoinHandle<()>> =
        (0..GREEDY_CONNECTIONS).map(|_| tokio::spawn(ask_for_ever(glutton.clone()))).collect();
    let beside = on_its_own(&server, count.min(2000)).await;
    greedy.iter().for_each(JoinHandle::abort);
    let beside = beside?;
    report.add("get of one client alone: p99", alone.quantile(0.99), "ms", None, alone.latencies());
    let what = "the same beside a client with 1,000 connections: p99";
    report.add(what, beside.quantile(0.99), "ms", Some(AtMost(250.0)), beside.latencies());
    Ok(())
}

/// A client that reads single objects, in a thread of its own: it must not wait for the other clients of this process.
async fn on_its_own(server: &Server, count: usize) -> anyhow::Result<Run> {
    let connect = server.way_of("worker")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        runtime.block_on(async move {
            let worker = &connect(2).await?;
            drive(count, 2, |i| async move { worker.get(&format!("{PODS}/o-{}", i % 500)).await }).await
        })
    };
    tokio::task::spawn_blocking(work).await?
}

/// Lists again and again, also where that is refused.
async fn ask_for_ever(api: Api) {
    loop {
        let _ = api.get(PODS).await;
        tokio::task::yield_now().await;
    }
}

/// A webhook that lets everything through.
struct Hook {
    address: SocketAddr,
    bundle: String,
    task: JoinHandle<()>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hook {
    async fn start() -> anyhow::Result<Self> {
        let authority = pki::Authority::create("hook")?;
        let credential = authority.issue(&pki::Subject::server("hook", vec!["localhost".to_owned()]))?;
        let tls = Arc::new(pki::server_config(pki::Serving::new(&credential)?, None, &["http/1.1"])?);
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = TlsAcceptor::from(tls.clone());
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service_fn(allow)).await;
                });
            }
        });
        Ok(Hook { address, bundle: STANDARD.encode(authority.certificate()), task })
    }

    fn webhook(&self, i: usize) -> Value {
        let rules =
            json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
        let url = format!("https://localhost:{}/{i}", self.address.port());
        json!({"name": format!("h{i}.bench.io"), "clientConfig": {"url": url, "caBundle": self.bundle}, "rules": rules,
            "sideEffects": "None", "admissionReviewVersions": ["v1"]})
    }
}

async fn allow(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = std::str::from_utf8(&body).ok().and_then(|text| json::parse(text).ok()).unwrap_or_default();
    let answer = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "response": {"uid": review["request"]["uid"], "allowed": true}});
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}
