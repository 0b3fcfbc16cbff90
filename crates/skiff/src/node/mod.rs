//! A node before its components start: its address, its certificates and its place in a cluster. The components are wired
//! in `commands`, not here.

pub mod address;
pub mod alone;
pub mod certificate;
pub mod certificate_figures;
pub mod certificate_purpose;
pub mod domains;
pub mod join;
pub mod oom;
