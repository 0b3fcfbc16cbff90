//! The part of `/metrics/cadvisor` that is about disks: what containers read and write of each, and how full the machine's file systems
//! are. Dashboards choose the disks by their names.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use nix::sys::statvfs::statvfs;

use super::cadvisor_rows::{COUNTER, Counted, GAUGE, head};
use crate::node::disk_counts::DiskCounts;

/// The file systems that are looked at.
const MOST: usize = 64;

/// A file system of the machine on a disk of its own.
#[derive(Debug, Default, PartialEq)]
pub struct FileSystem {
    pub device: String,
    pub bytes: u64,
    pub used: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// Devices that are mounted, and the first place of each. The kernel writes strange characters of places in octal.
fn mounted(table: &str) -> BTreeMap<String, PathBuf> {
    let mut places = BTreeMap::new();
    for line in table.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(place)) = (words.next(), words.next()) else { continue };
        if device.starts_with("/dev/") && places.len() < MOST {
            let place = place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
            places.entry(device.to_owned()).or_insert_with(|| place.into());
        }
    }
    places
}

/// The machine's file systems. It waits for disks.
pub fn file_systems() -> Vec<FileSystem> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let one = |(device, place): (String, PathBuf)| {
        let stat = statvfs(&place).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        let (bytes, used) = (bytes(stat.blocks()), bytes(stat.blocks().saturating_sub(stat.blocks_free())));
        Some(FileSystem { device, bytes, used, inodes: stat.files(), free_inodes: stat.files_free() })
    };
    mounted(&table).into_iter().filter_map(one).collect()
}

type Read = fn(&DiskCounts) -> Option<u64>;

const COUNTS: [(&str, &str, Read); 4] = [
    ("container_fs_reads_bytes_total", "Cumulative count of bytes read", |disk| disk.read_bytes),
    ("container_fs_reads_total", "Cumulative count of reads completed", |disk| disk.reads),
    ("container_fs_writes_bytes_total", "Cumulative count of bytes written", |disk| disk.written_bytes),
    ("container_fs_writes_total", "Cumulative count of writes completed", |disk| disk.writes),
];

type ReadRoom = fn(&FileSystem) -> u64;

const ROOM: [(&str, &str, ReadRoom); 4] = [
    ("container_fs_inodes_free", "Number of available Inodes", |of| of.free_inodes),
    ("container_fs_inodes_total", "Number of Inodes", |of| of.inodes),
    ("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", |of| {
        of.bytes
    }),
    ("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", |of| {
        of.used
    }),
];

/// `name_of` tells the name of a disk by its numbers.
pub fn render(
    out: &mut String,
    all: &[Counted],
    file_systems: &[FileSystem],
    name_of: impl Fn((u32, u32)) -> String,
    millis: i64,
) {
    let mut names: BTreeMap<(u32, u32), String> = BTreeMap::new();
    for disk in all.iter().flat_map(|one| &one.counters.disks) {
        names.entry(disk.device).or_insert_with(|| name_of(disk.device));
    }
    let each = || all.iter().flat_map(|one| one.counters.disks.iter().map(move |disk| (one, disk)));
    let mut put = |name: &str, sort: &str, help: &str, rows: Vec<(String, u64)>| {
        if !rows.is_empty() {
            head(out, name, sort, help);
        }
        for (labels, value) in rows {
            let _ = writeln!(out, "{name}{labels} {value} {millis}");
        }
    };
    let usage = each().flat_map(|(one, disk)| {
        let (device, (major, minor)) = (&names[&disk.device], disk.device);
        let of = move |operation: &str, bytes: Option<u64>| {
            let (major, minor) = (major.to_string(), minor.to_string());
            let of = [("device", &**device), ("major", &*major), ("minor", &*minor), ("operation", operation)];
            Some((one.labels(&of), bytes?))
        };
        [of("Read", disk.read_bytes), of("Write", disk.written_bytes)].into_iter().flatten()
    });
    put("container_blkio_device_usage_total", COUNTER, "Blkio Device bytes usage", usage.collect());
    for (name, help, read) in COUNTS {
        let rows =
            each().filter_map(|(one, disk)| Some((one.labels(&[("device", &names[&disk.device])]), read(disk)?)));
        put(name, COUNTER, help, rows.collect());
    }
    let Some(machine) = all.iter().find(|one| one.id == "/") else { return };
    for (name, help, read) in ROOM {
        let rows = file_systems.iter().map(|of| (machine.labels(&[("device", &of.device)]), read(of)));
        put(name, GAUGE, help, rows.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::counters::Counters;

    #[test]
    fn disks_have_the_names_that_dashboards_choose_them_by() {
        let disk =
            DiskCounts { device: (8, 0), reads: Some(1), writes: None, read_bytes: Some(4096), written_bytes: Some(2) };
        let machine = Counted { id: "/".into(), ..Counted::default() };
        let counters = Counters { disks: vec![disk], ..Counters::default() };
        let container = Counted { id: "/k/1".into(), container: "c".into(), counters, ..Counted::default() };
        let room = FileSystem { device: "/dev/sda1".into(), bytes: 100, used: 40, inodes: 9, free_inodes: 7 };
        let mut page = String::new();
        render(&mut page, &[machine, container], &[room], |device| format!("/dev/sd{}", device.1), 5000);
        let rows: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let of_disk = "container=\"c\",device=\"/dev/sd0\",id=\"/k/1\",image=\"\"";
        let end = "name=\"\",namespace=\"\",pod=\"\"";
        let usage = |operation: &str, bytes: u64| {
            format!(
                "container_blkio_device_usage_total{{{of_disk},major=\"8\",minor=\"0\",{},operation=\"{operation}\",pod=\"\"}} {bytes} 5000",
                "name=\"\",namespace=\"\""
            )
        };
        let room = |name: &str, value: u64| {
            format!("{name}{{container=\"\",device=\"/dev/sda1\",id=\"/\",image=\"\",{end}}} {value} 5000")
        };
        let expected = [
            usage("Read", 4096),
            usage("Write", 2),
            format!("container_fs_reads_bytes_total{{{of_disk},{end}}} 4096 5000"),
            format!("container_fs_reads_total{{{of_disk},{end}}} 1 5000"),
            format!("container_fs_writes_bytes_total{{{of_disk},{end}}} 2 5000"),
            room("container_fs_inodes_free", 7),
            room("container_fs_inodes_total", 9),
            room("container_fs_limit_bytes", 100),
            room("container_fs_usage_bytes", 40),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_disk_that_is_mounted_often_is_one() {
        let table = "proc /proc proc rw 0 0\n/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /var/lib/kubelet ext4 rw 0 0\n\
            /dev/sdb /mnt/a\\040b xfs rw 0 0\ntmpfs /run tmpfs rw 0 0\n";
        let places: Vec<_> = mounted(table).into_iter().collect();
        assert_eq!(places, [("/dev/sda1".to_owned(), "/".into()), ("/dev/sdb".to_owned(), "/mnt/a b".into())]);
    }
}
