//! Secrets at rest: values encrypted below the API server's line, as upstream's `EncryptionConfiguration` says.
//!
//! [`encrypted::Encrypted`] is a store over a store. Everything above it sees values as they are; what the store below
//! keeps, in memory, in its files or in etcd, is encrypted in upstream's forms, so that either server reads what the other
//! wrote with the same keys.

mod cipher;
pub mod configuration;
pub mod encrypted;
mod file;
pub mod kms;
mod opened;
mod provider;
pub mod rewrite;
mod table;
mod transformations;
mod validation;
mod way;

pub use encrypted::{Current, Encrypted};
pub use table::Table;

#[cfg(test)]
mod tests;
