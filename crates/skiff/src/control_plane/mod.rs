//! Objects and certificates that a control plane keeps while it runs. The components themselves do not belong here.

pub mod admin;
pub mod at_rest;
pub mod audit;
pub mod cluster_dns;
pub mod followed;
pub mod fresh;
pub mod front_proxy;
pub mod jwt_signer;
mod kms;
pub mod local_storage;
pub mod objects;
pub mod told;
pub mod trust;
pub mod welcome;
