//! apiserver

pub mod auth;
