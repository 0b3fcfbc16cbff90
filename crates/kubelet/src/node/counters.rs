//! All that the kernel counts of a cgroup, as `/metrics/cadvisor` shows it. What it does not tell is `None`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::node::{
    cgroup::{Cgroups, row},
    disk_counts::{self, DiskCounts},
    stalls::Stalls,
};

/// Times are in nanoseconds, amounts in bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    pub cpu_total: Option<u64>,
    pub cpu_user: Option<u64>,
    pub cpu_system: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled: Option<u64>,
    pub memory: Option<u64>,
    pub working_set: Option<u64>,
    pub most_memory: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    /// Pages that were not there, and those of them for which a disk was read: of the cgroup alone, and with those below it.
    pub faults: [Option<u64>; 2],
    pub faults_below: [Option<u64>; 2],
    pub swap: Option<u64>,
    pub failures: Option<u64>,
    pub threads: Option<u64>,
    pub processes: Option<u64>,
    pub limit: Option<u64>,
    pub kept: Option<u64>,
    pub swap_limit: Option<u64>,
    /// Zero is no bound.
    pub most_threads: Option<u64>,
    pub shares: Option<u64>,
    pub quota: Option<u64>,
    pub period: Option<u64>,
    pub disks: Vec<DiskCounts>,
    pub stalls: Stalls,
}

/// The traffic that a link of a network has carried, by the kernel's order: bytes, packets, errors, drops.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Carried {
    pub received: [u64; 4],
    pub sent: [u64; 4],
}

/// A clock tick of the kernel is a hundredth of a second, whatever the kernel counts with itself.
const TICK: u64 = 10_000_000;
/// More memory than any machine has: the kernel's way to say that there is no limit.
const UNLIMITED: u64 = 1 << 60;

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Counters {
    pub fn of(cgroups: &Cgroups, path: &str) -> Counters {
        if cgroups.is_unified() { Self::of_unified(cgroups, path) } else { Self::of_version_1(cgroups, path) }
    }

    fn of_unified(cgroups: &Cgroups, path: &str) -> Counters {
        let folder = cgroups.folder("", path);
        let file = |name: &str| folder.join(name);
        let micros = |name: &str| row(&file("cpu.stat"), name).map(|micros| micros.saturating_mul(1000));
        let memory = |name: &str| row(&file("memory.stat"), name);
        let max = fs::read_to_string(file("cpu.max")).ok();
        let mut max = max.iter().flat_map(|text| text.split_whitespace());
        let (quota, period) = (max.next().map(str::to_owned), max.next().and_then(|text| text.parse().ok()));
        let io = fs::read_to_string(file("io.stat")).unwrap_or_default();
        let used = number(&file("memory.current"));
        let faults = ["pgfault", "pgmajfault"].map(memory);
        Counters {
            cpu_total: micros("usage_usec"),
            cpu_user: micros("user_usec"),
            cpu_system: micros("system_usec"),
            periods: row(&file("cpu.stat"), "nr_periods"),
            throttled_periods: row(&file("cpu.stat"), "nr_throttled"),
            throttled: micros("throttled_usec"),
            memory: used,
            working_set: used.map(|used| used.saturating_sub(memory("inactive_file").unwrap_or(0))),
            most_memory: number(&file("memory.peak")),
            rss: memory("anon"),
            cache: memory("file"),
            mapped: memory("file_mapped"),
            active_file: memory("active_file"),
            inactive_file: memory("inactive_file"),
            faults,
            faults_below: faults,
            swap: number(&file("memory.swap.current")),
            failures: row(&file("memory.events"), "max"),
            threads: number(&file("pids.current")),
            processes: processes(&file("cgroup.procs")),
            limit: number(&file("memory.max")),
            kept: number(&file("memory.min")),
            swap_limit: number(&file("memory.swap.max")),
            most_threads: most_threads(&file("pids.max")),
            shares: number(&file("cpu.weight")).map(|weight| 2 + (weight.saturating_sub(1) * 262_142).div_ceil(9999)),
            quota: quota.and_then(|text| text.parse().ok()),
            period,
            disks: disk_counts::of_unified(&io),
            stalls: Stalls::of(cgroups, path),
        }
    }

    fn of_version_1(cgroups: &Cgroups, path: &str) -> Counters {
        let file = |controller: &str, name: &str| cgroups.folder(controller, path).join(name);
        let ticks = |name: &str| row(&file("cpuacct", "cpuacct.stat"), name).map(|ticks| ticks.saturating_mul(TICK));
        let memory = |name: &str| row(&file("memory", "memory.stat"), name);
        let used = number(&file("memory", "memory.usage_in_bytes"));
        let limit = |name: &str| number(&file("memory", name)).filter(|bytes| *bytes < UNLIMITED);
        let throttle =
            |name: &str| fs::read_to_string(file("blkio", &format!("blkio.throttle.{name}"))).unwrap_or_default();
        Counters {
            cpu_total: number(&file("cpuacct", "cpuacct.usage")),
            cpu_user: ticks("user"),
            cpu_system: ticks("system"),
            periods: row(&file("cpu", "cpu.stat"), "nr_periods"),
            throttled_periods: row(&file("cpu", "cpu.stat"), "nr_throttled"),
            throttled: row(&file("cpu", "cpu.stat"), "throttled_time"),
            memory: used,
            working_set: used.map(|used| used.saturating_sub(memory("total_inactive_file").unwrap_or(0))),
            most_memory: number(&file("memory", "memory.max_usage_in_bytes")),
            rss: memory("total_rss"),
            cache: memory("total_cache"),
            mapped: memory("total_mapped_file"),
            active_file: memory("total_active_file"),
            inactive_file: memory("total_inactive_file"),
            faults: ["pgfault", "pgmajfault"].map(memory),
            faults_below: ["total_pgfault", "total_pgmajfault"].map(memory),
            swap: memory("total_swap"),
            failures: number(&file("memory", "memory.failcnt")),
            threads: number(&file("pids", "pids.current")),
            processes: processes(&file("pids", "cgroup.procs")),
            limit: limit("memory.limit_in_bytes"),
            kept: limit("memory.soft_limit_in_bytes"),
            swap_limit: limit("memory.memsw.limit_in_bytes"),
            most_threads: most_threads(&file("pids", "pids.max")),
            shares: number(&file("cpu", "cpu.shares")),
            quota: number(&file("cpu", "cpu.cfs_quota_us")),
            period: number(&file("cpu", "cpu.cfs_period_us")),
            disks: disk_counts::of_version_1(
                &throttle("io_service_bytes_recursive"),
                &throttle("io_serviced_recursive"),
            ),
            stalls: Stalls::default(),
        }
    }
}

fn most_threads(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    if text.trim() == "max" { Some(0) } else { text.trim().parse().ok() }
}

/// How many processes are in a cgroup, without those below it.
pub fn members(cgroups: &Cgroups, path: &str) -> Option<u64> {
    processes(&procs(cgroups, path))
}

/// The file in which the kernel lists the processes of a cgroup, without those below it.
pub fn procs(cgroups: &Cgroups, path: &str) -> PathBuf {
    cgroups.folder("pids", path).join("cgroup.procs")
}

fn processes(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    u64::try_from(text.lines().count()).ok()
}

/// The traffic of the links that the processes of a cgroup see, by the links' names.
pub fn network(cgroups: &Cgroups, path: &str) -> BTreeMap<String, Carried> {
    let procs = procs(cgroups, path);
    let pid = fs::read_to_string(procs).ok().and_then(|text| text.lines().next()?.parse::<u32>().ok());
    let table = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/net/dev")).ok());
    links(&table.unwrap_or_default())
}

/// The traffic of the machine's own links.
pub fn network_of_machine() -> BTreeMap<String, Carried> {
    links(&fs::read_to_string("/proc/net/dev").unwrap_or_default())
}

fn links(table: &str) -> BTreeMap<String, Carried> {
    let link = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let four = |from: usize| counts.get(from..from + 4)?.try_into().ok();
        Some((name.trim().to_owned(), Carried { received: four(0)?, sent: four(8)? }))
    };
    table.lines().filter_map(link).filter(|(name, _)| name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
        let tree = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = tree.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let cgroups = Cgroups::new(tree.path(), "/");
        (tree, cgroups)
    }

    #[test]
    fn version_2_counts() {
        let (_tree, cgroups) = tree(&[
            ("cgroup.controllers", ""),
            (
                "p/cpu.stat",
                "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nnr_throttled 1\nthrottled_usec 9\n",
            ),
            ("p/memory.current", "100\n"),
            (
                "p/memory.stat",
                "anon 40\nfile 50\nfile_mapped 6\ninactive_file 30\nactive_file 20\npgfault 8\npgmajfault 9\n",
            ),
            ("p/pids.max", "max\n"),
            ("p/memory.swap.max", "11\n"),
            ("p/memory.max", "max\n"),
            ("p/cpu.max", "50000 100000\n"),
            ("p/cpu.weight", "1\n"),
            ("p/io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n8:16 rbytes=1 wbytes=0 rios=1 wios=0\n"),
            ("p/cgroup.procs", "1\n2\n"),
            ("p/io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"),
        ]);
        let got = Counters::of(&cgroups, "/p");
        assert_eq!((got.cpu_total, got.cpu_user, got.throttled), (Some(5000), Some(3000), Some(9000)));
        assert_eq!((got.working_set, got.rss, got.cache, got.limit), (Some(70), Some(40), Some(50), None));
        assert_eq!((got.quota, got.period, got.shares, got.processes), (Some(50_000), Some(100_000), Some(2), Some(2)));
        let disks: Vec<_> = got.disks.iter().map(|disk| (disk.device, disk.read_bytes, disk.writes)).collect();
        assert_eq!(disks, [((8, 0), Some(10), Some(2)), ((8, 16), Some(1), Some(0))]);
        assert_eq!((got.stalls.io.map(|stall| stall.some.micros), got.stalls.cpu), (Some(7), None));
        assert_eq!((got.active_file, got.inactive_file, got.most_threads), (Some(20), Some(30), Some(0)));
        assert_eq!((got.faults, got.faults_below), ([Some(8), Some(9)], [Some(8), Some(9)]));
        assert_eq!((got.kept, got.swap_limit), (None, Some(11)));
        assert_eq!(Counters::of(&cgroups, "/none"), Counters::default());
    }

    #[test]
    fn version_1_counts() {
        let (_tree, cgroups) = tree(&[
            ("cpuacct/p/cpuacct.usage", "77\n"),
            ("cpuacct/p/cpuacct.stat", "user 3\nsystem 1\n"),
            ("cpu/p/cpu.cfs_quota_us", "-1\n"),
            ("cpu/p/cpu.shares", "512\n"),
            ("memory/p/memory.usage_in_bytes", "100\n"),
            ("memory/p/memory.stat", "pgfault 1\ntotal_rss 1\ntotal_inactive_file 40\ntotal_pgfault 2\n"),
            ("memory/p/memory.soft_limit_in_bytes", "9223372036854771712\n"),
            ("pids/p/pids.max", "12\n"),
            ("memory/p/memory.limit_in_bytes", "9223372036854771712\n"),
            ("blkio/p/blkio.throttle.io_service_bytes_recursive", "8:0 Read 4\n8:0 Write 5\n8:0 Total 9\nTotal 9\n"),
        ]);
        let got = Counters::of(&cgroups, "/p");
        assert_eq!((got.cpu_total, got.cpu_user, got.quota, got.shares), (Some(77), Some(30_000_000), None, Some(512)));
        assert_eq!((got.working_set, got.rss, got.limit), (Some(60), Some(1), None));
        let disks: Vec<_> = got.disks.iter().map(|disk| (disk.device, disk.read_bytes, disk.reads)).collect();
        assert_eq!(disks, [((8, 0), Some(4), None)]);
        assert_eq!((got.faults, got.faults_below), ([Some(1), None], [Some(2), None]));
        assert_eq!((got.kept, got.most_threads), (None, Some(12)));
    }

    #[test]
    fn links_are_read_as_the_kernel_lists_them() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes\n\
            lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n  eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n";
        let expected = Carried { received: [1, 2, 3, 4], sent: [5, 6, 7, 8] };
        assert_eq!(links(table), [("eth0".to_owned(), expected)].into());
    }
}
