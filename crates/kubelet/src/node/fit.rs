//! Whether the machine is one that the configuration lets a kubelet begin on.
//! Upstream counterpart: the checks at the start of pkg/kubelet/cm/container_manager_linux.go.

use std::fs;

use crate::{configuration::settings::Settings, node::machine::Machine};

/// The parameters that upstream's kubelet wants of the kernel.
const KERNEL: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// Fails where something is wrong with the machine, in the words of the setting that asks for something else.
pub fn check(settings: &Settings, machine: &Machine, unified: bool) -> Result<(), String> {
    let kernel = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok();
    judge(settings, machine.swap, unified, kernel)
}

/// Whether the kernel of that release can keep what is in memory alone out of swap: from 6.4 on.
pub fn keeps_out_of_swap(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 4)
}

fn judge(settings: &Settings, swap: i64, unified: bool, kernel: impl Fn(&str) -> Option<i64>) -> Result<(), String> {
    if settings.fail_swap_on && swap > 0 {
        return Err("failSwapOn: the machine has swap; turn it off, or set failSwapOn to false".to_owned());
    }
    if settings.fail_cgroup_v1 && !unified {
        return Err(
            "failCgroupV1: the machine has cgroups of version 1; set failCgroupV1 to false to begin on it".to_owned()
        );
    }
    if settings.kills_one == Some(false) && !unified {
        return Err("singleProcessOOMKill: only cgroups of version 2 can kill all processes of a container".to_owned());
    }
    let strange =
        KERNEL.iter().filter(|_| settings.protect_kernel).find(|(name, wanted)| kernel(name) != Some(*wanted));
    match strange {
        Some((name, wanted)) => {
            let name = name.replace('/', ".");
            Err(format!("protectKernelDefaults: the kernel's {name} must be {wanted}"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_6_4_on_keep_what_is_in_memory_out_of_swap() {
        for (release, expected) in
            [("6.4.0-1-amd64", true), ("6.18", true), ("7.0", true), ("6.3.9", false), ("5.15", false), ("", false)]
        {
            assert_eq!(keeps_out_of_swap(release), expected, "{release}");
        }
    }

    #[test]
    fn a_machine_is_taken_as_it_is_unless_the_configuration_says_otherwise() {
        let strange = |_: &str| Some(5);
        assert_eq!(judge(&Settings::default(), 1, false, strange), Ok(()));
        let check = |settings: Settings, expected: &str| {
            let why = judge(&settings, 1, false, strange).unwrap_err();
            assert!(why.starts_with(expected), "{why}");
        };
        check(Settings { fail_swap_on: true, ..Settings::default() }, "failSwapOn: ");
        check(Settings { fail_cgroup_v1: true, ..Settings::default() }, "failCgroupV1: ");
        check(Settings { kills_one: Some(false), ..Settings::default() }, "singleProcessOOMKill: ");
        let protect = Settings { protect_kernel: true, ..Settings::default() };
        check(protect.clone(), "protectKernelDefaults: the kernel's vm.overcommit_memory must be 1");
        let good = |name: &str| KERNEL.iter().find(|(known, _)| *known == name).map(|(_, wanted)| *wanted);
        assert_eq!(judge(&protect, 0, true, good), Ok(()));
    }
}
