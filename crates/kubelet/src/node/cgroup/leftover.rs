//! Processes in the cgroup of a Pod that has ended. An engine whose start of a container was broken off may leave one there that is
//! nobody's child any more (runc's, before it has become the container's): no call of the engine ends it, and the cgroup stays
//! for as long as it does. Upstream counterpart: tryKillingCgroupProcesses in pkg/kubelet/cm.

use std::{fs, path::Path};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Kills whatever runs in a cgroup and below it.
pub fn end(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|sort| sort.is_dir()) {
            end(&entry.path());
        }
    }
    let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process that cannot be seen from here, and would be this one's group.
    for process in processes.lines().filter_map(|line| line.parse().ok()).filter(|process| *process > 0) {
        tracing::debug!(process, cgroup = %folder.display(), "a process of a Pod that has ended is ended");
        // One that has ended meanwhile is as good.
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn what_runs_in_a_cgroup_and_below_it_is_killed() {
        let tree = tempfile::tempdir().unwrap();
        let below = tree.path().join("c1");
        fs::create_dir(&below).unwrap();
        let mut processes = [0, 1].map(|_| Command::new("sleep").arg("1000").spawn().unwrap());
        let [one, other] = [processes[0].id(), processes[1].id()];
        fs::write(tree.path().join("cgroup.procs"), format!("0\n{one}\n")).unwrap();
        fs::write(below.join("cgroup.procs"), format!("{other}\n")).unwrap();
        end(tree.path());
        for process in &mut processes {
            assert_eq!(process.wait().unwrap().signal(), Some(9));
        }
        end(&tree.path().join("none"));
    }
}
