//! Reading certificates: who they are for, how long they live, who signed them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustls_pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::{PkiError, Result};

/// The facts in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// The UIDs of the subject, as Kubernetes writes them there; `None` stands for one that is no text.
    pub uids: Vec<Option<String>>,
    /// DNS names and IP addresses as text.
    pub hosts: BTreeSet<String>,
    /// Seconds since the epoch.
    pub not_before: i64,
    pub not_after: i64,
}

/// The attribute of a subject that is the UID of a user (`X509UID` of apiserver).
const UID: &str = "1.3.6.1.4.1.57683.2";

impl Facts {
    /// Whether it is not valid now, or less than a third of its life is left. One that is not valid yet was made while
    /// the clock was ahead.
    pub fn wants_renewal(&self, now: i64) -> bool {
        !self.is_valid(now) || self.not_after - now < (self.not_after - self.not_before) / 3
    }

    pub fn is_valid(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// The certificates of a PEM text.
pub fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain.map_err(|_| PkiError::broken("a certificate file", "it is not PEM"))?;
    if chain.is_empty() {
        return Err(PkiError::broken("a certificate file", "it holds no certificate"));
    }
    Ok(chain)
}

/// The facts in the first certificate of a PEM text.
pub fn facts(pem: &str) -> Result<Facts> {
    let chain = chain(pem)?;
    facts_der(&chain[0])
}

/// The facts in a DER certificate.
pub fn facts_der(der: &[u8]) -> Result<Facts> {
    let certificate = parse(der)?;
    let subject = certificate.subject();
    let text = |value: &AttributeTypeAndValue<'_>| {
        let text = value.as_str().map(str::to_owned);
        text.map_err(|_| PkiError::broken("a certificate", "its subject is no plain text"))
    };
    let mut common_names = subject.iter_common_name().map(text).collect::<Result<Vec<String>>>()?;
    let common_name = common_names.pop().unwrap_or_default();
    if !common_names.is_empty() {
        return Err(PkiError::broken("a certificate", "its subject has more than one common name"));
    }
    Ok(Facts {
        common_name,
        organizations: subject.iter_organization().map(text).collect::<Result<_>>()?,
        uids: subject
            .iter_attributes()
            .filter(|attribute| attribute.attr_type().to_id_string() == UID)
            .map(|attribute| attribute.as_str().ok().map(str::to_owned))
            .collect(),
        hosts: hosts(&certificate),
        not_before: certificate.validity().not_before.timestamp(),
        not_after: certificate.validity().not_after.timestamp(),
    })
}

/// Whether the first certificate of `pem` carries the signature of the first one of `authority`.
pub fn signed_by(pem: &str, authority: &str) -> Result<bool> {
    let (certificate, authority) = (chain(pem)?, chain(authority)?);
    let (certificate, authority) = (parse(&certificate[0])?, parse(&authority[0])?);
    Ok(certificate.verify_signature(Some(authority.public_key())).is_ok())
}

/// Whether two certificates differ in nothing but their serial number, life and signature.
pub fn says_the_same(one: &str, other: &str) -> Result<bool> {
    let (one, other) = (chain(one)?, chain(other)?);
    let (one, other) = (parse(&one[0])?, parse(&other[0])?);
    let extensions = |certificate: &X509Certificate<'_>| -> Vec<(String, bool, Vec<u8>)> {
        certificate.extensions().iter().map(|e| (e.oid.to_id_string(), e.critical, e.value.to_vec())).collect()
    };
    Ok(one.subject().as_raw() == other.subject().as_raw()
        && one.issuer().as_raw() == other.issuer().as_raw()
        && one.public_key().raw == other.public_key().raw
        && extensions(&one) == extensions(&other))
}

/// Whether the first certificate of a PEM text is an authority's.
pub fn is_authority(pem: &str) -> Result<bool> {
    let chain = chain(pem)?;
    Ok(parse(&chain[0])?.is_ca())
}

pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| PkiError::broken("a certificate", e))?;
    Ok(certificate)
}

fn hosts(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|n| &n.value.general_names);
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        other => address(other).map(|ip| ip.to_string()),
    };
    names.filter_map(text).collect()
}

/// The address that a name is; `None` for names of other sorts, and for addresses of no known length.
fn address(name: &GeneralName<'_>) -> Option<IpAddr> {
    let GeneralName::IPAddress(raw) = name else { return None };
    match raw.len() {
        4 => <[u8; 4]>::try_from(*raw).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(*raw).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Whether a private key (PEM) is the one of the first certificate of a PEM text.
pub fn key_belongs_to(certificate: &str, key: &str) -> Result<bool> {
    let pair = rcgen::KeyPair::from_pem(key).map_err(|e| PkiError::broken("a private key", e))?;
    let chain = chain(certificate)?;
    Ok(parse(&chain[0])?.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&pair))
}

/// The SHA-256 of an authority's public key, as kubeadm pins it: `sha256:` and 64 hexadecimal digits.
pub fn key_pin(authority: &str) -> Result<String> {
    key_pin_der(&chain(authority)?[0])
}

/// The pin of a DER certificate's key.
pub fn key_pin_der(certificate: &[u8]) -> Result<String> {
    let digest = Sha256::digest(parse(certificate)?.public_key().raw);
    Ok(format!("sha256:{}", base16ct::lower::encode_string(&digest)))
}

/// Certificates as PEM.
pub fn to_pem(certificates: &[Vec<u8>]) -> String {
    let one = |der: &Vec<u8>| crate::pem("CERTIFICATE", der);
    certificates.iter().map(one).collect()
}
