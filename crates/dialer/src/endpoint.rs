//! Where another server listens.

/// A host, as an address or a name, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// The name in its certificate, where that is not the host.
    pub server_name: Option<String>,
}

impl Endpoint {
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Endpoint { host: host.into(), port, server_name: None }
    }

    /// As it stands in a URL and in the header `Host`.
    pub fn authority(&self) -> String {
        api::rules::ip::with_port(&self.host, self.port)
    }
}
