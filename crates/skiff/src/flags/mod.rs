//! Flags, their values and the configuration file. Work that is done with them does not belong here.

pub mod admission;
pub mod audit;
pub mod authentication;
pub mod authorization;
pub mod config_file;
pub mod encryption;
pub mod etcd;
pub mod evictions;
pub mod front_proxy;
pub mod image_credentials;
pub mod in_flight;
pub mod kube_proxy;
pub mod kubelet_config;
pub mod kubelet_flags;
pub mod logging;
pub mod lost_nodes;
pub mod node_ranges;
pub mod options;
pub mod ranges;
pub mod service_accounts;
pub mod serving;
pub mod switches;
pub mod tracing;
pub mod value;
pub mod volumes;
pub mod web;
