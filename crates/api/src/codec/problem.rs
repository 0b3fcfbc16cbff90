//! Why bytes could not be read, in whatever encoding they are.

use crate::status::StatusError;

/// Why bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{0}")]
    Syntax(String),
    #[error("{0}")]
    Type(String),
    #[error("{0}")]
    TooLarge(String),
}

impl Problem {
    /// As the client sees it, who is told what was read: `error decoding patch`.
    pub(crate) fn about(self, what: &str) -> StatusError {
        match self {
            Problem::TooLarge(why) => StatusError::too_large(why),
            Problem::Syntax(why) | Problem::Type(why) => StatusError::bad_request(format!("{what}: {why}")),
        }
    }
}
