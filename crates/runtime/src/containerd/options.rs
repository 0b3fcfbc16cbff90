//! The options of our containerd, and its configuration in text.

use std::path::PathBuf;

use super::runtimes::Handler;
use crate::images;

/// Where this containerd lives and what it is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Holds images and snapshots, the configuration, the log and the pid file.
    pub root: PathBuf,
    /// Holds the socket and what is gone after a reboot. Short, because a socket's path may have 107 bytes.
    pub state: PathBuf,
    pub cni_bin: PathBuf,
    pub cni_conf: PathBuf,
    pub sandbox_image: String,
    /// A server that is asked for the content of images before their registry.
    pub mirror: Option<Mirror>,
    /// Processes and files of containers get SELinux labels.
    pub selinux: bool,
    /// systemd makes the cgroups of containers.
    pub systemd_cgroups: bool,
}

/// A server that has content of any registry. This containerd shows it a certificate.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// Such as `https://10.0.0.1:10250`.
    pub server: String,
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Mirror {
    /// The file for all registries. The mirror gives content by its digest alone: which one a tag means, its registry says.
    pub(super) fn hosts(&self) -> String {
        let Mirror { server, authority, certificate, key } = self;
        let (authority, certificate, key) = (authority.display(), certificate.display(), key.display());
        format!(
            r#"[host."{server}"]
  capabilities = ["pull"]
  ca = "{authority}"
  client = [["{certificate}", "{key}"]]
"#
        )
    }
}

/// The line by which containers are labelled.
pub(super) const SELINUX: &str = "enable_selinux = true";

/// Where network plugins are: the folder of the specification, which networks that install themselves use, and those of
/// distributions.
const PLUGINS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// The first of the folders that has the plugin which each sandbox needs, whatever its network is; else the first of all.
fn installed_plugins(folders: &[PathBuf]) -> PathBuf {
    let found = folders.iter().find(|folder| folder.join("loopback").exists()).or(folders.first());
    found.cloned().unwrap_or_default()
}

impl Options {
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Options {
            root: root.into(),
            state: state.into(),
            cni_bin: "/opt/cni/bin".into(),
            cni_conf: "/etc/cni/net.d".into(),
            sandbox_image: images::PAUSE.to_owned(),
            mirror: None,
            selinux: false,
            systemd_cgroups: false,
        }
    }

    /// With a Pod network that others install, whose configuration and plugins are where every engine looks for them.
    pub fn with_installed_network(self) -> Self {
        let Options { cni_conf, .. } = Options::new(&self.root, &self.state);
        Options { cni_bin: installed_plugins(&PLUGINS.map(PathBuf::from)), cni_conf, ..self }
    }

    pub fn socket(&self) -> PathBuf {
        self.state.join("containerd.sock")
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Where containerd looks for what is to be known of registries, with a mirror.
    pub(super) fn registries(&self) -> PathBuf {
        self.root.join("registries")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.root.join("containerd.pid")
    }

    pub fn log_file(&self) -> PathBuf {
        self.root.join("containerd.log")
    }

    /// containerd's configuration, with the runtimes beside runc. Pure: what is equal gives equal text.
    pub(super) fn config(&self, handlers: &[Handler]) -> String {
        let Options { root, state, cni_bin, cni_conf, sandbox_image, mirror, selinux, systemd_cgroups } = self;
        let (root, state, socket) = (root.display(), state.display(), self.socket().display().to_string());
        let (cni_bin, cni_conf) = (cni_bin.display(), cni_conf.display());
        let registries = mirror.as_ref().map_or_else(String::new, |_| {
            let folder = self.registries();
            format!(
                "\n  [plugins.\"io.containerd.grpc.v1.cri\".registry]\n    config_path = \"{}\"\n",
                folder.display()
            )
        });
        let handlers: String = handlers.iter().map(|handler| handler.config(*systemd_cgroups)).collect();
        format!(
            r#"version = 2
root = "{root}"
state = "{state}"
# Snapshotters and services that nothing here uses cost memory and warnings.
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{socket}"

[ttrpc]
  address = "{socket}.ttrpc"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  # Where the process may not lower its score (CAP_SYS_RESOURCE missing), no sandbox would start otherwise.
  restrict_oom_score_adj = true
  enable_selinux = {selinux}
  netns_mounts_under_state_dir = true
  # Usually containers are not bounded in huge pages, only Pods are.
  disable_hugetlb_controller = false
  tolerate_missing_hugetlb_controller = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  # Names of CDI devices are understood from 1.7 on; older ones do not read this.
  enable_cdi = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{cni_conf}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = {systemd_cgroups}
{handlers}{registries}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_where_the_one_is_that_each_sandbox_needs() {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["first", "second"].map(|name| folder.path().join(name));
        assert_eq!(installed_plugins(&folders), folders[0]);
        for (with, expected) in [(1, 1), (0, 0)] {
            std::fs::create_dir_all(&folders[with]).unwrap();
            std::fs::write(folders[with].join("loopback"), "").unwrap();
            assert_eq!(installed_plugins(&folders), folders[expected]);
        }
        let options = Options { cni_conf: "/x/conf".into(), ..Options::new("/x/root", "/x/state") };
        assert!(options.with_installed_network().config(&[]).contains("conf_dir = \"/etc/cni/net.d\""));
    }

    #[test]
    fn the_configuration_names_its_own_folders_and_leaves_scores_alone() {
        let config = Options::new("/x/root", "/x/state").config(&[]);
        for line in ["root = \"/x/root\"", "address = \"/x/state/containerd.sock\"", "restrict_oom_score_adj = true"] {
            assert!(config.contains(line), "{line} missing in {config}");
        }
        let labelled = Options { selinux: true, ..Options::new("/x/root", "/x/state") }.config(&[]);
        assert!(labelled.contains(SELINUX) && !config.contains(SELINUX));
    }
}
