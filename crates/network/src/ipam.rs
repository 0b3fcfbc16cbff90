//! Which address belongs to which sandbox: one small file per address in one folder, claimed by exclusive creation.
//!
//! The plugin is a process per call and calls run at once; the file system's `O_EXCL` decides who gets an address, so no
//! lock and no daemon is needed, and a crash leaves at most a claim that the next `DEL` of its sandbox releases.

use std::{
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use files::modes;
use ipnet::IpNet;
use nft::Family;

use crate::host_ports;

#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    #[error("no address is left in {0}")]
    Exhausted(IpNet),
    #[error("cannot use {path}: {source}")]
    File { path: String, source: io::Error },
}

/// The name of the file that remembers which address was given last, so that addresses are not reused at once.
fn last_file(family: Family) -> &'static str {
    match family {
        Family::V4 => "last",
        Family::V6 => "last-6",
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address of a range's family with this number. A number of the range always has one.
fn address(range: IpNet, number: u128) -> IpAddr {
    match range {
        IpNet::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpNet::V6(_) => Ipv6Addr::from(number).into(),
    }
}

/// The node's own address on the Pod network: the first of the range.
pub fn gateway(range: IpNet) -> IpAddr {
    address(range, number(range.network()) + 1)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> IpamError {
    let path = path.display().to_string();
    move |source| IpamError::File { path: path.clone(), source }
}

/// Claims an address for `owner` (sandbox and interface). An owner that has one of the range's family keeps it.
pub fn claim(dir: &Path, range: IpNet, owner: &str) -> Result<IpAddr, IpamError> {
    let family = Family::of(range.addr());
    modes::folder(dir, modes::PRIVATE_FOLDER).map_err(failed(dir))?;
    if let Some(held) = held_by(dir, owner)?.into_iter().find(|address| Family::of(*address) == family) {
        return Ok(held);
    }
    let (first, last) = (number(gateway(range)) + 1, number(range.broadcast()).saturating_sub(1));
    let hint = dir.join(last_file(family));
    let previous = fs::read_to_string(&hint).ok().and_then(|t| t.trim().parse::<IpAddr>().ok());
    let start = previous.map(|p| number(p) + 1).filter(|p| (first..=last).contains(p)).unwrap_or(first);
    for candidate in (start..=last).chain(first..start) {
        let address = address(range, candidate);
        let path = dir.join(address.to_string());
        match modes::create_new(&path, modes::PRIVATE_FILE) {
            Ok(mut file) => {
                file.write_all(owner.as_bytes()).map_err(failed(&path))?;
                // Only a hint: losing it costs nothing but an earlier reuse.
                let _ = modes::write(&hint, modes::PRIVATE_FILE, address.to_string());
                return Ok(address);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    Err(IpamError::Exhausted(range))
}

/// Gives back whatever `owner` holds. Releasing nothing is fine.
pub fn release(dir: &Path, owner: &str) -> Result<(), IpamError> {
    for address in held_by(dir, owner)? {
        host_ports::forget(dir, address).map_err(failed(dir))?;
        let path = dir.join(address.to_string());
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    Ok(())
}

/// All addresses that somebody holds.
pub fn held(dir: &Path) -> Vec<IpAddr> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The addresses that `owner` holds: one of each family at the most, those of IPv4 first.
pub fn held_by(dir: &Path, owner: &str) -> Result<Vec<IpAddr>, IpamError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(dir)(error)),
    };
    let address = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<IpAddr>().ok();
    let addresses = entries.flatten().filter_map(|entry| Some((address(&entry)?, entry)));
    let mut held: Vec<IpAddr> = addresses
        .filter(|(_, entry)| fs::read_to_string(entry.path()).is_ok_and(|held| held == owner))
        .map(|(address, _)| address)
        .collect();
    held.sort_unstable();
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_once_and_reused_last() {
        let dir = tempfile::tempdir().unwrap();
        let range: IpNet = "10.244.0.0/29".parse().unwrap();
        assert_eq!(gateway(range).to_string(), "10.244.0.1");
        let got: Vec<String> =
            ["a", "b", "c", "d", "e"].map(|o| claim(dir.path(), range, o).unwrap().to_string()).to_vec();
        assert_eq!(got, ["10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.0.6"]);
        assert_eq!(claim(dir.path(), range, "b").unwrap().to_string(), "10.244.0.3", "asking again changes nothing");
        assert!(matches!(claim(dir.path(), range, "f"), Err(IpamError::Exhausted(_))));
        release(dir.path(), "c").unwrap();
        release(dir.path(), "c").unwrap();
        assert_eq!(claim(dir.path(), range, "f").unwrap().to_string(), "10.244.0.4");
    }

    #[test]
    fn one_sandbox_has_an_address_of_each_family() {
        let dir = tempfile::tempdir().unwrap();
        let (four, six): (IpNet, IpNet) = ("10.244.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap());
        assert_eq!(gateway(six).to_string(), "fd00:1::1");
        for (owner, expected) in [("a", "fd00:1::2"), ("b", "fd00:1::3"), ("a", "fd00:1::2")] {
            assert_eq!(claim(dir.path(), six, owner).unwrap().to_string(), expected);
        }
        assert_eq!(claim(dir.path(), four, "a").unwrap().to_string(), "10.244.0.2");
        let held = |owner| held_by(dir.path(), owner).unwrap().iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(held("a"), ["10.244.0.2", "fd00:1::2"]);
        release(dir.path(), "a").unwrap();
        assert_eq!((held("a"), held("b")), (vec![], vec!["fd00:1::3".to_owned()]));
    }
}
