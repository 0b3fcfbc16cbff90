//! A certificate authority: makes itself, and certificates for servers and clients. ECDSA P-256 throughout.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use x509_parser::{extensions::ParsedExtension, prelude::X509Certificate};

use crate::{PkiError, Result, der, inspect, signature};

/// How long an authority lives.
pub const AUTHORITY_SECONDS: i64 = 10 * 365 * 24 * 3600;
/// How long a certificate that it issues lives.
pub const CERTIFICATE_SECONDS: i64 = 365 * 24 * 3600;
/// Certificates are valid from a little before they are made: clocks of machines differ.
const BACKDATE_SECONDS: i64 = 300;
/// A certificate that is granted for less than this ends that long after now, a longer one that long after its beginning.
const SHORT_SECONDS: i64 = 8 * 3600;

/// A certificate (chain) and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub certificate: String,
    pub key: String,
}

/// The use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    Both,
}

/// The subject of a certificate.
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

    /// This authority with a certificate that begins now. Its name and its key stay, so everybody who trusts the old
    /// certificate trusts what the new one signs, and the other way round. `None` for one that [`Authority::create`]
    /// did not make, because its certificate may say more.
    pub fn renewed(&self, common_name: &str) -> Result<Option<Self>> {
        let renewed = Self::self_signed(common_name, &KeyPair::from_pem(&self.key)?)?;
        let same = inspect::says_the_same(&self.certificate, &renewed.certificate)?;
        Ok(same.then_some(renewed))
    }

    pub fn load(certificate: &str, key: &str) -> Result<Self> {
        let pair = KeyPair::from_pem(key).map_err(|e| PkiError::broken("the authority's key", e))?;
        let key = pair.serialize_pem();
        let issuer = Issuer::from_ca_cert_pem(certificate, pair)
            .map_err(|e| PkiError::broken("the authority's certificate", e))?;
        Ok(Authority { certificate: certificate.to_owned(), key, issuer })
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

    /// Issues what was granted, PEM: every field of the certificate comes from the grant.
    pub fn grant(&self, grant: &Grant<'_>) -> Result<String> {
        let authority = inspect::chain(&self.certificate)?;
        let authority = inspect::parse(&authority[0])?;
        let now = clock::now().as_second();
        let (begin, life) = (now - BACKDATE_SECONDS, grant.seconds.clamp(600, CERTIFICATE_SECONDS));
        let end = if life < SHORT_SECONDS { now + life } else { begin + life };
        // A certificate does not outlive the authority that vouches for it.
        let end = end.min(authority.validity().not_after.timestamp());
        let key = self.issuer.key();
        let algorithm = signature::identifier(key)?;
        let to_be_signed = der::sequence(&[
            der::explicit(0, &der::integer(&[2])),
            der::integer(&serial_number()),
            algorithm,
            authority.subject().as_raw().to_vec(),
            der::sequence(&[der::time(begin), der::time(end)]),
            der::name(grant.subject),
            grant.public_key.to_vec(),
            der::explicit(3, &der::sequence(&extensions(grant, &authority))),
        ]);
        Ok(crate::pem("CERTIFICATE", &signature::signed(key, to_be_signed)?))
    }
}

/// A certificate that was decided on.
#[derive(Debug, Clone)]
pub struct Grant<'a> {
    /// The attributes of the subject in order, by their number below 2.5.4: 3 is the common name, 10 an organization.
    pub subject: &'a [(u8, String)],
    pub dns_names: &'a [String],
    pub addresses: &'a [IpAddr],
    pub emails: &'a [String],
    pub uris: &'a [String],
    /// DER of the `SubjectPublicKeyInfo`.
    pub public_key: &'a [u8],
    pub digital_signature: bool,
    pub key_encipherment: bool,
    pub usage: Usage,
    /// Cut to the life of ordinary certificates.
    pub seconds: i64,
}

fn extensions(grant: &Grant<'_>, authority: &X509Certificate<'_>) -> Vec<Vec<u8>> {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let bits = bit(grant.digital_signature, 0x80) | bit(grant.key_encipherment, 0x20);
    let purpose = |last: u32| der::oid(&[1, 3, 6, 1, 5, 5, 7, 3, last]);
    let purposes = match grant.usage {
        Usage::Server => vec![purpose(1)],
        Usage::Client => vec![purpose(2)],
        Usage::Both => vec![purpose(1), purpose(2)],
    };
    let mut list = vec![
        der::extension(&[2, 5, 29, 37], false, &der::sequence(&purposes)),
        der::extension(&[2, 5, 29, 19], true, &der::sequence::<&[u8]>(&[])),
    ];
    if bits != 0 {
        let unused = bits.trailing_zeros().to_le_bytes()[0];
        list.push(der::extension(&[2, 5, 29, 15], true, &der::bit_string(unused, &[bits])));
    }
    let mut names: Vec<Vec<u8>> = grant.dns_names.iter().map(|n| der::dns_name(n)).collect();
    names.extend(grant.addresses.iter().map(|ip| der::address_name(*ip)));
    names.extend(grant.emails.iter().map(|n| der::mail_name(n)));
    names.extend(grant.uris.iter().map(|n| der::uri_name(n)));
    if !names.is_empty() {
        list.push(der::extension(&[2, 5, 29, 17], false, &der::sequence(&names)));
    }
    let own = authority.iter_extensions().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    if let Some(id) = own {
        let id = der::value(0x80, id);
        list.push(der::extension(&[2, 5, 29, 35], false, &der::sequence(&[id])));
    }
    list
}

fn set_life(params: &mut CertificateParams, seconds: i64) {
    // rcgen's dates are of a crate that is not ours: start at the epoch and add.
    let at = |second: i64| date_time_ymd(1970, 1, 1) + Duration::from_secs(second.max(0).unsigned_abs());
    let now = clock::now().as_second();
    params.not_before = at(now - BACKDATE_SECONDS);
    params.not_after = at(now + seconds);
    params.serial_number = Some(SerialNumber::from_slice(&serial_number()));
}

fn serial_number() -> [u8; 16] {
    let mut serial = [0u8; 16];
    clock::fill_random(&mut serial);
    // Serial numbers are positive and not zero.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    serial
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::PublicKeyData;

    #[test]
    fn a_certificate_is_what_was_granted() {
        let authority = Authority::create("ca").unwrap();
        let key = KeyPair::generate().unwrap();
        let subject = [(10, "dev".to_owned()), (10, "ops".to_owned()), (3, "jané".to_owned())];
        let hosts = ["a.example".to_owned()];
        let grant = |usage, seconds| {
            let public_key = key.subject_public_key_info();
            let grant = Grant {
                subject: &subject,
                dns_names: &hosts,
                addresses: &["10.0.0.1".parse().unwrap()],
                emails: &["a@b".to_owned()],
                uris: &["spiffe://a".to_owned()],
                public_key: &public_key,
                digital_signature: true,
                key_encipherment: true,
                usage,
                seconds,
            };
            authority.grant(&grant).unwrap()
        };
        let signed = grant(Usage::Client, 3600);
        let check = crate::ClientCertificates::new(authority.certificate()).unwrap();
        let facts = check.verify(&inspect::chain(&signed).unwrap()).unwrap();
        assert_eq!((facts.common_name.as_str(), facts.organizations.join(",")), ("jané", "dev,ops".to_owned()));
        assert_eq!(facts.hosts.into_iter().collect::<Vec<_>>(), ["10.0.0.1", "a.example"]);
        let now = clock::now().as_second();
        assert!(facts.not_before < now && (3590..=3600).contains(&(facts.not_after - now)));
        assert!(inspect::key_belongs_to(&signed, &key.serialize_pem()).unwrap());
        assert!(check.verify(&inspect::chain(&grant(Usage::Server, 3600)).unwrap()).is_err(), "a server is no client");
        let life = |seconds: i64| {
            let facts = inspect::facts(&grant(Usage::Client, seconds)).unwrap();
            facts.not_after - facts.not_before
        };
        for (asked, expected) in [
            (600, 900),
            (1800, 2100),
            (7200, 7500),
            (10 * 3600, 10 * 3600),
            (20 * 3600, 20 * 3600),
            (i64::MAX, CERTIFICATE_SECONDS),
        ] {
            assert_eq!(life(asked), expected, "{asked}");
        }
    }
}
