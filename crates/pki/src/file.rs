//! Secrets on disk: written whole or not at all, readable by their owner alone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use files::modes;

use crate::{PkiError, Result};

/// Replaces `path` atomically, with mode 0600.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |doing, source| PkiError::Io { doing, path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    make_folder(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}", clock::name_suffix(8)));
    let written = (|| {
        let mut file = modes::create_new(&temporary, modes::PRIVATE_FILE)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if let Err(source) = written {
        // The half-written file is of no use to anybody; that it can't be removed either changes nothing.
        let _ = fs::remove_file(&temporary);
        return Err(failed("write", source));
    }
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| failed("write", e))
}

/// As [`write`], but a file that holds the content already is left alone: it needs no room on the disk.
pub fn keep(path: &Path, content: &[u8]) -> Result<()> {
    let right = |file: fs::Metadata| file.is_file() && file.permissions().mode() & 0o777 == modes::PRIVATE_FILE;
    if fs::symlink_metadata(path).is_ok_and(right) && fs::read(path).is_ok_and(|held| held == content) {
        return Ok(());
    }
    write(path, content)
}

/// Makes a folder that only its owner can enter; an existing one is left as it is.
pub fn make_folder(folder: &Path) -> Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let failed = |source| PkiError::Io { doing: "make the folder", path: folder.to_owned(), source };
    modes::make(folder, modes::PRIVATE_FOLDER).map_err(failed)
}

/// The content, or `None` when there is no such file.
pub fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Io { doing: "read", path: path.to_owned(), source }),
    }
}
