//! Kills for want of memory, read from the lines of the kernel's log. Pure.
//! Upstream counterpart: utils/oomparser of github.com/google/cadvisor.

/// The kernel killed a process because memory ran out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// The cgroup of the process; `/` where it is the machine that ran out.
    pub cgroup: String,
    /// The cgroup that had no more memory; `/` is the machine.
    pub limited: String,
    pub process: String,
    pub pid: i32,
}

impl Kill {
    pub fn is_of_machine(&self) -> bool {
        self.limited == MACHINE
    }
}

const MACHINE: &str = "/";

/// The message of a line of `/dev/kmsg`, `priority,number,time,flags;message`. `None` for one that the kernel did not write itself, as
/// whoever may write to that file can, and for the lines of properties that may follow a message.
pub fn message(line: &str) -> Option<&str> {
    let (prefix, message) = line.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    // The three lowest bits are how grave it is, those above are who wrote it: 0 is the kernel, which lets nobody else write that.
    (priority >> 3 == 0).then_some(message)
}

/// The part of a report of the kernel that has been read.
#[derive(Debug)]
struct Report {
    cgroup: String,
    limited: String,
    /// The kernel says that a cgroup ran out.
    is_of_cgroup: bool,
}

impl Report {
    fn is_machines(&self) -> bool {
        self.limited == MACHINE && !self.is_of_cgroup
    }
}

#[derive(Debug, Default)]
pub struct Parser {
    report: Option<Report>,
}

impl Parser {
    /// Reads the next message; the kill that it completes, if it does.
    pub fn read(&mut self, message: &str) -> Option<Kill> {
        if message.contains("invoked oom-killer:") {
            let machine = || MACHINE.to_owned();
            self.report = Some(Report { cgroup: machine(), limited: machine(), is_of_cgroup: false });
            return None;
        }
        let report = self.report.as_mut()?;
        if let Some(kill) = of_cgroup(message) {
            self.report = None;
            return Some(kill);
        }
        if let Some((cgroup, limited)) = old_cgroups(message) {
            (report.cgroup, report.limited) = (cgroup, limited);
            return None;
        }
        report.is_of_cgroup |= message.starts_with("Memory cgroup out of memory");
        let (pid, process) = killed(message)?;
        let report = self.report.take()?;
        // Lines of a long report may be lost, those with the cgroup too: then nobody knows whose memory it was, but not the machine's.
        let is_known = report.is_machines() || report.limited != MACHINE;
        is_known.then_some(Kill { cgroup: report.cgroup, limited: report.limited, process, pid })
    }
}

/// The one line of kernels from 5.0 on about a cgroup. Of the whole machine they say `global_oom` in it, and the process on a line of its own.
fn of_cgroup(message: &str) -> Option<Kill> {
    let (_, rest) = message.split_once("oom-kill:constraint=")?;
    let (_, rest) = rest.split_once(",oom_memcg=")?;
    let (limited, rest) = rest.split_once(",task_memcg=")?;
    // A process may be called anything: its name is what is left between the others.
    let (cgroup, rest) = rest.split_once(",task=")?;
    let (rest, _) = rest.rsplit_once(",uid=")?;
    let (process, pid) = rest.rsplit_once(",pid=")?;
    Some(Kill { cgroup: cgroup.into(), limited: limited.into(), process: process.into(), pid: pid.parse().ok()? })
}

/// The line of older kernels: the cgroup of the process, and the one that had no more memory.
fn old_cgroups(message: &str) -> Option<(String, String)> {
    let (_, rest) = message.split_once("Task in ")?;
    let (cgroup, limited) = rest.rsplit_once(" killed as a result of limit of ")?;
    let absolute = |path: &str| format!("/{}", path.trim_matches('/'));
    Some((absolute(cgroup), absolute(limited)))
}

/// The process that the last line of a report names. Its name may hold brackets, so it ends with the last one.
fn killed(message: &str) -> Option<(i32, String)> {
    let (_, rest) = message.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (process, _) = rest.rsplit_once(')')?;
    if process.is_empty() { None } else { Some((pid.parse().ok()?, process.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(text: &str) -> Vec<Kill> {
        let mut parser = Parser::default();
        text.lines().filter_map(|line| parser.read(line)).collect()
    }

    fn kill(cgroup: &str, limited: &str, process: &str, pid: i32) -> Kill {
        Kill { cgroup: cgroup.into(), limited: limited.into(), process: process.into(), pid }
    }

    #[test]
    fn reports_of_the_kernels_of_a_decade() {
        let pod = "/kubepods/burstable/podfbdfe8e3-1c87-4ff2-907c-b2ec8e25d012";
        let container = format!("{pod}/ef807430361e");
        let of_cgroup = format!(
            "manager invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999\n\
             CPU: 1 PID: 966 Comm: manager Not tainted 5.10.0-8-amd64 #1 Debian 5.10.46-4\n\
             memory: usage 16384kB, limit 16384kB, failcnt 120\n\
             Tasks state (memory values in pages):\n\
             oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=ef807430361e,mems_allowed=0,oom_memcg={pod},\
             task_memcg={container},task=manager,pid=966,uid=0\n\
             Memory cgroup out of memory: Killed process 966 (manager) total-vm:107kB, anon-rss:16kB, UID:0 pgtables:68kB oom_score_adj:999\n\
             Memory cgroup out of memory: Killed process 967 (sh) total-vm:1kB, anon-rss:0kB, UID:0 pgtables:68kB oom_score_adj:999\n\
             oom_reaper: reaped process 966 (manager), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
        );
        assert_eq!(kills(&of_cgroup), [kill(&container, pod, "manager", 966)]);
        let of_machine = "kworker/0:1 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=-1, oom_score_adj=0\n\
             Mem-Info:\n\
             active_anon:405991 inactive_anon:57 isolated_anon:0\n\
             oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=hog,pid=41,uid=0\n\
             Out of memory: Killed process 41 (hog) total-vm:2236kB, anon-rss:100kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:44kB oom_score_adj:1000";
        assert_eq!(kills(of_machine), [kill("/", "/", "hog", 41)]);
        // Two of a kernel of before 5.0, with what lies between them.
        let old = "docker0: port 2(vethcd0dbfb) entered disabled state\n\
             gunpowder-memho invoked oom-killer: gfp_mask=0x24000c0(GFP_KERNEL), order=0, oom_score_adj=0\n\
             [<ffffffff8137ad47>] dump_stack+0x4d/0x63\n\
             Task in /docker/2e08 killed as a result of limit of /docker\n\
             memory: usage 20480kB, limit 20480kB, failcnt 1204\n\
             Memory cgroup out of memory: Kill process 1381 (gunpowder-memho) score 1046 or sacrifice child\n\
             Killed process 1381 (gunpowder-memho) total-vm:2121528kB, anon-rss:18624kB, file-rss:2140kB, shmem-rss:0kB\n\
             eth0: renamed from veth4b89c12\n\
             badsysprogram invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0\n\
             [ 1532]  1020  1532   410347   398810     788        0             0 badsysprogram\n\
             Out of memory: Kill process 1532 (badsysprogram) score 919 or sacrifice child\n\
             Killed process 1532 (badsysprogram) total-vm:1641388kB, anon-rss:1595164kB, file-rss:76kB";
        let expected =
            [kill("/docker/2e08", "/docker", "gunpowder-memho", 1381), kill("/", "/", "badsysprogram", 1532)];
        assert_eq!(kills(old), expected);
    }

    #[test]
    fn a_report_of_which_lines_are_lost_says_nothing_wrong() {
        // Without its beginning it is none.
        assert_eq!(kills("Out of memory: Killed process 41 (hog) total-vm:2236kB"), []);
        let cut = "hog invoked oom-killer: gfp_mask=0xcc0\n\
             Memory cgroup out of memory: Killed process 41 (hog) total-vm:2236kB";
        assert_eq!(kills(cut), [], "it was not the machine's memory");
        let cut = "a invoked oom-killer: gfp_mask=0xcc0\nTask in /a killed as a result of limit of /a\n\
             b invoked oom-killer: gfp_mask=0xcc0\nOut of memory: Killed process 41 (b) total-vm:2236kB";
        assert_eq!(kills(cut), [kill("/", "/", "b", 41)], "the second report is one of its own");
        let none = "a invoked oom-killer: gfp_mask=0xcc0\nOut of memory and no killable processes...";
        assert_eq!(kills(none), []);
    }

    #[test]
    fn processes_have_any_name() {
        for name in ["foo", "python3.4", "Plex Media Server", "[", "()", "\"with quotes\"", "a) (b", "a,pid=7,uid=0"] {
            let text = format!("x invoked oom-killer: y\nOut of memory: Killed process 1234 ({name}) total-vm:14kB");
            assert_eq!(kills(&text), [kill("/", "/", name, 1234)], "{name}");
            let text = format!(
                "x invoked oom-killer: y\noom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                 oom_memcg=/l,task_memcg=/c,task={name},pid=1234,uid=5"
            );
            assert_eq!(kills(&text), [kill("/c", "/l", name, 1234)], "{name}");
        }
        for wrong in
            ["Killed process x (a)", "Killed process 99999999999 (a)", "Killed process 1 a", "Killed process 1 ()"]
        {
            assert_eq!(kills(&format!("x invoked oom-killer: y\n{wrong}")), [], "{wrong}");
        }
    }

    #[test]
    fn only_the_kernels_own_lines_count() {
        for (line, expected) in [
            ("4,1339,5140900,-;x invoked oom-killer: y", Some("x invoked oom-killer: y")),
            ("6,339,5140900,-,caller=T1;a;b", Some("a;b")),
            // A program wrote it, as its facility says.
            ("12,1339,5140900,-;x invoked oom-killer: y", None),
            ("30,1,2,-;systemd[1]: Started", None),
            (" SUBSYSTEM=acpi", None),
            (" DEVICE=+acpi:PNP0A03:00;x", None),
            ("", None),
            (";", None),
            ("-1,1,1,-;x", None),
        ] {
            assert_eq!(message(line), expected, "{line}");
        }
    }
}
