//! Why a kubelet ended.

use crate::claims::prepare::Unreadable;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kubelet's server cannot listen on port {port}: {source}")]
    Listen { port: u16, source: std::io::Error },
    #[error("the kubelet's folder {path} cannot be made: {source}")]
    Folder { path: String, source: std::io::Error },
    #[error("{0}")]
    Machine(String),
    #[error(transparent)]
    Claims(#[from] Unreadable),
}
