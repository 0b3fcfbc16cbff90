//! The folders of volumes: made, and removed with what is mounted in them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use files::modes;

use crate::volumes::{
    error::{VolumeError, file_error},
    folder::blocking,
    mounter::Mounter,
};

/// Makes the folder of a volume. Those above it let nobody in but the node: the modes inside are the Pod's.
pub fn make(path: &Path) -> Result<(), VolumeError> {
    let parent = path.parent().unwrap_or(path);
    modes::folder(parent, modes::NODE_FOLDER).map_err(file_error(parent))?;
    modes::make(path, modes::SEEN_FOLDER).map_err(file_error(path))
}

/// Unmounts what is mounted at and below a folder, then removes it. A folder from which something could not be
/// unmounted is not emptied. Nothing is asked of the folder before: what is mounted there may not answer.
pub async fn remove(path: PathBuf, mounter: Arc<dyn Mounter>) -> Result<(), VolumeError> {
    let work = move || mounter.unmount(&path).and_then(|()| files::remove(&path)).map_err(file_error(&path));
    blocking(work).await
}
