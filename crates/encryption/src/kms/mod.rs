//! KMS plugins, version 2: programs beside the server that encrypt and decrypt the seeds from which the keys of values are
//! made. A plugin is asked when the server starts, when its key changes, and for each seed that this server has not met yet:
//! never for a single value.
//!
//! The way to the plugin is the caller's: this crate speaks no gRPC.
//! Upstream counterpart: apiserver/pkg/storage/value/encrypt/envelope/kmsv2.

mod envelope;
mod figures;
mod known_keys;
mod plugin;
mod seed;

use std::{path::PathBuf, sync::Arc};

use clock::Duration;
use futures::future::BoxFuture;

pub use envelope::Wrapped;
pub use plugin::{Locked, Plugin, figures};

/// The beginning of the values of every plugin; the name of the plugin and a colon follow.
pub const PREFIX: &str = "k8s:enc:kms:v2:";

/// Where a plugin listens, and how long an answer may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub socket: PathBuf,
    pub limit: Duration,
}

/// A plugin's answer about itself, as it gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    pub version: String,
    pub healthz: String,
    pub key_id: String,
}

/// The calls of a plugin. An error is in the words of gRPC for Go, and its code stands apart for the figures.
pub trait Service: Send + Sync {
    fn status(&self) -> BoxFuture<'_, Result<Status, Failure>>;
    /// The plaintext encrypted with the plugin's key of now.
    fn encrypt(&self, uid: String, plaintext: Vec<u8>) -> BoxFuture<'_, Result<Wrapped, Failure>>;
    fn decrypt(&self, uid: String, wrapped: Wrapped) -> BoxFuture<'_, Result<Vec<u8>, Failure>>;
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// gRPC's name of the code: `Unavailable`.
    pub code: String,
    pub words: String,
}

/// Opens the way to a plugin. Nothing is asked yet.
pub type Connect<'a> = &'a (dyn Fn(&Endpoint) -> Arc<dyn Service> + Send + Sync);

#[cfg(test)]
mod tests;
