//! update: the whole object (or the part that a subresource stands for) is replaced.

use api::{Value, codec::decode, meta, status::StatusError};
use http::{StatusCode, header};

use super::{create::written_down, request::Request};
use crate::{audit::policy::Level, http::body::Response, http::options::WriteOptions};

pub async fn run(mut request: Request) -> Result<Response, StatusError> {
    waypoint::apiserver::update(request.waypoint_name());
    let agent = request.header(header::USER_AGENT).to_owned();
    request.view()?;
    let body = request.body().await?;
    let options = WriteOptions::parse(request.query(), "UpdateOptions", &agent)?;
    let definition = request.definition.clone();
    let media_type = request.header(header::CONTENT_TYPE);
    spans::event("About to convert to expected version");
    let decoded = decode::decode(&definition.ty, definition.gvk(), &body, media_type, options.validation)?;
    spans::event("Conversion done");
    let mut wanted = decoded.value;
    definition.refuse_unreadable(&wanted)?;
    definition.strategy.drop_nulls(&mut wanted);
    request.tell_of(&wanted);
    request.check_names(&mut wanted)?;
    let warnings = decoded.warnings;
    let make = |_: Option<&Value>| Ok((wanted.clone(), warnings.clone()));
    spans::event("About to store object in database");
    let written = if definition.create_on_update {
        request.change_or_create(&options, true, make).await
    } else {
        request.change(&options, true, |old| make(Some(old))).await.map(|written| (StatusCode::OK, written))
    };
    let (code, written) = written_down(written, body.len())?;
    request.respond_written(code, written).await
}

impl Request {
    /// Tells the trail of the object that came, with its defaults.
    fn tell_of(&self, object: &Value) {
        let trail = &self.call.trail;
        if trail.says(Level::Request) {
            let mut told = object.clone();
            self.definition.default(&mut told, || clock::now_seconds().to_string());
            trail.requested(&told);
        } else {
            trail.requested(object);
        }
    }

    /// The name in the body is that of the path.
    pub(super) fn check_names(&self, object: &mut Value) -> Result<(), StatusError> {
        let info = &self.call.info;
        let name = meta::name(object);
        if name.is_empty() {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                info.name
            )));
        }
        if name != info.name {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                info.name
            )));
        }
        self.place(object)
    }
}
