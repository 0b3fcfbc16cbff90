//! Tests of the store: one list of behaviours for every backend, and what the embedded one must survive.

mod behaviour;
mod changes;
mod durability;
mod embedded;
mod etcd;
mod faults;
mod losses;
mod members;
mod room;
mod transfer;
mod watch_cache;
