//! An admission webhook, for tests: it remembers what it is asked and answers as it is told for each path.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use api::Value;
use base64::Engine as _;
use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use json::json;
use parking_lot::Mutex;
use pki::{Authority, Serving, Subject};
use tokio::sync::Notify;

use crate::{http::body::Body, tests::over_tls};

/// The webhook's behaviour at questions.
#[derive(Clone)]
pub enum Mood {
    Allowing,
    /// The `response` without its uid, made of the request.
    Saying(fn(&Value) -> Value),
    /// The whole review, made of the question.
    Lying(fn(&Value) -> Value),
    /// A body that is whatever it is, with a status.
    Text(u16, &'static str),
    Hanging,
    Dying,
    /// Sends without end.
    Endless,
    Redirecting,
}

#[derive(Default)]
struct Shared {
    moods: Mutex<HashMap<String, Mood>>,
    /// The path, the headers and the review of each question.
    seen: Mutex<Vec<(String, http::HeaderMap, Value)>>,
    /// The certificate that came with each connection.
    shown: Mutex<Vec<Option<Vec<u8>>>>,
    asked: Notify,
}

pub struct Hook {
    pub address: SocketAddr,
    pub authority: Authority,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hook {
    pub async fn start() -> Self {
        let authority = Authority::create("webhook").unwrap();
        let names = vec!["localhost".to_owned(), "hook.default.svc".to_owned()];
        let serving = Serving::new(&authority.issue(&Subject::server("hook", names)).unwrap()).unwrap();
        let shared = Arc::<Shared>::default();
        let served = shared.clone();
        let (address, task) = over_tls::listen(serving, Some(authority.certificate()), move |io| {
            let shared = served.clone();
            let shown = io.get_ref().1.peer_certificates().and_then(|chain| Some(chain.first()?.to_vec()));
            shared.shown.lock().push(shown);
            let service = service_fn(move |request: Request<Incoming>| answer(request, shared.clone()));
            async { drop(http1::Builder::new().serve_connection(TokioIo::new(io), service).await) }
        })
        .await;
        Hook { address, authority, shared, task }
    }

    /// The `clientConfig` of a webhook at this path.
    pub fn at(&self, path: &str) -> Value {
        json!({"url": format!("https://localhost:{}{path}", self.address.port()), "caBundle": self.bundle()})
    }

    /// A kubeconfig file for this path, in a folder that goes with it. `user` is what stands in the user, in YAML.
    pub fn kubeconfig(&self, path: &str, user: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let cluster = format!(
            "server: 'https://localhost:{}{path}', certificate-authority-data: {}",
            self.address.port(),
            self.bundle()
        );
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        (folder, file)
    }

    pub fn bundle(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(self.authority.certificate())
    }

    /// Sets its behaviour at a path; elsewhere it lets everything through.
    pub fn be(&self, path: &str, mood: Mood) {
        self.shared.moods.lock().insert(path.to_owned(), mood);
    }

    /// Waits until it is asked.
    pub async fn asked(&self) {
        self.shared.asked.notified().await;
    }

    /// The paths and the reviews of the questions since this was last called.
    pub fn questions(&self) -> Vec<(String, http::HeaderMap, Value)> {
        std::mem::take(&mut self.shared.seen.lock())
    }

    /// The certificates of the connections since this was last called.
    pub fn shown(&self) -> Vec<Option<Vec<u8>>> {
        std::mem::take(&mut self.shared.shown.lock())
    }

    /// The paths alone.
    pub fn paths(&self) -> String {
        let paths = self.questions().into_iter().map(|(path, ..)| path.split('?').next().unwrap().to_owned());
        paths.collect::<Vec<_>>().join(" ")
    }
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let mood = shared.moods.lock().get(parts.uri.path()).cloned().unwrap_or(Mood::Allowing);
    shared.seen.lock().push((parts.uri.to_string(), parts.headers, review.clone()));
    shared.asked.notify_one();
    let reply = |mut response: Value| {
        response["uid"] = review["request"]["uid"].clone();
        json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})
    };
    let answer = match mood {
        Mood::Allowing => reply(json!({"allowed": true})),
        Mood::Saying(say) => reply(say(&review["request"])),
        Mood::Lying(lie) => lie(&review),
        Mood::Text(code, text) => {
            let response = Response::builder().status(code).header(header::CONTENT_TYPE, "text/plain");
            return Ok(response.body(Body::from(text)).unwrap());
        }
        Mood::Hanging => std::future::pending().await,
        Mood::Dying => return Err(std::io::Error::other("it dies")),
        Mood::Endless => {
            let piece = bytes::Bytes::from(vec![b' '; 1 << 16]);
            let endless = futures::stream::repeat_with(move || Ok(piece.clone()));
            return Ok(Response::new(Body::stream(endless)));
        }
        Mood::Redirecting => {
            let response = Response::builder().status(307).header(header::LOCATION, "https://169.254.169.254/");
            return Ok(response.body(Body::empty()).unwrap());
        }
    };
    Ok(Response::new(Body::from(answer.to_string())))
}

/// A response that lets the write through with a patch.
pub fn patched(operations: Value) -> Value {
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch})
}
