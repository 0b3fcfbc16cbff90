//! Authentication and authorization: users, the attributes of a request, and the verdicts of authorizers.
//!
//! Authentication answers the first question with a [`User`], an [`Authorizer`] the second with a [`Verdict`].

pub mod abac;
pub mod authn;
pub mod authorizer;
pub mod credentials;
pub mod header;
pub mod impersonation;
pub mod metrics;
pub mod modes;
pub mod node;
pub mod rbac;
pub mod request;
pub mod user;
pub mod webhook;

pub use authorizer::{AlwaysAllow, Answer, Authorizer, Failure, Rules, Union, Verdict, known};
pub use request::{Attributes, Selected, forbidden};
pub use user::User;
