//! The device that stands for all ways to a disk, where multipathd makes one: whoever mounts it does not notice that a way is gone.
//! Upstream counterpart: FindMultipathDeviceForDevice of pkg/volume/util.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::volumes::remote::Disks;

/// A device over the ways to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Its name for the program multipath.
    pub name: String,
    /// A path of it that never leads to another one. Its number, as in `/dev/dm-3`, is given away again after a start of the machine.
    pub device: PathBuf,
}

/// The device over one of these ways, if the kernel has one.
pub fn find(disks: &Disks, ways: &[PathBuf]) -> Option<Map> {
    ways.iter().find_map(|way| over(disks, fs::canonicalize(way).ok()?.file_name()?.as_ref()))
}

fn over(disks: &Disks, disk: &Path) -> Option<Map> {
    let entries = fs::read_dir(&disks.blocks).ok()?.flatten();
    let devices = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"dm-"));
    devices.map(|entry| entry.path()).find_map(|at| {
        let text = |name: &str| fs::read_to_string(at.join("dm").join(name)).ok().map(|text| text.trim().to_owned());
        // Volumes of LVM and encrypted ones lie over disks, too: these are content of the disk, not a way to it.
        let uuid = text("uuid").filter(|uuid| uuid.starts_with("mpath-") && !uuid.contains('/'))?;
        let is_over = fs::symlink_metadata(at.join("slaves").join(disk)).is_ok();
        let device = disks.by_id.join(format!("dm-uuid-{uuid}"));
        let name = text("name").filter(|name| !name.is_empty() && !name.starts_with('-'))?;
        (is_over && device.exists()).then_some(Map { name, device })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_device_over_a_disk_is_found_by_either_way_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let disks = Disks { by_path: at("by-path"), by_id: at("by-id"), blocks: at("block") };
        let make = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        };
        for disk in ["sda", "sdb", "sdc"] {
            make(&format!("dev/{disk}"), "");
            make(&format!("block/{disk}/size"), "1");
            fs::create_dir_all(at("by-path")).unwrap();
            symlink(at(&format!("dev/{disk}")), at(&format!("by-path/to-{disk}"))).unwrap();
        }
        let ways = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|n| at(&format!("by-path/to-{n}"))).collect() };
        assert_eq!(find(&disks, &ways(&["sda", "sdb"])), None);
        make("block/dm-0/slaves/sdc", "");
        make("block/dm-0/dm/uuid", "LVM-abc\n");
        make("block/dm-0/dm/name", "vg-lv\n");
        make("block/dm-7/slaves/sdb", "");
        make("block/dm-7/dm/uuid", "mpath-3600\n");
        make("block/dm-7/dm/name", "mpatha\n");
        assert_eq!(find(&disks, &ways(&["sda", "sdb"])), None, "udev has not seen it yet");
        make("by-id/dm-uuid-mpath-3600", "");
        let expected = Map { name: "mpatha".to_owned(), device: at("by-id/dm-uuid-mpath-3600") };
        assert_eq!(find(&disks, &ways(&["sda", "sdb"])), Some(expected));
        assert_eq!(find(&disks, &ways(&["sda"])), None);
        assert_eq!(find(&disks, &ways(&["sdc"])), None, "a volume of LVM is none");
        assert_eq!(find(&disks, &ways(&["gone"])), None);
    }
}
