//! `/debug/pprof/` and `/debug/flags/v`: what a developer asks of a server that runs. Only who may do everything may ask, unless a role
//! names the paths.
//! Upstream counterpart: k8s.io/apiserver/pkg/server/routes, its `profiling.go` and `flags.go`; Go's net/http/pprof.

use std::collections::BTreeMap;

use api::{rules::url::query_pairs, status::StatusError};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use profile::page::{self, Asked, Page};

use crate::{call::Call, http::body::Response};

/// The settings of the pages for developers.
#[derive(Default)]
pub struct Debugging {
    /// Whether there are these pages at all.
    pub profiling: bool,
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
        if !self.profiling {
            return Ok(None);
        }
        if let Some(rest) = below(PROFILES) {
            return self.profile(rest.trim_start_matches('/'), call).await.map(Some);
        }
        match below(FLAGS) {
            Some(rest @ ("" | "/" | "/v")) => self.verbosity(rest, call).await.map(Some),
            _ => Ok(None),
        }
    }

    async fn verbosity(&self, rest: &str, call: &mut Call) -> Result<Response, StatusError> {
        let (method, body) = (call.info.verb.to_ascii_uppercase(), call.read_body().await?);
        let answer = logs::page::answer(&method, rest, &body);
        if answer.code == 200 && method == "PUT" {
            tracing::info!(level = logs::verbosity(), user = call.user.name, "the verbosity of the log was set");
        }
        let kind = if answer.is_html { "text/html; charset=utf-8" } else { "text/plain; charset=utf-8" };
        let mut response = text(answer.text, kind);
        *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Ok(response)
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
