//! The scale subresource: `autoscaling/v1` Scale as a window on the fields that the kind names.

use api::{
    Value,
    codec::decode::{Gvk, LEGACY_SCHEME, not_registered},
    schema::Type,
    status::StatusError,
    validation::field::{FieldError, Path},
    write::{
        entries::Writer,
        patch::{Kind, Patch, json},
    },
};
use http::{StatusCode, header};

use super::{
    patch::unsupported,
    request::Request,
    scale_object::{of, seen_by_readers, seen_by_writers, with_replicas},
    write::{Outcome, Written},
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
        let entry = request.shown(request.entry_new_enough().await?).await?;
        let shown = seen_by_readers(&definition, scale, &object::of_entry(&definition, &entry))?;
        return answer(&request, view, shown, &[]);
    }
    let agent = request.header(header::USER_AGENT).to_owned();
    let body = request.body().await?;
    let ty =
        api::schema::of("io.k8s.api.autoscaling.v1.Scale").ok_or_else(|| StatusError::internal("no Scale type"))?;
    let media_type = request.header(header::CONTENT_TYPE);
    let written = if request.call.info.verb == "patch" {
        waypoint::apiserver::patch(request.waypoint_name());
        let custom = definition.is_custom();
        let kind = Kind::of(media_type, custom).ok_or_else(|| unsupported(custom))?;
        let options = WriteOptions::of_patch(request.query(), &agent, kind == Kind::Apply)?;
        request.call.trail.requested_text(&body);
        if kind == Kind::Apply {
            apply(&request, ty, &body, &options).await?
        } else {
            let patch = Patch::read(kind, &body);
            let change = |old: &Value| {
                let seen = seen_by_writers(&definition, scale, old)?;
                let patched = patch.as_ref().map_err(StatusError::clone)?.apply(ty, &seen, options.validation);
                let mut wanted = patched.map_err(json::without_causes)?;
                // A strategic merge patch has no say in what the object is.
                if kind != Kind::Strategic {
                    check_kind(&wanted.value)?;
                }
                request.check_names(&mut wanted.value)?;
                Ok((with_replicas(&definition, scale, old, &wanted.value)?, wanted.warnings))
            };
            request.change(&options, true, change).await?
        }
    } else {
        waypoint::apiserver::update(request.waypoint_name());
        let options = WriteOptions::parse(request.query(), "UpdateOptions", &agent)?;
        let mut wanted = api::codec::decode::decode(ty, SCALE, &body, media_type, options.validation)?;
        request.call.trail.requested(&wanted.value);
        request.check_names(&mut wanted.value)?;
        let change = |old: &Value| {
            request.check_uid(&wanted.value, old)?;
            Ok((with_replicas(&definition, scale, old, &wanted.value)?, wanted.warnings.clone()))
        };
        request.change(&options, true, change).await?
    };
    let value = match written.outcome {
        Outcome::Stored(entry) => object::of_entry(&definition, &request.shown(entry).await?),
        Outcome::Tried(value) => value,
    };
    answer(&request, view, of(&definition, scale, &value)?, &written.warnings)
}

/// That a patched Scale still says that it is one, if it says what it is.
fn check_kind(value: &Value) -> Result<(), StatusError> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let wanted = SCALE.api_version();
    let (version, kind) = (text("apiVersion").unwrap_or(&wanted), text("kind").unwrap_or(SCALE.kind));
    if version == wanted && kind == SCALE.kind {
        return Ok(());
    }
    let why = not_registered(kind, version, LEGACY_SCHEME);
    let error = FieldError::invalid(&Path::new("patch"), value.to_string(), &why);
    Err(StatusError::invalid("", "", "", &[error]))
}

/// Server-side apply to the Scale. Who states the replicas there owns them in the object.
async fn apply(request: &Request, ty: &Type, body: &[u8], options: &WriteOptions) -> Result<Written, StatusError> {
    let definition = &request.definition;
    let scale = definition.scale.as_ref().ok_or_else(StatusError::no_route)?;
    let wanted = api::write::apply::read(ty, SCALE, body, options.validation)?;
    let change = |old: &Value| {
        let mut seen = seen_by_writers(definition, scale, old)?;
        api::write::scale::show(old, &scale.wanted, &mut seen);
        request.with_writer(options, |writer| {
            // A Scale has one version, whatever the object has.
            let by = Writer { api_version: api::write::scale::VERSION, versions: None, ..*writer };
            let merged = wanted.apply(ty, SCALE, Some(&seen), &by, options.force == Some(true))?;
            let mut value = merged.value;
            request.check_names(&mut value)?;
            let mut new = with_replicas(definition, scale, old, &value)?;
            api::write::scale::take_over(&mut new, &scale.wanted, &mut value, writer);
            Ok((new, merged.warnings))
        })
    };
    request.change(options, false, change).await
}

fn answer(request: &Request, view: View, scale: Value, warnings: &[String]) -> Result<Response, StatusError> {
    let table = request.objects().kinds.table();
    let columns = table.by_kind(SCALE.group, SCALE.version, SCALE.kind);
    let mut response =
        respond::value(StatusCode::OK, &view::value(columns.unwrap_or(&request.definition), view, scale));
    respond::warn(&mut response, warnings);
    Ok(response)
}
