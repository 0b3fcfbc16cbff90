//! From a request to what serves it: a special handler, a verb of the pipeline, or a page about the server itself.

use api::status::StatusError;
use http::{HeaderValue, Method, StatusCode, header};

use crate::{
    discovery, openapi, pipeline, pretty, respond,
    special::{Call, Response},
};

pub async fn route(call: Call) -> Result<Response, StatusError> {
    if call.info.resource_request { resource(call).await } else { page(call) }
}

async fn resource(call: Call) -> Result<Response, StatusError> {
    let info = &call.info;
    let special = call.server.config().specials.get(&info.group, &info.resource, &info.subresource).cloned();
    if let Some(special) = special {
        return special.call(call).await;
    }
    let definition = call.server.core().kinds.find(&info.group, &info.version, &info.resource);
    let Some(definition) = definition else {
        let known = discovery::serves(call.server.core(), &info.group, &info.version);
        return if known { Err(StatusError::no_route()) } else { Ok(nothing_here()) };
    };
    pipeline::run(call, definition).await
}

fn page(call: Call) -> Result<Response, StatusError> {
    let shared = &call.server.shared;
    if !matches!(call.parts.method, Method::GET | Method::HEAD) {
        return Err(StatusError::no_route());
    }
    let path = call.info.path.as_str();
    let query = call.parts.uri.query().unwrap_or("");
    match path.trim_end_matches('/') {
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
            let found = shared.config.checks.answer(path, query).or_else(issuer);
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
