//! The tree of cgroups: `kubepods`, its children for Burstable and BestEffort Pods, and one per Pod. Version 1 and 2 of the
//! kernel's interface differ only in which file a value is written to. Where systemd keeps them ([`systemd`]), they have other names
//! ([`slices`]), and it is told of their limits besides.

pub mod driver;
mod leftover;
mod slices;
mod systemd;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::rules::pod;

use self::systemd::{Property, Systemd};

use crate::pod::spec::{quota::Cfs, resources::PodLimits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The controllers of version 1 that a Pod's processes are put under.
const CONTROLLERS: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "freezer", "hugetlb"];

/// More memory than any machine has.
const UNLIMITED: i64 = 1 << 60;

/// Bytes of memory, and how often a page was not there. A figure that nobody tells is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// How far the working set is below the limit, where there is one.
    pub available: Option<u64>,
    pub used: Option<u64>,
    /// Bytes that cannot be taken back at once.
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub faults: Option<u64>,
    /// Those for which a disk was read.
    pub major_faults: Option<u64>,
}

/// The usage of the processes of a cgroup and of those below it: processor time since the cgroup was made, in nanoseconds,
/// and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanos: Option<u64>,
    pub memory: Memory,
}

/// Bytes of swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    pub used: u64,
    /// `None` where only the machine's swap is a bound.
    pub left: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct Cgroups {
    mount: PathBuf,
    version: Version,
    root: String,
    cfs: Cfs,
    /// The one that makes cgroups here, if not everybody does.
    keeper: Option<Arc<Systemd>>,
}

impl Cgroups {
    /// `mount` is `/sys/fs/cgroup`, or a fake tree in a test; `root` is the cgroup that `kubepods` is made in.
    pub fn new(mount: &Path, root: &str) -> Self {
        let version = if mount.join("cgroup.controllers").exists() { Version::V2 } else { Version::V1 };
        let root = format!("/{}", root.trim_matches('/'));
        Cgroups { mount: mount.to_owned(), version, root, cfs: Cfs::default(), keeper: None }
    }

    /// The same tree, with limits of processors that are kept in another way.
    #[must_use]
    pub fn with_cfs(self, cfs: Cfs) -> Self {
        Cgroups { cfs, ..self }
    }

    /// The same tree, whose cgroups systemd makes.
    #[must_use]
    pub fn kept_by(self, systemd: Systemd) -> Self {
        Cgroups { keeper: Some(Arc::new(systemd)), ..self }
    }

    /// The cgroup of all Pods of a class, as far as they have one of their own; else of all Pods.
    pub fn class(&self, qos: &str) -> String {
        self.place(qos, None)
    }

    /// The cgroup of a Pod, as CRI takes it.
    pub fn path(&self, qos: &str, uid: &str) -> String {
        self.place(qos, Some(&format!("pod{uid}")))
    }

    fn place(&self, qos: &str, pod: Option<&str>) -> String {
        let class = match qos {
            pod::BEST_EFFORT => Some("besteffort"),
            pod::BURSTABLE => Some("burstable"),
            _ => None,
        };
        let above = self.root.split('/').filter(|part| !part.is_empty());
        let parts = above.chain(["kubepods"]).chain(class).chain(pod);
        match self.keeper {
            Some(_) => slices::path(parts),
            None => parts.flat_map(|part| ["/", part]).collect(),
        }
    }

    /// The cgroup of a container, below that of its Pod. Engines call it by its id, some with words around it.
    pub fn of_container(&self, pod: &str, id: &str) -> String {
        let [usual, other] = match self.keeper {
            Some(_) => [format!("{pod}/cri-containerd-{id}.scope"), format!("{pod}/crio-{id}.scope")],
            None => [format!("{pod}/{id}"), format!("{pod}/crio-{id}")],
        };
        if self.folder("memory", &other).is_dir() { other } else { usual }
    }

    pub fn is_unified(&self) -> bool {
        self.version == Version::V2
    }

    /// The kernel counts the swap of cgroups. The root of version 2 has no limits: any cgroup below it shows.
    pub fn counts_swap(&self) -> bool {
        match self.version {
            Version::V1 => self.mount.join("memory/memory.memsw.limit_in_bytes").exists(),
            Version::V2 => {
                let below = fs::read_dir(&self.mount).into_iter().flatten().flatten().map(|entry| entry.path());
                below.filter(|path| path.is_dir()).any(|path| path.join("memory.swap.max").exists())
            }
        }
    }

    /// Whether a cgroup is there, in each tree that limits are set in.
    pub fn exists(&self, path: &str) -> bool {
        self.folders(path).iter().all(|folder| folder.is_dir())
    }

    pub fn create(&self, path: &str, limits: PodLimits) -> io::Result<()> {
        if let Some((keeper, slice)) = self.kept(path) {
            keeper.begin(slice, &self.properties(limits))?;
        }
        for folder in self.folders(path) {
            self.make(&folder)?;
        }
        self.write(path, limits)
    }

    /// Sets limits of a cgroup that is there. Those that are `None` stay as they are.
    pub fn set(&self, path: &str, limits: PodLimits) -> io::Result<()> {
        if let Some((keeper, slice)) = self.kept(path) {
            keeper.set(slice, &self.properties(limits))?;
        }
        self.write(path, limits)
    }

    /// The keeper of a cgroup, and the name that it has there.
    fn kept<'a>(&'a self, path: &'a str) -> Option<(&'a Systemd, &'a str)> {
        Some((self.keeper.as_deref()?, slices::unit(path)?))
    }

    /// Limits as systemd has them. It keeps no more than hundredths of a processor: the files that are written after it are exact.
    fn properties(&self, limits: PodLimits) -> Vec<Property> {
        const STEP: u64 = 10_000;
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        let (shares, memory) = match self.version {
            Version::V1 => (("CPUShares", limits.shares), "MemoryLimit"),
            Version::V2 => (("CPUWeight", weight(limits.shares)), "MemoryMax"),
        };
        let a_second = |quota| number(quota).saturating_mul(1_000_000) / number(self.cfs.period).max(1);
        let quota =
            limits.quota.map(|quota| ("CPUQuotaPerSecUSec", a_second(quota).div_ceil(STEP).saturating_mul(STEP)));
        let others = [("TasksMax", limits.pids), (memory, limits.memory), ("MemoryMin", limits.kept)];
        let others = others.into_iter().filter(|(name, _)| self.is_unified() || *name != "MemoryMin");
        let others = others.filter_map(|(name, value)| Some((name, number(value?))));
        [(shares.0, number(shares.1))].into_iter().chain(quota).chain(others).collect()
    }

    fn write(&self, path: &str, limits: PodLimits) -> io::Result<()> {
        for (controller, file, value) in self.values(limits) {
            let folder = self.folder(controller, path);
            if folder.exists() {
                fs::write(folder.join(file), value)?;
            }
        }
        match limits.quota.filter(|_| self.version == Version::V1) {
            Some(quota) => self.set_quota(&self.folder("cpu", path), quota),
            None => Ok(()),
        }
    }

    /// Version 1 has the quota and its period in two files. On the way from one period to another the cgroup never has less than it will
    /// have: the kernel refuses that while there are cgroups with more below it.
    fn set_quota(&self, folder: &Path, quota: i64) -> io::Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        let (period_file, period) = (folder.join("cpu.cfs_period_us"), self.cfs.period);
        let held = fs::read_to_string(&period_file).ok().and_then(|text| text.trim().parse::<i64>().ok());
        if held.is_some_and(|held| held > period) {
            fs::write(&period_file, period.to_string())?;
        }
        fs::write(folder.join("cpu.cfs_quota_us"), quota.to_string())?;
        if held.is_some_and(|held| held < period) {
            fs::write(&period_file, period.to_string())?;
        }
        Ok(())
    }

    /// Sets how many bytes in huge pages of a size a cgroup may have, if it is there and the kernel counts them.
    pub fn bound_huge_pages(&self, path: &str, size: &str, bytes: i64) -> io::Result<()> {
        let folder = self.folder("hugetlb", path);
        let (ending, counts) = match self.version {
            Version::V1 => ("limit_in_bytes", folder.is_dir()),
            Version::V2 => {
                let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
                ("max", controllers.split_whitespace().any(|name| name == "hugetlb"))
            }
        };
        if !counts {
            return Ok(());
        }
        fs::write(folder.join(format!("hugetlb.{size}.{ending}")), bytes.to_string())?;
        // The pages that are only reserved for a mapping count by themselves, with kernels from 5.7 on.
        let reserved = folder.join(format!("hugetlb.{size}.rsvd.{ending}"));
        if reserved.exists() { fs::write(reserved, bytes.to_string()) } else { Ok(()) }
    }

    /// The whole tree below `kubepods`, and the cgroups above it that were made for it and hold nothing else: for the end
    /// of a node.
    pub fn remove_all(&self) {
        self.remove(&self.class(pod::GUARANTEED));
        let parts: Vec<&str> = self.root.split('/').filter(|p| !p.is_empty()).collect();
        for length in (1..=parts.len()).rev() {
            for hierarchy in self.hierarchies() {
                // One that has others' processes or children in it stays: the kernel refuses.
                let _ = fs::remove_dir(hierarchy.join(parts[..length].join("/")));
            }
        }
    }

    /// Removes a cgroup and those below it, as far as no process is in them: in every hierarchy, because the engine puts
    /// its containers also into those that the kubelet sets nothing in.
    pub fn remove(&self, path: &str) {
        if let Some((keeper, slice)) = self.kept(path).filter(|_| self.exists(path))
            && let Err(error) = keeper.end(slice)
        {
            tracing::warn!(slice, %error, "a slice of systemd stays");
        }
        for hierarchy in self.hierarchies() {
            remove_tree(&hierarchy.join(path.trim_start_matches('/')));
        }
    }

    /// Ends what the engine may have left in the cgroup of a Pod that has ended. It has to be a Pod of this kubelet: others on the
    /// machine may have theirs in the same cgroup.
    pub fn end_pod(&self, qos: &str, uid: &str) {
        let path = self.path(qos, uid);
        for hierarchy in self.hierarchies() {
            leftover::end(&hierarchy.join(path.trim_start_matches('/')));
        }
    }

    /// Where trees of cgroups begin: one in version 2, one for each mounted set of controllers in version 1.
    fn hierarchies(&self) -> Vec<PathBuf> {
        match self.version {
            Version::V2 => vec![self.mount.clone()],
            Version::V1 => fs::read_dir(&self.mount).into_iter().flatten().flatten().map(|e| e.path()).collect(),
        }
    }

    /// How many threads run in a cgroup and below it.
    pub fn processes(&self, path: &str) -> i64 {
        let count = fs::read_to_string(self.folder("pids", path).join("pids.current")).unwrap_or_default();
        count.trim().parse().unwrap_or(0)
    }

    /// The usage of a cgroup. `/` is the whole machine, as far as the kernel counts for it: version 2 does not say there how
    /// much memory is used.
    pub fn usage(&self, path: &str) -> Usage {
        let (cpu, memory) = (self.folder("cpuacct", path), self.folder("memory", path));
        let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(memory.join("memory.stat")).unwrap_or_default();
        let (cpu_nanos, used, limit, before) = match self.version {
            Version::V1 => (
                number(&cpu.join("cpuacct.usage")),
                number(&memory.join("memory.usage_in_bytes")),
                number(&memory.join("memory.limit_in_bytes")).filter(|bytes| *bytes < UNLIMITED as u64),
                "total_",
            ),
            Version::V2 => (
                row(&cpu.join("cpu.stat"), "usage_usec").map(|micros| micros.saturating_mul(1000)),
                number(&memory.join("memory.current")),
                number(&memory.join("memory.max")),
                "",
            ),
        };
        let of_stat = |name: &str| row_of(&stat, &format!("{before}{name}"));
        let working_set = used.map(|used| used.saturating_sub(of_stat("inactive_file").unwrap_or(0)));
        let memory = Memory {
            available: limit.zip(working_set).map(|(limit, set)| limit.saturating_sub(set)),
            used,
            working_set,
            rss: of_stat(if self.version == Version::V1 { "rss" } else { "anon" }),
            faults: of_stat("pgfault"),
            major_faults: of_stat("pgmajfault"),
        };
        Usage { cpu_nanos, memory }
    }

    /// The swap that a cgroup uses, and how much is left of what it may use, where that is bounded.
    pub fn swap(&self, path: &str) -> Option<Swap> {
        let folder = self.folder("memory", path);
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        match self.version {
            Version::V1 => Some(Swap { used: row(&folder.join("memory.stat"), "total_swap")?, left: None }),
            Version::V2 => {
                let used = number("memory.swap.current")?;
                Some(Swap { used, left: number("memory.swap.max").map(|most| most.saturating_sub(used)) })
            }
        }
    }

    /// The limits that a cgroup has, if it is there. Version 2 keeps a weight, which stands for several numbers of shares.
    pub fn limits(&self, path: &str) -> Option<PodLimits> {
        let text = |controller: &str, file: &str| fs::read_to_string(self.folder(controller, path).join(file)).ok();
        let number = |controller: &str, file: &str| text(controller, file)?.trim().parse::<i64>().ok();
        let memory = number("memory", if self.version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" });
        let (shares, held) = match self.version {
            Version::V1 => {
                let period = number("cpu", "cpu.cfs_period_us").unwrap_or_default();
                let held = number("cpu", "cpu.cfs_quota_us").map(|quota| (quota, period));
                (number("cpu", "cpu.shares")?, held)
            }
            Version::V2 => {
                let max = text("", "cpu.max").unwrap_or_default();
                let mut numbers = max.split_whitespace().map(|number| number.parse::<i64>().ok());
                let held = numbers.next().flatten().zip(numbers.next().flatten());
                (2 + ((number("", "cpu.weight")? - 1) * 262_142 + 9998) / 9999, held)
            }
        };
        let quota = held.map(|(quota, period)| self.cfs.converted(quota, period));
        // Version 1 has no word for no limit: it shows the greatest number of whole pages.
        let memory = memory.filter(|bytes| *bytes < UNLIMITED);
        Some(PodLimits { shares, quota: quota.filter(|quota| *quota > 0), memory, ..PodLimits::default() })
    }

    /// Whether the kernel keeps these numbers of shares as the same.
    pub fn are_same_shares(&self, one: i64, other: i64) -> bool {
        if self.version == Version::V1 { one == other } else { weight(one) == weight(other) }
    }

    /// The bytes of memory that a cgroup is charged for, which its limit is held against.
    pub fn charged(&self, path: &str) -> Option<i64> {
        let file = if self.version == Version::V1 { "memory.usage_in_bytes" } else { "memory.current" };
        fs::read_to_string(self.folder("memory", path).join(file)).ok()?.trim().parse().ok()
    }

    /// The Pods (by uid) that have a cgroup.
    pub fn pods(&self) -> Vec<String> {
        let parents = [pod::GUARANTEED, pod::BURSTABLE, pod::BEST_EFFORT];
        let parents = parents.map(|class| self.folder("memory", &self.class(class)));
        let entries = parents.iter().flat_map(|p| fs::read_dir(p).into_iter().flatten().flatten());
        let uid = |name: &str| match self.keeper {
            Some(_) => slices::pod(name),
            None => name.strip_prefix("pod").map(str::to_owned),
        };
        entries.filter_map(|entry| uid(entry.file_name().to_str()?)).collect()
    }

    fn folders(&self, path: &str) -> Vec<PathBuf> {
        match self.version {
            Version::V2 => vec![self.folder("", path)],
            Version::V1 => {
                let present = CONTROLLERS.iter().filter(|c| self.mount.join(c).is_dir());
                present.map(|c| self.folder(c, path)).collect()
            }
        }
    }

    /// The folder of a cgroup in the tree of a controller.
    pub fn folder(&self, controller: &str, path: &str) -> PathBuf {
        let base = if self.version == Version::V1 { self.mount.join(controller) } else { self.mount.clone() };
        base.join(path.trim_start_matches('/'))
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        if let Some(parent) = folder.parent() {
            self.make(parent)?;
            if self.version == Version::V2 {
                // A controller that the kernel lacks must not keep the others away: one write each.
                for controller in ["+cpu", "+memory", "+pids", "+cpuset", "+io", "+hugetlb"] {
                    let _ = fs::write(parent.join("cgroup.subtree_control"), controller);
                }
            }
        }
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if self.version == Version::V1 && folder.starts_with(self.mount.join("cpuset")) {
            // A new cpuset is empty and takes no process before it has its parent's processors.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Some(inherited) = folder.parent().and_then(|p| fs::read(p.join(file)).ok()) {
                    fs::write(folder.join(file), inherited)?;
                }
            }
        }
        Ok(())
    }

    fn values(&self, limits: PodLimits) -> Vec<(&'static str, &'static str, String)> {
        let mut values = Vec::new();
        if let Some(pids) = limits.pids {
            values.push(("pids", "pids.max", pids.to_string()));
        }
        match self.version {
            Version::V1 => {
                values.push(("cpu", "cpu.shares", limits.shares.to_string()));
                if let Some(memory) = limits.memory {
                    values.push(("memory", "memory.limit_in_bytes", memory.to_string()));
                }
            }
            Version::V2 => {
                values.push(("", "cpu.weight", weight(limits.shares).to_string()));
                if let Some(quota) = limits.quota {
                    values.push(("", "cpu.max", format!("{quota} {}", self.cfs.period)));
                }
                if let Some(memory) = limits.memory {
                    values.push(("", "memory.max", memory.to_string()));
                }
                if let Some(kept) = limits.kept {
                    values.push(("", "memory.min", kept.to_string()));
                }
            }
        }
        values
    }
}

/// Shares (2 to 262144) onto weights (1 to 10000), as the runtimes do.
fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

/// The number behind a name in a file of `name number` lines.
pub fn row(file: &Path, name: &str) -> Option<u64> {
    row_of(&fs::read_to_string(file).ok()?, name)
}

fn row_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // A cgroup that still holds a process stays; the next clean-up finds it.
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> PodLimits {
        PodLimits { shares: 1024, quota: Some(50_000), memory: Some(1 << 20), ..PodLimits::default() }
    }

    #[test]
    fn version_2_gets_weights_and_maxima() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("cgroup.controllers"), "cpu memory").unwrap();
        let cgroups = Cgroups::new(tree.path(), "/");
        let path = cgroups.path(pod::BURSTABLE, "u1");
        cgroups.create(&path, limits()).unwrap();
        let read = |file: &str| fs::read_to_string(tree.path().join("kubepods/burstable/podu1").join(file)).unwrap();
        assert_eq!(
            (read("cpu.weight"), read("cpu.max"), read("memory.max")),
            ("39".into(), "50000 100000".into(), "1048576".into())
        );
        let held = cgroups.limits(&path).unwrap();
        assert_eq!((held.quota, held.memory), (Some(50_000), Some(1 << 20)));
        assert!(cgroups.are_same_shares(held.shares, 1024) && !cgroups.are_same_shares(held.shares, 1100));
        let faster = cgroups.clone().with_cfs(Cfs { period: 20_000, ..Cfs::default() });
        assert_eq!(faster.limits(&path).unwrap().quota, Some(10_000));
        faster.set(&path, PodLimits { quota: Some(30_000), ..limits() }).unwrap();
        assert_eq!((read("cpu.max"), cgroups.limits(&path).unwrap().quota), ("30000 20000".into(), Some(150_000)));
        cgroups.set(&path, limits()).unwrap();
        let more = PodLimits { shares: 2, memory: Some(2 << 20), kept: Some(7), pids: Some(9), ..PodLimits::default() };
        cgroups.set(&path, more).unwrap();
        assert_eq!((read("cpu.max"), read("memory.max")), ("50000 100000".into(), "2097152".into()));
        assert_eq!((read("memory.min"), read("pids.max")), ("7".into(), "9".into()));
        assert!(cgroups.is_unified() && cgroups.exists(&path) && !cgroups.exists("/none"));
        fs::write(tree.path().join("kubepods/burstable/podu1/memory.max"), "max\n").unwrap();
        fs::write(tree.path().join("kubepods/burstable/podu1/cpu.max"), "max 100000\n").unwrap();
        fs::write(tree.path().join("kubepods/burstable/podu1/memory.current"), "77\n").unwrap();
        let free = cgroups.limits(&path).unwrap();
        assert_eq!((free.quota, free.memory, cgroups.charged(&path)), (None, None, Some(77)));
        assert_eq!(cgroups.limits("/kubepods/podother"), None);
    }

    #[test]
    fn version_1_gets_each_controller_and_lists_its_pods() {
        const QUOTA: &str = "cpu/n1/kubepods/podu2/cpu.cfs_quota_us";
        const PERIOD: &str = "cpu/n1/kubepods/podu2/cpu.cfs_period_us";
        let tree = tempfile::tempdir().unwrap();
        for controller in ["cpu", "memory", "cpuset", "pids"] {
            fs::create_dir(tree.path().join(controller)).unwrap();
        }
        fs::write(tree.path().join("cpuset/cpuset.cpus"), "0-1").unwrap();
        fs::create_dir_all(tree.path().join("cpu/n1/kubepods/podu2")).unwrap();
        fs::write(tree.path().join("cpu/n1/kubepods/podu2/cpu.cfs_period_us"), "100000\n").unwrap();
        let cgroups = Cgroups::new(tree.path(), "/n1");
        cgroups.create(&cgroups.path(pod::GUARANTEED, "u2"), limits()).unwrap();
        let read = |file: &str| fs::read_to_string(tree.path().join(file)).unwrap();
        assert_eq!(read("cpu/n1/kubepods/podu2/cpu.shares"), "1024");
        assert_eq!(read("memory/n1/kubepods/podu2/memory.limit_in_bytes"), "1048576");
        assert_eq!(read("cpuset/n1/kubepods/podu2/cpuset.cpus"), "0-1");
        assert_eq!(cgroups.pods(), ["u2"]);
        let path = cgroups.path(pod::GUARANTEED, "u2");
        assert_eq!(cgroups.limits(&path), Some(limits()));
        // The next kubelet has another period: what is there is the same limit, and what is set has that period.
        let faster = cgroups.clone().with_cfs(Cfs { period: 20_000, ..Cfs::default() });
        assert_eq!(faster.limits(&path).unwrap().quota, Some(10_000));
        faster.set(&path, PodLimits { quota: Some(20_000), ..limits() }).unwrap();
        assert_eq!((read(QUOTA), read(PERIOD)), ("20000".into(), "20000".into()));
        assert_eq!(cgroups.limits(&path).unwrap().quota, Some(100_000));
        cgroups.set(&path, limits()).unwrap();
        assert_eq!((read(QUOTA), read(PERIOD)), ("50000".into(), "100000".into()));
        let free = cgroups.clone().with_cfs(Cfs { enforced: false, ..Cfs::default() });
        assert_eq!(free.limits(&path).unwrap().quota, None);
        cgroups.set(&path, PodLimits { pids: Some(9), kept: Some(7), ..limits() }).unwrap();
        assert_eq!(read("pids/n1/kubepods/podu2/pids.max"), "9");
        assert!(!tree.path().join("memory/n1/kubepods/podu2/memory.min").exists());
        assert!(!cgroups.counts_swap());
        fs::write(tree.path().join("memory/memory.memsw.limit_in_bytes"), "9").unwrap();
        assert!(cgroups.counts_swap());
        fs::write(tree.path().join("memory/n1/kubepods/podu2/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(tree.path().join("cpu/n1/kubepods/podu2/cpu.cfs_quota_us"), "-1\n").unwrap();
        fs::write(tree.path().join("memory/n1/kubepods/podu2/memory.usage_in_bytes"), "5\n").unwrap();
        assert_eq!(cgroups.limits(&path), Some(PodLimits { shares: 1024, ..PodLimits::default() }));
        assert_eq!(cgroups.charged(&path), Some(5));
    }

    #[test]
    fn both_versions_tell_what_a_pod_uses() {
        let check = |files: &[(&str, &str)], path: &str, expected: (Option<u64>, Option<u64>)| {
            let tree = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let file = tree.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let usage = Cgroups::new(tree.path(), "/n1").usage(path);
            assert_eq!((usage.cpu_nanos, usage.memory.working_set), expected, "{files:?} {path}");
        };
        let pod = "/n1/kubepods/podu";
        let one = [
            ("cpuacct/n1/kubepods/podu/cpuacct.usage", "1500000000\n"),
            ("memory/n1/kubepods/podu/memory.usage_in_bytes", "5000\n"),
            ("memory/n1/kubepods/podu/memory.stat", "inactive_file 1\ntotal_inactive_file 2000\n"),
        ];
        check(&one, pod, (Some(1_500_000_000), Some(3000)));
        check(&one[..2], pod, (Some(1_500_000_000), Some(5000)));
        check(&one, "/n1/kubepods/podv", (None, None));
        let two = [
            ("cgroup.controllers", "cpu memory"),
            ("cpu.stat", "usage_usec 7\n"),
            ("memory.stat", "anon 1\ninactive_file 9\n"),
            ("n1/kubepods/podu/cpu.stat", "usage_usec 1500\nuser_usec 1\n"),
            ("n1/kubepods/podu/memory.current", "100\n"),
            ("n1/kubepods/podu/memory.stat", "anon 1\ninactive_file 300\n"),
        ];
        check(&two, pod, (Some(1_500_000), Some(0)));
        check(&two, "/", (Some(7000), None));
        check(
            &[("cgroup.controllers", ""), ("n1/kubepods/podu/cpu.stat", "usage_usecs 1\nusage_usec x\n")],
            pod,
            (None, None),
        );
    }

    #[test]
    fn memory_has_its_parts_and_what_is_left_of_a_limit() {
        let check = |files: &[(&str, &str)], expected: [Option<u64>; 6]| {
            let tree = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let file = tree.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let m = Cgroups::new(tree.path(), "/").usage("/p").memory;
            assert_eq!([m.available, m.used, m.working_set, m.rss, m.faults, m.major_faults], expected, "{files:?}");
        };
        let stat = "rss 1\npgfault 2\npgmajfault 3\ntotal_rss 10\ntotal_pgfault 20\ntotal_pgmajfault 30\ntotal_inactive_file 5\n";
        let one = [("memory/p/memory.stat", stat), ("memory/p/memory.usage_in_bytes", "100\n")];
        check(&one, [None, Some(100), Some(95), Some(10), Some(20), Some(30)]);
        let limit = |text| [one[0], one[1], ("memory/p/memory.limit_in_bytes", text)];
        check(&limit("150\n"), [Some(55), Some(100), Some(95), Some(10), Some(20), Some(30)]);
        check(&limit("9223372036854771712\n"), [None, Some(100), Some(95), Some(10), Some(20), Some(30)]);
        let two = |limit| {
            [
                ("cgroup.controllers", ""),
                ("p/memory.stat", "anon 10\npgfault 20\npgmajfault 30\ninactive_file 5\n"),
                ("p/memory.current", "100\n"),
                ("p/memory.max", limit),
            ]
        };
        check(&two("max\n"), [None, Some(100), Some(95), Some(10), Some(20), Some(30)]);
        check(&two("90\n"), [Some(0), Some(100), Some(95), Some(10), Some(20), Some(30)]);
    }

    #[test]
    fn both_versions_tell_who_uses_swap() {
        let tree = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            fs::create_dir_all(tree.path().join(file).parent().unwrap()).unwrap();
            fs::write(tree.path().join(file), text).unwrap();
        };
        let swap = || Cgroups::new(tree.path(), "/").swap("/p");
        assert_eq!(swap(), None);
        put("memory/p/memory.stat", "swap 1\ntotal_swap 2\n");
        assert_eq!(swap(), Some(Swap { used: 2, left: None }));
        put("cgroup.controllers", "");
        put("p/memory.swap.current", "3\n");
        put("p/memory.swap.max", "max\n");
        assert_eq!(swap(), Some(Swap { used: 3, left: None }));
        put("p/memory.swap.max", "10\n");
        assert_eq!(swap(), Some(Swap { used: 3, left: Some(7) }));
    }

    #[test]
    fn the_end_leaves_nothing_that_was_made_and_nothing_of_others() {
        let tree = tempfile::tempdir().unwrap();
        for folder in ["cpu", "memory/ours/others"] {
            fs::create_dir_all(tree.path().join(folder)).unwrap();
        }
        let cgroups = Cgroups::new(tree.path(), "/ours/n1");
        for controller in ["cpu", "memory"] {
            fs::create_dir_all(tree.path().join(controller).join("ours/n1/kubepods/podu3")).unwrap();
        }
        cgroups.remove_all();
        assert!(!tree.path().join("cpu/ours").exists());
        assert!(!tree.path().join("memory/ours/n1").exists());
        assert!(tree.path().join("memory/ours/others").exists());
    }
}
