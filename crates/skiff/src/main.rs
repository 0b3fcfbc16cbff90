//! The binary: chooses an applet, reads flags and the configuration file, and wires the crates together.
//!
//! Called as `skiff-cni` or `loopback` (by the container engine) it is that CNI plugin, as `kube-proxy` that command; called as `skiff <command>` it is that command.

mod allocator;
mod cis;
mod commands;
mod configz;
mod control_plane;
mod flags;
mod given;
mod holder;
mod layout;
mod mimalloc;
mod node;
mod program_text;
mod progress;
mod reach;
mod sentence;
mod settings;
mod siblings;

use std::{path::Path, process::ExitCode};

use clap::Parser;

use crate::{
    commands::{agent, check, down, images, kube_proxy, server, store, token, up},
    flags::{
        config_file, kubelet_flags,
        options::{Cli, Command, LONG_VERSION},
    },
    sentence::sentence,
};

/// Called by this name the binary is that command.
const KUBE_PROXY: &str = "kube-proxy";

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().collect();
    let called_as = args.first().map(|a| Path::new(a).file_name().unwrap_or_default().to_string_lossy().into_owned());
    if called_as.as_deref().is_some_and(|name| network::PLUGINS.contains(&name)) {
        return network::cni::main();
    }
    server::BUILD.is_of_program();
    if called_as.as_deref() == Some(KUBE_PROXY) {
        args.insert(1, KUBE_PROXY.to_owned());
    }
    if matches!(args.get(1).map(String::as_str), Some("up" | "server" | "agent")) {
        settings::settle();
    }
    if let Err(error) = config_file::insert(&mut args).and_then(|()| kubelet_flags::insert(&mut args)) {
        return fail(&error);
    }
    let cli = Cli::parse_from(&args);
    given::keep(&args);
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

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(options) => up::run(options),
        Command::Down(options) => down::run(&options),
        Command::Server(options) => server::run(options),
        Command::Agent(options) => agent::run(options),
        Command::KubeProxy(flags) => kube_proxy::run(flags),
        Command::Check(options) => check::run(&options),
        Command::Images(command) => images::run(command),
        Command::Token(command) => token::run(command),
        Command::Store(command) => store::run(command),
        Command::Version => {
            println!("skiff {LONG_VERSION}");
            Ok(ExitCode::SUCCESS)
        }
    }
}
