//! Servers that users vouch for with a bundle of certificates: webhooks, other API servers. As for Go, a server may also show
//! a certificate that stands in the bundle itself, though it is an authority: that is how many of them are set up.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::inspect;

#[derive(Debug)]
pub(crate) struct Bundle {
    pub authorities: Arc<WebPkiServerVerifier>,
    pub certificates: Vec<CertificateDer<'static>>,
}

impl Bundle {
    /// Whether the bundle names this very certificate, and it is one for the server and for now.
    fn names(&self, shown: &CertificateDer<'_>, server: &ServerName<'_>, now: UnixTime) -> bool {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        self.certificates.iter().any(|own| own.as_ref() == shown.as_ref())
            && inspect::facts_der(shown).is_ok_and(|facts| facts.is_valid(now))
            && ParsedCertificate::try_from(shown).is_ok_and(|parsed| verify_server_name(&parsed, server).is_ok())
    }
}

impl ServerCertVerifier for Bundle {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.authorities.verify_server_cert(shown, between, server, ocsp, now) {
            Err(_) if self.names(shown, server, now) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
