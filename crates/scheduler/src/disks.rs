//! Disks that Pods name without a claim, of the sorts that several Pods of one node cannot share as they like.
//! Upstream counterpart: pkg/scheduler/framework/plugins/volumerestrictions (isVolumeConflict).

use k8s_openapi::api::core::v1::{Pod, Volume};
use serde::Serialize;

/// One disk, by what its storage system knows it by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Disk {
    Gce {
        name: String,
        read_only: bool,
    },
    /// Never shared, not even by readers.
    Aws {
        id: String,
    },
    Iscsi {
        iqn: String,
        read_only: bool,
    },
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
        read_only: bool,
    },
}

impl Disk {
    fn of_volume(volume: &Volume) -> Vec<Self> {
        let reads = |read_only: Option<bool>| read_only == Some(true);
        let gce = volume.gce_persistent_disk.iter();
        let gce = gce.map(|disk| Disk::Gce { name: disk.pd_name.clone(), read_only: reads(disk.read_only) });
        let aws = volume.aws_elastic_block_store.iter().map(|disk| Disk::Aws { id: disk.volume_id.clone() });
        let iscsi = volume.iscsi.iter();
        let iscsi = iscsi.map(|disk| Disk::Iscsi { iqn: disk.iqn.clone(), read_only: reads(disk.read_only) });
        let rbd = volume.rbd.iter().map(|disk| Disk::Rbd {
            monitors: disk.monitors.clone(),
            pool: disk.pool.clone().unwrap_or_else(|| "rbd".to_owned()),
            image: disk.image.clone(),
            read_only: reads(disk.read_only),
        });
        gce.chain(aws).chain(iscsi).chain(rbd).collect()
    }

    /// Whether a Pod with this disk cannot be where one with the other is.
    pub fn conflicts(&self, other: &Disk) -> bool {
        match (self, other) {
            (Disk::Gce { name: a, read_only: r }, Disk::Gce { name: b, read_only: s }) => a == b && !(*r && *s),
            (Disk::Aws { id: a }, Disk::Aws { id: b }) => a == b,
            (Disk::Iscsi { iqn: a, read_only: r }, Disk::Iscsi { iqn: b, read_only: s }) => a == b && !(*r && *s),
            (
                Disk::Rbd { monitors: a, pool: p, image: i, read_only: r },
                Disk::Rbd { monitors: b, pool: q, image: j, read_only: s },
            ) => a.iter().any(|monitor| b.contains(monitor)) && p == q && i == j && !(*r && *s),
            _ => false,
        }
    }
}

/// The disks that a Pod names itself.
pub fn of_pod(pod: &Pod) -> Vec<Disk> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().flat_map(Disk::of_volume).collect()
}
