//! Reads and writes of disks, as the kernel counts them of a cgroup, and the disks' names.

use std::{fs, path::Path};

/// Where the kernel tells of disks by their numbers.
pub const BLOCKS: &str = "/sys/dev/block";

/// The reads and writes of one disk: how many, and their bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Its major and minor number.
    pub device: (u32, u32),
    pub reads: Option<u64>,
    pub writes: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Lines such as `8:0 rbytes=10 wbytes=20 rios=1 wios=2`.
pub fn of_unified(text: &str) -> Vec<DiskCounts> {
    let one = |line: &str| {
        let (first, rest) = line.split_once(' ')?;
        let value = |name: &str| {
            let mut words = rest.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        Some(DiskCounts {
            device: device(first)?,
            reads: value("rios"),
            writes: value("wios"),
            read_bytes: value("rbytes"),
            written_bytes: value("wbytes"),
        })
    };
    text.lines().filter_map(one).collect()
}

/// Lines such as `8:0 Read 4`, of bytes and of how often.
pub fn of_version_1(bytes: &str, times: &str) -> Vec<DiskCounts> {
    let mut all: Vec<DiskCounts> = Vec::new();
    let both = bytes.lines().map(|line| (line, true)).chain(times.lines().map(|line| (line, false)));
    for (line, is_bytes) in both {
        let mut words = line.split_whitespace();
        let Some(device) = words.next().and_then(device) else { continue };
        let (operation, value) = (words.next().unwrap_or_default(), words.next().and_then(|text| text.parse().ok()));
        let at = all.iter().position(|one| one.device == device).unwrap_or_else(|| {
            all.push(DiskCounts { device, ..DiskCounts::default() });
            all.len() - 1
        });
        let one = &mut all[at];
        match (operation, is_bytes) {
            ("Read", true) => one.read_bytes = value,
            ("Write", true) => one.written_bytes = value,
            ("Read", false) => one.reads = value,
            ("Write", false) => one.writes = value,
            _ => {}
        }
    }
    all
}

/// The name of a disk, such as `/dev/sda`. Empty for one that is gone.
pub fn name(blocks: &Path, (major, minor): (u32, u32)) -> String {
    let text = fs::read_to_string(blocks.join(format!("{major}:{minor}/uevent"))).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_tell_of_each_disk() {
        let disk = |device, counts: [Option<u64>; 4]| {
            let [reads, writes, read_bytes, written_bytes] = counts;
            DiskCounts { device, reads, writes, read_bytes, written_bytes }
        };
        let unified = "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n253:16 rbytes=1\n8:32 \nwrong rbytes=1\n";
        let expected = [
            disk((8, 0), [Some(1), Some(2), Some(10), Some(20)]),
            disk((253, 16), [None, None, Some(1), None]),
            disk((8, 32), [None; 4]),
        ];
        assert_eq!(of_unified(unified), expected);
        let bytes = "8:0 Read 4\n8:0 Write 5\n8:0 Total 9\n8:16 Read 7\nTotal 16\n";
        let times = "8:0 Read 1\n8:0 Write 2\nTotal 3\n";
        let expected = [disk((8, 0), [Some(1), Some(2), Some(4), Some(5)]), disk((8, 16), [None, None, Some(7), None])];
        assert_eq!(of_version_1(bytes, times), expected);
    }

    #[test]
    fn a_disk_has_the_name_that_the_kernel_gives_it() {
        let blocks = tempfile::tempdir().unwrap();
        fs::create_dir(blocks.path().join("8:0")).unwrap();
        fs::write(blocks.path().join("8:0/uevent"), "MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n").unwrap();
        assert_eq!((name(blocks.path(), (8, 0)), name(blocks.path(), (8, 16))), ("/dev/sda".into(), String::new()));
    }
}
