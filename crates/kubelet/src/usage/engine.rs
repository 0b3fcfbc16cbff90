//! The use of Pods and containers as the engine tells it. Pure.

use clock::Timestamp;
use runtime::{
    cri_api::{NetworkInterfaceUsage, NetworkUsage, SwapUsage, UInt64Value},
    stats::{ContainerStats, CpuUsage, IoUsage, LinuxPodSandboxStats, MemoryUsage, PsiData, PsiStats},
};

use crate::{
    node::{
        cgroup::{Memory, Swap},
        stalls::{Stall, Stalls, Wait},
    },
    pod::desired::{CONTAINER_NAME, POD_UID},
    usage::{Layer, Link, Measured, Network, Sample},
};

fn value(value: Option<UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

/// `None` for containers that no kubelet made.
pub fn container(stats: ContainerStats, now: Timestamp) -> Option<Measured> {
    let mut attributes = stats.attributes?;
    let layer = |layer: runtime::cri_api::FilesystemUsage| {
        let (bytes, inodes) = (value(layer.used_bytes)?, value(layer.inodes_used).unwrap_or(0));
        Some(Layer { bytes, inodes, mounted_at: layer.fs_id.map(|id| id.mountpoint).unwrap_or_default() })
    };
    Some(Measured {
        pod_uid: attributes.labels.remove(POD_UID)?,
        name: attributes.labels.remove(CONTAINER_NAME)?,
        id: attributes.id,
        sample: sample(stats.cpu.as_ref(), stats.memory.as_ref(), stats.swap, stats.io.as_ref(), now),
        layer: stats.writable_layer.and_then(layer),
    })
}

/// A whole Pod, without its containers.
pub fn pod(stats: &LinuxPodSandboxStats, now: Timestamp) -> Sample {
    sample(stats.cpu.as_ref(), stats.memory.as_ref(), None, stats.io.as_ref(), now)
}

fn sample(
    cpu: Option<&CpuUsage>,
    memory: Option<&MemoryUsage>,
    swap: Option<SwapUsage>,
    io: Option<&IoUsage>,
    now: Timestamp,
) -> Sample {
    // An engine that does not say when it looked has looked just now.
    let looked = [cpu.map(|cpu| cpu.timestamp), memory.map(|memory| memory.timestamp)].into_iter().flatten();
    let time = looked.filter(|nanos| *nanos > 0).find_map(|nanos| Timestamp::from_nanosecond(nanos.into()).ok());
    let stalls = Stalls {
        cpu: cpu.and_then(|cpu| cpu.psi).map(stall),
        memory: memory.and_then(|memory| memory.psi).map(stall),
        io: io.and_then(|io| io.psi).map(stall),
    };
    let of_memory = |memory: &MemoryUsage| Memory {
        available: value(memory.available_bytes),
        used: value(memory.usage_bytes),
        working_set: value(memory.working_set_bytes),
        rss: value(memory.rss_bytes),
        faults: value(memory.page_faults),
        major_faults: value(memory.major_page_faults),
    };
    let swap = swap
        .and_then(|swap| Some(Swap { used: value(swap.swap_usage_bytes)?, left: value(swap.swap_available_bytes) }));
    Sample {
        time: time.unwrap_or(now),
        cpu_nanos: cpu.and_then(|cpu| value(cpu.usage_core_nano_seconds)),
        cpu_rate: cpu.and_then(|cpu| value(cpu.usage_nano_cores)),
        memory: memory.map(of_memory).unwrap_or_default(),
        swap,
        stalls,
    }
}

fn stall(psi: PsiStats) -> Stall {
    let wait = |data: Option<PsiData>| {
        data.map_or_else(Wait::default, |data| Wait {
            micros: data.total,
            averages: [data.avg10, data.avg60, data.avg300],
        })
    };
    Stall { some: wait(psi.some), full: wait(psi.full) }
}

pub fn network(network: &NetworkUsage, now: Timestamp) -> Network {
    let link = |link: &NetworkInterfaceUsage| Link {
        name: link.name.clone(),
        received: [value(link.rx_bytes), value(link.rx_errors)],
        sent: [value(link.tx_bytes), value(link.tx_errors)],
    };
    let time = Timestamp::from_nanosecond(network.timestamp.into()).ok().filter(|_| network.timestamp > 0);
    Network {
        time: time.unwrap_or(now),
        main: network.default_interface.as_ref().map(link),
        links: network.interfaces.iter().map(link).collect(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::pod::fixture::at;
    use runtime::cri_api::{ContainerAttributes, FilesystemIdentifier, FilesystemUsage};

    pub fn stats(uid: &str, name: &str, id: &str, nanos: i64) -> ContainerStats {
        let labels = [(POD_UID, uid), (CONTAINER_NAME, name)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let value = |value| Some(UInt64Value { value });
        ContainerStats {
            attributes: Some(ContainerAttributes { id: id.into(), labels: labels.into(), ..Default::default() }),
            cpu: Some(CpuUsage { timestamp: nanos, usage_core_nano_seconds: value(7), ..Default::default() }),
            memory: Some(MemoryUsage { working_set_bytes: value(9), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn the_engine_says_when_it_looked() {
        let now = at(0);
        let then = now.as_nanosecond() as i64 - 5;
        let one = container(stats("u", "c", "1", then), now).unwrap();
        assert_eq!((one.sample.time.as_nanosecond(), one.sample.cpu_nanos), (i128::from(then), Some(7)));
        assert_eq!(container(stats("u", "c", "1", 0), now).unwrap().sample.time, now);
        let strange = ContainerStats { attributes: Some(ContainerAttributes::default()), ..stats("u", "c", "1", then) };
        assert!(container(strange, now).is_none());
    }

    #[test]
    fn all_that_it_says_is_taken() {
        let value = |value| Some(UInt64Value { value });
        let psi =
            |total| Some(PsiStats { full: None, some: Some(PsiData { total, avg10: 0.5, ..Default::default() }) });
        let told = ContainerStats {
            cpu: Some(CpuUsage { usage_nano_cores: value(3), psi: psi(1), ..Default::default() }),
            memory: Some(MemoryUsage {
                timestamp: 4,
                rss_bytes: value(5),
                major_page_faults: value(6),
                ..Default::default()
            }),
            swap: Some(SwapUsage { swap_usage_bytes: value(7), swap_available_bytes: value(8), timestamp: 1 }),
            io: Some(IoUsage { psi: psi(9), ..Default::default() }),
            writable_layer: Some(FilesystemUsage {
                used_bytes: value(10),
                inodes_used: value(11),
                fs_id: Some(FilesystemIdentifier { mountpoint: "/l".into() }),
                ..Default::default()
            }),
            ..stats("u", "c", "1", 0)
        };
        let one = container(told, at(0)).unwrap();
        let sample = one.sample;
        assert_eq!((sample.time.as_nanosecond(), sample.cpu_nanos, sample.cpu_rate), (4, None, Some(3)));
        assert_eq!((sample.memory.rss, sample.memory.major_faults, sample.memory.used), (Some(5), Some(6), None));
        assert_eq!(sample.swap, Some(Swap { used: 7, left: Some(8) }));
        let waits = [sample.stalls.cpu, sample.stalls.memory, sample.stalls.io];
        assert_eq!(waits.map(|stall| stall.map(|stall| stall.some.micros)), [Some(1), None, Some(9)]);
        assert_eq!(one.layer, Some(Layer { bytes: 10, inodes: 11, mounted_at: "/l".into() }));
    }

    #[test]
    fn engines_that_are_older_are_understood_and_waits_are_read() {
        use prost::Message as _;
        let (cpu, swap) = (
            runtime::cri_api::CpuUsage {
                timestamp: 7,
                usage_nano_cores: Some(UInt64Value { value: 9 }),
                ..Default::default()
            },
            SwapUsage { timestamp: 8, ..Default::default() },
        );
        let old = runtime::cri_api::ContainerStats { cpu: Some(cpu), swap: Some(swap), ..Default::default() };
        let read = ContainerStats::decode(&*old.encode_to_vec()).unwrap();
        let cpu = read.cpu.clone().unwrap();
        assert_eq!((cpu.timestamp, cpu.usage_nano_cores.map(|v| v.value), cpu.psi), (7, Some(9), None));
        assert_eq!((read.swap.unwrap().timestamp, read.io), (8, None));
        // The bytes of IoUsage{psi: {Some: {Total: 5}}}, as field 6 of a container.
        let new = ContainerStats::decode(&[0x32, 6, 0x12, 4, 0x12, 2, 0x08, 5][..]).unwrap();
        assert_eq!(new.io.unwrap().psi.unwrap().some.unwrap().total, 5);
    }
}
