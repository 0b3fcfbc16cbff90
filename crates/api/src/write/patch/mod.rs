//! The patch formats other than apply: JSON patch (RFC 6902), JSON merge patch (RFC 7386), strategic merge patch. Each is
//! a pure function from the current object and the patch to the patched one; [`patch`] adds what all share.

use ::json::Value;

use crate::{
    codec::{
        decode::{self, Decoded, Format, Validation, Words},
        go,
        problem::Problem,
    },
    schema::Type,
    status::StatusError,
    validation::field::{FieldError, Path},
};

pub mod configuration;
pub mod json;
mod lists;
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
        let told = |why: String| match kind {
            Kind::Strategic => StatusError::bad_request(why),
            _ => StatusError::bad_request(format!("error decoding patch: {why}")),
        };
        let (body, mut duplicates) = decode::raw(bytes, Format::Json).map_err(|problem| match problem {
            Problem::TooLarge(why) => StatusError::too_large(why),
            Problem::Syntax(why) | Problem::Type(why) => told(why),
        })?;
        if kind == Kind::Json {
            let unknown = json::read(&body).map_err(told)?;
            duplicates.extend(unknown);
            duplicates.iter_mut().for_each(|fault| fault.insert_str(0, "json patch "));
        } else if !body.is_object() {
            let found = go_kind(&body);
            return Err(told(format!(
                "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
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
    pub fn apply(&self, ty: &Type, current: &Value, validation: Validation) -> Result<Decoded, StatusError> {
        self.result(ty, current, validation).map_err(|unfit| match unfit {
            Unfit::Refused(error) => error,
            Unfit::Undecodable(why) => self.invalid(ty, current, &why),
        })
    }

    /// The same for callers who have words of their own for a result that is no such object.
    pub fn result(&self, ty: &Type, current: &Value, validation: Validation) -> Result<Decoded, Unfit> {
        let patched = self.patched(ty, current).map_err(Unfit::Refused)?;
        let words = if self.kind == Kind::Strategic { Words::Converter } else { Words::Json };
        let (value, unknown) = decode::normalise_changed_in(words, ty, patched, current).map_err(Unfit::Undecodable)?;
        let mut warnings = Vec::new();
        if validation != Validation::Ignore {
            warnings = self.duplicates.clone();
            warnings.extend(unknown);
        }
        if validation == Validation::Strict && !warnings.is_empty() {
            return Err(Unfit::Undecodable(decode::strict_error(&warnings)));
        }
        Ok(Decoded { value, warnings })
    }

    fn patched(&self, ty: &Type, current: &Value) -> Result<Value, StatusError> {
        match self.kind {
            Kind::Json => json::apply(current.clone(), &self.body),
            Kind::Merge => Ok(merge::apply(current.clone(), &self.body)),
            Kind::Strategic => strategic::apply(ty, current.clone(), &self.body),
            Kind::Apply => Err(StatusError::internal("an apply patch is not a merge patch")),
        }
    }

    /// The refusal of a result that has the kind's shape and is no such object all the same.
    pub fn unreadable(&self, result: &Value, why: &str) -> StatusError {
        match self.kind {
            Kind::Strategic => StatusError::new(500, "", why),
            _ => StatusError::invalid("", "", "", &[FieldError::invalid(&Path::new("patch"), result.to_string(), why)]),
        }
    }

    /// A patch whose result is no such object. It shows the result, a strategic merge patch itself.
    fn invalid(&self, ty: &Type, current: &Value, why: &str) -> StatusError {
        let shown = match self.kind {
            Kind::Strategic => go::plain(&self.body),
            _ => self.patched(ty, current).unwrap_or_default().to_string(),
        };
        StatusError::invalid("", "", "", &[FieldError::invalid(&Path::new("patch"), shown, why)])
    }
}

/// Why a patch has no result.
#[derive(Debug)]
pub enum Unfit {
    /// It cannot be carried out.
    Refused(StatusError),
    /// The result is no object of the type.
    Undecodable(String),
}

/// The sort of a value as Go's JSON decoder calls it.
pub(super) fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
