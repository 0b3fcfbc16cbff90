//! The part of the machine that is reserved for its system and for the parts of Kubernetes, what is left for Pods, and the limits that
//! keep each to its part. Pure but for [`enforce`]. Upstream counterpart: node_container_manager_linux.go of pkg/kubelet/cm.

use api::rules::{pod::Resources, quantity::Quantity};

use crate::{
    configuration::settings::{self, Enforcement, Reserved},
    node::{
        cgroup::Cgroups,
        machine::{self, Machine},
    },
    pod::spec::resources::{PodLimits, shares_of},
};

/// The amount of a resource that no Pod gets. Processors that are reserved by their numbers stand for all that are reserved.
pub fn amount(reserved: &Reserved, name: &str) -> Quantity {
    if let Some(list) = reserved.cpus.as_deref().filter(|_| name == "cpu") {
        let count = settings::cpus(list).map_or(0, |all| i64::try_from(all.len()).unwrap_or(i64::MAX));
        return Quantity::from_milli(count.saturating_mul(1000));
    }
    let mut sum = Quantity::default();
    for part in [&reserved.kube, &reserved.system] {
        sum += part.get(name).copied().unwrap_or_default();
    }
    sum
}

/// The limits of the cgroup of all Pods. What must stay free beside it is watched over, not held by the kernel.
pub fn of_all_pods(reserved: &Reserved, machine: &Machine) -> PodLimits {
    let milli = (machine.cpus * 1000 - amount(reserved, "cpu").milli_value()).max(0);
    let memory = (machine.memory - amount(reserved, "memory").value()).max(0);
    let most = machine::processes().map(|(_, most)| (most - amount(reserved, "pid").value()).max(0));
    let held = reserved.enforced.pods;
    PodLimits {
        shares: shares_of(milli),
        memory: Some(memory).filter(|bytes| held && *bytes > 0),
        // Without a reservation the machine's own limit is enough.
        pids: most.filter(|_| held && !amount(reserved, "pid").is_zero()),
        ..PodLimits::default()
    }
}

fn limits(of: &Resources, how: Enforcement) -> PodLimits {
    let all = how == Enforcement::All;
    let number = |name: &str| of.get(name).map(|q| q.value()).filter(|value| all && *value > 0);
    PodLimits {
        shares: shares_of(of.get("cpu").map_or(0, |q| q.milli_value())),
        memory: number("memory"),
        pids: number("pid"),
        ..PodLimits::default()
    }
}

/// Sets the limits of the cgroups that are kept for others than Pods. They must be there.
pub fn enforce(reserved: &Reserved, cgroups: &Cgroups) -> Result<(), String> {
    let parts = [
        (reserved.enforced.kube, &reserved.kube, &reserved.kube_cgroup, "Kube"),
        (reserved.enforced.system, &reserved.system, &reserved.system_cgroup, "System"),
    ];
    for (how, of, path, name) in parts {
        let Some(how) = how else { continue };
        let failed = |why: String| format!("Failed to enforce {name} Reserved Cgroup Limits on {path:?}: {why}");
        if !cgroups.exists(path) {
            return Err(failed(format!("{path:?} cgroup does not exist")));
        }
        cgroups.set(path, limits(of, how)).map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::settings::Enforced;

    fn resources(list: &[(&str, &str)]) -> Resources {
        list.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
    }

    fn reserved() -> Reserved {
        Reserved {
            kube: resources(&[("cpu", "100m"), ("memory", "1Gi"), ("pid", "10")]),
            system: resources(&[("cpu", "400m"), ("memory", "1Gi")]),
            kube_cgroup: "/kube".into(),
            ..Reserved::default()
        }
    }

    #[test]
    fn pods_have_what_nobody_has_reserved() {
        let machine = Machine { cpus: 4, memory: 8 << 30, ..Machine::default() };
        let all = of_all_pods(&reserved(), &machine);
        assert_eq!((all.shares, all.memory), (3584, Some(6 << 30)));
        let most = machine::processes().unwrap().1;
        assert_eq!(all.pids, Some(most - 10));
        let named = Reserved { cpus: Some("0-1".into()), ..reserved() };
        assert_eq!((of_all_pods(&named, &machine).shares, amount(&named, "cpu").milli_value()), (2048, 2000));
        let free = Reserved { enforced: Enforced { pods: false, kube: None, system: None }, ..reserved() };
        assert_eq!(of_all_pods(&free, &machine), PodLimits { shares: 3584, ..PodLimits::default() });
        assert_eq!(of_all_pods(&Reserved::default(), &machine).pids, None);
    }

    #[test]
    fn others_are_kept_to_their_part_where_that_is_asked_for() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
        let cgroups = Cgroups::new(tree.path(), "/");
        let kept = |kube| Reserved { enforced: Enforced { pods: true, kube, system: None }, ..reserved() };
        assert_eq!(enforce(&kept(None), &cgroups), Ok(()));
        let why = enforce(&kept(Some(Enforcement::All)), &cgroups).unwrap_err();
        assert_eq!(why, "Failed to enforce Kube Reserved Cgroup Limits on \"/kube\": \"/kube\" cgroup does not exist");
        std::fs::create_dir(tree.path().join("kube")).unwrap();
        let read = |file: &str| std::fs::read_to_string(tree.path().join("kube").join(file)).ok();
        enforce(&kept(Some(Enforcement::Compressible)), &cgroups).unwrap();
        assert_eq!((read("cpu.weight").as_deref(), read("memory.max")), (Some("4"), None));
        enforce(&kept(Some(Enforcement::All)), &cgroups).unwrap();
        assert_eq!((read("memory.max").as_deref(), read("pids.max").as_deref()), (Some("1073741824"), Some("10")));
    }
}
