//! Access to the keys: which other users of this machine could read or change them.
//!
//! A folder that others may enter and keys that others may read are closed, and that is said: whether somebody has read
//! them only their owner can know. Files of another user are refused, since that user can change them at any time.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use files::modes;

use crate::{PkiError, Result};

/// Looks at the folder and at each key in it.
pub fn close(folder: &Path) -> Result<()> {
    let failed = |source| PkiError::Io { doing: "look into", path: folder.to_owned(), source };
    close_one(folder, &fs::metadata(folder).map_err(failed)?)?;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "key")
            && let Ok(file) = fs::metadata(&path)
        {
            close_one(&path, &file)?;
        }
    }
    Ok(())
}

fn close_one(path: &Path, file: &Metadata) -> Result<()> {
    let refused = |why: String| Err(PkiError::Access { path: path.to_owned(), why });
    let own = nix::unistd::geteuid().as_raw();
    if file.uid() != own && file.uid() != 0 {
        return refused(format!(
            "it belongs to user {}, who could change it; give it to the user that skiff runs as (`chown {own}`)",
            file.uid()
        ));
    }
    let mode = file.mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    if let Err(error) = modes::narrow(path, modes::PRIVATE_FOLDER) {
        return refused(format!(
            "other users of this machine can open it (mode {mode:03o}), and that cannot be changed: {error}"
        ));
    }
    tracing::warn!(
        "other users of this machine could open {} (mode {mode:03o}); it is closed now: if one of them may have read the \
         keys, make new ones",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn keys_are_closed_and_certificates_stay_readable() {
        let folder = tempfile::tempdir().unwrap();
        let (key, certificate) = (folder.path().join("ca.key"), folder.path().join("ca.crt"));
        for (path, open) in [(&key, 0o644), (&certificate, 0o644)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        close(folder.path()).unwrap();
        assert_eq!((mode(folder.path()), mode(&key), mode(&certificate)), (0o700, 0o600, 0o644));
        close(folder.path()).unwrap();
    }

    #[test]
    fn a_strangers_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("ca.key");
        fs::write(&key, "x").unwrap();
        if std::os::unix::fs::chown(&key, Some(12345), None).is_err() {
            eprintln!("SKIPPED: only root can give a file away");
            return;
        }
        let said = close(folder.path()).unwrap_err().to_string();
        assert!(said.contains("ca.key: it belongs to user 12345") && said.contains("chown"), "{said}");
    }
}
