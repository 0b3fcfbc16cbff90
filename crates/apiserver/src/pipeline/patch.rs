//! patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use api::{
    Value,
    codec::decode,
    status::StatusError,
    write::patch::{Kind, Patch, json},
};
use http::{StatusCode, header};

use super::request::Request;
use crate::{http::body::Response, http::options::WriteOptions};

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::patch(request.waypoint_name());
    let agent = request.header(header::USER_AGENT).to_owned();
    let custom = request.definition.is_custom();
    let kind = Kind::of(request.header(header::CONTENT_TYPE), custom).ok_or_else(|| unsupported(custom))?;
    request.view()?;
    let body = request.body().await?;
    let options = WriteOptions::of_patch(request.query(), &agent, kind == Kind::Apply)?;
    request.call.trail.requested_text(&body);
    if kind == Kind::Apply {
        return apply(request, &body, options).await;
    }
    // Whether it is one matters only where there is something to change.
    let patch = Patch::read(kind, &body);
    let definition = &request.definition;
    let change = |old: &Value| {
        spans::event("About to apply patch");
        let patched = patch.as_ref().map_err(StatusError::clone)?.apply(&definition.ty, old, options.validation);
        let patched = patched.map_err(json::without_causes)?;
        let mut value = patched.value;
        definition.strategy.drop_nulls(&mut value);
        if let Some(why) = definition.strategy.unreadable(&value) {
            return Err(patch.as_ref().map_err(StatusError::clone)?.unreadable(&value, &why));
        }
        request.check_names(&mut value)?;
        if custom {
            decode::custom_kind(&value, definition.gvk())?;
        }
        Ok((value, patched.warnings))
    };
    let written = request.change(&options, true, change).await?;
    spans::event("Object stored in database");
    request.respond_written(StatusCode::OK, written).await
}

pub(super) fn unsupported(custom: bool) -> StatusError {
    let known = Kind::media_types(custom).collect::<Vec<_>>().join(", ");
    StatusError::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {known}"
    ))
}

/// Server-side apply: changes the object, or creates it.
async fn apply(request: Request, body: &[u8], options: WriteOptions) -> Result<Response, StatusError> {
    let definition = request.definition.clone();
    let gvk = definition.gvk();
    let ty = &request.definition.ty;
    let wanted = api::write::apply::read(ty, gvk, body, options.validation)?;
    let merge = |live: Option<&Value>| {
        spans::event("About to apply patch");
        let merged =
            request.with_writer(&options, |writer| wanted.apply(ty, gvk, live, writer, options.force == Some(true)))?;
        let mut value = merged.value;
        request.check_names(&mut value)?;
        Ok((value, merged.warnings))
    };
    let (code, written) = request.change_or_create(&options, false, merge).await?;
    spans::event("Object stored in database");
    request.respond_written(code, written).await
}
