//! Files and folders of a machine on which strangers' programs run: with which mode each is made ([`modes`]), and work
//! below folders that a container can write ([`beneath`]). Files of an administrator's are followed while they change ([`followed`]).

pub mod beneath;
pub mod followed;
pub mod modes;
pub mod mounts;

use std::{io, path::Path};

pub use beneath::Dir;

/// Removes a file, or a folder with all that is in it. No link is followed, and what is mounted somewhere below is not
/// entered: the removal fails there. Succeeds when nothing is there.
pub fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this path names no entry of a folder"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match Dir::open(parent) {
        Ok(parent) => parent.remove(name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
