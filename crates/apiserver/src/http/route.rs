//! From a request to what serves it: a special handler, a verb of the pipeline, or a page about the server itself.

use api::status::StatusError;
use http::{HeaderValue, StatusCode, header};

use crate::{
    http::{pretty, request::Refusal, respond},
    pages::{discovery, openapi},
    pipeline,
    special::{Call, Response},
};

pub async fn route(call: Call) -> Result<Response, StatusError> {
    let Some(definition) = call.info.definition.clone() else { return page(call) };
    let special = call.server.config().specials.get(&definition.group, &definition.plural, call.info.subresource);
    match special.cloned() {
        Some(special) => special.call(call).await,
        None => pipeline::run(call, definition).await,
    }
}

/// The answer to a request that nothing serves.
pub fn refuse(refusal: &Refusal) -> Result<Response, StatusError> {
    refusal.error().map_or_else(|| Ok(nothing_here()), Err)
}

fn page(call: Call) -> Result<Response, StatusError> {
    let shared = &call.server.shared;
    if !matches!(call.info.verb, "get" | "head") {
        return Err(StatusError::no_route());
    }
    let path = call.info.path.as_str();
    match path {
        "/version" => Ok(respond::json(StatusCode::OK, pretty::text(&version().to_string()))),
        "/metrics" => {
            let feed = &call.server.core().feed;
            let mut response = Response::new(shared.metrics.render(&feed.metrics).into());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            Ok(response)
        }
        _ => {
            let issuer = || shared.config.issuer.as_ref()?.answer(path);
            let found = shared.config.checks.answer(path, &call.query).or_else(issuer);
            if let Some(response) = found.or_else(|| discovery::answer(&call)).or_else(|| openapi::answer(&call)) {
                return Ok(response);
            }
            if path == "/" {
                return Ok(respond::json(
                    StatusCode::OK,
                    pretty::text(&discovery::paths(call.server.core()).to_string()),
                ));
            }
            Ok(nothing_here())
        }
    }
}

/// No part of the API: a page for people, as upstream has it.
fn nothing_here() -> Response {
    let mut response = Response::new("404 page not found\n".into());
    *response.status_mut() = StatusCode::NOT_FOUND;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// `/version`: the Kubernetes version that is served; what follows the plus sign is ours.
pub fn version() -> api::Value {
    serde_json::json!({
        "major": "1", "minor": "35", "emulationMajor": "1", "emulationMinor": "35",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "34",
        "gitVersion": "v1.35.0+skiff", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other }),
    })
}
