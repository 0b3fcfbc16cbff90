//! Tests of the whole server in one process, and what they are made of.

pub mod admission;
mod aggregated;
mod assembled;
pub mod conversation;
mod conversations;
mod custom;
mod encodings;
mod exchanges;
mod extension;
pub mod objects;
