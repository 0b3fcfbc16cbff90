//! Tests of the whole server in one process, and what they are made of.

pub mod admission;
mod aggregated;
pub mod assembled;
mod at_hand;
mod at_rest;
mod cbor;
pub mod conversation;
mod conversations;
mod conversion;
mod conversion_owners;
mod converter;
mod custom;
mod encodings;
mod exchanges;
mod extension;
mod generated;
mod hook;
pub mod objects;
mod older;
mod over_tls;
mod webhooks;
