//! When the machine runs out of memory, containers go before the processes that keep them. Upstream's kubelet and engines ask the
//! kernel for it too.

use std::{fs, io};

fn set(pid: i32, score: i32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())
}

/// Asks the kernel to spare this process, and the engine that it found. What it starts afterwards inherits that.
pub fn spare(score: i32, engine: Option<i32>) {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let failed = [Some(own), engine].into_iter().flatten().find_map(|pid| set(pid, score).err());
    if let Some(error) = failed {
        tracing::warn!(%error, "the kernel does not let this process ask to be spared when memory runs out");
    }
}
