//! Why a request did not bring what was asked for, and why there is no way to ask.

use std::{io, path::PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;
use serde::Deserialize;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered, and says no.
    #[error("{0}")]
    Api(Box<Status>),
    /// There is no answer, or not all of it.
    #[error(transparent)]
    Transport(BoxError),
    /// The answer is not what was asked for.
    #[error("the server's answer cannot be read: {0}")]
    Decode(serde_json::Error),
}

impl Error {
    /// An error of the transport, or the client's own error that a transport passed on.
    pub fn transport(error: impl Into<BoxError>) -> Self {
        // A client that calls another one passes its error on.
        error.into().downcast::<Error>().map_or_else(Error::Transport, |known| *known)
    }
}

/// The content of a `metav1.Status` about a failure.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, thiserror::Error)]
#[error("{}", self.sentence())]
#[serde(default)]
pub struct Status {
    pub code: u16,
    /// `metav1.StatusReason`, such as `NotFound`.
    pub reason: String,
    pub message: String,
    pub details: Option<Box<StatusDetails>>,
}

impl Status {
    /// From the body of an answer with this code. A body that is no `Status` becomes its message.
    pub fn read(code: u16, body: &[u8]) -> Self {
        let read = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body).trim().to_owned(),
            ..Status::default()
        });
        Status { code, ..read }
    }

    /// Whether a reason of this name stands among the causes.
    pub fn is_caused_by(&self, reason: &str) -> bool {
        let mut causes = self.details.iter().flat_map(|details| details.causes.iter().flatten());
        causes.any(|cause| cause.reason.as_deref() == Some(reason))
    }

    /// Whether the server has nothing that follows a revision: its history has been forgotten, or it has not been reached and may
    /// be of a store that the cluster had before.
    pub fn asks_for_a_list(&self) -> bool {
        self.code == 410 || self.is_caused_by("ResourceVersionTooLarge")
    }

    fn sentence(&self) -> String {
        match (self.message.as_str(), self.reason.as_str()) {
            ("", "") => format!("the server answered {}", self.code),
            ("", reason) => format!("the server answered {}: {reason}", self.code),
            (message, _) => message.to_owned(),
        }
    }
}

/// Why a kubeconfig gives no client.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot use the kubeconfig {}", path.display())]
    InFile { path: PathBuf, source: Box<ConfigError> },
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("it is not valid YAML")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    /// A sentence about what stands in it.
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Tls(#[from] pki::PkiError),
}

pub(crate) fn wrong(sentence: impl Into<String>) -> ConfigError {
    ConfigError::Wrong(sentence.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_fails_has_a_sentence() {
        let check = |code: u16, body: &str, reason: &str, sentence: &str| {
            let status = Status::read(code, body.as_bytes());
            let said = (status.code, status.reason.clone(), Error::Api(Box::new(status)).to_string());
            assert_eq!(said, (code, reason.to_owned(), sentence.to_owned()), "{body}");
        };
        let gone = r#"{"kind":"Status","code":404,"reason":"NotFound","message":"pods \"a\" not found","metadata":{}}"#;
        check(404, gone, "NotFound", "pods \"a\" not found");
        check(409, r#"{"reason":"Conflict"}"#, "Conflict", "the server answered 409: Conflict");
        check(502, "upstream is down\n", "", "upstream is down");
        check(503, "", "", "the server answered 503");
        check(200, r#"{"message":null}"#, "", "{\"message\":null}");
    }

    #[test]
    fn an_error_that_is_passed_on_stays_what_it_is() {
        let inner = Error::Api(Box::new(Status::read(409, b"{}")));
        let outer = Error::transport(BoxError::from(inner));
        assert!(matches!(outer, Error::Api(status) if status.code == 409));
    }
}
