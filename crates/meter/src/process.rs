//! The metrics that every process has: its memory, its time, its files, and the tasks in it. The names are those of the clients of
//! Prometheus in Go, by which dashboards ask; of those about Go itself only the two that mean something here are told, the tasks
//! that wait or run and the threads under them: there is no garbage collector whose work could be shown.

use std::fs;

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{SysconfVar, sysconf},
};

use crate::{Metric, told};

static CPU: Metric = Metric::counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
static RESIDENT: Metric = Metric::gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
static VIRTUAL: Metric = Metric::gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
static VIRTUAL_MAX: Metric =
    Metric::gauge("process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.");
static STARTED: Metric =
    Metric::gauge("process_start_time_seconds", "[ALPHA] Start time of the process since unix epoch in seconds.");
static OPEN: Metric = Metric::gauge("process_open_fds", "Number of open file descriptors.");
static OPEN_MAX: Metric = Metric::gauge("process_max_fds", "Maximum number of open file descriptors.");
static TASKS: Metric =
    Metric::gauge("go_goroutines", "Number of tasks that currently exist, as goroutines are elsewhere.");
static THREADS: Metric = Metric::gauge("go_threads", "Number of OS threads created.");

/// The facts of `/proc/self/stat` that are told.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    threads: f64,
    started_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    /// The name of the program, in brackets, may hold spaces and brackets itself.
    fn parse(text: &str) -> Option<Stat> {
        let (_, behind) = text.rsplit_once(')')?;
        let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
        // The first field behind the name is the third of all.
        let at = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        Some(Stat {
            cpu_ticks: at(14)? + at(15)?,
            threads: at(20)?,
            started_ticks: at(22)?,
            virtual_bytes: at(23)?,
            resident_pages: at(24)?,
        })
    }

    fn read() -> Option<Stat> {
        Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }
}

fn setting(of: SysconfVar, usual: f64) -> f64 {
    sysconf(of).ok().flatten().map_or(usual, |value| value as f64)
}

/// When the machine started, in seconds.
fn boot() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// When this process started, in seconds since 1970.
pub fn started() -> Option<f64> {
    Some(boot()? + Stat::read()?.started_ticks / setting(SysconfVar::CLK_TCK, 100.0))
}

/// The one line about it that the page of health has too.
pub fn started_page() -> String {
    told(&STARTED, started().map(|seconds| (String::new(), seconds)))
}

/// The lines about this process; those that cannot be found out are left out.
pub fn page() -> String {
    let mut page = started_page();
    let mut tell = |metric: &Metric, value: Option<f64>| page += &told(metric, value.map(|v| (String::new(), v)));
    let stat = Stat::read();
    let of = |value: fn(&Stat) -> f64| stat.as_ref().map(value);
    let (tick, page_bytes) = (setting(SysconfVar::CLK_TCK, 100.0), setting(SysconfVar::PAGE_SIZE, 4096.0));
    tell(&CPU, of(|stat| stat.cpu_ticks).map(|ticks| ticks / tick));
    tell(&RESIDENT, of(|stat| stat.resident_pages).map(|pages| pages * page_bytes));
    tell(&VIRTUAL, of(|stat| stat.virtual_bytes));
    tell(&VIRTUAL_MAX, getrlimit(Resource::RLIMIT_AS).ok().map(|(soft, _)| soft as f64));
    // The folder itself is open while it is read.
    tell(&OPEN, fs::read_dir("/proc/self/fd").ok().map(|all| (all.count() as f64 - 1.0).max(0.0)));
    tell(&OPEN_MAX, getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64));
    let tasks = tokio::runtime::Handle::try_current().ok();
    tell(&TASKS, tasks.map(|runtime| runtime.metrics().num_alive_tasks() as f64));
    tell(&THREADS, of(|stat| stat.threads));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_confuses_nobody() {
        let text = "42 (a) b) (c) S 1 1 1 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 3 0 900 8192 25 18446744073709551615 1";
        let expected =
            Stat { cpu_ticks: 12.0, threads: 3.0, started_ticks: 900.0, virtual_bytes: 8192.0, resident_pages: 25.0 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("42 (short) S 1"), None);
    }

    #[tokio::test]
    async fn a_process_knows_itself() {
        let page = page();
        let value = |name: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("{name} in {page}")).parse().expect("a number")
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") <= value("process_max_fds"));
        assert!(value("process_start_time_seconds") > 1.5e9);
        assert!(value("go_threads") >= 1.0);
        for name in ["process_cpu_seconds_total", "process_virtual_memory_bytes", "go_goroutines"] {
            value(name);
        }
    }
}
