//! The configuration file: `/etc/skiff/config.yaml`, a map of flags without their dashes. The command line wins.

use std::path::Path;

use anyhow::{Context, bail};
use json::Value;

/// Where it is, unless `SKIFF_CONFIG` names another file.
const FILE: &str = "/etc/skiff/config.yaml";
/// The commands that read it.
const READERS: &[&str] = &["up", "server", "agent", "check", "down"];

/// Flags whose values are of the form `key=value`.
const TAKES_MAPS: &[&str] = &["feature-gates", "runtime-config"];

/// Inserts the file's flags behind the command, before the ones that the user typed.
pub fn insert(args: &mut Vec<String>) -> anyhow::Result<()> {
    if !args.get(1).is_some_and(|c| READERS.contains(&c.as_str())) {
        return Ok(());
    }
    let named = std::env::var("SKIFF_CONFIG").ok();
    let path = named.as_deref().unwrap_or(FILE);
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(()),
        Err(e) => return Err(e).context(format!("cannot read {path}")),
    };
    let known = known_flags(&args[1]);
    let typed: Vec<String> = args[2..].iter().filter_map(|a| a.strip_prefix("--")).map(flag_name).collect();
    let flags = flags(Path::new(path), &text, &typed, &known)?;
    for flag in &flags {
        check(path, &args[1], flag)?;
    }
    args.splice(2..2, flags);
    Ok(())
}

/// Says which file a wrong value stands in; without it the user would look for it on the command line.
pub fn check(path: &str, command: &str, flag: &str) -> anyhow::Result<()> {
    use clap::{CommandFactory, error::ErrorKind};
    match crate::flags::options::Cli::command().try_get_matches_from(["skiff", command, flag]) {
        // Flags that must be there are looked for when all are together.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => Ok(()),
        Err(error) => {
            let text = error.to_string();
            let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            bail!("{path}: {what}")
        }
    }
}

fn flag_name(argument: &str) -> String {
    argument.split('=').next().unwrap_or("").to_owned()
}

/// The flags that a command knows, and those that others know: one file serves several commands.
pub fn known_flags(command: &str) -> (Vec<String>, Vec<String>) {
    use clap::CommandFactory;
    let cli = crate::flags::options::Cli::command();
    let longs =
        |c: &clap::Command| c.get_arguments().filter_map(|a| a.get_long().map(str::to_owned)).collect::<Vec<_>>();
    let own = cli.find_subcommand(command).map(longs).unwrap_or_default();
    let all = cli.get_subcommands().filter(|c| READERS.contains(&c.get_name())).flat_map(longs).collect();
    (own, all)
}

fn flags(path: &Path, text: &str, typed: &[String], known: &(Vec<String>, Vec<String>)) -> anyhow::Result<Vec<String>> {
    let place = path.display();
    let value: Value = serde_saphyr::from_str(text).with_context(|| format!("{place} is not valid YAML"))?;
    let map = match value {
        Value::Object(map) => map,
        Value::Null => return Ok(Vec::new()),
        _ => bail!("{place} must hold a map of flags, such as `secure-port: 6443`"),
    };
    let mut flags = Vec::new();
    for (name, value) in map {
        let name = name.to_string();
        if !known.1.contains(&name) {
            bail!("{place} sets {name:?}, which is no flag; `skiff up --help` lists them");
        }
        if typed.contains(&name) || !known.0.contains(&name) {
            continue;
        }
        match value {
            Value::Object(map) if TAKES_MAPS.contains(&&*name) => {
                flags.extend(map.iter().map(|(key, value)| format!("--{name}={key}={}", plain(value))));
            }
            Value::Object(_) => bail!("{place} sets {name:?} to a map; it takes one value or a list of values"),
            Value::Array(items) => flags.extend(items.iter().map(|item| format!("--{name}={}", plain(item)))),
            Value::Bool(true) => flags.push(format!("--{name}")),
            Value::Bool(false) if name == "anonymous-auth" => flags.push(format!("--{name}=false")),
            Value::Bool(false) | Value::Null => {}
            other => flags.push(format!("--{name}={}", plain(&other))),
        }
    }
    Ok(flags)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(text: &str, typed: &[&str], expected: &str) {
        let known = known_flags("server");
        let typed: Vec<String> = typed.iter().map(|t| (*t).to_owned()).collect();
        let got = match flags(Path::new("config.yaml"), text, &typed, &known) {
            Ok(flags) => flags.join(" "),
            Err(e) => e.to_string(),
        };
        assert_eq!(got, expected, "{text}");
    }

    #[test]
    fn the_file_gives_flags_and_the_command_line_wins() {
        expect("secure-port: 7443\nanonymous-auth: false", &[], "--anonymous-auth=false --secure-port=7443");
        expect("secure-port: 7443", &["secure-port"], "");
        expect("disable: [dns, proxy]", &[], "--disable=dns --disable=proxy");
        expect("feature-gates: {A: true, B: false}", &[], "--feature-gates=A=true --feature-gates=B=false");
        expect("runtime-config: api/all=true", &[], "--runtime-config=api/all=true");
        expect("node-ip: 10.0.0.1", &[], "");
        expect("", &[], "");
        expect(
            "secure_port: 1",
            &[],
            "config.yaml sets \"secure_port\", which is no flag; `skiff up --help` lists them",
        );
        expect("disable: {a: b}", &[], "config.yaml sets \"disable\" to a map; it takes one value or a list of values");
        expect("- a", &[], "config.yaml must hold a map of flags, such as `secure-port: 6443`");
    }

    #[test]
    fn a_wrong_value_names_its_file() {
        let said = check("config.yaml", "server", "--secure-port=abc").unwrap_err().to_string();
        assert!(said.starts_with("config.yaml: invalid value 'abc' for '--secure-port"), "{said}");
        assert!(check("config.yaml", "server", "--foreground=yes").is_err());
        assert!(check("config.yaml", "agent", "--kubelet-port=1").is_ok());
    }
}
