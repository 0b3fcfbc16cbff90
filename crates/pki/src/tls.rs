//! TLS settings: servers that ask for a client certificate, and clients that show one.
//!
//! A server accepts any client certificate whose key the client has; whether an authority vouches for it is decided per
//! request by [`ClientCertificates`], so that a stranger reads 401 and not a broken connection.

use std::sync::{Arc, RwLock};

use rustls::client::{
    ResolvesClientCert, WebPkiServerVerifier,
    danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};

use crate::{Credential, PkiError, Result, bundle::Bundle, inspect, protocols::Protocols};

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())).clone()
}

fn roots(authorities: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in inspect::chain(authorities)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    let why = "it holds no private key in PEM without a password";
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| PkiError::broken("a private key", why))
}

/// The certificate that a server shows, or a client; it can be replaced while that one runs.
#[derive(Debug)]
pub struct Serving(RwLock<Arc<CertifiedKey>>);

impl Serving {
    pub fn new(credential: &Credential) -> Result<Arc<Self>> {
        Ok(Arc::new(Serving(RwLock::new(certified(credential)?))))
    }

    /// New connections get the new certificate, open ones stay.
    pub fn replace(&self, credential: &Credential) -> Result<()> {
        let key = certified(credential)?;
        *self.0.write().unwrap_or_else(|broken| broken.into_inner()) = key;
        Ok(())
    }

    /// The facts in the certificate that is shown.
    pub fn facts(&self) -> Result<inspect::Facts> {
        let shown = self.shown();
        let first = shown.cert.first().ok_or_else(|| PkiError::broken("a certificate", "there is none"))?;
        inspect::facts_der(first)
    }

    pub(crate) fn shown(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(|broken| broken.into_inner()).clone()
    }
}

pub(crate) fn certified(credential: &Credential) -> Result<Arc<CertifiedKey>> {
    let key = provider().key_provider.load_private_key(private_key(&credential.key)?)?;
    let certified = CertifiedKey::new(inspect::chain(&credential.certificate)?, key);
    certified.keys_match()?;
    Ok(Arc::new(certified))
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown())
    }
}

impl ResolvesClientCert for Serving {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.shown())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// As [`server_config_speaking`], of all that is spoken.
pub fn server_config(serving: Arc<dyn ResolvesServerCert>, hints: Option<&str>, alpn: &[&str]) -> Result<ServerConfig> {
    server_config_speaking(&Protocols::default(), serving, hints, alpn)
}

/// A server's settings. `hints` (PEM) are the authorities whose client certificates are welcome, in none all are; without them no client
/// certificate is asked for. `alpn` is in order of preference, such as `["h2", "http/1.1"]`.
pub fn server_config_speaking(
    protocols: &Protocols,
    serving: Arc<dyn ResolvesServerCert>,
    hints: Option<&str>,
    alpn: &[&str],
) -> Result<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(protocols.of(provider()));
    let builder = builder.with_protocol_versions(protocols.versions())?;
    let builder = match hints {
        None => builder.with_no_client_auth(),
        Some(hints) => builder.with_client_cert_verifier(Arc::new(AnyCertificate {
            hints: if hints.is_empty() { Vec::new() } else { roots(hints)?.subjects() },
            algorithms: provider().signature_verification_algorithms,
        })),
    };
    let mut config = builder.with_cert_resolver(serving);
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(config)
}

/// A client's settings: trusts `authorities` (PEM) and shows `credential`.
pub fn client_config(authorities: &str, credential: Option<&Credential>, alpn: &[&str]) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(authorities)?);
    let mut config = match credential {
        None => builder.with_no_client_auth(),
        Some(c) => builder.with_client_auth_cert(inspect::chain(&c.certificate)?, private_key(&c.key)?)?,
    };
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(config)
}

/// As [`client_config_showing`], trusting the authorities that this machine knows.
pub fn client_config_of_machine(shown: Option<Arc<Serving>>, alpn: &[&str]) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(machine_roots());
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => builder.with_client_cert_resolver(shown),
    };
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Where distributions keep the authorities that they believe; the first file that is there counts, as for Go.
const MACHINE_AUTHORITIES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The authorities of `SSL_CERT_FILE`, or of this machine. Those that cannot be read are left out: one of them must not
/// cost all others their trust.
fn machine_roots() -> RootCertStore {
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let usual = MACHINE_AUTHORITIES.iter().map(std::path::PathBuf::from);
    let found = named.map_or_else(|| usual.filter_map(read).next(), read);
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&found.unwrap_or_default()).flatten());
    roots
}

fn read(path: std::path::PathBuf) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// As [`client_config`], with a certificate that can be replaced.
pub fn client_config_showing(authorities: &str, shown: Arc<Serving>, alpn: &[&str]) -> Result<ClientConfig> {
    let mut config = client_config(authorities, None, alpn)?;
    config.client_auth_cert_resolver = shown;
    Ok(config)
}

pub(crate) fn bundle(authorities: &str) -> Result<Bundle> {
    let certificates = inspect::chain(authorities)?;
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider());
    let authorities = builder.build().map_err(|error| PkiError::broken("a bundle of certificates", error))?;
    Ok(Bundle { authorities, certificates })
}

/// As [`client_config_showing`], for servers that a user vouches for with this bundle (PEM): they may also show a certificate
/// that is in it.
pub fn client_config_of_bundle(authorities: &str, shown: Option<Arc<Serving>>, alpn: &[&str]) -> Result<ClientConfig> {
    verified_by(Arc::new(bundle(authorities)?), shown, alpn)
}

/// As [`client_config_showing`], for servers whose certificate may come from anybody: whoever asked for that gave up knowing
/// whom it speaks to. The server still has to have the key of its certificate.
pub fn client_config_believing_all(shown: Option<Arc<Serving>>, alpn: &[&str]) -> Result<ClientConfig> {
    let anybody = AnyServer { algorithms: provider().signature_verification_algorithms };
    verified_by(Arc::new(anybody), shown, alpn)
}

/// For servers whose certificates are judged in a way of our own.
fn verified_by(
    verifier: Arc<dyn ServerCertVerifier>,
    shown: Option<Arc<Serving>>,
    alpn: &[&str],
) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => builder.with_client_cert_resolver(shown),
    };
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Checks that the server has the key of its certificate, and nothing else.
#[derive(Debug)]
struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks that the client has the key of its certificate, and nothing else.
#[derive(Debug)]
struct AnyCertificate {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Decides whether a client's certificate was issued by one of some authorities, for client use, and is valid now. Clones share
/// the authorities, which can be replaced.
#[derive(Debug, Clone)]
pub struct ClientCertificates(Arc<RwLock<Believed>>);

#[derive(Debug, Clone)]
struct Believed {
    verifier: Arc<dyn ClientCertVerifier>,
    changes: u64,
}

fn client_verifier(authorities: &str) -> Result<Arc<dyn ClientCertVerifier>> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider()).build();
    verifier.map_err(|e| PkiError::broken("the client authorities", e))
}

impl ClientCertificates {
    pub fn new(authorities: &str) -> Result<Self> {
        Ok(ClientCertificates(Arc::new(RwLock::new(Believed { verifier: client_verifier(authorities)?, changes: 0 }))))
    }

    /// From now on these authorities are believed, and no others.
    pub fn replace(&self, authorities: &str) -> Result<()> {
        let verifier = client_verifier(authorities)?;
        let mut believed = self.0.write().unwrap_or_else(|broken| broken.into_inner());
        *believed = Believed { verifier, changes: believed.changes + 1 };
        Ok(())
    }

    fn believed(&self) -> Believed {
        self.0.read().unwrap_or_else(|broken| broken.into_inner()).clone()
    }

    /// Grows whenever the authorities change: what was verified before counts no more.
    pub fn changes(&self) -> u64 {
        self.believed().changes
    }

    /// `chain` is what the client showed, its own certificate first.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> std::result::Result<inspect::Facts, String> {
        let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
        let seconds = clock::now().as_second().max(0).unsigned_abs();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let verifier = self.believed().verifier;
        verifier.verify_client_cert(leaf, intermediates, now).map_err(|e| e.to_string())?;
        inspect::facts_der(leaf).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_the_bundle_is_believed_for_its_own_names_and_times() {
        let authority = crate::Authority::create("hook").unwrap();
        let other = crate::Authority::create("other").unwrap();
        let issued = authority.issue(&crate::Subject::server("hook", vec!["a.svc".to_owned()])).unwrap();
        let check = |bundle: &str, shown: &str, name: &str, years: u64, expected: bool| {
            let verifier = super::bundle(bundle).unwrap();
            let shown = inspect::chain(shown).unwrap();
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
                UnixTime::now().as_secs() + years * 31_557_600,
            ));
            let verdict = verifier.verify_server_cert(&shown[0], &[], &ServerName::try_from(name).unwrap(), &[], now);
            assert_eq!(verdict.is_ok(), expected, "{name} in {years} years: {verdict:?}");
        };
        let own = authority.certificate();
        check(own, &issued.certificate, "a.svc", 0, true);
        check(own, &issued.certificate, "b.svc", 0, false);
        check(own, own, "hook", 0, true);
        check(own, own, "a.svc", 0, false);
        check(own, own, "hook", 100, false);
        check(other.certificate(), own, "hook", 0, false);
        check(other.certificate(), &issued.certificate, "a.svc", 0, false);
    }
}
