//! The configuration of a client: where its server is, the authorities that it believes, and the credentials that it shows.

use std::{path::PathBuf, sync::Arc};

use clock::Duration;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use pki::{Credential, Serving};

use crate::error::{ConfigError, wrong};

/// How a server is reached, and as whom.
#[derive(Clone)]
pub struct Config {
    /// `https://host:port`, and perhaps a path below which everything is. Without TLS it is `http://`.
    pub server: Uri,
    pub trust: Trust,
    /// The name in its certificate, where that is not the host.
    pub server_name: Option<String>,
    pub credential: Option<Credential>,
    pub token: Option<String>,
    /// Its content comes before `token`, as long as it can be read.
    pub token_file: Option<PathBuf>,
    /// A user and its password, where no token is.
    pub password: Option<(String, String)>,
    /// The headers that every request carries.
    pub headers: HeaderMap,
    /// How long connecting may take, and a TLS handshake, where that is not half a minute.
    pub patience: Option<Duration>,
}

/// The authorities whose certificates are believed.
#[derive(Clone)]
pub enum Trust {
    /// Those of these authorities, in PEM.
    Authorities(String),
    /// Those of the authorities that this machine knows.
    Machine,
    /// Anybody's: whoever asks for that gave up knowing whom it speaks to.
    Anybody,
}

impl Config {
    /// The server, known by the authorities of this machine, for nobody in particular.
    pub fn new(server: &str) -> Result<Self, ConfigError> {
        let uri = server.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("https" | "http")));
        let server = uri.ok_or_else(|| wrong(format!("its server {server:?} is no URL such as https://host:6443")))?;
        Ok(Config {
            server,
            trust: Trust::Machine,
            server_name: None,
            credential: None,
            token: None,
            token_file: None,
            password: None,
            headers: HeaderMap::new(),
            patience: None,
        })
    }

    /// Adds a header to every request.
    pub fn say(&mut self, header: &str, value: &str) -> Result<(), ConfigError> {
        let both = HeaderName::from_bytes(header.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
        let (name, value) = both.ok_or_else(|| wrong(format!("{header} has characters that no header can have")))?;
        self.headers.append(name, value);
        Ok(())
    }

    pub(crate) fn tls(&self, shown: Option<Arc<Serving>>) -> Result<rustls::ClientConfig, ConfigError> {
        Ok(match (&self.trust, shown) {
            (Trust::Authorities(pem), Some(shown)) => pki::client_config_showing(pem, shown, &[])?,
            (Trust::Authorities(pem), None) => pki::client_config(pem, None, &[])?,
            (Trust::Machine, shown) => pki::client_config_of_machine(shown, &[])?,
            (Trust::Anybody, shown) => pki::client_config_believing_all(shown, &[])?,
        })
    }
}
