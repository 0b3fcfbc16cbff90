//! The API server: one pipeline for every kind, over the store, for clients on the network and in this process.
//!
//! `chain` is the way of a request from top to bottom, `pipeline` has one file per verb, `kinds` says what is served,
//! `feed` turns the store's changes into watch events, `object` is the form in which objects are stored and served.
//! What a kind does beyond the common verbs is an entry in the table of `special`.

pub mod admission;
pub mod allocation;
pub mod assemble;
pub mod auth;
pub mod bootstrap;
pub mod http;
pub mod pages;
mod pipeline;
pub mod server;
pub mod special;
pub mod storage;
pub mod watch_dispatch;

#[cfg(test)]
mod tests;

pub use assemble::{Options, assemble};
pub use auth::User;
pub use http::listen::Listening;
pub use server::{Config, Server};
pub use storage::core::Core;
