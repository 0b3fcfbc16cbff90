//! The kernel's WireGuard, asked through generic netlink. The kernel does what it is asked while it takes the question, so nothing is
//! waited for.

use std::{collections::BTreeSet, io, net::SocketAddr};

use ipnet::IpNet;
use nix::libc;
use rtnetlink::sys::{self, Socket, protocols::NETLINK_GENERIC};

use super::{
    super::key::{PrivateKey, PublicKey},
    message::{self, Answer, Device},
};
use crate::error::{LinkError, system};

/// How long an answer may be away. There is none only if something is wrong.
const PATIENCE_SECONDS: i64 = 5;

/// WireGuard of the network namespace in which it was opened.
pub struct Wireguard {
    socket: Socket,
    family: u16,
}

impl Wireguard {
    /// Fails with [`LinkError::NoWireguard`] in a kernel that has none and loads no module that does.
    pub fn open() -> Result<Self, LinkError> {
        let opened = connect().map_err(system("open a generic netlink socket"))?;
        let mut wireguard = Wireguard { socket: opened, family: 0 };
        let mut found = None;
        let asked = wireguard.ask(&message::ask_family(), |part| {
            found = message::family(part);
            found.map(drop)
        });
        match (asked, found) {
            (Err(error), _) if error.raw_os_error() == Some(libc::ENOENT) => Err(LinkError::NoWireguard),
            (Err(source), _) => Err(LinkError::System { what: "ask the kernel for WireGuard", source }),
            (Ok(()), None) => Err(LinkError::NoWireguard),
            (Ok(()), Some(family)) => {
                wireguard.family = family;
                Ok(wireguard)
            }
        }
    }

    pub fn device(&self, index: u32) -> Result<Device, LinkError> {
        let mut device = Device::default();
        let asked = self.ask(&message::ask_device(self.family, index), |part| device.take(part));
        asked.map_err(system("read the encrypted interface"))?;
        Ok(device)
    }

    pub fn set_device(&self, index: u32, key: &PrivateKey, port: u16) -> Result<(), LinkError> {
        let done = self.ask(&message::set_device(self.family, index, key, port), |_| Some(()));
        done.map_err(system("give the encrypted interface its key and port"))
    }

    pub fn set_peer(
        &self,
        index: u32,
        key: PublicKey,
        endpoint: (Option<SocketAddr>, u16),
        ranges: &BTreeSet<IpNet>,
    ) -> Result<(), LinkError> {
        let done = self.ask(&message::set_peer(self.family, index, key, endpoint, ranges), |_| Some(()));
        done.map_err(system("tell the encrypted interface of a node"))
    }

    /// A peer that is not there is fine.
    pub fn remove_peer(&self, index: u32, key: PublicKey) -> Result<(), LinkError> {
        let done = self.ask(&message::remove_peer(self.family, index, key), |_| Some(()));
        done.map_err(system("remove a node from the encrypted interface"))
    }

    /// Asks, and hands on the parts of the answer until its end.
    fn ask(&self, question: &[u8], mut take: impl FnMut(&[u8]) -> Option<()>) -> io::Result<()> {
        let unreadable = || io::Error::other("the kernel's answer cannot be read");
        self.socket.send(question, 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for answer in message::answers(&datagram).ok_or_else(unreadable)? {
                match answer {
                    Answer::Part(part) => take(part).ok_or_else(unreadable)?,
                    Answer::End(end) => return end.map_err(io::Error::from_raw_os_error),
                }
            }
        }
    }
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&sys::SocketAddr::new(0, 0))?;
    let patience = nix::sys::time::TimeVal::new(PATIENCE_SECONDS, 0);
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimeout, &patience)?;
    Ok(socket)
}
