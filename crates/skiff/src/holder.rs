//! The end of the process that holds a data folder.

use std::time::Duration;

use anyhow::bail;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::layout::Layout;

/// How long the process gets to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the process was killed, and the kernel has not taken away all of it yet: its memory goes before its locks.
pub fn is_dying(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).map_or(true, |status| says_dying(&status))
}

fn says_dying(status: &str) -> bool {
    const KILL: u64 = 1 << (Signal::SIGKILL as u64 - 1);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let pending =
        |name| field(name).and_then(|set| u64::from_str_radix(set, 16).ok()).is_some_and(|set| set & KILL != 0);
    field("VmSize:").is_none() || pending("SigPnd:") || pending("ShdPnd:")
}

/// Asks the process that holds the folder to end, then makes it.
pub async fn end(layout: &Layout) -> anyhow::Result<()> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let Some(pid) = layout.holder() else { return Ok(()) };
        // It may end between the question and the signal.
        let _ = kill(Pid::from_raw(pid), signal);
        let deadline = clock::Instant::now() + PATIENCE;
        while layout.holder().is_some() && clock::Instant::now() < deadline {
            clock::sleep(Duration::from_millis(20)).await;
        }
    }
    match layout.holder() {
        None => Ok(()),
        Some(pid) => bail!("process {pid} does not end; it holds {}", layout.root.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_was_killed_is_known() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_dying(std::process::id() as i32));
        child.kill().unwrap();
        // Nobody waits for it: it stays as long as it is looked at, as dying first and then as dead.
        while !is_dying(pid) {
            std::thread::yield_now();
        }
        assert!(is_dying(pid));
        child.wait().unwrap();
        let alive = "State:\tS (sleeping)\nVmSize:\t 8 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";
        assert!(!says_dying(alive));
        assert!(says_dying(&alive.replace("ShdPnd:\t00000000000000", "ShdPnd:\t00000000000001")));
        assert!(says_dying(&alive.replace("VmSize:\t 8 kB\n", "")));
    }
}
