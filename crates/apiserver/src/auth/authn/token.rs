//! Bearer tokens: the sorts there are, and the identity that a token stands for.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::auth::User;

/// The user that a bearer token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: Arc<User>,
    /// The audiences that the token is for and that were asked for; empty for tokens that know no audience.
    pub audiences: Vec<String>,
    /// The notes about its use for the audit.
    pub notes: Vec<Note>,
}

/// An annotation of the audit event: its key, and its text.
pub type Note = (&'static str, String);

/// A credential that is not accepted; the text is for the log and for `TokenReview`.
pub type Rejected = String;

/// A token that is not accepted, with the notes for the audit about that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: Rejected,
    pub notes: Vec<Note>,
}

impl From<Rejected> for Refusal {
    fn from(why: Rejected) -> Self {
        Refusal { why, notes: Vec::new() }
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// A sort of bearer token. `Ok(None)`: not one of mine.
pub trait Tokens: Send + Sync {
    fn check<'a>(&'a self, token: &'a str, audiences: &'a [String])
    -> BoxFuture<'a, Result<Option<Identity>, Refusal>>;
}

/// Compares without telling by its duration where the difference is.
pub(crate) fn same_secret(a: &str, b: &str) -> bool {
    let difference = a.bytes().zip(b.bytes()).fold(0u8, |d, (x, y)| d | (x ^ y));
    a.len() == b.len() && difference == 0
}
