//! The runtimes that this machine has beside runc: each is a handler of its name, which RuntimeClasses ask for.
//!
//! Programs that are called as runc is run under containerd's shim for it. Others bring a shim of their own, which containerd
//! finds by its name: `containerd-shim-runsc-v1` is gVisor's, `containerd-shim-kata-v2` that of Kata Containers.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Programs with the command line of runc, by the names of their handlers.
const LIKE_RUNC: [(&str, &str); 3] = [("crun", "crun"), ("nvidia", "nvidia-container-runtime"), ("youki", "youki")];
const RUNC: &str = "runc";

/// A runtime under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    /// The runtime in containerd's words, which say the name of the shim.
    sort: String,
    /// The program that the shim for runc calls in its place.
    program: Option<PathBuf>,
}

impl Handler {
    /// Its beginning in the configuration.
    pub(super) fn section(&self) -> String {
        format!("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{}", self.name)
    }

    pub(super) fn config(&self, systemd_cgroups: bool) -> String {
        let (section, sort) = (self.section(), &self.sort);
        let options = self.program.as_ref().map_or_else(String::new, |program| {
            let program = program.display();
            format!("\n      {section}.options]\n        BinaryName = \"{program}\"\n        SystemdCgroup = {systemd_cgroups}\n")
        });
        format!("\n    {section}]\n      runtime_type = \"{sort}\"\n{options}")
    }
}

/// The folders of programs.
pub(super) fn programs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect()
}

/// The runtimes in the folders, by name; earlier folders come first.
pub(super) fn installed(folders: &[PathBuf]) -> Vec<Handler> {
    let mut found = BTreeMap::new();
    for (name, program) in LIKE_RUNC {
        if let Some(program) = folders.iter().map(|folder| folder.join(program)).find(|path| is_program(path)) {
            let handler = Handler { name: name.to_owned(), sort: sort(RUNC, 2), program: Some(program) };
            found.insert(name.to_owned(), handler);
        }
    }
    for (name, version) in shims(folders) {
        let handler = Handler { name: name.clone(), sort: sort(&name, version), program: None };
        found.entry(name).or_insert(handler);
    }
    found.into_values().collect()
}

fn sort(name: &str, version: u32) -> String {
    format!("io.containerd.{name}.v{version}")
}

/// The shims beside that of runc, with the newest version of each.
fn shims(folders: &[PathBuf]) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    for entry in entries {
        let file = entry.file_name();
        let Some((name, version)) = file.to_str().and_then(shim).filter(|(name, _)| *name != RUNC) else { continue };
        if is_program(&entry.path()) {
            let newest = found.entry(name.to_owned()).or_insert(version);
            *newest = version.max(*newest);
        }
    }
    found
}

/// The runtime and the version that a file's name is the shim of. Names that no RuntimeClass could ask for are of no use.
fn shim(file: &str) -> Option<(&str, u32)> {
    let (name, version) = file.strip_prefix("containerd-shim-")?.rsplit_once("-v")?;
    let is_label = !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    version.parse().ok().filter(|_| is_label).map(|version| (name, version))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use files::modes;

    use super::*;

    fn folder_with(files: &[(&str, u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in files {
            modes::write(&folder.path().join(name), *mode, "").unwrap();
        }
        folder
    }

    #[test]
    fn runtimes_are_handlers_of_their_names() {
        let first =
            folder_with(&[("crun", 0o755), ("containerd-shim-runc-v2", 0o755), ("containerd-shim-kata-v2", 0o755)]);
        let second = folder_with(&[
            ("crun", 0o755),
            ("youki", 0o644),
            ("containerd-shim-runsc-v1", 0o755),
            ("containerd-shim-kata-v1", 0o755),
            ("containerd-shim-Strange-v1", 0o755),
            ("containerd-shim-a\"b-v1", 0o755),
            ("containerd-shim-none-v", 0o755),
            ("containerd-shim", 0o755),
        ]);
        let folders = [first.path().to_owned(), "/nowhere".into(), second.path().to_owned()];
        let found = installed(&folders);
        let told: Vec<_> = found.iter().map(|handler| (handler.name.as_str(), handler.sort.as_str())).collect();
        let expected =
            [("crun", "io.containerd.runc.v2"), ("kata", "io.containerd.kata.v2"), ("runsc", "io.containerd.runsc.v1")];
        assert_eq!(told, expected);
        assert_eq!(found[0].program, Some(folders[0].join("crun")), "the first folder's");
        let binary = format!("BinaryName = \"{}\"", folders[0].join("crun").display());
        assert!(found[0].config(false).contains(&binary) && !found[1].config(false).contains("BinaryName"));
    }

    #[test]
    fn nothing_is_found_where_there_is_nothing() {
        assert_eq!(installed(&[]), Vec::new());
        assert_eq!(installed(&["/nowhere".into()]), Vec::new());
    }
}
