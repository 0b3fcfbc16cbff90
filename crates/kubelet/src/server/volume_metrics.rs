//! `kubelet_volume_stats_…`: how full the volumes of claims are, and how healthy.
//! Upstream counterpart: pkg/kubelet/metrics/collectors/volume_stats.go.

use std::{collections::BTreeMap, fmt::Write as _};

use api::rules::metrics_text::escaped;

use crate::volume_room::{Amounts, VolumeUsage};

type Metric = (&'static str, &'static str, fn(&VolumeUsage) -> Option<u64>);

fn bytes(usage: &VolumeUsage, part: fn(&Amounts) -> u64) -> Option<u64> {
    usage.room.bytes.as_ref().map(part)
}

fn inodes(usage: &VolumeUsage, part: fn(&Amounts) -> u64) -> Option<u64> {
    usage.room.inodes.as_ref().map(part)
}

const METRICS: [Metric; 7] = [
    ("available_bytes", "Number of available bytes in the volume", |usage| bytes(usage, |a| a.free)),
    ("capacity_bytes", "Capacity in bytes of the volume", |usage| bytes(usage, |a| a.total)),
    (
        "health_status_abnormal",
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is \
         healthy",
        |usage| usage.health.as_ref().map(|health| health.is_abnormal.into()),
    ),
    ("inodes", "Maximum number of inodes in the volume", |usage| inodes(usage, |a| a.total)),
    ("inodes_free", "Number of free inodes in the volume", |usage| inodes(usage, |a| a.free)),
    ("inodes_used", "Number of used inodes in the volume", |usage| inodes(usage, |a| a.used)),
    ("used_bytes", "Number of used bytes in the volume", |usage| bytes(usage, |a| a.used)),
];

/// A claim that several Pods have is told of once.
pub fn render(volumes: &BTreeMap<String, Vec<VolumeUsage>>) -> String {
    let claims: BTreeMap<_, _> =
        volumes.values().flatten().filter_map(|usage| Some((usage.claim.as_ref()?, usage))).collect();
    let mut out = String::new();
    for (name, help, value) in METRICS {
        let rows: Vec<_> = claims.iter().filter_map(|(claim, usage)| Some((*claim, value(usage)?))).collect();
        if rows.is_empty() {
            continue;
        }
        let name = format!("kubelet_volume_stats_{name}");
        let _ = writeln!(out, "# HELP {name} [ALPHA] {help}\n# TYPE {name} gauge");
        for ((namespace, claim), value) in rows {
            let (namespace, claim) = (escaped(namespace), escaped(claim));
            let _ = writeln!(out, "{name}{{namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\"}} {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pod::fixture::now,
        volume_room::{Health, Room},
    };

    #[test]
    fn claims_are_told_of_once_and_other_volumes_are_not() {
        let amounts = |used| Some(Amounts { total: 10, free: 10 - used, used });
        let volume = |claim: Option<&str>, used| VolumeUsage {
            name: "v".into(),
            claim: claim.map(|name| ("n".to_owned(), name.to_owned())),
            time: now(),
            room: Room { bytes: amounts(used), inodes: None },
            health: None,
        };
        let pods = [("u", vec![volume(Some("c"), 3), volume(None, 4)]), ("w", vec![volume(Some("c"), 3)])];
        let text = render(&pods.map(|(uid, volumes)| (uid.to_owned(), volumes)).into());
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let row = |name: &str, value: u64| {
            format!("kubelet_volume_stats_{name}_bytes{{namespace=\"n\",persistentvolumeclaim=\"c\"}} {value}")
        };
        assert_eq!(rows, [row("available", 7), row("capacity", 10), row("used", 3)]);
        assert_eq!(render(&BTreeMap::new()), "");
        let check = |is_abnormal, value| {
            let health = Some(Health { is_abnormal, message: String::new() });
            let text = render(&[("u".to_owned(), vec![VolumeUsage { health, ..volume(Some("c"), 3) }])].into());
            let row = format!(
                "kubelet_volume_stats_health_status_abnormal{{namespace=\"n\",persistentvolumeclaim=\"c\"}} {value}"
            );
            assert!(text.lines().any(|line| line == row), "{text}");
        };
        check(true, 1);
        check(false, 0);
    }
}
