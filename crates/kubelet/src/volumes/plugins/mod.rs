//! The sorts of volumes, one file each. The part that is common to those whose files the kubelet writes is
//! [`content`](crate::volumes::content).

mod config_map;
mod csi;
mod downward_api;
mod empty_dir;
mod host_path;
mod persistent_claim;
mod projected;
mod secret;

use crate::volumes::plugin::Plugin;

pub const PLUGINS: &[&dyn Plugin] = &[
    &empty_dir::EmptyDir,
    &config_map::ConfigMap,
    &secret::Secret,
    &downward_api::DownwardApi,
    &projected::Projected,
    &host_path::HostPath,
    &persistent_claim::PersistentClaim,
    &csi::Csi,
];
