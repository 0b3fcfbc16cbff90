//! `skiff check`: is this machine fit? One line for each thing, and what to do about it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use network::overlay::plan::Mode;

use crate::{
    cis::{self, Verdict},
    flags::options,
    layout::Layout,
};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Good(String),
    /// Works, but not as well as it could.
    Poor(String),
    /// Nothing can run like this; says what to do.
    Bad(String),
}

/// One line: what was looked at, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub what: &'static str,
    pub finding: Finding,
}

fn good(text: impl Into<String>) -> Finding {
    Finding::Good(text.into())
}

fn bad(text: impl Into<String>) -> Finding {
    Finding::Bad(text.into())
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mark, text) = match &self.finding {
            Finding::Good(t) => ("ok", t),
            Finding::Poor(t) => ("warn", t),
            Finding::Bad(t) => ("FAIL", t),
        };
        write!(f, "{mark:<4}  {:<18} {text}", self.what)
    }
}

pub fn run(options: &options::Check) -> anyhow::Result<ExitCode> {
    Ok(if options.cis { benchmark(&options.data_dir)? } else { fitness(options) })
}

/// How the cluster stands to the CIS benchmark.
fn benchmark(data_dir: &Path) -> anyhow::Result<ExitCode> {
    let lines = cis::look(data_dir)?;
    for line in &lines {
        println!("{line}");
    }
    let count = |fits: fn(&Verdict) -> bool| lines.iter().filter(|line| fits(&line.verdict)).count();
    let failed = count(|verdict| matches!(verdict, Verdict::Fail(_)));
    println!(
        "{} pass, {} do not apply, {} are manual, {failed} fail",
        count(|verdict| matches!(verdict, Verdict::Pass(_))),
        count(|verdict| matches!(verdict, Verdict::Apart(_))),
        count(|verdict| matches!(verdict, Verdict::Manual(_))),
    );
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fitness(options: &options::Check) -> ExitCode {
    let lines = look(options);
    for line in &lines {
        println!("{line}");
    }
    let failed = lines.iter().filter(|l| matches!(l.finding, Finding::Bad(_))).count();
    if failed == 0 {
        println!("this machine is fit for `skiff up`");
        ExitCode::SUCCESS
    } else {
        println!("{failed} of {} checks failed", lines.len());
        ExitCode::FAILURE
    }
}

/// The checks of a machine that is to run a node.
fn machine(endpoint: Option<&str>) -> Vec<Line> {
    let mut lines = vec![
        Line { what: "user", finding: user() },
        Line { what: "kernel", finding: kernel() },
        Line { what: "cgroups", finding: cgroups(Path::new("/sys/fs/cgroup")) },
        Line { what: "overlay filesystem", finding: overlay() },
        Line { what: "nft", finding: tool("nft", "nftables") },
        Line { what: "mount", finding: tool("mount", "mount") },
    ];
    match endpoint {
        None => {
            lines.push(Line { what: "containerd", finding: tool("containerd", "containerd") });
            lines.push(Line { what: "runc", finding: tool("runc", "runc") });
            lines.push(Line { what: "shim", finding: tool("containerd-shim-runc-v2", "containerd") });
        }
        Some(endpoint) => lines.push(Line { what: "container engine", finding: endpoint_there(endpoint) }),
    }
    lines
}

/// Looks at everything.
pub fn look(options: &options::Check) -> Vec<Line> {
    let mut lines = machine(options.container_runtime_endpoint.as_deref());
    lines.push(Line { what: "WireGuard", finding: wireguard(options.pod_network, network::require(Mode::Wireguard)) });
    let layout = Layout::new(&options.data_dir);
    // A running cluster holds these ports itself.
    if layout.holder().is_none() {
        lines.push(Line { what: "API port", finding: port(options.secure_port, "--secure-port") });
        lines.push(Line { what: "kubelet port", finding: port(options.kubelet_port, "--kubelet-port") });
    }
    lines.push(Line { what: "data folder", finding: data_folder(&options.data_dir) });
    lines
}

/// The findings about all that `skiff up` needs.
pub fn for_cluster(options: &options::Up) -> Vec<Line> {
    let mut lines = look(&options::Check {
        data_dir: options.common.data_dir.clone(),
        cis: false,
        secure_port: options.control_plane.secure_port,
        kubelet_port: options.node.kubelet_port,
        container_runtime_endpoint: options.node.container_runtime_endpoint.clone(),
        // Another network needs what it needs.
        pod_network: if options.control_plane.runs("network") { options.control_plane.pod_network } else { Mode::Auto },
    });
    lines.extend(labels(&options.node));
    lines
}

/// Labels are looked at only where they are asked for.
fn labels(node: &options::Node) -> Option<Line> {
    let finding = match kubelet::selinux_context() {
        Ok(context) => good(format!("files of containers are {context}")),
        Err(why) => bad(format!("{why}; leave --selinux out")),
    };
    node.selinux.then_some(Line { what: "SELinux", finding })
}

/// The findings about all that `skiff agent` needs, which holds its folder already: all but the API server's port.
pub fn for_node(options: &options::Agent) -> Vec<Line> {
    let mut lines = machine(options.node.container_runtime_endpoint.as_deref());
    lines.push(Line { what: "kubelet port", finding: port(options.node.kubelet_port, "--kubelet-port") });
    lines.push(Line { what: "data folder", finding: data_folder(&options.common.data_dir) });
    lines.extend(labels(&options.node));
    lines
}

/// Fails when something was found that keeps a node from running, after saying what.
pub fn require(lines: &[Line]) -> anyhow::Result<()> {
    let failures: Vec<&Line> = lines.iter().filter(|l| matches!(l.finding, Finding::Bad(_))).collect();
    for line in &failures {
        eprintln!("{line}");
    }
    if failures.is_empty() {
        return Ok(());
    }
    anyhow::bail!("this machine is not fit yet; `skiff check` shows everything")
}

fn user() -> Finding {
    if nix::unistd::geteuid().is_root() { good("root") } else { bad("not root; run it with sudo") }
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 8) { good(release) } else { bad(format!("{release} is too old; Linux 5.8 or newer is needed")) }
}

fn cgroups(root: &Path) -> Finding {
    if root.join("cgroup.controllers").exists() {
        return good("v2");
    }
    let missing: Vec<&str> =
        ["cpu", "memory", "pids", "cpuset"].into_iter().filter(|c| !root.join(c).is_dir()).collect();
    if missing.is_empty() {
        good("v1")
    } else {
        bad(format!("controllers {} are not mounted below {}; boot with cgroup v2", missing.join(", "), root.display()))
    }
}

fn overlay() -> Finding {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|l| l.trim().ends_with("overlay")) {
        return good("there");
    }
    let loaded = Command::new("modprobe").arg("overlay").output().is_ok_and(|o| o.status.success());
    if loaded { good("there") } else { bad("the kernel has no overlay filesystem; load or build the module `overlay`") }
}

/// A kernel without it is fit for the other modes.
fn wireguard(mode: Mode, found: Result<(), network::LinkError>) -> Finding {
    match found {
        Ok(()) => good("there"),
        Err(error) if mode == Mode::Wireguard => bad(error.to_string()),
        Err(network::LinkError::NoWireguard) => {
            good(format!("not there, and not needed without --pod-network={}", Mode::Wireguard))
        }
        Err(error) => Finding::Poor(error.to_string()),
    }
}

/// Finds a program on the path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|p| p.is_file())
}

fn tool(program: &str, package: &str) -> Finding {
    match find(program) {
        Some(path) => good(path.display().to_string()),
        None => bad(format!("not found; install the package {package}")),
    }
}

fn endpoint_there(endpoint: &str) -> Finding {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => good(endpoint),
        Err(e) => bad(format!("{endpoint} does not answer: {e}; start it, or leave --container-runtime-endpoint out")),
    }
}

fn port(number: u16, flag: &str) -> Finding {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), number);
    match TcpListener::bind(address) {
        Ok(_) => good(format!("{number} is free")),
        Err(e) => bad(format!("{number} cannot be used: {e}; end what uses it, or choose another with {flag}")),
    }
}

fn data_folder(folder: &Path) -> Finding {
    // A folder that does not exist yet will be made in the nearest one that does.
    let existing = folder.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let Ok(stat) = nix::sys::statvfs::statvfs(existing) else {
        return bad(format!("cannot look at {}", existing.display()));
    };
    use nix::{sys::statvfs::FsFlags, unistd};
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        return bad(format!("{} can only be read; choose another with --data-dir", existing.display()));
    }
    if unistd::access(existing, unistd::AccessFlags::W_OK).is_err() {
        return bad(format!("{} cannot be written by this user; choose another with --data-dir", existing.display()));
    }
    let free = stat.blocks_available() * stat.fragment_size() / (1024 * 1024);
    let text = format!("{} ({free} MiB free)", folder.display());
    match free {
        // The data of a cluster that is here can still be read; that must not fail for want of room.
        0..100 if Layout::new(folder).admin_kubeconfig().exists() => Finding::Poor(format!(
            "{text}; at least 100 MiB are needed, make room: until then the cluster may take no writes"
        )),
        0..100 => bad(format!("{text}; at least 100 MiB are needed, make room or choose another with --data-dir")),
        100..1024 => Finding::Poor(format!("{text}; images need more")),
        _ => good(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_trees() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(cgroups(dir.path()), Finding::Bad(t) if t.contains("cpu, memory, pids, cpuset")));
        for c in ["cpu", "memory", "pids", "cpuset"] {
            fs::create_dir(dir.path().join(c)).unwrap();
        }
        assert_eq!(cgroups(dir.path()), good("v1"));
        fs::write(dir.path().join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(cgroups(dir.path()), good("v2"));
    }

    #[test]
    fn a_port_in_use_says_which_flag_helps() {
        let taken = TcpListener::bind("0.0.0.0:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        assert!(matches!(port(number, "--secure-port"), Finding::Bad(t) if t.contains("--secure-port")));
    }

    #[test]
    fn a_kernel_without_wireguard_is_fit_unless_that_was_asked_for() {
        let missing = || Err(network::LinkError::NoWireguard);
        assert_eq!(wireguard(Mode::Wireguard, Ok(())), good("there"));
        assert!(matches!(wireguard(Mode::Auto, missing()), Finding::Good(t) if t.contains("not there")));
        let Finding::Bad(why) = wireguard(Mode::Wireguard, missing()) else { panic!("taken for fit") };
        assert!(why.contains("modprobe wireguard") && why.contains("--pod-network"), "{why}");
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        assert_eq!(tool("no-such-program", "some-package"), bad("not found; install the package some-package"));
    }
}
