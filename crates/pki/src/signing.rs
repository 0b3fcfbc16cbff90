//! The key that signs service account tokens, and the keys that check them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p521::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer, SubjectPublicKeyInfoDer,
    pem::PemObject,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::{PkiError, Result, der};

/// A private key, ECDSA or RSA, in PKCS #8.
pub struct SigningKey {
    /// PEM.
    pub private: String,
    pub public: VerifyingKey,
}

/// The public half, in the form that checking a JWT needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    /// PEM (`PUBLIC KEY`).
    pub pem: String,
    /// `ES256`, `ES384`, `ES512` or `RS256`.
    pub algorithm: &'static str,
    /// The JWT header `kid`: the SHA-256 of the DER form, in unpadded base64url.
    pub id: String,
    pub numbers: Numbers,
}

/// A public key's numbers, big endian: what a JWK holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numbers {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Ec { x: Vec<u8>, y: Vec<u8> },
}

/// A curve of ECDSA keys, and the algorithm that signs with them.
pub(crate) struct Curve {
    pub name: &'static str,
    /// The length of a number.
    pub bytes: usize,
    pub algorithm: &'static str,
    pub oid: &'static [u32],
}

pub(crate) const CURVES: [Curve; 3] = [
    Curve { name: "P-256", bytes: 32, algorithm: "ES256", oid: &[1, 2, 840, 10_045, 3, 1, 7] },
    Curve { name: "P-384", bytes: 48, algorithm: "ES384", oid: &[1, 3, 132, 0, 34] },
    Curve { name: "P-521", bytes: 66, algorithm: "ES512", oid: &[1, 3, 132, 0, 35] },
];

impl SigningKey {
    pub fn create() -> Result<Self> {
        Self::load(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?.serialize_pem())
    }

    /// Whether the text is a private key that can be used.
    pub fn check(pem: &str) -> Result<()> {
        Self::load(pem).map(drop)
    }

    pub fn load(pem: &str) -> Result<Self> {
        let why =
            "it is no private key in PKCS #8 without a password; `openssl pkcs8 -topk8 -nocrypt` makes one of others";
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).ok();
        let key = der.and_then(|der| Self::of(&der).ok());
        key.ok_or_else(|| PkiError::broken("the service account signing key", why))
    }

    /// As [`SigningKey::load`], also of a key in the older forms of RSA (PKCS #1, as kubeadm writes it) and ECDSA (SEC 1).
    pub fn load_any(pem: &str) -> Result<Self> {
        let broken = |why: &str| PkiError::broken("the service account signing key", why);
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| broken("it holds no private key in PEM without a password"))?;
        let der = pkcs8(&key).ok_or_else(|| broken("its curve is none of P-256, P-384 and P-521"))?;
        Self::of(&der).map_err(|_| broken("it is neither an RSA nor an ECDSA key that can sign"))
    }

    /// The text is the key's alone, so that every signer reads this very key.
    fn of(der: &PrivatePkcs8KeyDer<'_>) -> Result<Self> {
        let broken = |e: &dyn std::fmt::Display| PkiError::broken("a service account key", e);
        let (private, public) = match KeyPair::try_from(der) {
            Ok(pair) => (pair.serialize_pem(), pair.subject_public_key_info()),
            // That library has no P-521.
            Err(other) => {
                let der = der.secret_pkcs8_der();
                let secret = p521::SecretKey::from_pkcs8_der(der).map_err(|_| broken(&other))?;
                let public = secret.public_key().to_public_key_der().map_err(|e| broken(&e))?;
                (crate::pem("PRIVATE KEY", der), public.into_vec())
            }
        };
        Ok(SigningKey { private, public: VerifyingKey::from_der(&public)? })
    }
}

/// A private key in PKCS #8; `None` of a curve that is none of ours.
fn pkcs8(key: &PrivateKeyDer<'_>) -> Option<PrivatePkcs8KeyDer<'static>> {
    let (algorithm, inner) = match key {
        PrivateKeyDer::Pkcs8(der) => return Some(der.clone_key()),
        PrivateKeyDer::Pkcs1(der) => {
            let rsa = der::oid(&[1, 2, 840, 113_549, 1, 1, 1]);
            (der::sequence(&[rsa.as_slice(), der::NULL]), der.secret_pkcs1_der())
        }
        PrivateKeyDer::Sec1(der) => {
            let inner = der.secret_sec1_der();
            // The key says its curve, behind the secret number.
            let says = |curve: &&Curve| {
                let parameters = der::explicit(0, &der::oid(curve.oid));
                inner.windows(parameters.len()).any(|part| part == parameters)
            };
            let curve = der::oid(CURVES.iter().find(says)?.oid);
            (der::sequence(&[der::oid(&[1, 2, 840, 10_045, 2, 1]), curve]), inner)
        }
        _ => return None,
    };
    let inner = der::octet_string(inner);
    Some(PrivatePkcs8KeyDer::from(der::sequence(&[der::integer(&[0]), algorithm, inner])))
}

/// The sorts of blocks in files of keys; the parameters of a curve stand beside its key.
const BLOCKS: [&str; 6] =
    ["PUBLIC KEY", "CERTIFICATE", "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "EC PARAMETERS"];

impl VerifyingKey {
    /// As [`VerifyingKey::load_all`], where the text holds nothing that is passed over.
    pub fn load_whole(text: &str) -> Result<Vec<Self>> {
        let label = |rest: &str| rest.split("-----").next().unwrap_or_default().to_owned();
        let labels = text.split("-----BEGIN ").skip(1).map(label);
        for label in labels {
            if !BLOCKS.contains(&label.as_str()) {
                return Err(PkiError::broken(
                    "a service account key file",
                    format!("it has a block of another sort: {label}"),
                ));
            }
        }
        Self::load_all(text)
    }

    /// All keys of a PEM text: public keys, private ones (their public half) and certificates.
    pub fn load_all(text: &str) -> Result<Vec<Self>> {
        let mut keys = Vec::new();
        let broken = |e: &dyn std::fmt::Display| PkiError::broken("a service account key file", e);
        for der in SubjectPublicKeyInfoDer::pem_slice_iter(text.as_bytes()) {
            keys.push(Self::from_der(&der.map_err(|e| broken(&e))?)?);
        }
        for der in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let der = der.map_err(|e| broken(&e))?;
            let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| broken(&e))?;
            keys.push(Self::from_der(certificate.public_key().raw)?);
        }
        for der in PrivatePkcs8KeyDer::pem_slice_iter(text.as_bytes()) {
            keys.push(SigningKey::of(&der.map_err(|e| broken(&e))?)?.public);
        }
        let rsa = PrivatePkcs1KeyDer::pem_slice_iter(text.as_bytes()).map(|der| der.map(PrivateKeyDer::from));
        let curves = PrivateSec1KeyDer::pem_slice_iter(text.as_bytes()).map(|der| der.map(PrivateKeyDer::from));
        for older in rsa.chain(curves) {
            let der = pkcs8(&older.map_err(|e| broken(&e))?).ok_or_else(|| broken(&"its curve is not known"))?;
            keys.push(SigningKey::of(&der)?.public);
        }
        if keys.is_empty() {
            return Err(broken(&"it holds no key"));
        }
        Ok(keys)
    }

    /// A key that somebody else gave this identity, by its SubjectPublicKeyInfo.
    pub fn named(der: &[u8], id: String) -> Result<Self> {
        Ok(VerifyingKey { id, ..Self::from_der(der)? })
    }

    fn from_der(der: &[u8]) -> Result<Self> {
        let broken = |e: &dyn std::fmt::Display| PkiError::broken("a service account key", e);
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|e| broken(&e))?;
        let (algorithm, numbers) = match info.parsed().map_err(|e| broken(&e))? {
            PublicKey::RSA(key) => {
                let trim = |n: &[u8]| n.iter().copied().skip_while(|b| *b == 0).collect::<Vec<u8>>();
                ("RS256", Numbers::Rsa { modulus: trim(key.modulus), exponent: trim(key.exponent) })
            }
            // An uncompressed point: 4, x, y.
            PublicKey::EC(point) => {
                let numbers = point.data().strip_prefix(&[4]).unwrap_or_default();
                let curve = CURVES.iter().find(|curve| 2 * curve.bytes == numbers.len());
                let curve = curve.ok_or_else(|| broken(&"its curve is none of P-256, P-384 and P-521"))?;
                let (x, y) = numbers.split_at(curve.bytes);
                (curve.algorithm, Numbers::Ec { x: x.to_vec(), y: y.to_vec() })
            }
            _ => return Err(broken(&"it is neither RSA nor ECDSA")),
        };
        let pem = crate::pem("PUBLIC KEY", der);
        Ok(VerifyingKey { pem, algorithm, id: URL_SAFE_NO_PAD.encode(Sha256::digest(der)), numbers })
    }

    /// The key as RFC 7517 writes it, for `/openid/v1/jwks`, as JSON members in order.
    pub fn jwk(&self) -> Vec<(&'static str, String)> {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = vec![("use", "sig".to_owned())];
        match &self.numbers {
            Numbers::Rsa { modulus, exponent } => {
                jwk.extend([("kty", "RSA".to_owned()), ("n", text(modulus)), ("e", text(exponent))]);
            }
            Numbers::Ec { x, y } => {
                let curve = CURVES.iter().find(|curve| curve.algorithm == self.algorithm).map_or("", |c| c.name);
                jwk.extend([("kty", "EC".to_owned()), ("crv", curve.to_owned()), ("x", text(x)), ("y", text(y))]);
            }
        }
        jwk.extend([("kid", self.id.clone()), ("alg", self.algorithm.to_owned())]);
        jwk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_private_key_and_the_public_file_name_the_same_key() {
        let key = SigningKey::create().unwrap();
        let again = SigningKey::load(&key.private).unwrap();
        assert_eq!(again.public, key.public);
        assert_eq!(VerifyingKey::load_all(&key.public.pem).unwrap(), std::slice::from_ref(&key.public));
        assert_eq!(VerifyingKey::load_all(&key.private).unwrap(), std::slice::from_ref(&key.public));
        assert_eq!(key.public.algorithm, "ES256");
        assert_eq!(key.public.id.len(), 43);
        let other = SigningKey::create().unwrap();
        let all = format!("{}{}{}", other.public.pem, key.private, other.private);
        let found = VerifyingKey::load_all(&all).unwrap();
        assert_eq!(found, [other.public.clone(), key.public.clone(), other.public.clone()]);
        let both = SigningKey::load(&format!("{}{}", key.private, other.private)).unwrap();
        assert_eq!((both.private, both.public), (key.private, key.public));
        assert!(VerifyingKey::load_all("nothing").is_err());
    }

    #[test]
    fn older_forms_of_keys_are_read_and_nothing_is_passed_over() {
        let openssl = |arguments: &[&str]| {
            let made = std::process::Command::new("openssl").args(arguments).output().ok()?;
            String::from_utf8(made.stdout).ok().filter(|text| text.contains("-----BEGIN "))
        };
        let kinds: [(&str, &[&str]); 4] = [
            ("RS256", &["genrsa", "-traditional", "2048"]),
            ("ES256", &["ecparam", "-genkey", "-name", "prime256v1"]),
            ("ES384", &["ecparam", "-genkey", "-name", "secp384r1"]),
            ("ES512", &["ecparam", "-genkey", "-name", "secp521r1"]),
        ];
        for (algorithm, arguments) in kinds {
            let Some(text) = openssl(arguments) else {
                eprintln!("SKIPPED: no openssl here");
                return;
            };
            assert!(!text.contains("BEGIN PRIVATE KEY"), "{text}");
            let key = SigningKey::load_any(&text).unwrap();
            assert_eq!(key.public.algorithm, algorithm);
            let signature = key.for_jwt().unwrap().sign(b"hello").unwrap();
            assert!(VerifyingKey::load_whole(&text).unwrap()[0].verifies(b"hello", &signature), "{algorithm}");
            assert!(SigningKey::load(&text).is_err(), "the cluster's own folder has one form");
        }
        let key = SigningKey::create().unwrap();
        assert_eq!(SigningKey::load_any(&key.private).unwrap().public, key.public);
        assert!(SigningKey::load_any(&key.public.pem).is_err());
        let certificate = crate::Authority::create("x").unwrap().certificate().to_owned();
        assert_eq!(VerifyingKey::load_whole(&format!("{}{certificate}", key.public.pem)).unwrap().len(), 2);
        let odd = "-----BEGIN RSA PUBLIC KEY-----\nAAAA\n-----END RSA PUBLIC KEY-----\n";
        let error = VerifyingKey::load_whole(&format!("{}{odd}", key.public.pem)).unwrap_err().to_string();
        assert!(error.contains("another sort: RSA PUBLIC KEY"), "{error}");
    }
}
