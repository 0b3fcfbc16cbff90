//! Paths inside volumes and below the folders that a node sets aside.

use crate::validation::field::{Errors, FieldError, Path};

/// A path that does not lead upwards.
pub(crate) fn no_backsteps(text: &str, path: &Path) -> Option<FieldError> {
    text.split('/').any(|part| part == "..").then(|| FieldError::invalid(path, text, "must not contain '..'"))
}

/// A path inside a volume that cannot leave it.
pub(crate) fn relative_path(text: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    errors.extend(no_backsteps(text, path));
    errors
}
