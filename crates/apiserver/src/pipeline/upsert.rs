//! Writes that create what is not there: server-side apply, and updates of kinds whose strategy allows it.

use api::{Value, meta, status::StatusError};
use http::StatusCode;

use super::{request::Request, write::Written};
use crate::{
    auth::Attributes,
    http::options::{WriteOptions, revision_of},
};

/// The write is tried this often while somebody else creates and deletes the object.
const ATTEMPTS: usize = 5;

impl Request {
    /// Changes the object or, where there is none, creates it. `make` makes the object from the one that is stored, and
    /// may run several times.
    pub(super) async fn change_or_create(
        &self,
        options: &WriteOptions,
        tracked: bool,
        make: impl Fn(Option<&Value>) -> Result<(Value, Vec<String>), StatusError> + Send + Sync,
    ) -> Result<(StatusCode, Written), StatusError> {
        let (definition, name) = (&self.definition, &self.call.info.name);
        for _ in 0..ATTEMPTS {
            match self.change(options, tracked, |old| make(Some(old))).await {
                // Only the store's own word counts: whom admission asks may say this, too.
                Err(error) if error == StatusError::not_found(&definition.group, &definition.plural, name) => {}
                Err(error) => return Err(error),
                Ok(written) => return Ok((StatusCode::OK, written)),
            }
            if !self.call.info.subresource.is_empty() {
                return Err(StatusError::not_found(&definition.group, &definition.plural, name));
            }
            let (mut object, warnings) = self.thought_through(|| make(None)).await?;
            let uid = meta::uid(&object);
            if !uid.is_empty() {
                return Err(match self.call.info.verb {
                    "patch" => {
                        let why = format!(
                            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                        );
                        StatusError::conflict(&definition.group, &definition.plural, name, &why)
                    }
                    _ => self.other_uid(uid, ""),
                });
            }
            revision_of(&object)?;
            // The right to change an object that is there is not the right to make it.
            let create = Attributes { verb: "create", ..Attributes::of(&self.call.user, &self.call.info) };
            self.call.state.ask(&create).await?;
            if let Some(metadata) = meta::metadata_mut(&mut object) {
                metadata.remove("resourceVersion");
            }
            match self.create(object, warnings, options, tracked).await {
                Err(error) if error.reason == "AlreadyExists" => {}
                Err(error) => return Err(error),
                Ok(written) => return Ok((StatusCode::CREATED, written)),
            }
        }
        Err(StatusError::modified(&definition.group, &definition.plural, name))
    }
}
