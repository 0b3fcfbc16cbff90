//! Which address belongs to which sandbox: one small file per address in one folder, claimed by exclusive creation.
//!
//! The plugin is a process per call and calls run at once; the file system's `O_EXCL` decides who gets an address, so no
//! lock and no daemon is needed, and a crash leaves at most a claim that the next `DEL` of its sandbox releases.

use std::{
    fs,
    io::{self, Write},
    net::Ipv4Addr,
    path::Path,
};

use files::modes;
use ipnet::Ipv4Net;

use crate::host_ports;

#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    #[error("no address is left in {0}")]
    Exhausted(Ipv4Net),
    #[error("cannot use {path}: {source}")]
    File { path: String, source: io::Error },
}

/// The name of the file that remembers which address was given last, so that addresses are not reused at once.
const LAST: &str = "last";

/// The node's own address on the Pod network: the first of the range.
pub fn gateway(range: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()) + 1)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> IpamError {
    let path = path.display().to_string();
    move |source| IpamError::File { path: path.clone(), source }
}

/// Claims an address for `owner` (sandbox and interface). An owner that has one keeps it.
pub fn claim(dir: &Path, range: Ipv4Net, owner: &str) -> Result<Ipv4Addr, IpamError> {
    modes::folder(dir, modes::PRIVATE_FOLDER).map_err(failed(dir))?;
    if let Some(held) = held_by(dir, owner)? {
        return Ok(held);
    }
    let (first, last) = (u32::from(gateway(range)) + 1, u32::from(range.broadcast()).saturating_sub(1));
    let previous = fs::read_to_string(dir.join(LAST)).ok().and_then(|t| t.trim().parse::<Ipv4Addr>().ok());
    let start = previous.map(|p| u32::from(p) + 1).filter(|p| (first..=last).contains(p)).unwrap_or(first);
    for candidate in (start..=last).chain(first..start) {
        let address = Ipv4Addr::from(candidate);
        let path = dir.join(address.to_string());
        match modes::create_new(&path, modes::PRIVATE_FILE) {
            Ok(mut file) => {
                file.write_all(owner.as_bytes()).map_err(failed(&path))?;
                // Only a hint: losing it costs nothing but an earlier reuse.
                let _ = modes::write(&dir.join(LAST), modes::PRIVATE_FILE, address.to_string());
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
    while let Some(address) = held_by(dir, owner)? {
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
pub fn held(dir: &Path) -> Vec<Ipv4Addr> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The address that `owner` holds.
pub fn held_by(dir: &Path, owner: &str) -> Result<Option<Ipv4Addr>, IpamError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(dir)(error)),
    };
    for entry in entries.flatten() {
        let address = entry.file_name().to_str().and_then(|n| n.parse::<Ipv4Addr>().ok());
        if let Some(address) = address
            && fs::read_to_string(entry.path()).is_ok_and(|held| held == owner)
        {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_once_and_reused_last() {
        let dir = tempfile::tempdir().unwrap();
        let range: Ipv4Net = "10.244.0.0/29".parse().unwrap();
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
}
