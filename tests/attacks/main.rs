//! An attacker's notebook: a real server process over TLS, and clients that may do little: users with few rights, nodes,
//! a bootstrap token, and nobody at all. One file for each class of attack; each test starts a server of its own.
//!
//! The binary is the one that cargo built for this test, or `$SKIFF` when that is set. Nothing here needs root, an engine
//! or a network beyond loopback.

mod caller;
mod server;

mod audited;
mod bounds;
mod certificates;
mod connections;
mod credentials;
mod escalation;
mod first_hour;
mod identity;
mod issuers;
mod passing;
mod pod_security;
mod proxies;
mod requests;
