//! Tests of the whole server in one process, and what they are made of.

pub mod admission;
mod aggregated;
pub mod assembled;
mod at_hand;
mod at_rest;
mod authentication;
mod authorization;
mod by_kubeconfig;
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
pub mod hook;
pub mod idp;
pub mod objects;
mod older;
pub mod over_tls;
mod tokens;
mod webhooks;
mod websockets;
