//! Pages about the server itself, which are no objects: discovery, OpenAPI, health, metrics, version, and the token issuer's keys.

pub mod debug;
pub mod discovery;
pub mod health;
pub mod index;
pub mod issuer;
pub mod metrics;
pub mod openapi;
pub mod started;
pub mod version;
pub mod zpages;
