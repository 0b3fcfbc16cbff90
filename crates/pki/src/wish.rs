//! A certificate signing request (PKCS #10) under a new key, as somebody who wants a certificate makes it.

use std::net::IpAddr;

use rcgen::{KeyPair, PublicKeyData};

use crate::{Result, Subject, der, signature};

/// The request and its key.
pub struct Wish {
    /// The request, PEM.
    pub request: String,
    /// The key, PEM. It stays with the process that asks.
    pub key: String,
}

impl Wish {
    pub fn new(subject: &Subject) -> Result<Self> {
        let organization = subject.organization.iter().map(|o| (10, o.as_str()));
        let name: Vec<(u8, &str)> = organization.chain([(3, subject.common_name.as_str())]).collect();
        Self::with_subject(&name, &subject.hosts)
    }

    /// With any attributes in the subject, by their number below 2.5.4, and host names and addresses.
    pub fn with_subject(subject: &[(u8, &str)], hosts: &[String]) -> Result<Self> {
        let name = |host: &String| match host.parse::<IpAddr>() {
            Ok(ip) => der::address_name(ip),
            Err(_) => der::dns_name(host),
        };
        let names: Vec<Vec<u8>> = hosts.iter().map(name).collect();
        let mut extensions = Vec::new();
        if !names.is_empty() {
            extensions.push(der::extension(&[2, 5, 29, 17], false, &der::sequence(&names)));
        }
        Self::with_extensions(subject, &extensions)
    }

    /// With these extensions, DER.
    pub fn with_extensions(subject: &[(u8, &str)], extensions: &[Vec<u8>]) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut attributes = Vec::new();
        if !extensions.is_empty() {
            let wanted = der::set(&[der::sequence(extensions)]);
            attributes = der::sequence(&[der::oid(&[1, 2, 840, 113_549, 1, 9, 14]), wanted]);
        }
        let content = der::sequence(&[
            der::integer(&[0]),
            der::name(subject),
            key.subject_public_key_info(),
            der::explicit(0, &attributes),
        ]);
        let request = crate::pem("CERTIFICATE REQUEST", &signature::signed(&key, content)?);
        Ok(Wish { request, key: key.serialize_pem() })
    }
}
