//! How long the tasks of a cgroup have waited for processors, memory and disks: the kernel's pressure stall information. Version 1 of
//! cgroups tells none. Upstream counterpart: the PSI figures of cAdvisor, and `PSIStats` of the summary.

use std::{fs, path::Path};

use json::{Value, json};

use crate::node::cgroup::Cgroups;

/// The wait for one resource: all of it in microseconds, and the part of the last 10, 60 and 300 seconds in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wait {
    pub micros: u64,
    pub averages: [f64; 3],
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// Some task waited.
    pub some: Wait,
    /// No task could go on.
    pub full: Wait,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stalls {
    pub cpu: Option<Stall>,
    pub memory: Option<Stall>,
    pub io: Option<Stall>,
}

impl Stalls {
    pub fn of(cgroups: &Cgroups, path: &str) -> Stalls {
        if !cgroups.is_unified() {
            return Stalls::default();
        }
        let folder = cgroups.folder("", path);
        let of = |name: &str| read(&folder.join(format!("{name}.pressure")));
        Stalls { cpu: of("cpu"), memory: of("memory"), io: of("io") }
    }
}

impl Stall {
    /// As the summary has it.
    pub fn document(&self) -> Value {
        let of = |wait: &Wait| {
            let [short, middle, long] = wait.averages;
            json!({"total": wait.micros, "avg10": short, "avg60": middle, "avg300": long})
        };
        json!({"full": of(&self.full), "some": of(&self.some)})
    }
}

/// A kernel that does not count has no file, or one that cannot be read.
fn read(file: &Path) -> Option<Stall> {
    let text = fs::read_to_string(file).ok()?;
    let wait = |word: &str| wait(text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))?);
    // Older kernels do not say when no task had a processor.
    Some(Stall { some: wait("some")?, full: wait("full").unwrap_or_default() })
}

/// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`
fn wait(line: &str) -> Option<Wait> {
    let value = |name: &str| line.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let average = |name: &str| value(name)?.parse().ok();
    let averages = [average("avg10")?, average("avg60")?, average("avg300")?];
    Some(Wait { micros: value("total")?.parse().ok()?, averages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_who_waited() {
        let tree = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(tree.path().join(file), text).unwrap();
        fs::create_dir(tree.path().join("p")).unwrap();
        put("p/cpu.pressure", "some avg10=1.50 avg60=0.25 avg300=0.00 total=77\n");
        put(
            "p/memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.01 total=4\n",
        );
        put("p/io.pressure", "some avg10=x avg60=0.00 avg300=0.00 total=9\n");
        let stalls = || Stalls::of(&Cgroups::new(tree.path(), "/"), "/p");
        assert_eq!(stalls(), Stalls::default(), "version 1 has other files");
        put("cgroup.controllers", "");
        let Stalls { cpu: Some(cpu), memory: Some(memory), io: None } = stalls() else { panic!("{:?}", stalls()) };
        assert_eq!(cpu, Stall { some: Wait { micros: 77, averages: [1.5, 0.25, 0.0] }, full: Wait::default() });
        let expected = json!({
            "full": {"total": 4, "avg10": 0.0, "avg60": 0.0, "avg300": 0.01},
            "some": {"total": 9, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
        });
        assert_eq!(memory.document(), expected);
    }
}
