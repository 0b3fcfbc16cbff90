//! Section 1.1 and 4.1: who may read the files of control plane and node.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Control, Subject, Verdict, apart, fail, pass};

pub(super) const CONTROLS: &[Control] = &[
    Control { id: "1.1.1", about: "API server's manifest: mode", look: no_manifest },
    Control { id: "1.1.2", about: "API server's manifest: owner", look: no_manifest },
    Control { id: "1.1.3", about: "controller manager's manifest: mode", look: no_manifest },
    Control { id: "1.1.4", about: "controller manager's manifest: owner", look: no_manifest },
    Control { id: "1.1.5", about: "scheduler's manifest: mode", look: no_manifest },
    Control { id: "1.1.6", about: "scheduler's manifest: owner", look: no_manifest },
    Control { id: "1.1.7", about: "etcd's manifest: mode", look: no_manifest },
    Control { id: "1.1.8", about: "etcd's manifest: owner", look: no_manifest },
    Control {
        id: "1.1.9",
        about: "CNI configuration: mode",
        look: |s| modes(&within(&s.layout.cni_conf(), ""), 0o600),
    },
    Control { id: "1.1.10", about: "CNI configuration: owner", look: |s| owners(&within(&s.layout.cni_conf(), "")) },
    Control { id: "1.1.11", about: "the store's folder: mode", look: |s| modes(&[s.layout.store()], 0o700) },
    Control { id: "1.1.12", about: "the store's folder: owner", look: |s| owners(&[s.layout.store()]) },
    Control {
        id: "1.1.13",
        about: "administrator's kubeconfig: mode",
        look: |s| modes(&[s.layout.admin_kubeconfig()], 0o600),
    },
    Control {
        id: "1.1.14",
        about: "administrator's kubeconfig: owner",
        look: |s| owners(&[s.layout.admin_kubeconfig()]),
    },
    Control { id: "1.1.15", about: "scheduler's kubeconfig: mode", look: in_process },
    Control { id: "1.1.16", about: "scheduler's kubeconfig: owner", look: in_process },
    Control { id: "1.1.17", about: "controller manager's kubeconfig: mode", look: in_process },
    Control { id: "1.1.18", about: "controller manager's kubeconfig: owner", look: in_process },
    Control {
        id: "1.1.19",
        about: "keys and certificates: owner",
        look: |s| owners(&with(s.layout.pki(), within(&s.layout.pki(), ""))),
    },
    Control { id: "1.1.20", about: "certificates: mode", look: |s| modes(&within(&s.layout.pki(), ".crt"), 0o644) },
    Control { id: "1.1.21", about: "keys: mode", look: |s| modes(&within(&s.layout.pki(), ".key"), 0o600) },
    Control { id: "4.1.1", about: "kubelet's service file: mode", look: no_service },
    Control { id: "4.1.2", about: "kubelet's service file: owner", look: no_service },
    Control { id: "4.1.3", about: "proxy's kubeconfig: mode", look: proxy_in_process },
    Control { id: "4.1.4", about: "proxy's kubeconfig: owner", look: proxy_in_process },
    Control {
        id: "4.1.5",
        about: "kubelet's kubeconfig: mode",
        look: |s| modes(&[s.layout.agent_kubeconfig()], 0o600),
    },
    Control { id: "4.1.6", about: "kubelet's kubeconfig: owner", look: |s| owners(&[s.layout.agent_kubeconfig()]) },
    Control {
        id: "4.1.7",
        about: "authorities of clients: mode",
        look: |s| modes(&[s.layout.pki().join("ca.crt")], 0o644),
    },
    Control { id: "4.1.8", about: "authorities of clients: owner", look: |s| owners(&[s.layout.pki().join("ca.crt")]) },
    Control { id: "4.1.9", about: "kubelet's configuration file: mode", look: |s| modes(&configuration(s), 0o600) },
    Control { id: "4.1.10", about: "kubelet's configuration file: owner", look: |s| owners(&configuration(s)) },
];

fn no_manifest(_: &Subject) -> Verdict {
    apart("there is none: the control plane is this process, and no Pods")
}

fn in_process(_: &Subject) -> Verdict {
    apart("there is none: it calls the API server in this process")
}

fn proxy_in_process(_: &Subject) -> Verdict {
    apart("there is none: the proxy is in the kubelet's process")
}

fn no_service(_: &Subject) -> Verdict {
    apart("there is none: whoever starts skiff says with what")
}

/// The file of flags, and the kubelet's own where one is named.
fn configuration(subject: &Subject) -> Vec<PathBuf> {
    let own = subject.node.as_ref().and_then(|node| node.kubelet_config.kubelet_config.clone());
    std::iter::once(PathBuf::from("/etc/skiff/config.yaml")).chain(own).collect()
}

/// The files of a folder whose names end so.
fn within(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(end));
    files.sort();
    files
}

fn with(one: PathBuf, mut others: Vec<PathBuf>) -> Vec<PathBuf> {
    others.insert(0, one);
    others
}

/// Checks all that are there.
fn each(paths: &[PathBuf], right: impl Fn(&fs::Metadata) -> Result<(), String>, said: &str) -> Verdict {
    let mut seen = 0;
    for path in paths {
        let Ok(metadata) = fs::symlink_metadata(path) else { continue };
        seen += 1;
        if let Err(why) = right(&metadata) {
            return fail(format!("{} {why}", path.display()));
        }
    }
    match (seen, paths) {
        (0, [path]) => apart(format!("{} is not there", path.display())),
        (0, _) => apart("no such file is there"),
        (1, _) => pass(said),
        (seen, _) => pass(format!("{said}, all {seen}")),
    }
}

fn modes(paths: &[PathBuf], most: u32) -> Verdict {
    let right = |metadata: &fs::Metadata| {
        let mode = metadata.mode() & 0o7777;
        if mode & !most == 0 { Ok(()) } else { Err(format!("has the mode {mode:o}; chmod {most:o} it")) }
    };
    each(paths, right, &format!("{most:o} at most"))
}

fn owners(paths: &[PathBuf]) -> Verdict {
    let right = |metadata: &fs::Metadata| match (metadata.uid(), metadata.gid()) {
        (0, 0) => Ok(()),
        (user, group) => Err(format!("belongs to {user}:{group}; chown root:root it")),
    };
    each(paths, right, "root:root")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_that_others_may_read_fail() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (a, b) = (file("a.key", 0o600), file("b.key", 0o400));
        assert_eq!(modes(&within(folder.path(), ".key"), 0o600), pass("600 at most, all 2"));
        assert_eq!(modes(&within(folder.path(), ".crt"), 0o600), apart("no such file is there"));
        assert_eq!(modes(std::slice::from_ref(&a), 0o600), pass("600 at most"));
        let open = file("c.key", 0o640);
        let expected = format!("{} has the mode 640; chmod 600 it", open.display());
        assert_eq!(modes(&[a, b, open], 0o600), fail(expected));
        let gone = folder.path().join("gone");
        assert_eq!(owners(std::slice::from_ref(&gone)), apart(format!("{} is not there", gone.display())));
    }
}
