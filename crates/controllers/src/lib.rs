//! The controllers, one file each. [`run`] starts them.

pub mod bootstrap_signer;
pub mod certificates;
pub mod deployment;
mod discovery;
pub mod disruption;
mod endpoint;
pub mod endpoints;
pub mod endpointslice;
pub mod endpointslice_mirroring;
pub mod garbage;
pub mod namespace;
mod node_conditions;
pub mod node_ipam;
pub mod node_lifecycle;
mod on_node;
pub mod pod_garbage;
mod pod_rank;
mod pod_template;
mod portion;
pub mod replicaset;
pub mod root_ca;
mod run;
pub mod service_account_token;
pub mod serviceaccount;
mod slice_packing;
pub mod taint_eviction;
pub mod token_cleaner;

pub use run::{Options, names, run};
