//! The files that the processes of a cgroup have open, as `/metrics/cadvisor` shows them.
//! Upstream counterpart: processStatsFromProcs in github.com/google/cadvisor.

use std::{fs, path::Path};

/// As many open files of one cgroup are looked at: a Pod that opens more makes nobody read them all.
const MOST: usize = 1 << 16;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// Descriptors of all its processes, and those of them that are sockets; `None` where there are too many to look at.
    pub descriptors: Option<u64>,
    pub sockets: Option<u64>,
    /// The number of files that its first process may open; -1 is no bound.
    pub soft_limit: Option<i64>,
}

impl OpenFiles {
    /// Those of the processes that `procs` lists. `first` is the process whose limit counts.
    pub fn of(proc: &Path, procs: &Path, first: Option<&str>) -> OpenFiles {
        let Ok(listed) = fs::read_to_string(procs) else { return OpenFiles::default() };
        let limits = first.or(listed.lines().next()).map(|pid| proc.join(pid).join("limits"));
        let limits = limits.and_then(|file| fs::read_to_string(file).ok());
        let counts = count(proc, listed.lines());
        OpenFiles {
            descriptors: counts.map(|(all, _)| all),
            sockets: counts.map(|(_, sockets)| sockets),
            soft_limit: limits.as_deref().and_then(soft_limit),
        }
    }
}

fn count<'a>(proc: &Path, pids: impl Iterator<Item = &'a str>) -> Option<(u64, u64)> {
    // A process that has ended has nothing open.
    let open = pids.flat_map(|pid| fs::read_dir(proc.join(pid).join("fd")).into_iter().flatten().flatten());
    let (mut all, mut sockets) = (0, 0);
    for (index, descriptor) in open.enumerate() {
        if index >= MOST {
            return None;
        }
        all += 1;
        let is_socket = |to: std::path::PathBuf| to.to_string_lossy().starts_with("socket");
        sockets += u64::from(fs::read_link(descriptor.path()).is_ok_and(is_socket));
    }
    Some((all, sockets))
}

/// The soft limit in a table of the kernel such as `Max open files  1024  4096  files`.
fn soft_limit(table: &str) -> Option<i64> {
    let row = table.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match row.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn all_open_files_count_and_the_first_process_says_how_many_there_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let open = |pid: &str, files: &[&str]| {
            let descriptors = proc.join(pid).join("fd");
            fs::create_dir_all(&descriptors).unwrap();
            files.iter().enumerate().for_each(|(i, to)| symlink(to, descriptors.join(i.to_string())).unwrap());
        };
        open("7", &["/dev/null", "socket:[1]", "pipe:[2]"]);
        open("8", &["socket:[3]"]);
        fs::write(proc.join("7/limits"), "Limit  Soft  Hard\nMax open files            1024  4096  files\n").unwrap();
        fs::write(proc.join("8/limits"), "Max open files            unlimited  unlimited  files\n").unwrap();
        let procs = proc.join("cgroup.procs");
        // The last one has ended since.
        fs::write(&procs, "7\n8\n9\n").unwrap();
        let expected = OpenFiles { descriptors: Some(4), sockets: Some(2), soft_limit: Some(1024) };
        assert_eq!(OpenFiles::of(proc, &procs, None), expected);
        assert_eq!(OpenFiles::of(proc, &procs, Some("8")).soft_limit, Some(-1));
        assert_eq!(OpenFiles::of(proc, &proc.join("none"), None), OpenFiles::default());
    }
}
