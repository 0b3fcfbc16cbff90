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
