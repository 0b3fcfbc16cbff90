//! The programs of iptables: what they are given, and what they say.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use nft::Family;
use tokio::{io::AsyncWriteExt, process::Command};

use super::text::{self, CANARY, TABLES};
use crate::apply::limits;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot run `{program}`: {source}; install the package iptables, or choose the proxy mode nftables")]
    Missing { program: &'static str, source: std::io::Error },
    #[error("{program}: {said}")]
    Refused { program: &'static str, said: String },
    #[error("cannot let packets from loopback addresses out to Pods (route_localnet): {0}")]
    Loopback(std::io::Error),
}

/// How long the programs wait for each other, in seconds.
const WAIT: &str = "5";

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

fn restore_program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-restore",
        Family::V6 => "ip6tables-restore",
    }
}

fn save_program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-save",
        Family::V6 => "ip6tables-save",
    }
}

async fn run(program: &'static str, args: &[&str], input: &str) -> Result<Output, Error> {
    let missing = |source| Error::Missing { program, source };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(missing)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A write fails only when the program ended early; its exit status and message then tell why.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    child.wait_with_output().await.map_err(missing)
}

async fn done(program: &'static str, args: &[&str], input: &str) -> Result<String, Error> {
    let output = run(program, args, input).await?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("failed without a message").to_owned();
    Err(Error::Refused { program, said })
}

/// Whether the programs of a family are there.
pub async fn available(family: Family) -> Result<(), Error> {
    done(restore_program(family), &["--version"], "").await.map(drop)
}

/// Gives a text to the kernel, as one transaction for each table. An empty one costs nothing.
pub async fn restore(family: Family, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Ok(());
    }
    done(restore_program(family), &["-w", WAIT, "--noflush", "--counters"], text).await.map(drop)
}

/// All rules of the tables that the proxy has a part in.
pub async fn saved(family: Family) -> Result<String, Error> {
    done(save_program(family), &[], "").await
}

/// Whether somebody emptied a table since everything was written.
pub async fn emptied(family: Family) -> Result<bool, Error> {
    for table in TABLES {
        let output = run(program(family), &["-w", WAIT, "-t", table, "-S", CANARY], "").await?;
        if !output.status.success() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lets packets from loopback addresses of this machine out, as node ports at 127.0.0.1 need it.
pub fn route_localnet() -> Result<(), Error> {
    limits::change(Path::new("/proc/sys/net/ipv4/conf/all/route_localnet"), 1, false).map(drop).map_err(Error::Loopback)
}

/// Removes all rules of this mode. Where the programs are not installed, they have written none.
pub async fn remove() -> Result<(), Error> {
    for family in Family::ALL {
        let saved = match saved(family).await {
            Err(Error::Missing { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue,
            saved => saved?,
        };
        restore(family, &text::nothing(&saved)).await?;
    }
    Ok(())
}
