//! The scale subresource: `autoscaling/v1` Scale as a window on the fields that the kind names.

use api::{
    Value,
    codec::decode::Gvk,
    status::StatusError,
    write::patch::{Kind, Patch},
};
use http::{StatusCode, header};

use super::{
    patch::unsupported,
    request::Request,
    scale_object::{of, with_replicas},
    write::Outcome,
};
use crate::{
    http::{
        body::Response,
        options::WriteOptions,
        respond,
        view::{self, View},
    },
    storage::object,
};

const SCALE: Gvk<'static> = Gvk { group: "autoscaling", version: "v1", kind: "Scale" };

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    let definition = request.definition.clone();
    let scale = definition.scale.as_ref().ok_or_else(StatusError::no_route)?;
    let view = request.view()?;
    if request.call.info.verb == "get" {
        waypoint::apiserver::get(request.waypoint_name());
        let entry = request.shown(request.entry().await?).await?;
        return answer(&request, view, &object::of_entry(&definition, &entry));
    }
    let agent = request.header(header::USER_AGENT).to_owned();
    let body = request.body().await?;
    let ty =
        api::schema::of("io.k8s.api.autoscaling.v1.Scale").ok_or_else(|| StatusError::internal("no Scale type"))?;
    let media_type = request.header(header::CONTENT_TYPE);
    let written = if request.call.info.verb == "patch" {
        waypoint::apiserver::patch(request.waypoint_name());
        let kind = Kind::of(media_type)
            .filter(|kind| *kind != Kind::Apply)
            .ok_or_else(|| unsupported(definition.is_custom()))?;
        let options = WriteOptions::of_patch(request.query(), &agent, false)?;
        request.call.trail.requested_text(&body);
        let patch = Patch::read(kind, &body)?;
        let change = |old: &Value| {
            let seen = of(&definition, scale, old)?;
            let wanted = patch.apply(ty, SCALE, &seen, options.validation)?;
            Ok((with_replicas(scale, old, &wanted.value)?, wanted.warnings))
        };
        request.change(&options, true, change).await?
    } else {
        waypoint::apiserver::update(request.waypoint_name());
        let options = WriteOptions::parse(request.query(), "UpdateOptions", &agent)?;
        let wanted = api::codec::decode::decode(ty, SCALE, &body, media_type, options.validation)?;
        request.call.trail.requested(&wanted.value);
        let change = |old: &Value| Ok((with_replicas(scale, old, &wanted.value)?, wanted.warnings.clone()));
        request.change(&options, true, change).await?
    };
    let value = match written.outcome {
        Outcome::Stored(entry) => object::of_entry(&definition, &request.shown(entry).await?),
        Outcome::Tried(value) => value,
    };
    answer(&request, view, &value)
}

fn answer(request: &Request, view: View, object: &Value) -> Result<Response, StatusError> {
    let definition = &request.definition;
    let scale = definition.scale.as_ref().ok_or_else(StatusError::no_route)?;
    let shown = of(definition, scale, object)?;
    // In a Table a custom kind shows its own columns, whatever of them a Scale has.
    let table = request.objects().kinds.table();
    let columns = table.by_kind(SCALE.group, SCALE.version, SCALE.kind).filter(|_| !definition.is_custom());
    Ok(respond::value(StatusCode::OK, &view::value(columns.unwrap_or(definition), view, shown)))
}
