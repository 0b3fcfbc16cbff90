//! Pages about the server itself, which are no objects: discovery, OpenAPI, health, metrics, and the token issuer's keys.

pub mod discovery;
pub mod health;
pub mod issuer;
pub mod metrics;
pub mod openapi;
