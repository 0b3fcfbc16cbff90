//! Which host ports lead to which Pod, as the plugin keeps it beside the addresses: the kernel's table can be written again from
//! it, and a sandbox closes the ports that it opened and no others.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use files::modes;

use crate::rules::HostPort;

/// The end of the name of a file of ports; before it stands the Pod's address.
const END: &str = ".ports";

fn path(dir: &Path, address: IpAddr) -> PathBuf {
    dir.join(format!("{address}{END}"))
}

/// Remembers the ports of a Pod, a line each.
pub fn keep(dir: &Path, address: IpAddr, ports: &[HostPort]) -> io::Result<()> {
    let line = |port: &HostPort| {
        let host = port.host_ip.map(|ip| format!(" {ip}")).unwrap_or_default();
        format!("{} {} {}{host}\n", port.protocol, port.host_port, port.container_port)
    };
    modes::write(&path(dir, address), modes::PRIVATE_FILE, ports.iter().map(line).collect::<String>())
}

/// The ports of a Pod; `None` when none were kept.
pub fn kept(dir: &Path, address: IpAddr) -> Option<Vec<HostPort>> {
    let text = fs::read_to_string(path(dir, address)).ok()?;
    Some(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<HostPort> {
    let mut words = line.split(' ');
    let protocol = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let (host_port, container_port) = (number()?, number()?);
    let host_ip = words.next().map(str::parse).transpose().ok()?;
    Some(HostPort { protocol, host_ip, host_port, container_port })
}

/// Nothing to forget is fine.
pub fn forget(dir: &Path, address: IpAddr) -> io::Result<()> {
    match fs::remove_file(path(dir, address)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The ports of all Pods.
pub fn all(dir: &Path) -> Vec<(IpAddr, Vec<HostPort>)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let addresses = names.filter_map(|name| name.strip_suffix(END)?.parse::<IpAddr>().ok());
    addresses.filter_map(|address| Some((address, kept(dir, address)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_kept_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let address = IpAddr::from([10, 0, 0, 2]);
        let port = |protocol: &str, host_port| HostPort {
            protocol: protocol.to_owned(),
            host_ip: (host_port == 53).then_some([127, 0, 0, 1].into()),
            host_port,
            container_port: 80,
        };
        assert_eq!(kept(dir, address), None);
        keep(dir, address, &[port("tcp", 8080), port("UDP", 53)]).unwrap();
        assert_eq!(all(dir), [(address, vec![port("tcp", 8080), port("UDP", 53)])]);
        fs::write(path(dir, address), "tcp 1 2\nbroken\ntcp 1 99999\n").unwrap();
        assert_eq!(kept(dir, address).unwrap(), [HostPort { container_port: 2, ..port("tcp", 1) }]);
        forget(dir, address).unwrap();
        forget(dir, address).unwrap();
        assert!(all(dir).is_empty());
    }
}
