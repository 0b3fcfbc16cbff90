//! The verbs, one file each, the same for every kind.

mod binary_list;
mod create;
pub(crate) mod delete;
mod deletecollection;
mod get;
mod list;
mod owners;
mod patch;
mod request;
mod scale;
mod scale_object;
mod update;
mod upsert;
mod watch;
mod write;

use std::sync::Arc;

use api::{
    kind::{Definition, Subresource, Target},
    status::StatusError,
    write::versions::Versions,
};

use futures::future::BoxFuture;
use meter::Metric;

use crate::{call::Call, http::body::Response};
use request::Request;

static DEPRECATED: Metric = Metric::gauge(
    "apiserver_requested_deprecated_apis",
    "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and \
     removed_release.",
);

/// Serves a request for a resource that is not special.
pub async fn run(call: Call, definition: Arc<Definition>) -> Result<Response, StatusError> {
    let Some(target) = target(&definition, call.info.subresource) else { return Err(StatusError::no_route()) };
    let versions = definition.webhook.clone().map(Versions::new);
    let request = Request { call, definition, target, versions };
    let Some(warning) = request.definition.deprecated.clone() else { return answer(request).await };
    request.call.trail.annotate("k8s.io/deprecated", "true");
    let release = removed_release(&warning);
    if let Some(release) = release {
        request.call.trail.annotate("k8s.io/removed-release", release.to_owned());
    }
    let Definition { group, version, plural, .. } = &*request.definition;
    let labels: [(&str, &str); 5] = [
        ("group", group),
        ("version", version),
        ("resource", plural),
        ("subresource", request.call.info.subresource),
        ("removed_release", release.unwrap_or("")),
    ];
    request.call.state.metrics.all.set(&DEPRECATED, &labels, 1.0);
    request.call.warnings.begin_with(warning);
    answer(request).await
}

/// The release without the kind, as the warning says it: `…, unavailable in v1.37+…`.
fn removed_release(warning: &str) -> Option<&str> {
    let (_, behind) = warning.split_once("unavailable in v")?;
    behind.split('+').next()
}

/// The state of a verb is some kilobytes, which the layers above would hand on from one to the next and keep room for in each request: it is
/// made in a place of its own.
async fn answer(request: Request) -> Result<Response, StatusError> {
    let work: BoxFuture<'_, _> = match request.call.info.verb {
        _ if matches!(request.target, Target::Other("scale")) => Box::pin(scale::run(request)),
        "create" => Box::pin(create::run(request)),
        "update" => Box::pin(update::run(request)),
        "patch" => Box::pin(patch::run(request)),
        "delete" => Box::pin(delete::run(request)),
        "deletecollection" => Box::pin(deletecollection::run(request)),
        "get" => Box::pin(get::run(request)),
        "list" => Box::pin(list::run(request)),
        "watch" => Box::pin(watch::run(request)),
        other => return Err(StatusError::internal(format!("no handler for the verb {other:?}"))),
    };
    work.await
}

/// The part of the object that a subresource stands for.
fn target(definition: &Definition, subresource: &str) -> Option<Target> {
    match subresource {
        "" => Some(Target::Object),
        "status" => Some(Target::Status),
        "scale" => Some(Target::Other("scale")),
        other => {
            // Subresources that write a part of the object itself.
            let own =
                |s: &&Subresource| s.name == other && s.object.2 == definition.kind && s.verbs.contains(&"update");
            definition.subresources.iter().find(own).map(|s| Target::Other(s.name))
        }
    }
}
