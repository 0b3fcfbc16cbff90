//! exec, attach and port-forward: the engine gives a URL of its own, and the client's upgrade is passed on to it as it is.

use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use k8s_cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use runtime::grpc::Code;
use tokio::net::TcpStream;

use super::answer::{Answer, text};
use crate::{
    kubelet::Kubelet,
    pod::running::{self, RunningPod},
};

type Refusal = (StatusCode, String);

fn internal(error: impl std::fmt::Display) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// The engine's own refusals are passed on: that it has no such container, or too many streams.
fn of_engine(error: runtime::Error) -> Refusal {
    let code = match &error {
        runtime::Error::Refused { code: Code::NotFound, .. } => StatusCode::NOT_FOUND,
        runtime::Error::Refused { code: Code::ResourceExhausted, .. } => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, error.to_string())
}

pub async fn forward(kubelet: &Kubelet, parts: &[&str], request: Request<Incoming>) -> Answer {
    let asked = request.uri().query().unwrap_or_default().to_owned();
    let outcome = async {
        let url = url(kubelet, parts, &asked).await?;
        pass_on(&url, request).await
    };
    match outcome.await {
        Ok(answer) => answer,
        Err((code, message)) => text(code, message),
    }
}

/// The engine's URL for `/exec/namespace/pod[/uid]/container` and its like.
async fn url(kubelet: &Kubelet, parts: &[&str], asked: &str) -> Result<String, Refusal> {
    let [what, namespace, pod, rest @ ..] = parts else {
        return Err((StatusCode::NOT_FOUND, "404 page not found\n".to_owned()));
    };
    let (uid, name) = match (*what, rest) {
        ("portForward", uid) => (uid.first(), ""),
        (_, [uid, name]) => (Some(uid), *name),
        (_, rest) => (None, rest.last().copied().unwrap_or_default()),
    };
    let pairs: Vec<(String, String)> = api::rules::url::query_pairs(asked).collect();
    let flag = |names: [&str; 2]| pairs.iter().any(|(k, v)| names.contains(&k.as_str()) && (v == "1" || v == "true"));
    let (stdin, stdout, stderr) = (flag(["input", "stdin"]), flag(["output", "stdout"]), flag(["error", "stderr"]));
    let tty = flag(["tty", "tty"]);
    // With a terminal both outputs are one.
    let stderr = stderr && !tty;
    if *what != "portForward" && !(stdin || stdout || stderr) {
        return Err((StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr".to_owned()));
    }
    let found = kubelet.pods.named(namespace, pod).filter(|pod| uid.is_none_or(|uid| pod.has_uid(uid)));
    let desired = found.ok_or((StatusCode::NOT_FOUND, "pod does not exist".to_owned()))?.desired();
    let running = running::observe(&kubelet.config, desired.uid()).await.map_err(internal)?;
    let engine = &kubelet.config.runtime;
    if *what == "portForward" {
        let missing = || internal(format!("pod not found (\"{pod}_{namespace}\")"));
        let sandbox = running.sandbox().ok_or_else(missing)?;
        let ports = pairs.iter().filter(|(k, _)| k == "port" || k == "ports").flat_map(|(_, v)| v.split(','));
        let port = ports.filter_map(|p| p.parse().ok()).collect();
        let request = PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
        return engine.port_forward(request).await.map_err(of_engine);
    }
    // As upstream, which looks among the running ones: one that has ended is none that is absent, but an error all the same.
    let missing = || match *what {
        "attach" => internal(format!("container {name} not found in pod {pod}_{namespace}")),
        _ => internal(format!("container not found (\"{name}\")")),
    };
    let container_id = container(&running, name).ok_or_else(missing)?;
    if *what == "attach" {
        if !outlives_its_start(kubelet, desired.uid(), &running, &container_id).await? {
            return Err(missing());
        }
        return engine.attach(AttachRequest { container_id, stdin, tty, stdout, stderr }).await.map_err(of_engine);
    }
    let cmd = pairs.into_iter().filter(|(k, _)| k == "command").map(|(_, v)| v).collect();
    engine.exec(ExecRequest { container_id, cmd, tty, stdin, stdout, stderr }).await.map_err(of_engine)
}

fn container(running: &RunningPod, name: &str) -> Option<String> {
    running.alive().find(|c| c.name == name).map(|c| c.id.clone())
}

/// A command that has only just been started may be over before its client is attached, and its output lost. So the first
/// moment is waited for: a client that is told that the container has ended reads the log instead.
async fn outlives_its_start(kubelet: &Kubelet, uid: &str, running: &RunningPod, id: &str) -> Result<bool, Refusal> {
    const YOUNG_SECONDS: i64 = 2;
    const LOOKS: usize = 6;
    let started = running.alive().find(|c| c.id == id).and_then(|c| c.started_at);
    let is_young = started.is_some_and(|at| clock::now().as_second() - at.as_second() < YOUNG_SECONDS);
    for _ in 0..if is_young { LOOKS } else { 0 } {
        clock::sleep(Duration::from_millis(50)).await;
        let now = running::observe(&kubelet.config, uid).await.map_err(internal)?;
        if !now.alive().any(|c| c.id == id) {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn pass_on(url: &str, mut request: Request<Incoming>) -> Result<Answer, Refusal> {
    let uri: http::Uri = url.parse().map_err(internal)?;
    let authority = uri.authority().ok_or_else(|| internal("the engine's URL has no address"))?.clone();
    let io = TcpStream::connect(authority.as_str()).await.map_err(internal)?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    *request.uri_mut() = path.parse().map_err(internal)?;
    let host = HeaderValue::from_str(authority.as_str()).map_err(internal)?;
    request.headers_mut().insert(header::HOST, host);
    // The engine gets no credentials: the kubelet has checked them.
    for credential in [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE] {
        request.headers_mut().remove(credential);
    }
    let answer = stream::upgrade::forward(request, io).await.map_err(internal)?;
    Ok(answer.map(BodyExt::boxed_unsync))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::pod::{fixture, workers::channels};

    #[tokio::test]
    async fn a_pod_that_is_ending_and_another_uid_are_not_meant() {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = fixture::kubelet(folder.path(), runtime::fake::Fake::default(), |_, _| None);
        let pod = |uid: &str| fixture::pod_of(json!({"metadata": {"uid": uid}, "spec": {"containers": []}}));
        for uid in ["before", "now"] {
            kubelet.pods.insert(uid, channels(pod(uid), false).0);
        }
        kubelet.pods.get("before").unwrap().remove();
        kubelet.pods.get("now").unwrap().set_mirror(&pod("mirror").pod);
        let refused = async |path: &str| {
            let parts: Vec<&str> = path.split('/').collect();
            let (code, text) = url(&kubelet, &parts, "output=1").await.unwrap_err();
            format!("{} {text}", code.as_u16())
        };
        for path in ["exec/d/p/c", "exec/d/p/now/c"] {
            assert_eq!(refused(path).await, "500 container not found (\"c\")", "{path}");
        }
        for path in ["attach/d/p/c", "attach/d/p/mirror/c"] {
            assert_eq!(refused(path).await, "500 container c not found in pod p_d", "{path}");
        }
        assert_eq!(refused("portForward/d/p/now").await, "500 pod not found (\"p_d\")");
        for path in ["exec/d/p/before/c", "portForward/d/p/before", "exec/d/q/c"] {
            assert_eq!(refused(path).await, "404 pod does not exist", "{path}");
        }
        for asked in ["", "tty=1", "tty=1&error=1"] {
            let (code, text) = url(&kubelet, &["exec", "d", "p", "c"], asked).await.unwrap_err();
            assert_eq!(
                (code.as_u16(), &*text),
                (400, "you must specify at least 1 of stdin, stdout, stderr"),
                "{asked}"
            );
        }
    }

    #[test]
    fn the_engines_own_refusals_are_passed_on() {
        let check = |code: Code, expected: u16| {
            let refused = runtime::Error::Refused { code, message: "m".to_owned() };
            assert_eq!(of_engine(refused).0.as_u16(), expected, "{code:?}");
        };
        check(Code::NotFound, 404);
        check(Code::ResourceExhausted, 429);
        check(Code::Unknown, 500);
    }
}
