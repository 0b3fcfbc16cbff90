//! The versions and cipher suites of TLS that a server speaks, by the names of upstream's flags. Upstream counterpart:
//! component-base/cli/flag/ciphersuites_flag.go.
//!
//! Only what has no known weakness is there at all. A list for a hardened cluster often names more than that: such a name is taken, and
//! a warning says that it adds nothing. One that nobody knows is refused.

use std::sync::Arc;

use rustls::{
    CipherSuite, SupportedProtocolVersion,
    crypto::CryptoProvider,
    version::{TLS12, TLS13},
};

/// Suites of version 1.2 that are spoken here, with the further name that upstream has for two of them.
const SPOKEN: &[(&str, CipherSuite)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Those of version 1.3, which nobody chooses: a client that speaks it has them all.
const OF_1_3: &[&str] = &["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Suites that upstream's flag takes and that are not spoken here: their ciphers are broken, or a server's key that becomes known opens what
/// was said before.
const WEAK: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// The protocols that a server speaks; by default all that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protocols {
    only_1_3: bool,
    /// Those of version 1.2; `None` is all of them.
    suites: Option<Vec<CipherSuite>>,
    warnings: Vec<String>,
}

impl Protocols {
    /// The oldest version that is spoken, by its name; an empty one is the usual. The words are upstream's.
    pub fn since(mut self, version: &str) -> Result<Self, String> {
        self.only_1_3 = match version {
            "" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            "VersionTLS10" | "VersionTLS11" => {
                self.warnings.push(format!("{version} is not spoken: VersionTLS12 is the oldest that is"));
                false
            }
            other => return Err(format!("unknown tls version {other:?}")),
        };
        Ok(self)
    }

    /// The suites that are spoken, by their names; an empty list is all of them.
    pub fn with_suites<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut suites = None;
        for name in names {
            let chosen: &mut Vec<CipherSuite> = suites.get_or_insert_default();
            match SPOKEN.iter().find(|(known, _)| *known == name) {
                Some((_, suite)) => chosen.push(*suite),
                None if OF_1_3.contains(&name) => {}
                None if WEAK.contains(&name) => {
                    self.warnings.push(format!("{name} is not spoken: it has known weaknesses"));
                }
                None => return Err(format!("Cipher suite {name} not supported or doesn't exist")),
            }
        }
        if suites.as_ref().is_some_and(Vec::is_empty) {
            self.warnings.push("no suite of TLS 1.2 is left: only clients that speak 1.3 are served".to_owned());
        }
        self.suites = suites;
        Ok(self)
    }

    /// Names that were given and change nothing.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Of this provider only what is spoken.
    pub(crate) fn of(&self, provider: Arc<CryptoProvider>) -> Arc<CryptoProvider> {
        let Some(chosen) = &self.suites else { return provider };
        let mut provider = CryptoProvider::clone(&provider);
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(&suite.suite()));
        Arc::new(provider)
    }

    pub(crate) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        // The newest is first.
        static VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        let only_1_3 = self.only_1_3 || self.suites.as_ref().is_some_and(Vec::is_empty);
        if only_1_3 { &VERSIONS[..1] } else { &VERSIONS }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, ProtocolVersion, ServerConnection};

    use super::*;
    use crate::{Authority, Serving, Subject, tls};

    const AES: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    const CHACHA: &str = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305";

    /// The agreement of a server with a client that speaks these versions, of 1.2 with one suite.
    fn agreed(
        server: &Protocols,
        versions: &[&'static SupportedProtocolVersion],
        suite: &str,
    ) -> Result<(ProtocolVersion, CipherSuite), rustls::Error> {
        let authority = Authority::create("ca").unwrap();
        let issued = authority.issue(&Subject::server("a.io", vec!["a.io".to_owned()])).unwrap();
        let server = tls::server_config_speaking(server, Serving::new(&issued).unwrap(), None, &[]).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(crate::inspect::chain(authority.certificate()).unwrap().remove(0)).unwrap();
        let speaks = Protocols::default().with_suites([suite]).unwrap();
        let client = ClientConfig::builder_with_provider(speaks.of(Arc::new(rustls::crypto::ring::default_provider())))
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), "a.io".try_into().unwrap())?;
        let mut server = ServerConnection::new(Arc::new(server))?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            server.read_tls(&mut sent.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut sent = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut sent).unwrap();
            }
            client.read_tls(&mut sent.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok((server.protocol_version().unwrap(), server.negotiated_cipher_suite().unwrap().suite()))
    }

    #[test]
    fn a_server_speaks_the_chosen_and_nothing_else() {
        let version = |server: &Protocols, versions: &[&'static SupportedProtocolVersion], suite: &str| {
            agreed(server, versions, suite).map(|(version, _)| version).ok()
        };
        let (old, new) = (Some(ProtocolVersion::TLSv1_2), Some(ProtocolVersion::TLSv1_3));
        let all = Protocols::default();
        assert_eq!((version(&all, &[&TLS12], AES), version(&all, &[&TLS12, &TLS13], AES)), (old, new));
        let recent = Protocols::default().since("VersionTLS13").unwrap();
        assert_eq!((version(&recent, &[&TLS12], AES), version(&recent, &[&TLS13], AES)), (None, new));
        let chosen = Protocols::default().with_suites([CHACHA]).unwrap();
        assert_eq!((version(&chosen, &[&TLS12], AES), version(&chosen, &[&TLS12], CHACHA)), (None, old));
        assert_eq!(agreed(&chosen, &[&TLS12], CHACHA).unwrap().1, SPOKEN[2].1);
        // Suites of 1.3 are not chosen.
        assert_eq!(version(&chosen, &[&TLS13], AES), new);
        let none = Protocols::default().with_suites(["TLS_RSA_WITH_AES_128_GCM_SHA256"]).unwrap();
        assert_eq!((version(&none, &[&TLS12], AES), version(&none, &[&TLS13], AES)), (None, new));
    }

    #[test]
    fn what_nobody_knows_is_refused_and_what_adds_nothing_is_told() {
        let usual = Protocols::default().since("").unwrap().since("VersionTLS12").unwrap().with_suites([]).unwrap();
        assert_eq!(usual, Protocols::default());
        assert_eq!(Protocols::default().since("VersionTLS14").unwrap_err(), "unknown tls version \"VersionTLS14\"");
        let wrong = Protocols::default().with_suites([AES, "TLS_NONE"]).unwrap_err();
        assert_eq!(wrong, "Cipher suite TLS_NONE not supported or doesn't exist");
        let weak = Protocols::default().since("VersionTLS10").unwrap().with_suites([OF_1_3[0], WEAK[0]]).unwrap();
        let warnings = [
            "VersionTLS10 is not spoken: VersionTLS12 is the oldest that is",
            "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA is not spoken: it has known weaknesses",
            "no suite of TLS 1.2 is left: only clients that speak 1.3 are served",
        ];
        assert_eq!(weak.warnings(), warnings);
    }

    #[test]
    fn all_that_the_library_speaks_can_be_chosen() {
        for suite in rustls::crypto::ring::default_provider().cipher_suites {
            let name = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            let known = OF_1_3.contains(&name.as_str()) || SPOKEN.contains(&(name.as_str(), suite.suite()));
            assert!(known, "{name}");
        }
    }
}
