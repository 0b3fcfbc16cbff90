//! The patch formats other than apply: JSON patch (RFC 6902), JSON merge patch (RFC 7386), strategic merge patch. Each is
//! a pure function from the current object and the patch to the patched one; [`patch`] adds what all share.

use ::json::Value;

use crate::{
    codec::decode::{self, Decoded, Format, Gvk, Validation},
    schema::Type,
    status::StatusError,
    validation::field::{FieldError, Path},
};

pub mod configuration;
pub mod json;
pub mod merge;
pub mod strategic;

/// The patch format of a request, by its `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Json,
    Merge,
    Strategic,
    /// Server-side apply, see [`crate::write::apply`].
    Apply,
}

const MEDIA_TYPES: [(&str, Kind); 4] = [
    ("application/json-patch+json", Kind::Json),
    ("application/merge-patch+json", Kind::Merge),
    ("application/strategic-merge-patch+json", Kind::Strategic),
    ("application/apply-patch+yaml", Kind::Apply),
];

impl Kind {
    /// `None` is for a media type that is no patch of such a kind (415).
    pub fn of(media_type: &str, custom: bool) -> Option<Self> {
        let wanted = media_type.split(';').next().unwrap_or("").trim();
        known(custom).find(|(name, _)| *name == wanted).map(|(_, kind)| kind)
    }

    /// The media types of all patches of a kind.
    pub fn media_types(custom: bool) -> impl Iterator<Item = &'static str> {
        known(custom).map(|(name, _)| name)
    }
}

/// Schemas of custom kinds have no words for strategic merge.
fn known(custom: bool) -> impl Iterator<Item = (&'static str, Kind)> {
    MEDIA_TYPES.into_iter().filter(move |(_, kind)| !custom || *kind != Kind::Strategic)
}

/// A patch that was read but not applied yet: read once, applied again on every conflict.
#[derive(Debug, Clone)]
pub struct Patch {
    kind: Kind,
    body: Value,
    duplicates: Vec<String>,
}

impl Patch {
    /// Reads the body of a JSON, merge or strategic merge patch.
    pub fn read(kind: Kind, bytes: &[u8]) -> Result<Patch, StatusError> {
        let (body, duplicates) =
            decode::raw(bytes, Format::Json).map_err(|problem| problem.about("error decoding patch"))?;
        let shaped = if kind == Kind::Json { body.is_array() } else { body.is_object() };
        if !shaped {
            let found = if body.is_array() { "array" } else { "object" };
            let wanted = if kind == Kind::Json { "jsonpatch.Patch" } else { "map[string]interface {}" };
            let why = format!("json: cannot unmarshal {found} into Go value of type {wanted}");
            return Err(StatusError::bad_request(format!("error decoding patch: {why}")));
        }
        Ok(Patch { kind, body, duplicates })
    }

    /// A JSON patch of these operations.
    pub fn of_operations(body: Value) -> Patch {
        Patch { kind: Kind::Json, body, duplicates: Vec::new() }
    }

    /// Whether it has no operations at all.
    pub fn is_empty(&self) -> bool {
        self.body.as_array().is_some_and(Vec::is_empty)
    }

    /// The object after the patch, run through the schema. `current` is the object as the client sees it.
    pub fn apply(
        &self,
        ty: &Type,
        gvk: Gvk<'_>,
        current: &Value,
        validation: Validation,
    ) -> Result<Decoded, StatusError> {
        let patched = match self.kind {
            Kind::Json => json::apply(current.clone(), &self.body)?,
            Kind::Merge => merge::apply(current.clone(), &self.body),
            Kind::Strategic => strategic::apply(ty, current.clone(), &self.body)?,
            Kind::Apply => return Err(StatusError::internal("an apply patch is not a merge patch")),
        };
        let (value, unknown) =
            decode::normalise_changed(ty, patched, current).map_err(|why| self.invalid(gvk, &why))?;
        let mut warnings = Vec::new();
        if validation != Validation::Ignore {
            warnings = self.duplicates.clone();
            warnings.extend(unknown);
        }
        if validation == Validation::Strict && !warnings.is_empty() {
            return Err(self.invalid(gvk, &decode::strict_error(&warnings)));
        }
        Ok(Decoded { value, warnings })
    }

    /// A patch whose result is no such object.
    fn invalid(&self, gvk: Gvk<'_>, why: &str) -> StatusError {
        if self.kind != Kind::Strategic {
            return gvk.cannot_handle(why);
        }
        let error = FieldError::invalid(&Path::new("patch"), self.body.to_string(), why);
        StatusError::invalid("", "", "", &[error])
    }
}
