//! The machine's properties: processors, memory, disks, kernel, system.

use std::{fs, path::Path};

use crate::node::{
    cgroup::Swap,
    huge_pages::{self, HugePages},
};

#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub cpus: i64,
    pub memory: i64,
    pub swap: i64,
    pub huge_pages: Vec<HugePages>,
    pub machine_id: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// A number of kibibytes from `/proc/meminfo`, in bytes.
pub fn meminfo(name: &str) -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let row = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    row.and_then(|r| r.split_whitespace().next()?.parse::<i64>().ok()).unwrap_or(0) * 1024
}

/// The memory of the whole machine that is in use and could not be taken back at once, in bytes.
pub fn working_set() -> i64 {
    used() - meminfo("Inactive(file)")
}

/// The memory of the whole machine that is in use, in bytes.
pub fn used() -> i64 {
    meminfo("MemTotal") - meminfo("MemFree")
}

/// The swap of the whole machine.
pub fn swap() -> Swap {
    let [all, left] = ["SwapTotal", "SwapFree"].map(|name| u64::try_from(meminfo(name)).unwrap_or(0));
    Swap { used: all.saturating_sub(left), left: Some(left) }
}

/// When the machine was started, in seconds since 1970.
pub fn booted() -> Option<i64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

impl Machine {
    pub fn read() -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1)),
            memory: meminfo("MemTotal"),
            swap: meminfo("SwapTotal"),
            huge_pages: huge_pages::read(Path::new(huge_pages::FOLDER)),
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image: pretty.trim_matches('"').to_owned(),
        }
    }
}

/// A file system, in bytes and inodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk {
    pub size: u64,
    pub free: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// The file system that holds `path`.
pub fn disk(path: &Path) -> Option<Disk> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    Some(Disk {
        size: stat.blocks() * stat.fragment_size(),
        free: stat.blocks_available() * stat.fragment_size(),
        inodes: stat.files(),
        free_inodes: stat.files_available(),
    })
}

/// How many threads there are, and how many there may be.
pub fn processes() -> Option<(i64, i64)> {
    let limit = |name: &str| line(&format!("/proc/sys/kernel/{name}")).parse::<i64>().ok();
    let most = limit("pid_max")?.min(limit("threads-max")?);
    // The fourth word is `running/all`.
    let all = line("/proc/loadavg").split(' ').nth(3)?.split('/').nth(1)?.parse().ok()?;
    Some((all, most))
}
