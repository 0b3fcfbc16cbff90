//! A conversion webhook, for tests: it turns `hostPort` of v1 into `host` and `port` of v2 and back, and does as its mood says.

use std::{net::SocketAddr, sync::Arc};

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

/// The webhook's behaviour at the next questions.
#[derive(Clone)]
pub enum Mood {
    Honest,
    /// Says that it failed.
    Refusing(&'static str),
    /// Answers with a status and a text.
    Status(u16, &'static str),
    /// Changes each object that it has converted.
    Lying(fn(&mut Value)),
    /// Never answers.
    Hanging,
    /// Closes the connection.
    Dying,
    /// Sends without end.
    Endless,
    /// Sends elsewhere.
    Redirecting,
}

#[derive(Default)]
pub struct Seen {
    /// Of each question the version asked for and the number of objects.
    pub questions: Vec<(String, usize)>,
    /// The objects of the last one.
    pub objects: Vec<Value>,
    pub uri: String,
}

pub struct Converter {
    pub address: SocketAddr,
    pub authority: Authority,
    pub mood: Arc<Mutex<Mood>>,
    pub seen: Arc<Mutex<Seen>>,
    /// Is told of each question.
    pub asked: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Converter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Converter {
    pub async fn start() -> Self {
        let authority = Authority::create("webhook").unwrap();
        let names = vec!["localhost".to_owned(), "hook.default.svc".to_owned()];
        let serving = Serving::new(&authority.issue(&Subject::server("hook", names)).unwrap()).unwrap();
        let (mood, seen, asked) = (Arc::new(Mutex::new(Mood::Honest)), Arc::<Mutex<Seen>>::default(), Arc::default());
        let shared = (mood.clone(), seen.clone(), Arc::clone(&asked));
        let (address, task) = over_tls::listen(serving, None, move |io| {
            let shared = shared.clone();
            let service = service_fn(move |request: Request<Incoming>| answer(request, shared.clone()));
            async { drop(http1::Builder::new().serve_connection(TokioIo::new(io), service).await) }
        })
        .await;
        Converter { address, authority, mood, seen, asked, task }
    }

    /// The part of a definition that leads to it.
    pub fn conversion(&self) -> Value {
        let bundle = base64::engine::general_purpose::STANDARD.encode(self.authority.certificate());
        let url = format!("https://localhost:{}/convert", self.address.port());
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {"url": url, "caBundle": bundle}}})
    }

    pub fn be(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    /// The questions since this was last called: `v2:3` for three objects in v2.
    pub fn questions(&self) -> String {
        let questions = std::mem::take(&mut self.seen.lock().questions);
        let shown = questions.iter().map(|(version, count)| format!("{}:{count}", version.rsplit('/').next().unwrap()));
        shown.collect::<Vec<_>>().join(" ")
    }
}

type Shared = (Arc<Mutex<Mood>>, Arc<Mutex<Seen>>, Arc<Notify>);

async fn answer(request: Request<Incoming>, (mood, seen, asked): Shared) -> Result<Response<Body>, std::io::Error> {
    let uri = request.uri().to_string();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let mut objects: Vec<Value> = review["request"]["objects"].as_array().unwrap().clone();
    let desired = review["request"]["desiredAPIVersion"].as_str().unwrap().to_owned();
    let mood = mood.lock().clone();
    {
        let mut seen = seen.lock();
        seen.questions.push((desired.clone(), objects.len()));
        (seen.objects, seen.uri) = (objects.clone(), uri);
    }
    asked.notify_one();
    let mut result = json!({"status": "Success"});
    match mood {
        Mood::Honest => objects.iter_mut().for_each(|object| convert(object, &desired)),
        Mood::Lying(lie) => objects.iter_mut().for_each(|object| {
            convert(object, &desired);
            lie(object);
        }),
        Mood::Refusing(why) => result = json!({"status": "Failure", "message": why}),
        Mood::Status(code, text) => {
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
    }
    let response = json!({"uid": review["request"]["uid"], "result": result, "convertedObjects": objects});
    let answer = json!({"kind": "ConversionReview", "apiVersion": review["apiVersion"], "response": response});
    Ok(Response::new(Body::from(answer.to_string())))
}

fn convert(object: &mut Value, desired: &str) {
    let fields = object.as_object_mut().unwrap();
    if desired.ends_with("/v2") {
        let joined = fields.remove("hostPort").unwrap_or_default();
        let (host, port) = joined.as_str().unwrap_or_default().split_once(':').unwrap_or_default();
        fields.insert("host", json!(host));
        fields.insert("port", json!(port));
    } else {
        let mut text = |name: &str| fields.remove(name).unwrap_or_default().as_str().unwrap_or_default().to_owned();
        let joined = format!("{}:{}", text("host"), text("port"));
        fields.insert("hostPort", json!(joined));
    }
    fields.insert("apiVersion", json!(desired));
}
