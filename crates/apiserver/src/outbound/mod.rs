//! Connections that the API server opens itself. The meaning of a request, and whether it may go there, is not known here.

pub mod dialer;
pub mod endpoint;
pub mod service;
