//! Secrets on disk: written whole or not at all, readable by their owner alone.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use files::modes;

use crate::{Credential, PkiError, Result, Serving, inspect, tls};

/// Replaces `path` atomically, with mode 0600.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |doing, source| PkiError::Io { doing, path: path.to_owned(), source };
    let folder = files::folder_of(path);
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
    modes::keep_name(path).map_err(|e| failed("write", e))
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

/// The certificates of authorities in a file that must be there, PEM.
pub fn authorities(path: &Path) -> Result<String> {
    let text = required(path)?;
    inspect::chain(&text).map_err(|e| e.in_file(path))?;
    Ok(text)
}

/// A certificate and its key in two files that must be there.
pub fn credential(certificate: &Path, key: &Path) -> Result<Credential> {
    let read = Credential { certificate: required(certificate)?, key: required(key)? };
    inspect::chain(&read.certificate).map_err(|e| e.in_file(certificate))?;
    tls::private_key(&read.key).map_err(|e| e.in_file(key))?;
    match Serving::new(&read) {
        Ok(_) => Ok(read),
        Err(_) => {
            let why = format!("it is not the key of {}", certificate.display());
            Err(PkiError::broken(key.display().to_string(), why))
        }
    }
}

fn required(path: &Path) -> Result<String> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    read(path)?.ok_or_else(|| PkiError::Io { doing: "read", path: path.to_owned(), source: missing() })
}

/// The content, or `None` when there is no such file.
pub fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Io { doing: "read", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Subject};

    #[test]
    fn files_that_users_name_are_named_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, content: &str| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let authority = Authority::create("a").unwrap();
        let issued = authority.issue(&Subject::client("c", None)).unwrap();
        let (good, key) = (place("good.crt", &issued.certificate), place("good.key", &issued.key));
        let (empty, other) = (place("empty", ""), place("other.key", authority.key()));
        assert!(authorities(&good).is_ok() && credential(&good, &key).is_ok());
        let check = |wrong: Result<()>, path: &Path, expected: &str| {
            let said = wrong.unwrap_err().sentence();
            assert!(said.contains(&path.display().to_string()) && said.contains(expected), "{said}");
        };
        check(authorities(&empty).map(drop), &empty, "it holds no certificate");
        check(authorities(&key).map(drop), &key, "it holds no certificate");
        check(credential(&empty, &key).map(drop), &empty, "it holds no certificate");
        check(credential(&good, &empty).map(drop), &empty, "is broken");
        check(credential(&good, &other).map(drop), &other, "it is not the key of");
        let gone = folder.path().join("gone");
        check(authorities(&gone).map(drop), &gone, "cannot read");
    }
}
