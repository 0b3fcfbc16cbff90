//! The mode iptables: what `ports` says, as chains and lines under upstream's names, given to the kernel by iptables-restore.
//!
//! [`rules`] renders what one Service needs, `order` says in which order chains are written, [`text`] puts them beside the fixed
//! ones as input of iptables-restore, where `saved` says what is there already (all pure), [`run`] gives it to the program. A change
//! of one Service rewrites its own chains, and of those that all share the ones with a line that changed.
//! Upstream counterpart: pkg/proxy/iptables.

mod order;
pub mod rules;
pub mod run;
mod saved;
pub mod text;

use crate::node::Node;

/// The choices that this mode alone has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Node ports are reached at 127.0.0.1 too.
    pub localhost_node_ports: bool,
    /// Packets outside of a connection's window pass.
    pub tcp_be_liberal: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { localhost_node_ports: true, tcp_be_liberal: false }
    }
}

impl Settings {
    /// Whether a node's ports are reached at its loopback address. The kernel leads packets from there in IPv4 alone.
    pub fn at_loopback(self, node: &Node) -> bool {
        self.localhost_node_ports && node.family == nft::Family::V4
    }
}

#[cfg(test)]
mod tests;
