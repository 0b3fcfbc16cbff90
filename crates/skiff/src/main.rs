//! The binary: chooses an applet, reads flags and the configuration file, and wires the crates together.
//!
//! Called as `skiff-cni` or `loopback` (by the container engine) it is that CNI plugin; called as `skiff <command>` it is that command.

mod allocator;
mod commands;
mod control_plane;
mod flags;
mod layout;
mod log;
mod node;
mod progress;
mod reach;

use std::{path::Path, process::ExitCode};

use clap::Parser;

use crate::{
    commands::{agent, check, down, images, server, store, token, up},
    flags::{
        config_file,
        options::{Cli, Command},
    },
};

/// What `skiff version` and `skiff --version` say after the name.
const LONG_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), " (Kubernetes ", api::kubernetes_version!(), ")");

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().collect();
    let called_as = args.first().map(|a| Path::new(a).file_name().unwrap_or_default().to_string_lossy().into_owned());
    if called_as.as_deref().is_some_and(|name| network::PLUGINS.contains(&name)) {
        return network::cni::main();
    }
    if matches!(args.get(1).map(String::as_str), Some("up" | "server" | "agent")) {
        allocator::settle();
    }
    if let Err(error) = config_file::insert(&mut args) {
        return fail(&error);
    }
    let cli = Cli::parse_from(args);
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Says what went wrong, with every cause, on one line.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("skiff: {}", sentence(error));
    ExitCode::FAILURE
}

/// An error and its causes in one line. A cause that was said already is not said again.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(options) => up::run(options),
        Command::Down(options) => down::run(&options),
        Command::Server(options) => server::run(options),
        Command::Agent(options) => agent::run(options),
        Command::Check(options) => Ok(check::run(&options)),
        Command::Images(command) => images::run(command),
        Command::Token(command) => token::run(command),
        Command::Store(command) => store::run(command),
        Command::Version => {
            println!("skiff {LONG_VERSION}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_twice() {
        let error = anyhow::anyhow!("no such file").context("cannot read x: no such file").context("cannot start");
        assert_eq!(sentence(&error), "cannot start: cannot read x: no such file");
        assert_eq!(sentence(&anyhow::anyhow!("one\n  two")), "one two");
    }
}
