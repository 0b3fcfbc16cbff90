//! Where in an object something is wrong, and what: paths such as `spec.containers[0].name`, and the field errors that
//! validation returns, in upstream's words (apimachinery's `field` package).

use std::fmt::{self, Display};

/// A path into an object. Build it from the root: `Path::new("spec").child("containers").index(0).child("name")`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path(String);

impl Path {
    pub fn new(name: &str) -> Self {
        Path(name.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Path(name.to_owned()) } else { self.with([".", name, ""]) }
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(["[", &index.to_string(), "]"])
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(["[", key, "]"])
    }

    /// Validation builds a path for every field it looks at, so this is made without the formatting machinery.
    fn with(&self, parts: [&str; 3]) -> Self {
        let mut path = String::with_capacity(self.0.len() + parts.iter().map(|p| p.len()).sum::<usize>());
        path.push_str(&self.0);
        parts.iter().for_each(|part| path.push_str(part));
        Path(path)
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sorts of field error, with the reason that `details.causes` carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl Cause {
    /// `reason` in `details.causes`.
    pub fn reason(self) -> &'static str {
        match self {
            Cause::NotFound => "FieldValueNotFound",
            Cause::Required => "FieldValueRequired",
            Cause::Duplicate => "FieldValueDuplicate",
            Cause::Invalid => "FieldValueInvalid",
            Cause::NotSupported => "FieldValueNotSupported",
            Cause::Forbidden => "FieldValueForbidden",
            Cause::TooLong => "FieldValueTooLong",
            Cause::TooMany => "FieldValueTooMany",
            Cause::Internal => "InternalError",
            Cause::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

/// One thing that is wrong with one field. `detail` is the message without the path, for example
/// `Invalid value: "A": must be lower case`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub path: Path,
    pub cause: Cause,
    pub detail: String,
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.detail)
    }
}

/// A value as upstream's messages show it: strings quoted, everything else as JSON.
pub fn show(value: impl serde::Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

impl FieldError {
    fn new(path: &Path, cause: Cause, detail: String) -> Self {
        FieldError { path: path.clone(), cause, detail }
    }

    pub fn required(path: &Path, detail: &str) -> Self {
        let text = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self::new(path, Cause::Required, text)
    }

    pub fn invalid(path: &Path, value: impl serde::Serialize, detail: &str) -> Self {
        Self::new(path, Cause::Invalid, format!("Invalid value: {}: {detail}", show(value)))
    }

    pub fn not_supported(path: &Path, value: impl serde::Serialize, supported: &[&str]) -> Self {
        let mut sorted = supported.to_vec();
        sorted.sort_unstable();
        let list: Vec<String> = sorted.iter().map(show).collect();
        let detail = format!("Unsupported value: {}: supported values: {}", show(value), list.join(", "));
        Self::new(path, Cause::NotSupported, detail)
    }

    pub fn duplicate(path: &Path, value: impl serde::Serialize) -> Self {
        Self::new(path, Cause::Duplicate, format!("Duplicate value: {}", show(value)))
    }

    pub fn not_found(path: &Path, value: impl serde::Serialize) -> Self {
        Self::new(path, Cause::NotFound, format!("Not found: {}", show(value)))
    }

    pub fn forbidden(path: &Path, detail: &str) -> Self {
        Self::new(path, Cause::Forbidden, format!("Forbidden: {detail}"))
    }

    pub fn too_long(path: &Path, max_bytes: usize) -> Self {
        Self::new(path, Cause::TooLong, format!("Too long: may not be more than {max_bytes} bytes"))
    }

    pub fn too_many(path: &Path, count: usize, max: usize) -> Self {
        Self::new(path, Cause::TooMany, format!("Too many: {count}: must have at most {max} items"))
    }

    pub fn type_invalid(path: &Path, value: impl serde::Serialize, detail: &str) -> Self {
        Self::new(path, Cause::TypeInvalid, format!("Invalid value: {}: {detail}", show(value)))
    }
}

/// All that is wrong with an object.
pub type Errors = Vec<FieldError>;
