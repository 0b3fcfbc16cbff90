//! The rows of a node full of Pods that do nothing: what its agent, which has no control plane, takes for them.

use std::{fmt::Write, path::Path, process::Command, time::Duration};

use anyhow::Context;

use crate::{
    report::{Goal::AtMost, Report},
    subject::{output, resident_mb, used},
};

/// As many as a kubelet takes by default.
pub const PODS: usize = 110;
/// How long it is waited until what the starts needed is done, and then watched.
const SETTLING: Duration = Duration::from_secs(20);
const WINDOW: Duration = Duration::from_secs(60);

/// Over the node `first-2` of the cluster with this data folder, whose agent has run Pods before: what only the first one needed
/// is in its memory.
pub fn measure(folder: &Path, agent: u32, report: &mut Report) -> anyhow::Result<()> {
    let kubectl = |arguments: &[&str]| {
        output(Command::new("kubectl").arg("--kubeconfig").arg(folder.join("admin.kubeconfig")).args(arguments))
    };
    let (before, own_before) = (resident_mb(agent), own_mb(agent)?);
    let file = folder.join("idle.yaml");
    std::fs::write(&file, manifest())?;
    kubectl(&["apply", "-f", &file.display().to_string()])?;
    kubectl(&["wait", "--for=condition=Ready", "pod", "-l", "bench=idle", "--timeout=180s"])?;
    std::thread::sleep(SETTLING);
    let begun = used(agent).0;
    std::thread::sleep(WINDOW);
    let cpu = (used(agent).0 - begun) / WINDOW.as_secs_f64() * 100.0;
    let what = format!("{PODS} idle Pods on a node: CPU of its agent");
    report.add(&what, cpu, "% of a core", Some(AtMost(1.0)), "over 60 s, without containerd");
    let note = format!("resident memory with the binary's pages: {:.1} MB more", resident_mb(agent) - before);
    report.add("the same: more memory of its own", own_mb(agent)? - own_before, "MB", Some(AtMost(3.0)), note);
    Ok(())
}

fn manifest() -> String {
    (0..PODS).fold(String::new(), |mut text, i| {
        // Writing to a text cannot fail.
        let _ = write!(
            text,
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: idle-{i}, labels: {{bench: idle}}}}\nspec:\n  \
             nodeName: first-2\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
             - {{name: c, image: 'skiff.local/busybox:1', command: [sleep, '100000']}}\n---\n"
        );
        text
    })
}

/// Resident memory in MB that no file is behind.
fn own_mb(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kib: f64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}
