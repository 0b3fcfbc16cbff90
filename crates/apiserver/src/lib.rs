//! The API server: one pipeline for every kind, over the store, for clients on the network and in this process.
//!
//! `chain` is the way of a request from top to bottom, `pipeline` has one file per verb, `kinds` says what is served,
//! `feed` turns the store's changes into watch events, `object` is the form in which objects are stored and served.
//! What a kind does beyond the common verbs is an entry in the table of `special`.

pub mod access;
pub mod admission;
pub mod allocation;
pub mod assemble;
#[cfg(test)]
mod assembled;
pub mod auth;
pub mod body;
pub mod bootstrap;
mod chain;
pub mod connect;
pub mod core;
mod discovery;
#[cfg(test)]
mod fake;
pub mod feed;
mod filter;
pub mod health;
mod inside;
pub mod issuer;
pub mod kinds;
mod large;
mod listen;
mod metrics;
pub mod mirror;
pub mod object;
mod openapi;
pub mod options;
mod pieces;
mod pipeline;
mod places;
mod pretty;
pub mod request;
pub mod respond;
pub mod review;
mod route;
pub mod server;
pub mod special;
pub mod specials;
mod view;

pub use crate::core::Core;
pub use assemble::{Options, assemble};
pub use auth::User;
pub use listen::Listening;
pub use server::{Config, Server};

#[cfg(test)]
mod conversation;
#[cfg(test)]
mod conversations;
#[cfg(test)]
mod exchanges;
