//! The contents of a certificate signing request. Its bytes are parsed here, once, into a [`CertificateRequest`];
//! validation, admission, approvers and signers read that value and never the bytes, so that they can't see two
//! different requests.
//!
//! Exactly one PEM block with exactly the right label and no headers, a good signature by the key that it is for, at most one
//! common name, and each extension once; the text around the block is nobody's. Upstream takes the first of several blocks, and
//! others who read the same bytes may take another. A part that the value has no place for is named in
//! [`CertificateRequest::unknown`].

use std::net::IpAddr;

use base64::{Engine, engine::general_purpose::STANDARD};
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension, X509Extension},
    prelude::FromDer,
    x509::AttributeTypeAndValue,
};

/// The annotation of a request that a node makes which skiff has set up: those requests skiff may approve by itself. Another
/// kubelet's serving certificate waits for a person, as upstream's do.
pub const BY_SKIFF: &str = "skiff.dev/node";

/// The group of the parts of a node that serve its Pods (proxy, DNS, Pod network, network policies) and have to know the whole cluster
/// for that. A kubelet is not in it: it sees what concerns its own Pods.
pub const NODE_SERVICES: &str = "skiff:node-services";

/// The user as whom those parts of a node speak.
pub fn node_services(node: &str) -> String {
    format!("{NODE_SERVICES}:{node}")
}

/// Subject attributes by their number below the object identifier 2.5.4.
pub const COMMON_NAME: u8 = 3;
pub const ORGANIZATION: u8 = 10;
/// Besides those two: serial number, country, locality, state, street, unit and postal code, which describe and grant
/// nothing.
const DESCRIPTIVE: &[u8] = &[5, 6, 7, 8, 9, 11, 17];

/// More than any honest request needs; checks look at each extension for each other one.
const MOST_BYTES: usize = 256 * 1024;
const MOST_EXTENSIONS: usize = 64;

const LABEL: &str = "CERTIFICATE REQUEST";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error("there may be no other PEM block beside the one of the request")]
    Several,
    #[error("the request is not readable: {0}")]
    Broken(String),
    #[error("the signature is not that of the request's own key, or of a kind that is not supported")]
    Signature,
    #[error("the subject has more than one common name")]
    CommonNames,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateRequest {
    /// The attributes of the subject in order, by their number below 2.5.4.
    pub subject: Vec<(u8, String)>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    /// The key, as DER of a `SubjectPublicKeyInfo`.
    pub public_key: Vec<u8>,
    /// Attributes and extensions that have no place here: a signer that copies fields from here can't grant them and has
    /// to refuse.
    pub unknown: Vec<String>,
}

impl CertificateRequest {
    pub fn parse(pem: &[u8]) -> Result<Self, RequestError> {
        let der = block(pem)?;
        let broken = |e: &dyn std::fmt::Display| RequestError::Broken(e.to_string());
        let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|e| broken(&e))?;
        if !rest.is_empty() {
            return Err(broken(&"more follows after it"));
        }
        request.verify_signature().map_err(|_| RequestError::Signature)?;
        let info = &request.certification_request_info;
        let mut found =
            CertificateRequest { public_key: info.subject_pki.raw.to_vec(), ..CertificateRequest::default() };
        for attribute in info.subject.iter_attributes() {
            found.take_attribute(attribute)?;
        }
        if found.of_subject(COMMON_NAME).count() > 1 {
            return Err(RequestError::CommonNames);
        }
        let mut wanted = info.iter_attributes().filter_map(|a| match a.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(wanted) => Some(&wanted.extensions),
            _ => None,
        });
        let extensions = wanted.next();
        if wanted.next().is_some() {
            return Err(broken(&"it has two lists of extensions"));
        }
        let extensions = extensions.map(Vec::as_slice).unwrap_or_default();
        if extensions.len() > MOST_EXTENSIONS {
            return Err(broken(&format!("it has more than {MOST_EXTENSIONS} extensions")));
        }
        for (i, extension) in extensions.iter().enumerate() {
            if extensions[..i].iter().any(|e| e.oid == extension.oid) {
                return Err(broken(&format!("it has the extension {} twice", extension.oid)));
            }
            found.take_extension(extension)?;
        }
        Ok(found)
    }

    /// Empty when the subject has none.
    pub fn common_name(&self) -> &str {
        self.of_subject(COMMON_NAME).next().unwrap_or_default()
    }

    pub fn organizations(&self) -> impl Iterator<Item = &str> {
        self.of_subject(ORGANIZATION)
    }

    /// Whether the subject is a common name and organizations alone.
    pub fn is_plain_subject(&self) -> bool {
        self.subject.iter().all(|(number, _)| matches!(*number, COMMON_NAME | ORGANIZATION))
    }

    fn of_subject(&self, wanted: u8) -> impl Iterator<Item = &str> {
        self.subject.iter().filter(move |(number, _)| *number == wanted).map(|(_, text)| text.as_str())
    }

    fn take_attribute(&mut self, attribute: &AttributeTypeAndValue<'_>) -> Result<(), RequestError> {
        let oid = attribute.attr_type();
        let number = match oid.as_bytes() {
            [0x55, 4, number] if [COMMON_NAME, ORGANIZATION].contains(number) || DESCRIPTIVE.contains(number) => {
                *number
            }
            _ => {
                self.unknown.push(format!("the subject attribute {oid}"));
                return Ok(());
            }
        };
        let broken = |_| RequestError::Broken(format!("the subject attribute {oid} is no plain text"));
        let text = attribute.as_str().map_err(broken)?;
        self.subject.push((number, text.to_owned()));
        Ok(())
    }

    fn take_extension(&mut self, extension: &X509Extension<'_>) -> Result<(), RequestError> {
        match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => {
                names.general_names.iter().try_for_each(|name| self.take_name(name))?;
            }
            ParsedExtension::BasicConstraints(wanted) if wanted.ca => {
                self.unknown.push("to be a certificate authority".to_owned());
            }
            // A certificate's usages are those in the object's spec, and its key identifier follows from the key.
            ParsedExtension::BasicConstraints(_)
            | ParsedExtension::KeyUsage(_)
            | ParsedExtension::ExtendedKeyUsage(_)
            | ParsedExtension::SubjectKeyIdentifier(_) => {}
            ParsedExtension::ParseError { .. } => {
                return Err(RequestError::Broken(format!("the extension {} can't be read", extension.oid)));
            }
            _ => self.unknown.push(format!("the extension {}", extension.oid)),
        }
        Ok(())
    }

    fn take_name(&mut self, name: &GeneralName<'_>) -> Result<(), RequestError> {
        let text = |text: &str| match text.is_ascii() {
            true => Ok(text.to_owned()),
            false => Err(RequestError::Broken("a subjectAltName is not ASCII".to_owned())),
        };
        match name {
            GeneralName::DNSName(name) => self.dns_names.push(text(name)?),
            GeneralName::RFC822Name(name) => self.emails.push(text(name)?),
            GeneralName::URI(name) => self.uris.push(text(name)?),
            GeneralName::IPAddress(raw) => {
                let four = <[u8; 4]>::try_from(*raw).map(IpAddr::from);
                let address = four.or_else(|_| <[u8; 16]>::try_from(*raw).map(IpAddr::from));
                let broken = || RequestError::Broken(format!("an IP address of {} bytes", raw.len()));
                self.addresses.push(address.map_err(|_| broken())?);
            }
            _ => self.unknown.push("a subjectAltName of an uncommon kind".to_owned()),
        }
        Ok(())
    }
}

/// The content of the one block.
fn block(pem: &[u8]) -> Result<Vec<u8>, RequestError> {
    if pem.len() > MOST_BYTES {
        return Err(RequestError::Broken(format!("it is longer than {MOST_BYTES} bytes")));
    }
    let text = std::str::from_utf8(pem).map_err(|_| RequestError::Pem)?;
    let mut blocks = pem_blocks(text);
    let Some(Ok((LABEL, body))) = blocks.next() else { return Err(RequestError::Pem) };
    if blocks.next().is_some() {
        return Err(RequestError::Several);
    }
    // Neither another block nor a header is made of base64's letters alone.
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(body).map_err(|_| RequestError::Pem)
}

/// The PEM blocks of a text, each with its label and what stands in it; text around them is nobody's.
pub(crate) fn pem_blocks(text: &str) -> impl Iterator<Item = Result<(&str, &str), String>> {
    let mut rest = text;
    let next = move || {
        let (_, after) = rest.split_once("-----BEGIN ")?;
        let found = after.split_once("-----").and_then(|(label, after)| {
            let (body, after) = after.split_once(&format!("-----END {label}-----"))?;
            Some((label, body, after))
        });
        let (block, left) = match found {
            Some((label, body, after)) => (Ok((label, body)), after),
            None => (Err("a PEM block has no end".to_owned()), ""),
        };
        rest = left;
        Some(block)
    };
    std::iter::from_fn(next)
}

/// Why bytes are no certificates: as the API says of `status.certificate`, one or more PEM blocks, all of them
/// certificates without headers, with text around them that nobody reads.
pub fn check_certificates(pem: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(pem).map_err(|_| "must be PEM".to_owned())?;
    let mut blocks = 0;
    for block in pem_blocks(text) {
        let (label, body) = block?;
        if label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {label:?}"));
        }
        if body.contains(':') {
            return Err("no PEM block headers are permitted".to_owned());
        }
        let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let der = STANDARD.decode(body).map_err(|_| "a PEM block is not base64")?;
        let parsed = x509_parser::parse_x509_certificate(&der).map_err(|e| format!("a certificate is broken: {e}"))?;
        if !parsed.0.is_empty() {
            return Err("more follows a certificate in its PEM block".to_owned());
        }
        blocks += 1;
    }
    if blocks == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use pki::{Subject, Wish};

    use super::*;

    fn wish(subject: &[(u8, &str)], hosts: &[&str]) -> String {
        Wish::with_subject(subject, &hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()).unwrap().request
    }

    #[test]
    fn one_request_is_one_value() {
        let pem = wish(&[(10, "dev"), (10, "ops"), (6, "DE"), (3, "jané")], &["a.example", "10.0.0.1", "fd00::1"]);
        let request = CertificateRequest::parse(format!("\n{pem}\n \n").as_bytes()).unwrap();
        assert_eq!(request.common_name(), "jané");
        assert_eq!(request.organizations().collect::<Vec<_>>(), ["dev", "ops"]);
        assert_eq!(request.dns_names, ["a.example"]);
        assert_eq!(request.addresses.len(), 2);
        assert!(request.unknown.is_empty() && !request.is_plain_subject());
        let plain = Wish::new(&Subject::client("system:node:a", Some("system:nodes"))).unwrap().request;
        assert!(CertificateRequest::parse(plain.as_bytes()).unwrap().is_plain_subject());
    }

    #[test]
    fn one_block_is_a_request_with_text_around_it_and_several_are_none() {
        let good = wish(&[(10, "system:nodes"), (3, "system:node:a")], &[]);
        let evil = wish(&[(10, "system:masters"), (3, "root")], &[]);
        let relabelled = evil.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST");
        for pem in [good.clone(), format!("text\nmore: text\n{good}text"), good.replace('\n', " \t\r\n")] {
            let read = CertificateRequest::parse(pem.as_bytes());
            assert_eq!(read.map(|request| request.common_name().to_owned()), Ok("system:node:a".to_owned()), "{pem}");
        }
        for pem in [format!("{good}{evil}"), format!("{evil}{good}"), format!("{good}{relabelled}")] {
            assert_eq!(CertificateRequest::parse(pem.as_bytes()), Err(RequestError::Several), "{pem}");
        }
        for pem in [
            format!("{relabelled}{good}"),
            format!("-----BEGIN CERTIFICATE REQUEST-----\n{good}"),
            relabelled.clone(),
            good.replacen("-----\n", "-----\nProc-Type: 4\n\n", 1),
            good.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
            good.replace("END CERTIFICATE", "END NEW CERTIFICATE"),
            good.replace('M', "*"),
            String::new(),
        ] {
            assert_eq!(CertificateRequest::parse(pem.as_bytes()), Err(RequestError::Pem), "{pem}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let good = wish(&[(10, "system:nodes"), (3, "system:node:a")], &[]);
        let evil = wish(&[(10, "system:masters"), (3, "root")], &[]);
        let two = wish(&[(10, "system:nodes"), (3, "system:node:a"), (3, "system:node:b")], &[]);
        assert_eq!(CertificateRequest::parse(two.as_bytes()), Err(RequestError::CommonNames));
        let (der, mut longer) = (block(good.as_bytes()).unwrap(), block(good.as_bytes()).unwrap());
        longer.extend_from_slice(&block(evil.as_bytes()).unwrap());
        let pem = |der: &[u8]| pki::pem("CERTIFICATE REQUEST", der);
        assert!(matches!(CertificateRequest::parse(pem(&longer).as_bytes()), Err(RequestError::Broken(_))));
        // The subject of another request under this one's signature.
        let at = der.windows(12).position(|w| w == b"system:nodes").unwrap();
        let mut forged = der;
        forged[at..at + 12].copy_from_slice(b"system:admin");
        assert_eq!(CertificateRequest::parse(pem(&forged).as_bytes()), Err(RequestError::Signature));
    }

    #[test]
    fn a_certificate_is_pem_and_nothing_else_is() {
        let authority = pki::Authority::create("ca").unwrap();
        let good = authority.certificate();
        assert_eq!(check_certificates(format!("about it\n{good}\n{good}").as_bytes()), Ok(()));
        let key = authority.key();
        for (bad, why) in [
            (String::new(), "at least one"),
            (format!("{good}{key}"), "only CERTIFICATE"),
            (good.replacen("-----\n", "-----\nA: b\n\n", 1), "headers"),
            (good.replace('M', "*"), "base64"),
            ("-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n".to_owned(), "broken"),
            ("-----BEGIN CERTIFICATE-----\nYQ==".to_owned(), "no end"),
        ] {
            let said = check_certificates(bad.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
