//! Why a volume is not there.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use crate::pod::spec::downward::DownwardError;

/// The step at which options are refused that a volume cannot have.
pub const OPTIONS_STEP: &str = "MountVolume.MountOptionSupport check";

/// The step at which a device is refused that other nodes have.
pub const DEVICE_AFFINITY_STEP: &str = "MapVolume.NodeAffinity check";

/// The text goes into a `FailedMount` event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("{}references non-existent {kind} key: {key}", if *kind == "config" { "configmap " } else { "" })]
    MissingKey { kind: &'static str, key: String },
    #[error("path {0:?} must stay inside the volume")]
    Path(String),
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPath { path: String, wanted: &'static str },
    #[error("error processing PVC {claim}: {why}")]
    Claim { claim: String, why: String },
    #[error("volumes of this kind are not supported: {0}")]
    Unsupported(String),
    #[error("{why}")]
    Step { step: &'static str, volume: String, why: String },
    #[error("unmounted volumes=[{0}], unattached volumes=[], failed to process volumes=[]: context deadline exceeded")]
    Unattached(String),
    #[error("the node has no place for one more volume of its driver: {0}")]
    Exhausted(String),
    #[error("{why}")]
    Expansion { volume: String, why: String },
    /// The medium of an emptyDir cannot be had.
    #[error("{0}")]
    Medium(String),
    #[error("{0}")]
    Downward(#[from] DownwardError),
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    TrustBundle(String),
    #[error("cannot ask the API server: {0}")]
    Api(String),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

pub fn file_error(path: &Path) -> impl Fn(io::Error) -> VolumeError + use<> {
    let path = path.to_owned();
    move |source| VolumeError::File { path: path.clone(), source }
}

/// A volume that could not be mounted.
#[derive(Debug)]
pub struct MountError {
    /// The name of the PersistentVolume, if there is one, or of the volume in its Pod.
    pub volume: String,
    pub source: VolumeError,
}

impl VolumeError {
    /// It is about a device, not about files.
    pub fn is_of_device(&self) -> bool {
        matches!(self, VolumeError::Step { step, .. } if step.starts_with("MapVolume"))
    }
}

impl MountError {
    /// The reasons of the events about it.
    pub fn reasons(&self) -> &'static [&'static str] {
        match &self.source {
            VolumeError::Step { step: DEVICE_AFFINITY_STEP, .. } => &["FailedMount"],
            source if source.is_of_device() => &["FailedMapVolume"],
            VolumeError::Step { step: OPTIONS_STEP, .. } => &["UnsupportedMountOption", "FailedMount"],
            _ => &["FailedMount"],
        }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MountError { volume, source } = self;
        match source {
            VolumeError::Step { step, volume, why } => write!(f, "{step} failed for volume \"{volume}\" : {why}"),
            VolumeError::Expansion { volume, why } => {
                write!(f, "MountVolume.Setup failed while expanding volume for volume \"{volume}\" : {why}")
            }
            VolumeError::Unattached(_) | VolumeError::Exhausted(_) => {
                write!(f, "Unable to attach or mount volumes: {source}")
            }
            _ => write!(f, "MountVolume.SetUp failed for volume \"{volume}\" : {source}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_have_the_reason_of_the_step() {
        let check = |step: &'static str, expected: &[&str]| {
            let source = VolumeError::Step { step, volume: "pv".into(), why: "no".into() };
            let error = MountError { volume: "pv".into(), source };
            assert_eq!(error.reasons(), expected, "{step}");
            assert_eq!(error.to_string(), format!("{step} failed for volume \"pv\" : no"));
        };
        check("MountVolume.SetUp", &["FailedMount"]);
        check("MapVolume.SetUpDevice", &["FailedMapVolume"]);
        check(DEVICE_AFFINITY_STEP, &["FailedMount"]);
        check(OPTIONS_STEP, &["UnsupportedMountOption", "FailedMount"]);
    }
}
