//! Where the API server's own requests go, and how they fail. Whether one may go there is not known here.

pub mod credentials;
pub mod dialer;
pub mod fetch;
mod handshake;
pub mod kubeconfig;
pub mod service;
pub mod webhook;
