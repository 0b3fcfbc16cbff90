//! `/statusz` and `/flagz`: what runs here, since when, and with which flags; as text for people, or as an object for whoever asks for it
//! by its name. Both are behind gates.
//! Upstream counterpart: k8s.io/component-base/zpages.

use std::collections::BTreeMap;

use api::{Value, status::StatusError};
use clock::Timestamp;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use json::{Map, json};

use crate::http::{body::Response, encoding::accept, respond};

const COMPONENT: &str = "kube-apiserver";
const GROUP: &str = "config.k8s.io";
const VERSION: &str = "v1alpha1";

/// The pages about the process that `/statusz` names.
const PATHS: &[&str] = &[
    "/configz",
    "/debug/api_priority_and_fairness",
    "/debug/flags",
    "/debug/pprof",
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/readyz",
    "/statusz",
    "/version",
];

/// The contents of the pages; each is `None` where its gate is off.
#[derive(Debug, Default)]
pub struct Zpages {
    /// When the process started.
    pub status: Option<Timestamp>,
    pub flags: Option<BTreeMap<String, String>>,
}

/// The form that a client takes.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Object,
}

/// Text for everybody who takes it; the object only by its whole name, since its shape may still change.
fn form(headers: &HeaderMap, kind: &str) -> Option<Form> {
    accept::clauses(headers).into_iter().find_map(|clause| {
        if clause.takes("text/plain") {
            return Some(Form::Text);
        }
        let says = |name: &str, value: &str| clause.parameters().any(|(n, v)| (n, v) == (name, value));
        let named = says("as", kind) && says("v", VERSION) && says("g", GROUP);
        (named && clause.takes("application/json")).then_some(Form::Object)
    })
}

impl Zpages {
    /// The paths of those that there are.
    pub fn paths(&self) -> impl Iterator<Item = &'static str> {
        let status = self.status.as_ref().map(|_| "/statusz");
        self.flags.as_ref().map(|_| "/flagz").into_iter().chain(status)
    }

    pub fn answer(&self, path: &str, headers: &HeaderMap) -> Result<Option<Response>, StatusError> {
        match (path, &self.status, &self.flags) {
            ("/statusz", Some(started), _) => {
                let status = status(*started, clock::now());
                told("Statusz", headers, || text("statusz", &lines_of(&status)), status.clone()).map(Some)
            }
            ("/flagz", _, Some(flags)) => {
                let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
                let object: Map =
                    flags.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
                told("Flagz", headers, || text("flagz", &lines), object_of("Flagz", json!({"flags": object}))).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn told(
    kind: &str,
    headers: &HeaderMap,
    text: impl FnOnce() -> Response,
    object: Value,
) -> Result<Response, StatusError> {
    match form(headers, kind) {
        Some(Form::Text) => Ok(text()),
        Some(Form::Object) => Ok(respond::json(StatusCode::OK, object.to_string())),
        None => {
            let why = "only the following media types are accepted: application/json, text/plain";
            Err(StatusError::new(406, "NotAcceptable", why))
        }
    }
}

fn object_of(kind: &str, rest: Value) -> Value {
    let mut object = json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {"name": COMPONENT}});
    if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
        rest.into_iter().for_each(|(name, value)| drop(object.insert(name, value)));
    }
    object
}

fn status(started: Timestamp, now: Timestamp) -> Value {
    let version = api::KUBERNETES_VERSION.trim_start_matches('v');
    let (minor, _) = version.rsplit_once('.').unwrap_or((version, ""));
    object_of(
        "Statusz",
        json!({
            "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "uptimeSeconds": (now.as_second() - started.as_second()).max(0),
            "goVersion": "none", "binaryVersion": version, "emulationVersion": minor, "paths": PATHS,
        }),
    )
}

fn lines_of(status: &Value) -> String {
    let seconds = status["uptimeSeconds"].as_i64().unwrap_or(0);
    let up = format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let of = |name: &str| status[name].as_str().unwrap_or("").to_owned();
    format!(
        "\nStarted: {}\nUp: {up}\nGo version: {}\nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
        of("startTime"),
        of("goVersion"),
        of("binaryVersion"),
        of("emulationVersion"),
        PATHS.join(" ")
    )
}

fn text(page: &str, lines: &str) -> Response {
    let warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for \
                   debugging purposes only.";
    let mut response = Response::new(format!("\n{COMPONENT} {page}\n{warning}\n{lines}").into());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(pages: &Zpages, path: &str, accept: &str) -> (u16, String) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        match pages.answer(path, &headers) {
            Ok(None) => (404, String::new()),
            Err(error) => (error.code, error.message),
            Ok(Some(answer)) => {
                let (code, text) = (answer.status().as_u16(), answer.into_body().collect(10_000).await.unwrap());
                (code, String::from_utf8(text.to_vec()).unwrap())
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_page_has_a_text_and_an_object() {
        clock::simulate(Timestamp::from_second(1_700_003_671).unwrap(), 1);
        let flags = BTreeMap::from([("v".to_owned(), "4".to_owned()), ("profiling".to_owned(), "true".to_owned())]);
        let pages = Zpages { status: Timestamp::from_second(1_700_000_000).ok(), flags: Some(flags) };
        let (code, text) = ask(&pages, "/statusz", "*/*").await;
        assert!(code == 200 && text.contains("\nUp: 1 hr 01 min 11 sec\n"), "{text}");
        let object = |kind: &str| format!("application/json;as={kind};v=v1alpha1;g=config.k8s.io");
        let (code, status) = ask(&pages, "/statusz", &object("Statusz")).await;
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!((code, &status["kind"], &status["uptimeSeconds"]), (200, &json!("Statusz"), &json!(3671)));
        assert_eq!(
            (&status["binaryVersion"], &status["startTime"]),
            (&json!("1.35.0"), &json!("2023-11-14T22:13:20Z"))
        );
        let (code, flags) = ask(&pages, "/flagz", &object("Flagz")).await;
        assert_eq!(code, 200);
        let expected = json!({
            "kind": "Flagz", "apiVersion": "config.k8s.io/v1alpha1", "metadata": {"name": "kube-apiserver"},
            "flags": {"profiling": "true", "v": "4"},
        });
        assert_eq!(serde_json::from_str::<Value>(&flags).unwrap(), expected);
        assert!(ask(&pages, "/flagz", "text/plain").await.1.ends_with("\nprofiling=true\nv=4\n"));
        for unnamed in ["application/json", "application/json;as=Flagz;v=v2;g=config.k8s.io", "application/yaml"] {
            assert_eq!(ask(&pages, "/flagz", unnamed).await.0, 406, "{unnamed}");
        }
        assert_eq!(ask(&Zpages::default(), "/flagz", "*/*").await.0, 404);
    }
}
