//! Authentication and authorization: users, the attributes of a request, and the verdicts of authorizers.
//!
//! Authentication answers the first question with a [`User`], an [`Authorizer`] the second with a [`Verdict`].

pub mod authn;
pub mod authorizer;
pub mod credentials;
pub mod header;
pub mod impersonation;
pub mod node;
pub mod rbac;
pub mod request;
pub mod user;

pub use authorizer::{AlwaysAllow, Authorizer, Rules, Union, Verdict};
pub use request::{Attributes, Selected, forbidden};
pub use user::User;
