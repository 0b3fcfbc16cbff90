//! How components talk to the API server: a `kube::Client` over TLS or over a function call, shared caches,
//! the event recorder and leader election.

pub mod cache;
pub mod caches;
pub mod slices;

pub use cache::{Cache, Change, Key};
pub use caches::{Caches, Kind};
pub use kube::{Api, Client};
