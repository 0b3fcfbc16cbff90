//! The flags of the running command with their values, those that nobody gave too: what `/flagz` tells.

use std::{collections::BTreeMap, sync::OnceLock};

use clap::CommandFactory;

use crate::flags::options::Cli;

static ALL: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Flags whose values are secrets.
const SECRET: &[&str] = &["token"];

/// Remembers the flags of this process. Its arguments have been parsed once, and are right.
pub fn keep(args: &[String]) {
    let _ = ALL.set(of(args));
}

pub fn all() -> BTreeMap<String, String> {
    ALL.get().cloned().unwrap_or_default()
}

fn of(args: &[String]) -> BTreeMap<String, String> {
    let command = Cli::command();
    let Ok(matches) = command.clone().try_get_matches_from(args) else { return BTreeMap::new() };
    let Some((name, given)) = matches.subcommand() else { return BTreeMap::new() };
    let flags = command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    let value = |flag: &clap::Arg| {
        let long = flag.get_long()?;
        if SECRET.contains(&long) {
            return Some((long.to_owned(), "CLASSIFIED".to_owned()));
        }
        let values = given.try_get_raw(flag.get_id().as_str()).ok()?.into_iter().flatten();
        let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
        Some((long.to_owned(), values.join(",")))
    };
    flags.filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_told_with_what_counts_without_them() {
        let args = ["skiff", "server", "--data-dir=/d", "--disable=dns,scheduler", "--v=4"].map(str::to_owned);
        let flags = of(&args);
        for (name, value) in [("data-dir", "/d"), ("disable", "dns,scheduler"), ("v", "4"), ("profiling", "false")] {
            assert_eq!(flags.get(name).map(String::as_str), Some(value), "{name}");
        }
        let args = ["skiff", "agent", "--server=https://h:1", "--token=abc"].map(str::to_owned);
        assert_eq!(of(&args)["token"], "CLASSIFIED");
    }
}
