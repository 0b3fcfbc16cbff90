//! Requests that wait for a webhook which does not answer, over real connections, beside others that have nothing to do with it.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;

use super::*;
use crate::{
    Options,
    server::Limits,
    tests::{
        assembled::options,
        listening::{Answer, Reached, answer, get},
    },
};

/// The room of one user for requests that wait for one webhook.
const ROOM: usize = 128;
/// The requests that come at once: fewer than one user has places for.
const PART: usize = 64;
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn create(path: &str, token: &str, name: &str) -> Request<Full<Bytes>> {
    let object = json!({"metadata": {"name": name}}).to_string();
    let request = Request::post(format!("https://us{path}")).header("content-type", "application/json");
    request.header("authorization", format!("Bearer {token}")).body(Full::from(object)).unwrap()
}

async fn ask(connection: &SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Answer {
    answer(connection.clone().send_request(request).await.unwrap()).await
}

/// A server with few seats, whom jane and joe may ask for everything, and on whose webhooks writes of ConfigMaps wait.
async fn start() -> (Reached, crate::Listening, Hook) {
    let tls = pki::client_config_believing_all(None, &["http/1.1"]).unwrap();
    let connector = Connector::new(Arc::new(tls), vec!["InternalIP".to_owned()]);
    let tokens = "secret,root,1,system:masters\nj,jane,2,dev\no,joe,3,dev\n";
    let limits = Limits { seats: Some(20), ..Limits::default() };
    let (connector, token_file) = (Some(connector), Some(("tokens".into(), tokens.into())));
    let (reached, listening) = Reached::start(Options { connector, token_file, limits, ..options() }).await;
    let (talk, hook) = (Talk(reached.server.clone()), Hook::start().await);
    hook.be("/one", Mood::Hanging);
    let scene = Scene { talk, hook };
    let binding = json!({"metadata": {"name": "devs"}, "subjects": [{"kind": "Group", "name": "dev"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    scene.ok("POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    scene.one("validating", json!({"timeoutSeconds": 30})).await;
    (reached, listening, scene.hook)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_webhook_that_hangs_harms_its_own_requests_alone() {
    let (reached, _listening, hook) = start().await;
    let mut waiting = tokio::task::JoinSet::new();
    let connection = reached.over_http2().await;
    let mut asked = 0;
    for part in 0..ROOM / PART {
        for index in 0..PART {
            let connection = connection.clone();
            waiting.spawn(async move { ask(&connection, create(MAPS, "j", &format!("w{part}-{index}"))).await.code });
        }
        while asked < (part + 1) * PART {
            hook.asked().await;
            asked += hook.questions().len();
        }
    }
    let connection = reached.over_http2().await;
    let one_more = ask(&connection, create(MAPS, "j", "more")).await;
    assert_eq!((one_more.code, one_more.headers["retry-after"].to_str().unwrap()), (429, "1"), "{}", one_more.text);
    for (token, name) in [("j", "jane"), ("o", "joe"), ("secret", "root")] {
        let written = ask(&connection, create(SECRETS, token, name)).await;
        assert_eq!(written.code, 201, "{name}: {}", written.text);
        let read = ask(&connection, get(&format!("https://us{SECRETS}/{name}"))).await;
        assert_eq!(read.code, 200, "{}", read.text);
    }
    assert!(hook.questions().is_empty(), "whoever finds no room is not asked about");
    let others = connection.clone();
    waiting.spawn(async move { ask(&others, create(MAPS, "o", "other")).await.code });
    hook.asked().await;

    let metrics = ask(&connection, get("https://us/metrics")).await.text;
    let idle = r#"current_executing_requests{flow_schema="global-default",priority_level="global-default"} 0"#;
    assert!(metrics.contains(idle), "those that wait have no seats");

    // Those who give up make room.
    hook.be("/one", Mood::Allowing);
    waiting.shutdown().await;
    loop {
        let answer = ask(&connection, create(MAPS, "j", "more")).await;
        if answer.code != 429 {
            assert_eq!(answer.code, 201, "{}", answer.text);
            break;
        }
    }
}

/// Its own place is there when a request comes back, although others have taken it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_is_answered_goes_on_at_once() {
    let (reached, _listening, hook) = start().await;
    hook.be("/one", Mood::Saying(|_| json!({"allowed": true})));
    // Several webhooks at one place are asked at once, and one request needs no more room for that.
    let scene = Scene { talk: Talk(reached.server.clone()), hook };
    let more: Vec<Value> = ["two", "three", "four"].map(|name| scene.webhook(name, json!({}))).into();
    scene.configure("validating", "more", &more).await;
    let mut writing = tokio::task::JoinSet::new();
    let connection = reached.over_http2().await;
    for index in 0..PART {
        let connection = connection.clone();
        writing.spawn(async move { ask(&connection, create(MAPS, "j", &format!("w{index}"))).await });
    }
    for answer in writing.join_all().await {
        assert_eq!(answer.code, 201, "{}", answer.text);
    }
    let metrics = ask(&connection, get("https://us/metrics")).await.text;
    let idle = r#"current_executing_seats{flow_schema="global-default",priority_level="global-default"} 0"#;
    assert!(metrics.contains(idle), "every seat was given back once");
}
