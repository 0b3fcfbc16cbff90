//! The standards' checks: which there are, from which release on in which form, and what a Pod is told that fails some.
//!
//! Upstream counterpart: k8s.io/pod-security-admission/policy. <https://kubernetes.io/docs/concepts/security/pod-security-standards>

use super::{
    baseline,
    level::{Level, Standard, Version},
    restricted,
    violation::Violation,
    workload::Workload,
};

/// The newest release whose rules are known; later ones and `latest` mean this one.
pub(super) const NEWEST: i64 = 35;

type Rule = fn(&Workload) -> Option<Violation>;

/// One check.
struct Check {
    name: &'static str,
    /// Its forms, each with the minor release that brought it.
    forms: &'static [(i64, Rule)],
    /// The baseline check that this one says all of, and more.
    instead_of: &'static str,
}

const fn check(name: &'static str, forms: &'static [(i64, Rule)]) -> Check {
    Check { name, forms, instead_of: "" }
}

impl Check {
    const fn instead_of(self, baseline: &'static str) -> Self {
        Check { instead_of: baseline, ..self }
    }

    fn rule(&self, minor: i64) -> Option<Rule> {
        self.forms.iter().rev().find(|(since, _)| *since <= minor).map(|(_, rule)| *rule)
    }
}

/// Both lists are in the order in which violations are told: by name.
const BASELINE: &[Check] = &[
    check("appArmorProfile", &[(0, baseline::app_armor)]),
    check("capabilities_baseline", &[(0, baseline::capabilities)]),
    check("hostNamespaces", &[(0, baseline::host_namespaces)]),
    check("hostPathVolumes", &[(0, baseline::host_path)]),
    check("hostPorts", &[(0, baseline::host_ports)]),
    check("hostProbesAndHostLifecycle", &[(34, baseline::handler_hosts)]),
    check("privileged", &[(0, baseline::privileged)]),
    check("procMount", &[(0, baseline::proc_mount), (35, baseline::proc_mount_of_host_users)]),
    check("seLinuxOptions", &[(0, baseline::selinux), (31, baseline::selinux_1_31)]),
    check("seccompProfile_baseline", &[(0, baseline::seccomp_annotations), (19, baseline::seccomp)]),
    check(
        "sysctls",
        &[
            (0, baseline::sysctls),
            (27, baseline::sysctls_1_27),
            (29, baseline::sysctls_1_29),
            (32, baseline::sysctls_1_32),
        ],
    ),
    check("windowsHostProcess", &[(0, baseline::windows_host_process)]),
];

const RESTRICTED: &[Check] = &[
    check(
        "allowPrivilegeEscalation",
        &[(8, restricted::privilege_escalation), (25, restricted::privilege_escalation_1_25)],
    ),
    check("capabilities_restricted", &[(22, restricted::capabilities), (25, restricted::capabilities_1_25)])
        .instead_of("capabilities_baseline"),
    check("procMount_restricted", &[(35, baseline::proc_mount)]).instead_of("procMount"),
    check("restrictedVolumes", &[(0, restricted::volumes)]).instead_of("hostPathVolumes"),
    check("runAsNonRoot", &[(0, restricted::run_as_non_root), (35, restricted::run_as_non_root_1_35)]),
    check("runAsUser", &[(23, restricted::run_as_user), (35, restricted::run_as_user_1_35)]),
    check("seccompProfile_restricted", &[(19, restricted::seccomp), (25, restricted::seccomp_1_25)])
        .instead_of("seccompProfile_baseline"),
];

/// The checks of a standard by name.
pub(super) fn rules(standard: Standard) -> impl Iterator<Item = (&'static str, Rule)> {
    let minor = match standard.version {
        Version::Minor(minor) => minor.min(NEWEST),
        Version::Latest => NEWEST,
    };
    let baseline = if standard.level == Level::Privileged { &[] } else { BASELINE };
    let restricted = if standard.level == Level::Restricted { RESTRICTED } else { &[] };
    let active = move |check: &&Check| check.rule(minor).is_some();
    let replaced =
        move |check: &Check| restricted.iter().filter(active).any(|stricter| stricter.instead_of == check.name);
    let all = baseline.iter().filter(move |c| !replaced(c)).chain(restricted);
    all.filter_map(move |check| Some((check.name, check.rule(minor)?)))
}

/// All that a Pod violates of a standard; nothing when it is allowed.
pub fn violations(standard: Standard, workload: &Workload) -> Vec<Violation> {
    rules(standard).filter_map(|(_, rule)| rule(workload)).collect()
}

/// The violations in words for the user of one object: `host namespaces (hostNetwork=true), hostPort (…)`.
pub fn details(violations: &[Violation]) -> String {
    let one = |v: &Violation| match v.detail.as_str() {
        "" => v.reason.to_owned(),
        detail => format!("{} ({detail})", v.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The reasons without the details of one object, for lists of many.
pub fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|v| v.reason).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_of_a_standard() {
        let shown = |level: Level, version: &str| {
            let version = Version::parse(version).unwrap();
            rules(Standard { level, version }).map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(Level::Privileged, "v1.0"), "");
        assert_eq!(shown(Level::Privileged, "latest"), "");
        let oldest = "appArmorProfile capabilities_baseline hostNamespaces hostPathVolumes hostPorts privileged procMount \
                      seLinuxOptions seccompProfile_baseline sysctls windowsHostProcess";
        assert_eq!(shown(Level::Baseline, "v1.0"), oldest);
        assert_eq!(shown(Level::Baseline, "v1.33"), oldest);
        let newest = oldest.replace("hostPorts", "hostPorts hostProbesAndHostLifecycle");
        for version in ["v1.34", "v1.35", "v1.36", "v1.9999", "latest"] {
            assert_eq!(shown(Level::Baseline, version), newest, "{version}");
        }
        let without = |names: &[&str]| {
            let kept = oldest.split(' ').filter(|n| !n.is_empty() && !names.contains(n));
            kept.collect::<Vec<_>>().join(" ")
        };
        let old = without(&["hostPathVolumes"]);
        assert_eq!(shown(Level::Restricted, "v1.0"), format!("{old} restrictedVolumes runAsNonRoot"));
        let eight = format!("{old} allowPrivilegeEscalation restrictedVolumes runAsNonRoot");
        assert_eq!(shown(Level::Restricted, "v1.8"), eight);
        let old = without(&["hostPathVolumes", "seccompProfile_baseline"]);
        let nineteen =
            format!("{old} allowPrivilegeEscalation restrictedVolumes runAsNonRoot seccompProfile_restricted");
        assert_eq!(shown(Level::Restricted, "v1.21"), nineteen);
        let without_baseline = nineteen.replace("capabilities_baseline ", "");
        let twenty_two = without_baseline.replace("Escalation", "Escalation capabilities_restricted");
        assert_eq!(shown(Level::Restricted, "v1.22"), twenty_two);
        let twenty_three = twenty_two.replace("runAsNonRoot", "runAsNonRoot runAsUser");
        for version in ["v1.23", "v1.33"] {
            assert_eq!(shown(Level::Restricted, version), twenty_three, "{version}");
        }
        let thirty_four = twenty_three.replace("hostPorts", "hostPorts hostProbesAndHostLifecycle");
        assert_eq!(shown(Level::Restricted, "v1.34"), thirty_four);
        let latest = "appArmorProfile hostNamespaces hostPorts hostProbesAndHostLifecycle privileged seLinuxOptions sysctls \
                      windowsHostProcess allowPrivilegeEscalation capabilities_restricted procMount_restricted \
                      restrictedVolumes runAsNonRoot runAsUser seccompProfile_restricted";
        for version in ["v1.35", "v1.10000", "latest"] {
            assert_eq!(shown(Level::Restricted, version), latest, "{version}");
        }
    }

    /// The lists are well formed: forms grow with releases, names are in order, what is replaced is there.
    #[test]
    fn the_lists_are_in_order() {
        for list in [BASELINE, RESTRICTED] {
            assert!(list.is_sorted_by(|a, b| a.name < b.name));
            assert!(list.iter().all(|c| c.forms.is_sorted_by(|a, b| a.0 < b.0)));
            assert!(list.iter().flat_map(|c| c.forms).all(|(since, _)| *since <= NEWEST));
        }
        for name in RESTRICTED.iter().map(|c| c.instead_of).filter(|name| !name.is_empty()) {
            assert!(BASELINE.iter().any(|c| c.name == name), "{name}");
        }
    }
}
