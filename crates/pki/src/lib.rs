//! Keys and certificates of a cluster: its authorities, the certificates they issue, the key that signs service
//! account tokens, TLS settings and kubeconfig files.
//!
//! [`Pki::open`] makes what is missing in a folder and renews what is old; nothing is kept that is not in a file.

pub mod access;
pub mod authority;
mod bundle;
pub mod der;
pub mod file;
pub mod folder;
pub mod inspect;
pub mod jwk;
pub mod jws;
pub mod jwt;
pub mod kubeconfig;
pub mod protocols;
pub mod proven;
pub mod signing;
pub mod sites;
pub mod tls;
pub mod wish;

mod signature;

use std::path::PathBuf;

pub use authority::{Authority, Credential, Grant, Subject, Usage};
pub use folder::{Names, Pki};
pub use kubeconfig::kubeconfig;
pub use protocols::Protocols;
pub use proven::ProvenKey;
pub use signing::{SigningKey, VerifyingKey};
pub use sites::{Site, Sites};
pub use tls::{
    ClientCertificates, Serving, client_config, client_config_believing_all, client_config_of_bundle,
    client_config_of_machine, client_config_showing, server_config, server_config_speaking,
};
pub use wish::Wish;

/// Why a key or certificate can't be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{what} is broken: {why}")]
    Broken { what: String, why: String },
    #[error("{}: {why}", path.display())]
    Access { path: PathBuf, why: String },
    #[error("cannot make a certificate")]
    Generate(#[from] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

pub type Result<T> = std::result::Result<T, PkiError>;

impl PkiError {
    pub(crate) fn broken(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        PkiError::Broken { what: what.into(), why: why.to_string() }
    }

    /// Says which file is broken.
    pub fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            PkiError::Broken { why, .. } => PkiError::Broken { what: path.display().to_string(), why },
            other => other,
        }
    }

    /// The error and its cause in one line.
    fn sentence(&self) -> String {
        use std::error::Error;
        self.source().map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }
}

/// One block of PEM.
pub fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let base64 = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).filter_map(|c| std::str::from_utf8(c).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
