//! A certificate authority: makes itself, and certificates for servers and clients. ECDSA P-256 throughout.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};

use crate::{PkiError, Result, inspect};

/// How long an authority lives.
pub const AUTHORITY_SECONDS: i64 = 10 * 365 * 24 * 3600;
/// How long a certificate that it issues lives.
pub const CERTIFICATE_SECONDS: i64 = 365 * 24 * 3600;
/// Certificates are valid from a little before they are made: clocks of machines differ.
const BACKDATE_SECONDS: i64 = 300;

/// A certificate (chain) and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub certificate: String,
    pub key: String,
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    Both,
}

/// Whom a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub common_name: String,
    /// The group, of a client. (The library behind this writes at most one.)
    pub organization: Option<String>,
    /// Host names and IP addresses.
    pub hosts: Vec<String>,
    pub usage: Usage,
}

impl Subject {
    pub fn client(common_name: &str, organization: Option<&str>) -> Self {
        Subject {
            common_name: common_name.to_owned(),
            organization: organization.map(str::to_owned),
            hosts: Vec::new(),
            usage: Usage::Client,
        }
    }

    pub fn server(common_name: &str, hosts: Vec<String>) -> Self {
        Subject { common_name: common_name.to_owned(), organization: None, hosts, usage: Usage::Server }
    }
}

/// A certificate authority with its key.
pub struct Authority {
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Never shows the key.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new one. Its name becomes a subject alternative name too, as kubeadm does.
    pub fn create(common_name: &str) -> Result<Self> {
        Self::self_signed(common_name, &KeyPair::generate()?)
    }

    fn self_signed(common_name: &str, key: &KeyPair) -> Result<Self> {
        let mut params = CertificateParams::default();
        set_life(&mut params, AUTHORITY_SECONDS);
        params.distinguished_name = distinguished_name(common_name, None);
        params.subject_alt_names = hosts(&[common_name.to_owned()])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(key)?;
        Self::load(&certificate.pem(), &key.serialize_pem())
    }

    /// The same authority with a certificate that begins now. Its name and its key stay, so everybody who trusts the old
    /// certificate trusts what the new one signs, and the other way round. `None` for one that [`Authority::create`]
    /// did not make: what else its certificate says is not ours to say again.
    pub fn renewed(&self, common_name: &str) -> Result<Option<Self>> {
        let renewed = Self::self_signed(common_name, &KeyPair::from_pem(&self.key)?)?;
        let same = inspect::says_the_same(&self.certificate, &renewed.certificate)?;
        Ok(same.then_some(renewed))
    }

    pub fn load(certificate: &str, key: &str) -> Result<Self> {
        let pair = KeyPair::from_pem(key).map_err(|e| PkiError::broken("the authority's key", e))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, pair)
            .map_err(|e| PkiError::broken("the authority's certificate", e))?;
        Ok(Authority { certificate: certificate.to_owned(), key: key.to_owned(), issuer })
    }

    /// The certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The private key, PEM.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Makes a key and a certificate for it.
    pub fn issue(&self, subject: &Subject) -> Result<Credential> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        set_life(&mut params, CERTIFICATE_SECONDS);
        params.distinguished_name = distinguished_name(&subject.common_name, subject.organization.as_deref());
        params.subject_alt_names = hosts(&subject.hosts)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = match subject.usage {
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Credential { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Signs a certificate signing request (PEM) whose signature is checked. The subject is the request's; usages and
    /// life are the caller's. `seconds` is cut to the life of ordinary certificates.
    pub fn sign_request(&self, request: &str, usages: &[String], seconds: i64) -> Result<String> {
        let broken = |e: rcgen::Error| PkiError::broken("the certificate signing request", e);
        let mut request = CertificateSigningRequestParams::from_pem(request).map_err(broken)?;
        let params = &mut request.params;
        set_life(params, seconds.clamp(600, CERTIFICATE_SECONDS));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = usages.iter().filter_map(|u| key_usage(u)).collect();
        params.extended_key_usages = usages.iter().filter_map(|u| extended_key_usage(u)).collect();
        params.use_authority_key_identifier_extension = true;
        Ok(request.signed_by(&self.issuer)?.pem())
    }
}

/// A certificate signing request under a new key, as somebody who wants a certificate makes it.
pub struct Wish {
    /// The request, PEM.
    pub request: String,
    /// The key, PEM. It stays with whoever asks.
    pub key: String,
}

impl Wish {
    pub fn new(subject: &Subject) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(&subject.common_name, subject.organization.as_deref());
        params.subject_alt_names = hosts(&subject.hosts)?;
        let key = KeyPair::generate()?;
        Ok(Wish { request: params.serialize_request(&key)?.pem()?, key: key.serialize_pem() })
    }
}

/// The names that `certificates.k8s.io` has for key usages.
fn key_usage(name: &str) -> Option<KeyUsagePurpose> {
    Some(match name {
        "signing" | "digital signature" => KeyUsagePurpose::DigitalSignature,
        "content commitment" => KeyUsagePurpose::ContentCommitment,
        "key encipherment" => KeyUsagePurpose::KeyEncipherment,
        "key agreement" => KeyUsagePurpose::KeyAgreement,
        "data encipherment" => KeyUsagePurpose::DataEncipherment,
        _ => return None,
    })
}

fn extended_key_usage(name: &str) -> Option<ExtendedKeyUsagePurpose> {
    Some(match name {
        "any" => ExtendedKeyUsagePurpose::Any,
        "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
        "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
        "code signing" => ExtendedKeyUsagePurpose::CodeSigning,
        "email protection" => ExtendedKeyUsagePurpose::EmailProtection,
        "timestamping" => ExtendedKeyUsagePurpose::TimeStamping,
        "ocsp signing" => ExtendedKeyUsagePurpose::OcspSigning,
        _ => return None,
    })
}

fn set_life(params: &mut CertificateParams, seconds: i64) {
    // rcgen's dates are of a crate that is not ours: start at the epoch and add.
    let at = |second: i64| date_time_ymd(1970, 1, 1) + Duration::from_secs(second.max(0).unsigned_abs());
    let now = clock::now().as_second();
    params.not_before = at(now - BACKDATE_SECONDS);
    params.not_after = at(now + seconds);
    let mut serial = [0u8; 16];
    clock::fill_random(&mut serial);
    // Serial numbers are positive and not zero.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

fn distinguished_name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn hosts(hosts: &[String]) -> Result<Vec<SanType>> {
    let convert = |host: &String| match host.parse::<IpAddr>() {
        Ok(ip) => Ok(SanType::IpAddress(ip)),
        Err(_) => {
            let name = host.as_str().try_into().map_err(|e| PkiError::broken(format!("the host name {host:?}"), e))?;
            Ok(SanType::DnsName(name))
        }
    };
    hosts.iter().map(convert).collect()
}
