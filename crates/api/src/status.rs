//! Errors as clients see them: `metav1.Status` with upstream's codes, reasons and messages. This is the one conversion
//! from any failure to what goes over the wire.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, Status, StatusCause, StatusDetails};

use std::{borrow::Cow, collections::HashSet};

use crate::codec::bounds::{self, MESSAGE_MAX, Room};
use crate::validation::field::FieldError;

/// A failed request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct StatusError {
    pub code: u16,
    /// `metav1.StatusReason`, such as `NotFound`.
    pub reason: Cow<'static, str>,
    pub message: String,
    pub details: Option<Box<StatusDetails>>,
    /// Where a list that cannot go on as it began can go on nevertheless.
    pub continue_token: Option<Box<str>>,
    /// Told to the client beside it, as `Warning` headers.
    pub warnings: Vec<String>,
}

/// `pods` or `deployments.apps`, as messages name a resource.
fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

fn details(group: &str, kind: &str, name: &str) -> StatusDetails {
    let some = |s: &str| (!s.is_empty()).then(|| s.to_owned());
    StatusDetails { group: some(group), kind: some(kind), name: some(name), ..Default::default() }
}

impl StatusError {
    /// Of a message beyond [`MESSAGE_MAX`] only the beginning is kept.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX {
            message = bounds::cut(&message, MESSAGE_MAX).into_owned();
        }
        StatusError {
            code,
            reason: Cow::Borrowed(reason),
            message,
            details: None,
            continue_token: None,
            warnings: Vec::new(),
        }
    }

    fn about(mut self, details: StatusDetails) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same, told beside these warnings.
    #[must_use]
    pub fn beside(mut self, mut warnings: Vec<String>) -> Self {
        warnings.append(&mut self.warnings);
        StatusError { warnings, ..self }
    }

    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", qualified(group, plural)))
            .about(details(group, plural, name))
    }

    /// No such path or resource type.
    pub fn no_route() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").about(StatusDetails::default())
    }

    /// Objects of this kind do not take the verb.
    pub fn unsupported(group: &str, plural: &str, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", qualified(group, plural));
        Self::new(405, "MethodNotAllowed", message).about(details(group, plural, ""))
    }

    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", qualified(group, plural)))
            .about(details(group, plural, name))
    }

    pub fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(group, plural));
        Self::new(409, "Conflict", message).about(details(group, plural, name))
    }

    /// The object was written by somebody else in between.
    pub fn modified(group: &str, plural: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, plural, name, why)
    }

    /// Names as many errors as an answer has room for, and how many there are besides.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let (mut list, mut causes, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut room = Room::new();
        for error in errors {
            let text = error.to_string();
            if !room.take(text.len()) {
                break;
            }
            causes.push(StatusCause {
                field: Some(error.path.to_string()),
                message: Some(error.detail.clone()),
                reason: Some(error.cause.reason().to_owned()),
            });
            if seen.insert(text.clone()) {
                list.push(text);
            }
        }
        if causes.len() < errors.len() {
            list.push(format!("and {} more errors", errors.len() - causes.len()));
        }
        let what = match list.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut about = details(group, kind, name);
        about.causes = Some(causes);
        Self::new(422, "Invalid", format!("{} \"{name}\" is invalid: {what}", qualified(group, kind))).about(about)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// `message` says who may not do what, see the authorizer.
    pub fn forbidden(group: &str, plural: &str, name: &str, message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message).about(details(group, plural, name))
    }

    /// The revision asked for is gone: list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(406, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: {}", message.into()))
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let about = StatusDetails { retry_after_seconds: Some(retry_after_seconds), ..Default::default() };
        Self::new(429, "TooManyRequests", message).about(about)
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// There is no room to keep what the request brings.
    pub fn insufficient_storage(message: impl Into<String>) -> Self {
        Self::new(507, "InsufficientStorage", message)
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let about = StatusDetails {
            causes: Some(vec![StatusCause { message: Some(message.to_string()), ..Default::default() }]),
            ..Default::default()
        };
        Self::new(500, "InternalError", format!("Internal error occurred: {message}")).about(about)
    }

    /// The object that goes over the wire.
    pub fn to_status(&self) -> Status {
        Status {
            status: Some("Failure".to_owned()),
            code: Some(i32::from(self.code)),
            reason: Some(&*self.reason).filter(|reason| !reason.is_empty()).map(str::to_owned),
            message: Some(self.message.clone()),
            details: self.details.as_deref().cloned(),
            metadata: ListMeta { continue_: self.continue_token.as_deref().map(str::to_owned), ..Default::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::field::Path;

    #[test]
    fn answers_name_as_many_errors_as_they_have_room_for() {
        let path = |i| Path::new("spec").child("ports").index(i).child("name");
        let errors: Vec<FieldError> = (0..100_000).map(|i| FieldError::required(&path(i), "")).collect();
        let error = StatusError::invalid("", "Pod", "a", &errors);
        assert!(error.message.starts_with("Pod \"a\" is invalid: [spec.ports[0].name: Required value, spec.ports[1]"));
        assert!(error.message.ends_with("Required value, and 99000 more errors]"), "{}", error.message.len());
        assert_eq!(error.details.and_then(|d| d.causes).map(|c| c.len()), Some(1000));
        let large = "x".repeat(1_000_000);
        let errors = vec![FieldError::invalid(&Path::new("a").key(&large), &large, "no"); 1000];
        let error = StatusError::invalid("", "Pod", "a", &errors);
        assert!(error.message.len() < 2 * MESSAGE_MAX);
        assert!(StatusError::bad_request(large.clone() + &large).message.len() < 2 * MESSAGE_MAX);
    }
}
