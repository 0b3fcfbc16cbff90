//! `/debug/pprof/` and `/debug/flags/v`: what a developer asks of a server that runs. Only who may do everything may ask, unless a role
//! names the paths.
//! Upstream counterpart: k8s.io/apiserver/pkg/server/routes, its `profiling.go` and `flags.go`; Go's net/http/pprof.

use std::collections::BTreeMap;

use api::{rules::url::query_pairs, status::StatusError};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use profile::page::{self, Asked, Page};

use crate::{call::Call, http::body::Response};

/// Sets how much is logged.
pub type SetVerbosity = Box<dyn Fn(u8) -> Result<(), String> + Send + Sync>;

/// The settings of the pages for developers.
#[derive(Default)]
pub struct Debugging {
    /// Whether there are profiles.
    pub profiling: bool,
    pub set_verbosity: Option<SetVerbosity>,
    /// The flags that it was started with.
    pub flags: BTreeMap<String, String>,
}

const PROFILES: &str = "/debug/pprof";
const FLAGS: &str = "/debug/flags";

impl Debugging {
    /// The answer to a request for one of the pages.
    pub async fn answer(&self, call: &mut Call) -> Result<Option<Response>, StatusError> {
        let path = call.info.path.clone();
        let below = |folder: &str| path.strip_prefix(folder).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(rest) = below(PROFILES).filter(|_| self.profiling) {
            return self.profile(rest.trim_start_matches('/'), call).await.map(Some);
        }
        match below(FLAGS) {
            Some("") => Ok(Some(text("flags:\nv\n".to_owned(), "text/plain; charset=utf-8"))),
            Some("/v") => self.verbosity(call).await,
            _ => Ok(None),
        }
    }

    async fn verbosity(&self, call: &mut Call) -> Result<Option<Response>, StatusError> {
        let Some(set) = &self.set_verbosity else { return Ok(None) };
        if call.info.verb != "put" {
            return Ok(Some(refused(StatusCode::NOT_ACCEPTABLE, "unsupported http method")));
        }
        let body = call.read_body().await?;
        let given = String::from_utf8_lossy(&body).into_owned();
        let wrong = |why: String| {
            let shown: String = given.chars().take(64).collect();
            refused(StatusCode::BAD_REQUEST, &format!("failed set klog.logging.verbosity {shown}: {why}"))
        };
        Ok(Some(match given.parse::<u8>() {
            Err(error) => wrong(error.to_string()),
            Ok(level) => match set(level) {
                Err(why) => wrong(why),
                Ok(()) => {
                    tracing::info!(level, user = call.user.name, "the verbosity of the log was set");
                    plain(format!("successfully set klog.logging.verbosity to {level}"))
                }
            },
        }))
    }

    async fn profile(&self, kind: &str, call: &mut Call) -> Result<Response, StatusError> {
        let (reads, posts) = (matches!(call.info.verb, "get" | "head"), call.info.verb == "post");
        if !(reads || posts && kind == page::SYMBOL) {
            return Err(StatusError::no_route());
        }
        let addresses = if posts { call.read_body().await? } else { Bytes::from(call.query.clone()) };
        let given = |name: &str| query_pairs(&call.query).find(|(key, _)| key == name).map(|(_, value)| value);
        let (seconds, debug) = (given("seconds"), given("debug"));
        let asked = Asked {
            kind,
            seconds: seconds.as_deref(),
            debug: debug.as_deref(),
            addresses: &String::from_utf8_lossy(&addresses),
        };
        Ok(answered(page::answer(asked).await))
    }
}

fn answered(page: Page) -> Response {
    let mut response = Response::new(page.body.into());
    *response.status_mut() = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(page.form));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(disposition) = page.file.and_then(|name| HeaderValue::from_str(&name).ok()) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

fn text(text: String, kind: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn plain(text: String) -> Response {
    self::text(text, "text/plain; charset=utf-8")
}

fn refused(code: StatusCode, why: &str) -> Response {
    let mut response = plain(format!("{why}\n"));
    *response.status_mut() = code;
    response
}
