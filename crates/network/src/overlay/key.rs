//! A node's keys of WireGuard: the private one in a file that root alone reads, and the public one, which is all that others see.
//! Both are written as `wg` does it, in base64.

use std::{fmt, fs, io::ErrorKind, path::Path, str::FromStr};

use base64::{Engine, engine::general_purpose::STANDARD};
use files::modes;

use crate::error::NetworkError;

/// The bytes of a key of either sort.
pub type Bytes = [u8; 32];

/// A point of Curve25519.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub Bytes);

impl FromStr for PublicKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        bytes(text).map(PublicKey).ok_or(())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number that the kernel alone computes with. Nothing prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateKey(Bytes);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(private)")
    }
}

impl PrivateKey {
    /// The form in which the kernel keeps such keys (RFC 7748, section 5).
    pub fn clamped(mut bytes: Bytes) -> Self {
        bytes[0] &= 0b1111_1000;
        bytes[31] = bytes[31] & 0b0111_1111 | 0b0100_0000;
        PrivateKey(bytes)
    }

    /// The key in the file. Where there is no file yet, it is made with a new key.
    pub fn of_node(file: &Path) -> Result<Self, NetworkError> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::make(file),
            Err(source) => return Err(NetworkError::Read { path: file.to_owned(), source }),
        };
        let failed = |source| NetworkError::Write { path: file.to_owned(), source };
        modes::narrow(file, modes::PRIVATE_FILE).map_err(failed)?;
        let bytes = bytes(text.trim_end()).ok_or_else(|| NetworkError::NoKey { path: file.to_owned() })?;
        Ok(Self::clamped(bytes))
    }

    fn make(file: &Path) -> Result<Self, NetworkError> {
        let mut bytes = [0; 32];
        clock::fill_random(&mut bytes);
        let key = Self::clamped(bytes);
        let folder = file.parent().unwrap_or(Path::new("/"));
        modes::make(folder, modes::PRIVATE_FOLDER)
            .and_then(|()| modes::replace_durably(file, modes::PRIVATE_FILE, STANDARD.encode(key.0) + "\n"))
            .map_err(|source| NetworkError::Write { path: file.to_owned(), source })?;
        Ok(key)
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

fn bytes(text: &str) -> Option<Bytes> {
    // Longer text is no key, whatever is in it.
    STANDARD.decode(text.get(..44).filter(|start| *start == text)?).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_node_keeps_its_key_and_shows_it_to_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("of/node/key");
        let key = PrivateKey::of_node(&file).unwrap();
        let other = PrivateKey::of_node(&dir.path().join("other")).unwrap();
        assert!(key != other);
        assert_eq!(key.bytes()[0] & 7, 0);
        assert_eq!(key.bytes()[31] >> 6, 1);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!((text.len(), format!("{key:?}").as_str()), (45, "(private)"));

        // An administrator's copy that others could read is closed, and the key stays.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(PrivateKey::of_node(&file).unwrap() == key);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_without_a_key_is_named_and_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(&file, "c2hvcnQ=\n").unwrap();
        let error = PrivateKey::of_node(&file).unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()) && !error.contains("c2hvcnQ"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "c2hvcnQ=\n");
    }

    #[test]
    fn public_keys_are_read_strictly() {
        // The text of `wg pubkey` for the private key of RFC 7748, section 6.1.
        let good = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert_eq!(good.parse::<PublicKey>().unwrap().to_string(), good);
        let longer = format!("{good}{good}");
        for bad in ["", "é", &good[1..], &good[..43], &longer, &format!("{good} "), &format!("{}!=", &good[..42])] {
            assert_eq!(bad.parse::<PublicKey>(), Err(()), "{bad}");
        }
        // Bits after the last byte would make two texts of one key.
        assert_eq!(good.replace("mo=", "mp=").parse::<PublicKey>(), Err(()));
    }
}
