//! The built binary starts, or says in one sentence what is wrong, where, and what to do.
//!
//! Everything listens on 127.0.0.1, in folders of its own.

mod at_rest;
mod benchmark;
mod etcd;
mod files;
mod flags;
mod looking_in;
mod room;
mod skiff;
