//! nftables transactions: text goes to the kernel through the `nft` program, which takes all of it or nothing. [`Watch`] tells when
//! somebody else changed something, and [`Census`] whether anything is missing then.

mod census;
mod script;
mod watch;

use std::process::Stdio;

use tokio::{io::AsyncWriteExt, process::Command};

pub use census::Census;
pub use script::Script;
pub use watch::Watch;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("cannot run `nft`: {0}; install the package nftables")]
    Missing(std::io::Error),
    #[error("nft: {0}")]
    Refused(String),
}

impl ApplyError {
    /// The error by nft's message, whose first line says the most.
    fn refused(said: &str) -> Self {
        ApplyError::Refused(said.lines().next().unwrap_or("failed without a message").to_owned())
    }
}

/// Runs one nft script as one transaction.
pub async fn transaction(script: &str) -> Result<(), ApplyError> {
    watch::own(run(script)).await
}

async fn run(script: &str) -> Result<(), ApplyError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ApplyError::Missing)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A write fails only when nft ended early; its exit status and message then tell why.
    let _ = stdin.write_all(script.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.map_err(ApplyError::Missing)?;
    if output.status.success() {
        return Ok(());
    }
    Err(ApplyError::refused(&String::from_utf8_lossy(&output.stderr)))
}

/// Removes a table (`ip name`) if it is there.
pub async fn remove_table(table: &str) -> Result<(), ApplyError> {
    // `add` first makes the deletion succeed whether or not the table exists.
    transaction(&format!("add table {table}\ndelete table {table}\n")).await
}
