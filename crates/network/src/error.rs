//! The errors of the Pod network of a node.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot {what}: {source}")]
    Netlink { what: &'static str, source: rtnetlink::Error },
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: std::io::Error },
    #[error("link {0} is not there")]
    Missing(String),
    #[error(
        "this kernel has no WireGuard; load its module (`modprobe wireguard`), or give the cluster another --pod-network"
    )]
    NoWireguard,
}

pub(crate) fn netlink(what: &'static str) -> impl Fn(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Netlink { what, source }
}

pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> LinkError {
    move |source| LinkError::System { what, source }
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no private key of WireGuard; remove it, and the node makes a new one")]
    NoKey { path: PathBuf },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot write the Pod network's rules: {0}")]
    Rules(#[from] nft::ApplyError),
    #[error("no private range of addresses is left for the nodes of this machine")]
    NoRange,
    #[error("cannot reach other nodes' Pods: {0}")]
    Link(#[from] LinkError),
}
