//! The API server: one pipeline for every kind, over the store, for clients on the network and in this process.
//!
//! `http::chain` is the way of a request from top to bottom, `router` finds what serves it, `pipeline` has one file per
//! verb, `storage` holds the objects, `watch_dispatch` turns the store's changes into watch events. A kind's deeds beyond
//! the common verbs are an entry in the table of `special`. A handler reads `state` and gets a `call`; only the front door
//! (`server`, `http::chain`, `router`) knows handlers.

pub mod admission;
pub mod aggregator;
pub mod allocation;
pub mod assemble;
pub mod audit;
pub mod auth;
pub mod bootstrap;
pub mod call;
mod custom;
pub mod document;
pub mod fairness;
pub mod http;
mod outbound;
pub mod pages;
mod pipeline;
pub mod router;
pub mod server;
pub mod special;
pub mod state;
pub mod storage;
pub mod watch_dispatch;

#[cfg(test)]
mod tests;

pub use assemble::{Options, assemble};
pub use auth::User;
pub use http::listen::Listening;
pub use outbound::service::Routing;
pub use server::Server;
