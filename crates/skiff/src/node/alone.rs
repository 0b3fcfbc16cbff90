//! One node for each network namespace: a second one would take over the first one's rules, interfaces and cgroups.
//!
//! The claim is an abstract socket: the kernel keeps its name once for each network namespace and forgets it when the
//! process ends, however it ends.

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixListener, UnixStream},
};

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

const NAME: &str = "skiff-node";

/// Says that this process runs this machine's node, until the value is dropped.
pub struct Claim(#[allow(dead_code, reason = "the claim lasts as long as the socket is open")] UnixListener);

pub fn claim() -> anyhow::Result<Claim> {
    claim_as(NAME)
}

fn claim_as(name: &str) -> anyhow::Result<Claim> {
    let address = SocketAddr::from_abstract_name(name).context("cannot name the node's socket")?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(Claim(listener)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let holder = UnixStream::connect_addr(&address).ok().and_then(|s| getsockopt(&s, PeerCredentials).ok());
            let process = holder.map(|h| format!(" (process {})", h.pid())).unwrap_or_default();
            bail!(
                "a node of skiff runs on this machine already{process}; end that one first, with `skiff down` and its --data-dir"
            )
        }
        Err(error) => Err(error).context("cannot claim this machine's node"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_hears_of_the_first() {
        let name = format!("skiff-test-{}", std::process::id());
        let first = claim_as(&name).unwrap();
        let said = claim_as(&name).err().unwrap().to_string();
        assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
        drop(first);
        assert!(claim_as(&name).is_ok());
    }
}
