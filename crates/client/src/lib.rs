//! How components talk to the API server: a client over TLS or over a function call, shared caches,
//! the event recorder and leader election.

pub mod api;
pub mod body;
pub mod cache;
pub mod caches;
pub mod candidacy;
pub mod config;
pub mod connect;
pub mod election;
pub mod error;
pub mod events;
pub mod handover;
pub mod kubeconfig;
pub mod metrics;
pub mod reflector;
mod remote;
pub mod rest;
pub mod shown;
pub mod slices;

pub use ::api::object;
pub use api::Api;
pub use body::Body;
pub use cache::{Cache, Change, Changes, Following, Key};
pub use caches::Caches;
pub use config::Config;
pub use connect::{Client, from_config, from_kubeconfig, in_process, server_list};
pub use error::{ConfigError, Error};
pub use events::{EventKind, EventRecorder};
pub use kubeconfig::Kubeconfig;
pub use object::{Kind, Object};
pub use reflector::Sink;
pub use shown::Shown;
