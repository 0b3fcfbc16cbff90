//! The means that the sorts of volumes from servers share: programs of the machine, disks and their file systems, and the options
//! of mounts. The sorts themselves are in `plugins`.

pub mod disk;
pub mod hold;
pub mod iscsi;
pub mod programs;
#[cfg(test)]
pub mod world;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::rules::volume::annotation;
use k8s_openapi::api::core::v1::PersistentVolume;
use parking_lot::Mutex;

use programs::Programs;

use crate::volumes::error::{OPTIONS_STEP, VolumeError};

/// Options on a volume before it had a field for them.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// Where the machine shows its disks.
pub struct Disks {
    /// By the way to them, and by what they are.
    by_path: PathBuf,
    by_id: PathBuf,
    /// The kernel's folders of them.
    blocks: PathBuf,
}

/// The ways of this machine to volumes on servers.
pub struct Remote {
    pub programs: Programs,
    disks: Disks,
    /// The targets, and disks, whose volumes are coming or going, each one at a time.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Disks {
    /// All of them in one folder, for tests.
    #[cfg(test)]
    pub fn below(folder: &Path) -> Self {
        Disks { by_path: folder.to_owned(), by_id: folder.join("by-id"), blocks: folder.join("block") }
    }
}

impl Remote {
    pub fn of_this_machine() -> Self {
        let (by_path, by_id) = ("/dev/disk/by-path".into(), "/dev/disk/by-id".into());
        Remote::new(Programs::of_this_machine(), Disks { by_path, by_id, blocks: "/sys/block".into() })
    }

    pub fn new(programs: Programs, disks: Disks) -> Self {
        Remote { programs, disks, turns: Mutex::default() }
    }

    /// Holds off all others who want this target, until it is dropped.
    pub async fn turn(&self, target: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let mutex = {
            let mut turns = self.turns.lock();
            // Targets that nobody holds or waits for are forgotten.
            turns.retain(|_, mutex| Arc::strong_count(mutex) > 1);
            turns.entry(target.to_owned()).or_default().clone()
        };
        mutex.lock_owned().await
    }
}

/// The options with which a volume is to be mounted, as its author wrote them.
pub fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let older = annotation(&volume.metadata, MOUNT_OPTIONS);
    match older {
        Some(list) => list.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect(),
        None => volume.spec.as_ref().and_then(|spec| spec.mount_options.clone()).unwrap_or_default(),
    }
}

/// The options as a program takes them: each once, with `ro` where the volume is only read.
fn joined(options: &[String], read_only: bool) -> String {
    let mut all: Vec<&str> = Vec::new();
    for option in options.iter().map(String::as_str).chain(read_only.then_some("ro")) {
        if !all.contains(&option) {
            all.push(option);
        }
    }
    if all.is_empty() { "defaults".to_owned() } else { all.join(",") }
}

/// The refusal of options for a volume that is not mounted, but is a path of the node: they would be options of nothing.
pub fn without_options(persistent: &PersistentVolume) -> VolumeError {
    let why = "Mount options are not supported for this volume type".to_owned();
    let volume = persistent.metadata.name.clone().unwrap_or_default();
    VolumeError::Step { step: OPTIONS_STEP, volume, why }
}

/// Mounts by the program that knows how. The error is in upstream's form.
pub async fn mount(
    programs: &Programs,
    (sort, source, target): (&str, &str, &Path),
    options: &[String],
    read_only: bool,
) -> Result<(), String> {
    let (options, target) = (joined(options, read_only), target.display().to_string());
    run(programs, &["-t", sort, "-o", &options, source, &target]).await
}

/// Lets `target` show what is at `source`, with options, which the kernel takes only for what is bound already.
pub async fn bind(programs: &Programs, source: &Path, target: &Path, options: &[String]) -> Result<(), String> {
    let (source, target) = (source.display().to_string(), target.display().to_string());
    run(programs, &["-o", "bind", &source, &target]).await?;
    let options = format!("bind,remount,{}", joined(options, false));
    run(programs, &["-o", &options, &source, &target]).await
}

async fn run(programs: &Programs, arguments: &[&str]) -> Result<(), String> {
    programs.run("mount", arguments).await.map(drop).map_err(|failed| {
        let status = failed.code.map_or_else(String::new, |code| format!("exit status {code}"));
        format!(
            "mount failed: {status}\nMounting command: mount\nMounting arguments: {}\nOutput: {}",
            arguments.join(" "),
            failed.output
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn options_are_those_of_the_volume() {
        let check = |volume: json::Value, read_only: bool, expected: &str| {
            let volume: PersistentVolume = json::from_value(volume).unwrap();
            assert_eq!(joined(&mount_options(&volume), read_only), expected);
        };
        check(json!({"metadata": {}, "spec": {}}), false, "defaults");
        check(json!({"metadata": {}, "spec": {}}), true, "ro");
        check(
            json!({"metadata": {}, "spec": {"mountOptions": ["hard", "nfsvers=4.1", "hard"]}}),
            false,
            "hard,nfsvers=4.1",
        );
        check(json!({"metadata": {}, "spec": {"mountOptions": ["ro", "hard"]}}), true, "ro,hard");
        let older =
            json!({"metadata": {"annotations": {MOUNT_OPTIONS: "soft,,hard"}}, "spec": {"mountOptions": ["ro"]}});
        check(older, false, "soft,hard");
    }
}
