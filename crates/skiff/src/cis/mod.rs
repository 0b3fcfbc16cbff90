//! The checks of the CIS Kubernetes benchmark for control planes and nodes, by the numbers of its version 1.12: each passes, fails,
//! does not apply for a reason, or, where the benchmark calls for a person's judgement, tells what there is to judge. Looked at is
//! what is there: the modes of files, and the flags of the process that holds the data folder.

mod api_server;
mod files;
mod node;
mod parts;

use std::{fmt, fs, path::Path};

use clap::Parser;

use crate::{
    flags::{
        config_file,
        options::{Cli, Command, ControlPlane, Node},
    },
    layout::Layout,
};

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Pass(String),
    /// It is about something that is not here.
    Apart(String),
    /// The benchmark leaves it to a person, who is told what to do.
    Manual(String),
    Fail(String),
}

fn pass(text: impl Into<String>) -> Verdict {
    Verdict::Pass(text.into())
}

fn apart(text: impl Into<String>) -> Verdict {
    Verdict::Apart(text.into())
}

fn manual(text: impl Into<String>) -> Verdict {
    Verdict::Manual(text.into())
}

fn fail(text: impl Into<String>) -> Verdict {
    Verdict::Fail(text.into())
}

/// One check of the benchmark.
#[derive(Clone, Copy)]
struct Control {
    id: &'static str,
    about: &'static str,
    look: fn(&Subject) -> Verdict,
}

/// The subject of the checks.
struct Subject {
    layout: Layout,
    /// Whether a process holds the data folder.
    running: bool,
    /// The flags of the control plane, where this machine runs one.
    control_plane: Option<ControlPlane>,
    /// Those of the node.
    node: Option<Node>,
}

impl Subject {
    /// The flags of the process that holds the folder; the usual ones where none does.
    fn of(data_dir: &Path) -> anyhow::Result<Self> {
        let layout = Layout::new(data_dir);
        let holder = layout.holder();
        let args = match holder {
            Some(process) => arguments(process)?,
            None => ["skiff", "up"].map(str::to_owned).to_vec(),
        };
        let (control_plane, node) = match Cli::try_parse_from(flags_in_effect(args)?)?.command {
            Command::Up(up) => (Some(up.control_plane), Some(up.node)),
            Command::Server(server) => (Some(server.control_plane), None),
            Command::Agent(agent) => (None, Some(agent.node)),
            _ => anyhow::bail!("the process that holds {} is no cluster's", data_dir.display()),
        };
        Ok(Subject { layout, running: holder.is_some(), control_plane, node })
    }
}

/// With those of the configuration file, which the process read too.
fn flags_in_effect(mut args: Vec<String>) -> anyhow::Result<Vec<String>> {
    config_file::insert(&mut args)?;
    Ok(args)
}

fn arguments(process: i32) -> anyhow::Result<Vec<String>> {
    let text = fs::read(format!("/proc/{process}/cmdline"))?;
    let args = text.split(|byte| *byte == 0).filter(|arg| !arg.is_empty());
    Ok(args.map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
}

/// One line: a check, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub id: &'static str,
    pub about: &'static str,
    pub verdict: Verdict,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mark, text) = match &self.verdict {
            Verdict::Pass(text) => ("pass", text),
            Verdict::Apart(text) => ("n/a", text),
            Verdict::Manual(text) => ("manual", text),
            Verdict::Fail(text) => ("FAIL", text),
        };
        write!(f, "{mark:<6}  {:<6}  {:<46}  {text}", self.id, self.about)
    }
}

/// Carries out all checks.
pub fn look(data_dir: &Path) -> anyhow::Result<Vec<Line>> {
    let subject = Subject::of(data_dir)?;
    let all = [files::CONTROLS, api_server::CONTROLS, parts::CONTROLS, node::CONTROLS].concat();
    let mut lines: Vec<Line> = all
        .iter()
        .map(|control| Line { id: control.id, about: control.about, verdict: (control.look)(&subject) })
        .collect();
    lines.sort_by_key(|line| numbers(line.id));
    Ok(lines)
}

fn numbers(id: &str) -> Vec<u32> {
    id.split('.').filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks of each section of the benchmark.
    const SECTIONS: &[(&str, u32)] = &[
        ("1.1", 21),
        ("1.2", 30),
        ("1.3", 7),
        ("1.4", 2),
        ("2", 7),
        ("3.1", 3),
        ("3.2", 2),
        ("4.1", 10),
        ("4.2", 14),
        ("4.3", 1),
    ];

    #[test]
    fn every_check_is_there_and_none_fails_by_default() {
        let folder = tempfile::tempdir().unwrap();
        let lines = look(folder.path()).unwrap();
        let found: Vec<&str> = lines.iter().map(|line| line.id).collect();
        let expected: Vec<String> =
            SECTIONS.iter().flat_map(|(section, count)| (1..=*count).map(move |n| format!("{section}.{n}"))).collect();
        assert_eq!(found, expected);
        for line in &lines {
            assert!(!matches!(line.verdict, Verdict::Fail(_)), "{line}");
        }
        // The benchmark itself calls these manual.
        let manual: Vec<&str> =
            lines.iter().filter(|line| matches!(line.verdict, Verdict::Manual(_))).map(|line| line.id).collect();
        assert_eq!(manual, ["1.2.1", "1.2.3", "1.2.9", "1.2.11", "4.2.13", "4.2.14"]);
        for id in ["1.2.15", "1.2.16", "1.2.17", "1.2.18", "1.2.19", "1.2.30", "1.3.2", "1.4.1", "3.2.1", "3.2.2"] {
            let line = lines.iter().find(|line| line.id == id).unwrap();
            assert!(matches!(line.verdict, Verdict::Pass(_)), "{line}");
        }
    }
}
