//! How components talk to the API server: a `kube::Client` over TLS or over a function call, shared caches,
//! the event recorder and leader election.

pub mod api;
pub mod cache;
pub mod caches;
pub mod candidacy;
pub mod connect;
pub mod election;
pub mod events;
pub mod object;
pub mod reflector;
pub mod rest;
pub mod slices;

pub use api::Api;
pub use cache::{Cache, Change, Key};
pub use caches::Caches;
pub use connect::{from_config, from_kubeconfig, in_process, server_list};
pub use events::{EventKind, EventRecorder};
pub use kube::Client;
pub use object::{Kind, Object};
pub use reflector::Sink;
