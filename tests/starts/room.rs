//! A full disk: the server starts and is read, writes are refused with the reason, and the store can be compacted.

use std::{fs, io::Write, path::Path, process::Command};

use crate::skiff::{Server, command, text};

/// A small file system, gone when this is dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Option<Tmpfs> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        if mounted.is_ok_and(|m| m.status.success()) {
            return Some(Tmpfs(folder));
        }
        eprintln!("SKIPPED: a tmpfs cannot be mounted here (no root?)");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Somebody else takes all that is left.
    fn fill(&self) {
        let mut other = fs::File::create(self.path().join("filler")).unwrap();
        for size in [1 << 16, 1] {
            while other.write_all(&vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_starts_for_reading() {
    let Some(disk) = Tmpfs::mount("40m") else { return };
    let (aside, data) = (tempfile::tempdir().unwrap(), disk.path().join("data"));
    let log = aside.path().join("log");
    let maps = "/api/v1/namespaces/default/configmaps";
    let object = |name: &str, size: usize| {
        let value = "v".repeat(size);
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"k":"{value}"}}}}"#)
    };
    let server = Server::start(&data, &log);
    for n in 0..8 {
        assert_eq!(server.ask(&data, "POST", maps, &object(&format!("c{n}"), 300_000)).0, 201);
        assert_eq!(server.ask(&data, "DELETE", &format!("{maps}/c{n}"), "").0, 200);
    }
    assert_eq!(server.ask(&data, "POST", maps, &object("kept", 10)).0, 201);
    server.stop();
    // A file that is made anew when it is gone, or old, cannot be kept either.
    fs::remove_file(data.join("admin.kubeconfig")).unwrap();
    fs::remove_file(data.join("pki/apiserver.crt")).unwrap();
    disk.fill();

    let server = Server::start(&data, &log);
    assert!(server.log().contains("admin.kubeconfig") && server.log().contains("make room"), "{}", server.log());
    assert_eq!(server.ask(&data, "GET", &format!("{maps}/kept"), "").0, 200);
    // The log's last block may have a little room; a large object finds none.
    let (code, body) = server.ask(&data, "POST", maps, &object("more", 900_000));
    assert_eq!(code, 507, "{body}");
    for words in ["InsufficientStorage", "is full", "make room", "skiff store compact"] {
        assert!(body.contains(words), "{body}");
    }
    assert_eq!(server.ask(&data, "GET", &format!("{maps}/kept"), "").0, 200);
    server.stop();

    let compacted = command(&["store", "compact", "--data-dir", &text(&data)]).output().unwrap();
    assert!(compacted.status.success(), "{}", String::from_utf8_lossy(&compacted.stderr));
    let server = Server::start(&data, &log);
    assert_eq!(server.ask(&data, "POST", maps, &object("more", 900_000)).0, 201);
    assert_eq!(server.ask(&data, "GET", &format!("{maps}/kept"), "").0, 200);
}
