//! Files and folders of a machine on which strangers' programs run: with which mode each is made ([`modes`]), and work
//! below folders that a container can write ([`beneath`]). Files of an administrator's are followed while they change ([`followed`]).

pub mod beneath;
pub mod followed;
pub mod modes;
pub mod mounts;

use std::{io, path::Path};

pub use beneath::Dir;

/// The folder that a path's last name is in: the current one where the path is that name alone.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes a file, or a folder with all that is in it. No link is followed, and what is mounted somewhere below is not
/// entered: the removal fails there. Succeeds when nothing is there.
pub fn remove(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this path names no entry of a folder"));
    };
    match Dir::open(folder_of(path)) {
        Ok(parent) => parent.remove(name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_name_alone_is_the_current_one() {
        for (path, folder) in [("a/b", "a"), ("/a", "/"), ("a", "."), ("./a", "."), ("/", ".")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
        }
    }
}
