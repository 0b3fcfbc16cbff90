//! The owners of processors and of memory, in files that outlive a kubelet: upstream's `cpu_manager_state` and
//! `memory_manager_state`, which tools read, with their checksums. What cannot be understood stops the kubelet, in upstream's words:
//! somebody has to look whether the containers that run still have what they were promised.
//! Upstream counterpart: the folders `state` of pkg/kubelet/cm/cpumanager and pkg/kubelet/cm/memorymanager.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use files::modes;
use serde::{Deserialize, Serialize};

use super::{
    checksum,
    cpus::{Assigned, CpuState},
    cpuset::CpuSet,
    memory::tables::{Blocks, MemoryState, Nodes},
};

type Entries = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Cpus {
    policy_name: String,
    default_cpu_set: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: Entries,
    checksum: u32,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Memory {
    policy_name: String,
    machine_state: Nodes,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: Blocks,
    checksum: u32,
}

const CORRUPT: &str = "checkpoint is corrupted";

/// The files of one kubelet, for these policies.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    pub cpu_policy: &'static str,
    pub memory_policy: &'static str,
}

impl Checkpoints {
    pub fn new(folder: &Path, cpu_policy: &'static str, memory_policy: &'static str) -> Checkpoints {
        Checkpoints { folder: folder.to_owned(), cpu_policy, memory_policy }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}_manager_state"))
    }

    /// The content of a file, if there is one.
    fn restore<T>(
        &self,
        name: &str,
        called: &str,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let path = self.path(name);
        let content = match fs::read(&path) {
            Ok(content) => read(&content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(error.to_string()),
        };
        content.map(Some).map_err(|why| {
            let path = path.display().to_string();
            format!(
                "could not restore state from checkpoint: {why}, please drain this node and delete the {called} manager \
                 checkpoint file {path:?} before restarting Kubelet"
            )
        })
    }

    pub fn cpus(&self) -> Result<CpuState, String> {
        self.restore("cpu", "CPU", |content| self.read_cpus(content)).map(Option::unwrap_or_default)
    }

    pub fn memory(&self) -> Result<MemoryState, String> {
        self.restore("memory", "memory", |content| self.read_memory(content)).map(Option::unwrap_or_default)
    }

    fn read_cpus(&self, content: &[u8]) -> Result<CpuState, String> {
        let held: Cpus = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let Cpus { policy_name, default_cpu_set, entries, checksum } = &held;
        // A file without a checksum is one of an old form.
        if *checksum != 0 && *checksum != checksum::of_cpus(policy_name, default_cpu_set, entries) {
            return Err(CORRUPT.to_owned());
        }
        differs(self.cpu_policy, policy_name)?;
        let shared = CpuSet::read(default_cpu_set);
        let shared = shared.map_err(|why| format!("could not parse default cpu set {default_cpu_set:?}: {why}"))?;
        let mut assigned = Assigned::new();
        for (pod, containers) in entries {
            for (container, text) in containers {
                let cpus = CpuSet::read(text).map_err(|why| {
                    format!("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}: {why}")
                })?;
                assigned.entry(pod.clone()).or_default().insert(container.clone(), cpus);
            }
        }
        Ok(CpuState { shared, assigned })
    }

    fn read_memory(&self, content: &[u8]) -> Result<MemoryState, String> {
        let held: Memory = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let Memory { policy_name, machine_state, entries, checksum } = held;
        if checksum != checksum::of_memory(&policy_name, &machine_state, &entries) {
            return Err(CORRUPT.to_owned());
        }
        differs(self.memory_policy, &policy_name).map_err(|why| format!("[memorymanager] {why}"))?;
        Ok(MemoryState { nodes: machine_state, assigned: entries })
    }

    /// Both files as they are to be. They are on the disk afterwards. One writer at a time.
    pub fn write(&self, cpus: &CpuState, memory: &MemoryState) -> io::Result<()> {
        let of_pod = |containers: &BTreeMap<String, CpuSet>| {
            containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
        };
        let entries: Entries = cpus.assigned.iter().map(|(uid, all)| (uid.clone(), of_pod(all))).collect();
        let (policy, shared) = (self.cpu_policy.to_owned(), cpus.shared.to_string());
        let checksum = checksum::of_cpus(&policy, &shared, &entries);
        let of_cpus = Cpus { policy_name: policy, default_cpu_set: shared, entries, checksum };
        let checksum = checksum::of_memory(self.memory_policy, &memory.nodes, &memory.assigned);
        let of_memory = Memory {
            policy_name: self.memory_policy.to_owned(),
            machine_state: memory.nodes.clone(),
            entries: memory.assigned.clone(),
            checksum,
        };
        modes::replace_durably(&self.path("cpu"), modes::PRIVATE_FILE, serde_json::to_vec(&of_cpus)?)?;
        modes::replace_durably(&self.path("memory"), modes::PRIVATE_FILE, serde_json::to_vec(&of_memory)?)
    }
}

fn differs(configured: &str, held: &str) -> Result<(), String> {
    if configured == held {
        return Ok(());
    }
    Err(format!("configured policy {configured:?} differs from state checkpoint policy {held:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::memory::tables::Block;

    fn state(shared: &str, entries: &[(&str, &str, &str)]) -> CpuState {
        let mut state = CpuState { shared: CpuSet::read(shared).unwrap(), ..CpuState::default() };
        for (uid, name, cpus) in entries {
            let of_pod = state.assigned.entry((*uid).to_owned()).or_default();
            of_pod.insert((*name).to_owned(), CpuSet::read(cpus).unwrap());
        }
        state
    }

    /// Files of upstream's kubelets, as they were found on nodes.
    const REAL: [&str; 4] = [
        r#"{"policyName":"static","defaultCpuSet":"0-63","checksum":1058907510}"#,
        r#"{"policyName":"static","defaultCpuSet":"2-15,17-31,34-47,49-63","checksum":4141502832}"#,
        r#"{"policyName":"static","defaultCpuSet":"0-1,6-11","entries":{"4aec46af-22b7-4e26-babb-d15383ac9151":{"mysqld":"2-3"},"60008d73-6f6f-4467-96c5-cd0a1eeadf23":{"mysqld2":"4-5"}},"checksum":2764424633}"#,
        r#"{"policyName":"static","defaultCpuSet":"0-1,6-13,18-23","entries":{"28c11c89-3493-4972-bb67-7090b9d75e0d":{"mytestclient":"2-3,14-15","mytestclient2":"4-5,16-17"}},"checksum":1684933537}"#,
    ];

    #[test]
    fn files_are_those_of_upstreams_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        Checkpoints::new(folder.path(), "none", "None").write(&CpuState::default(), &MemoryState::default()).unwrap();
        assert_eq!(read("cpu_manager_state"), r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
        let none = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
        assert_eq!(read("memory_manager_state"), none);
        let checkpoints = Checkpoints::new(folder.path(), "static", "Static");
        for text in REAL {
            fs::write(folder.path().join("cpu_manager_state"), text).unwrap();
            let state = checkpoints.cpus().expect(text);
            checkpoints.write(&state, &MemoryState::default()).unwrap();
            assert_eq!(read("cpu_manager_state"), text);
        }
        let memory = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;
        fs::write(folder.path().join("memory_manager_state"), memory).unwrap();
        let checkpoints = Checkpoints::new(folder.path(), "static", "static");
        let state = checkpoints.memory().unwrap();
        let block = Block { numa_affinity: vec![0], sort: "memory".into(), size: 512 };
        assert_eq!(
            (&state.assigned["pod"]["container1"], state.nodes[&0].memory_map["memory"].free),
            (&vec![block], 1024)
        );
        checkpoints.write(&CpuState::default(), &state).unwrap();
        assert_eq!(read("memory_manager_state"), memory);
    }

    #[test]
    fn what_was_written_is_read_and_what_is_wrong_stops_the_kubelet() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), "static", "Static");
        assert_eq!(checkpoints.cpus(), Ok(CpuState::default()));
        assert_eq!(checkpoints.memory(), Ok(MemoryState::default()));
        let held = state("7-9", &[("p", "a", "4-6"), ("p", "b", "1-3")]);
        checkpoints.write(&held, &MemoryState::default()).unwrap();
        assert_eq!(checkpoints.cpus(), Ok(held));
        let path = |name: &str| folder.path().join(format!("{name}_manager_state"));
        let expect = |got: Result<(), String>, called: &str, name: &str, why: &str| {
            let got = got.unwrap_err();
            let end = format!(
                "please drain this node and delete the {called} manager checkpoint file {:?}",
                path(name).display().to_string()
            );
            assert!(got.starts_with(&format!("could not restore state from checkpoint: {why}")), "{got}");
            assert!(got.ends_with(&format!("{end} before restarting Kubelet")), "{got}");
        };
        let other = Checkpoints::new(folder.path(), "none", "None");
        let why = "configured policy \"none\" differs from state checkpoint policy \"static\",";
        expect(other.cpus().map(drop), "CPU", "cpu", why);
        let why = "[memorymanager] configured policy \"None\" differs from state checkpoint policy \"Static\",";
        expect(other.memory().map(drop), "memory", "memory", why);
        for (content, why) in [
            (r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#, "checkpoint is corrupted,"),
            ("{", "EOF"),
            (r#"{"policyName":"static","defaultCpuSet":"1.3"}"#, "could not parse default cpu set \"1.3\": "),
            (
                r#"{"policyName":"static","defaultCpuSet":"1","entries":{"pod":{"c":"asd"}}}"#,
                "could not parse cpuset \"asd\" for container \"c\" in pod \"pod\": ",
            ),
            (r#"{"policyName":"static","entries":{"id":"4-6"}}"#, "invalid type"),
        ] {
            fs::write(path("cpu"), content).unwrap();
            expect(checkpoints.cpus().map(drop), "CPU", "cpu", why);
        }
        fs::write(path("memory"), r#"{"policyName":"Static","machineState":{}}"#).unwrap();
        expect(checkpoints.memory().map(drop), "memory", "memory", "checkpoint is corrupted,");
    }
}
