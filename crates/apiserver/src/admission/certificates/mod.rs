//! The plugins about requests for certificates and about authorities: who asks, who approves, who signs, and whom to believe.
//!
//! Signers are names without objects of their own; the right to act for one is in [`signer`].

pub mod approval;
pub mod cluster_trust_bundle_attest;
pub mod pod_request;
pub mod request;
#[cfg(test)]
mod scene;
mod signer;
pub mod signing;
pub mod subject_restriction;
