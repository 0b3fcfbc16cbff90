//! The sorts of volumes, one file each. The part that is common to those whose files the kubelet writes is
//! [`content`](crate::volumes::content).

mod config_map;
mod csi;
mod downward_api;
mod empty_dir;
pub mod exclusive;
mod host_path;
mod image;
mod iscsi;
mod local;
mod nfs;
pub(super) mod persistent_claim;
mod projected;
mod secret;

use crate::volumes::plugin::{Plugin, Request};

pub const PLUGINS: &[&dyn Plugin] = &[
    &empty_dir::EmptyDir,
    &config_map::ConfigMap,
    &secret::Secret,
    &downward_api::DownwardApi,
    &projected::Projected,
    &host_path::HostPath,
    &image::Image,
    &nfs::Nfs,
    &iscsi::Iscsi,
    &persistent_claim::PersistentClaim,
    &csi::Csi,
];

/// Whether a volume that was mounted for the Pod alone is: after a start of the machine only its record is left.
fn is_still_mounted(request: &Request<'_>) -> bool {
    request.held.as_ref().is_some_and(|held| request.means.mounter.is_mounted(&held.path))
}
