//! Container images made from files, as OCI image archives that any engine imports.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use json::json;
use sha2::{Digest, Sha256};

/// One entry of an image's file system. Parent folders are made as needed.
#[derive(Debug, Clone)]
pub enum Entry {
    File { path: String, mode: u32, data: Vec<u8> },
    Link { path: String, target: String },
    Folder { path: String, mode: u32 },
}

/// The content of an image and how it starts.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    /// The full reference, such as `registry.k8s.io/pause:3.10`.
    pub reference: String,
    pub entries: Vec<Entry>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<String>,
    pub working_dir: String,
    /// `uid[:gid]`; empty is root.
    pub user: String,
}

impl Recipe {
    /// Adds a file of this machine under `path` of the image, with its mode.
    pub fn add_file(&mut self, source: &Path, path: &str) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(source)?.permissions().mode() & 0o7777;
        self.entries.push(Entry::File { path: path.to_owned(), mode, data: std::fs::read(source)? });
        Ok(())
    }

    /// Writes the archive. Equal recipes give equal bytes.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let layer = self.layer()?;
        let arch = api::rules::platform::architecture(std::env::consts::ARCH);
        let config = to_bytes(&json!({
            "architecture": arch,
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint, "Cmd": self.command, "Env": self.env,
                "WorkingDir": self.working_dir, "User": self.user,
            },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        }));
        let manifest = to_bytes(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": described("application/vnd.oci.image.config.v1+json", &config),
            "layers": [described("application/vnd.oci.image.layer.v1.tar", &layer)],
        }));
        let mut listed = described("application/vnd.oci.image.manifest.v1+json", &manifest);
        listed["platform"] = json!({ "architecture": arch, "os": "linux" });
        listed["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.reference,
        });
        let index = to_bytes(&json!({ "schemaVersion": 2, "manifests": [listed] }));
        let mut tar = Tar { out };
        tar.file("oci-layout", 0o644, &to_bytes(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        tar.file("index.json", 0o644, &index)?;
        for blob in [&config, &manifest, &layer] {
            tar.file(&format!("blobs/{}", digest(blob).replace(':', "/")), 0o644, blob)?;
        }
        tar.finish()
    }

    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut tar = Tar { out: &mut bytes };
        let mut made = std::collections::BTreeSet::new();
        for entry in &self.entries {
            let (Entry::File { path, .. } | Entry::Link { path, .. } | Entry::Folder { path, .. }) = entry;
            let path = path.trim_matches('/');
            let parents: Vec<PathBuf> = Path::new(path).ancestors().skip(1).map(Path::to_path_buf).collect();
            for parent in parents.iter().rev().filter(|p| !p.as_os_str().is_empty()) {
                if made.insert(parent.clone()) {
                    tar.entry(b'5', &parent.to_string_lossy(), 0o755, "", &[])?;
                }
            }
            match entry {
                Entry::File { mode, data, .. } => tar.file(path, *mode, data)?,
                Entry::Link { target, .. } => tar.entry(b'2', path, 0o777, target, &[])?,
                Entry::Folder { mode, .. } => {
                    made.insert(PathBuf::from(path));
                    tar.entry(b'5', path, *mode, "", &[])?;
                }
            }
        }
        tar.finish()?;
        Ok(bytes)
    }
}

fn to_bytes(value: &json::Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn digest(bytes: &[u8]) -> String {
    let hex = base16ct::lower::encode_string(&Sha256::digest(bytes));
    format!("sha256:{hex}")
}

fn described(media_type: &str, bytes: &[u8]) -> json::Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

/// A writer of POSIX (ustar) archives, with all times zero and everything owned by root.
struct Tar<'a, W> {
    out: &'a mut W,
}

impl<W: Write> Tar<'_, W> {
    fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.entry(b'0', path, mode, "", data)
    }

    fn entry(&mut self, kind: u8, path: &str, mode: u32, target: &str, data: &[u8]) -> io::Result<()> {
        if path.len() > 100 || target.len() > 100 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("path longer than 100 bytes: {path}")));
        }
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", data.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(157, target);
        put(257, "ustar");
        put(263, "00");
        header[156] = kind;
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(data)?;
        let padding = data.len().next_multiple_of(512) - data.len();
        self.out.write_all(&[0u8; 512][..padding])
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(&[0u8; 1024])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_read_by_tar_and_repeats() {
        let recipe = Recipe {
            reference: "example.com/x:1".to_owned(),
            entries: vec![
                Entry::File { path: "/bin/a".to_owned(), mode: 0o755, data: vec![7; 700] },
                Entry::Link { path: "/bin/b".to_owned(), target: "a".to_owned() },
            ],
            ..Default::default()
        };
        let mut bytes = Vec::new();
        recipe.write(&mut bytes).unwrap();
        let mut again = Vec::new();
        recipe.write(&mut again).unwrap();
        assert_eq!(bytes, again);
        // A header whose sum is wrong makes every reader stop.
        let name = |at: usize| String::from_utf8_lossy(&bytes[at..at + 100]).trim_end_matches('\0').to_owned();
        assert_eq!(name(0), "oci-layout");
        assert_eq!(name(1024), "index.json");
        let layer = recipe.layer().unwrap();
        let mut names = Vec::new();
        let mut at = 0;
        while layer[at] != 0 {
            names.push(String::from_utf8_lossy(&layer[at..at + 100]).trim_end_matches('\0').to_owned());
            let size = usize::from_str_radix(std::str::from_utf8(&layer[at + 124..at + 135]).unwrap(), 8).unwrap();
            at += 512 + size.next_multiple_of(512);
        }
        assert_eq!(names, ["bin", "bin/a", "bin/b"]);
    }
}
