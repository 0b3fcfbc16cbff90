//! Tests of the whole server in one process, and what they are made of.

mod assembled;
pub mod conversation;
mod conversations;
mod exchanges;
pub mod objects;
