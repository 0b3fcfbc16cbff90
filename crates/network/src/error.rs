//! What can go wrong with the Pod network of a node.

use std::path::PathBuf;

use crate::link::LinkError;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot write the Pod network's rules: {0}")]
    Rules(#[from] nft::ApplyError),
    #[error("cannot reach other nodes' Pods: {0}")]
    Link(#[from] LinkError),
}
