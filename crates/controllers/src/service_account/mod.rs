//! Controllers that give every namespace what Pods need to talk to the API server: an account, its tokens, the CA.
//! How a token is signed is not known here.

pub mod default;
pub mod legacy_tokens;
pub mod root_ca;
pub mod tokens;
