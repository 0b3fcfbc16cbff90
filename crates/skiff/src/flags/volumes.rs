//! The fate of released volumes and of those of lost nodes, and which volumes are made: upstream's flags.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use controllers::storage::{
    attach_detach::Patience,
    binder::{
        Settings,
        recycle::{Recycler, checked},
    },
};
use files::beneath::Dir;

#[derive(Args, Clone, Debug)]
pub struct Volumes {
    /// Make folders below /tmp for claims of classes with the provisioner kubernetes.io/host-path; for tests on one node
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value = "false", default_missing_value = "true")]
    enable_hostpath_provisioner: bool,
    /// A file with the Pod that empties released NFS volumes
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
    /// How many seconds it may take at least
    #[arg(long, default_value = "300", value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
    pv_recycler_minimum_timeout_nfs: i64,
    /// How many it may take for each gibibyte
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pv_recycler_increment_timeout_nfs: i64,
    /// A file with the Pod that empties released volumes of folders of a node; for tests on one node
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
    /// How many seconds it may take at least
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..))]
    pv_recycler_minimum_timeout_hostpath: i64,
    /// How many it may take for each gibibyte
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pv_recycler_timeout_increment_hostpath: i64,
    /// Never detach a volume that a lost node may still have mounted, unless its node has the taint
    /// node.kubernetes.io/out-of-service; otherwise that is done after six minutes
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value = "false", default_missing_value = "true")]
    disable_force_detach_on_timeout: bool,
}

impl Volumes {
    /// How long nodes that are lost keep their volumes.
    pub fn unmount_patience(&self) -> Patience {
        if self.disable_force_detach_on_timeout { Patience::ForEver } else { Patience::SixMinutes }
    }

    /// Reads the files that are named.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let usual = Settings::default();
        let recycler = |usual: &Recycler, file: Option<&Path>, minimum_seconds, increment_seconds| {
            let template = file.map_or_else(|| Ok(usual.template.clone()), template)?;
            anyhow::Ok(Recycler { template, minimum_seconds, increment_seconds })
        };
        Ok(Settings {
            nfs: recycler(
                &usual.nfs,
                self.pv_recycler_pod_template_filepath_nfs.as_deref(),
                self.pv_recycler_minimum_timeout_nfs,
                self.pv_recycler_increment_timeout_nfs,
            )?,
            host_path: recycler(
                &usual.host_path,
                self.pv_recycler_pod_template_filepath_hostpath.as_deref(),
                self.pv_recycler_minimum_timeout_hostpath,
                self.pv_recycler_timeout_increment_hostpath,
            )?,
            provision_host_paths: self.enable_hostpath_provisioner,
            remove_folder: Arc::new(|path| remove_below(Path::new("/tmp"), path)),
        })
    }
}

fn template(file: &Path) -> anyhow::Result<Arc<api::k8s_openapi::api::core::v1::Pod>> {
    let wrong = || format!("the recycler's Pod in {} cannot be used", file.display());
    let text = std::fs::read_to_string(file).with_context(wrong)?;
    let value = serde_saphyr::from_str(&text).with_context(wrong)?;
    let pod = checked(value).map_err(anyhow::Error::msg).with_context(wrong)?;
    Ok(Arc::new(pod))
}

/// Removes a folder below `top`, wherever links on the way there lead: they are not followed. Nothing there is fine.
fn remove_below(top: &Path, path: &str) -> io::Result<()> {
    let below = Path::new(path).strip_prefix(top).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let name: &OsStr = below.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let parent = below.parent().filter(|parent| !parent.as_os_str().is_empty());
    let top = Dir::open(top)?;
    let folder = match parent.map(|parent| top.folder(parent)) {
        None => top,
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Some(folder) => folder?,
    };
    folder.remove(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        volumes: Volumes,
    }

    fn settings(flags: &[&str]) -> anyhow::Result<Settings> {
        Flags::parse_from([&["test"][..], flags].concat()).volumes.settings()
    }

    #[test]
    fn the_usual_times_are_the_binders_own() {
        let times = |s: &Settings| {
            [&s.host_path, &s.nfs].map(|recycler| (recycler.minimum_seconds, recycler.increment_seconds))
        };
        let usual = settings(&[]).unwrap();
        assert_eq!((times(&usual), usual.provision_host_paths), (times(&Settings::default()), false));
        let other = settings(&["--enable-hostpath-provisioner", "--pv-recycler-minimum-timeout-nfs=7"]).unwrap();
        assert_eq!((other.nfs.minimum_seconds, other.provision_host_paths), (7, true));
    }

    #[test]
    fn lost_nodes_keep_their_volumes_as_long_as_the_flag_says() {
        let patience = |flags: &[&str]| Flags::parse_from([&["test"][..], flags].concat()).volumes.unmount_patience();
        assert_eq!(patience(&[]), Patience::SixMinutes);
        assert_eq!(patience(&["--disable-force-detach-on-timeout=false"]), Patience::SixMinutes);
        assert_eq!(patience(&["--disable-force-detach-on-timeout"]), Patience::ForEver);
    }

    #[test]
    fn a_pod_of_ones_own_needs_a_volume() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pod.yaml");
        let flag = format!("--pv-recycler-pod-template-filepath-nfs={}", file.display());
        let error = |flag: &str| format!("{:#}", settings(&[flag]).err().unwrap());
        assert!(error(&flag).contains("No such file"), "{}", error(&flag));
        std::fs::write(&file, "spec: {containers: [{name: c, image: mine}]}").unwrap();
        assert!(error(&flag).ends_with("does not contain any volume(s)"), "{}", error(&flag));
        std::fs::write(&file, "spec: {containers: [{name: c, image: mine}], volumes: [{name: v}]}").unwrap();
        let template = settings(&[&flag]).unwrap().nfs.template;
        assert_eq!(template.spec.as_ref().unwrap().containers[0].image.as_deref(), Some("mine"));
        assert_eq!(template.metadata.namespace.as_deref(), Some("default"));
    }

    #[test]
    fn only_what_is_below_is_removed_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("tmp");
        let outside = folder.path().join("outside");
        for path in [top.join("a/b"), outside.join("data")] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
        let remove = |path: PathBuf| remove_below(&top, path.to_str().unwrap());
        assert!(remove(outside.join("data")).is_err());
        assert!(remove(top.clone()).is_err());
        assert!(remove(top.join("link/data")).is_err());
        remove(top.join("link")).unwrap();
        remove(top.join("a/b")).unwrap();
        remove(top.join("a/b")).unwrap();
        remove(top.join("gone/x")).unwrap();
        assert!(outside.join("data").exists() && top.join("a").exists() && !top.join("a/b").exists());
    }
}
