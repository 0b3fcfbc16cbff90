//! The kernel's settings of the network: files of `/proc/sys/net`, which are those of the thread's namespace.

use std::{fs, io, path::Path};

/// Sets one. A setting that is as it must be is not written: in some sandboxes nobody may.
pub fn set(file: &Path, value: &str) -> io::Result<()> {
    if fs::read_to_string(file).is_ok_and(|held| held.trim() == value) {
        return Ok(());
    }
    fs::write(file, format!("{value}\n"))
}
