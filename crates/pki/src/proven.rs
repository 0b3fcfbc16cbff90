//! A key that is made for somebody else, with the proof that its maker has it: a signature over a text that the maker cannot
//! choose. Kubelets make such keys for the Pods that ask for certificates.

use p521::{
    ecdsa::signature::hazmat::{PrehashSigner, RandomizedPrehashSigner},
    elliptic_curve::rand_core::OsRng,
    pkcs8::{EncodePrivateKey, EncodePublicKey},
};
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{Ed25519KeyPair, KeyPair as _, RSA_PSS_SHA256, RsaKeyPair},
};
use sha2::{Digest, Sha256};

use crate::{PkiError, Result, der};

/// A new key.
pub struct ProvenKey {
    /// PKCS #8, PEM.
    pub private: String,
    /// `SubjectPublicKeyInfo`, DER.
    pub public: Vec<u8>,
    pub proof: Vec<u8>,
}

/// The number of the algorithm Ed25519.
const EDWARDS: &[u32] = &[1, 3, 101, 112];

fn broken(why: impl std::fmt::Display) -> PkiError {
    PkiError::broken("a new key", why)
}

impl ProvenKey {
    /// A key of one of Kubernetes's key types, and its signature over the text. An RSA key is work of seconds.
    pub fn make(kind: &str, text: &[u8]) -> Result<Self> {
        match kind {
            "ED25519" => edwards(text),
            "ECDSAP256" => p256(text),
            "ECDSAP384" => p384(text),
            "ECDSAP521" => p521(text),
            "RSA3072" => rsa(3072, text),
            "RSA4096" => rsa(4096, text),
            other => Err(broken(format!("unknown key type {other:?}"))),
        }
    }

    fn of(private: &[u8], public: Vec<u8>, proof: Vec<u8>) -> Self {
        ProvenKey { private: crate::pem("PRIVATE KEY", private), public, proof }
    }
}

/// The form without the public half, which is the one that all programs read.
fn edwards(text: &[u8]) -> Result<ProvenKey> {
    let mut seed = [0; 32];
    SystemRandom::new().fill(&mut seed).map_err(broken)?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(broken)?;
    let algorithm = der::sequence(&[der::oid(EDWARDS)]);
    let secret = der::octet_string(&der::octet_string(&seed));
    let private = der::sequence(&[der::integer(&[0]), algorithm.clone(), secret]);
    let public = der::sequence(&[algorithm, der::bit_string(0, pair.public_key().as_ref())]);
    Ok(ProvenKey::of(&private, public, pair.sign(text).as_ref().to_vec()))
}

fn p256(text: &[u8]) -> Result<ProvenKey> {
    use rcgen::{PublicKeyData, SigningKey};
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    Ok(ProvenKey::of(&pair.serialize_der(), pair.subject_public_key_info(), pair.sign(text)?))
}

fn p384(text: &[u8]) -> Result<ProvenKey> {
    let secret = p384::SecretKey::random(&mut OsRng);
    let signature: p384::ecdsa::Signature =
        p384::ecdsa::SigningKey::from(&secret).sign_prehash(&Sha256::digest(text)).map_err(broken)?;
    let private = secret.to_pkcs8_der().map_err(broken)?;
    let public = secret.public_key().to_public_key_der().map_err(broken)?;
    Ok(ProvenKey::of(private.as_bytes(), public.into_vec(), signature.to_der().as_bytes().to_vec()))
}

fn p521(text: &[u8]) -> Result<ProvenKey> {
    let secret = p521::SecretKey::random(&mut OsRng);
    let key = p521::ecdsa::SigningKey::from_slice(&secret.to_bytes()).map_err(broken)?;
    // As a number the hash is the same with zeros before it. The library takes none that is so much shorter than the key.
    let mut hash = [0; 66];
    hash[66 - 32..].copy_from_slice(&Sha256::digest(text));
    let signature: p521::ecdsa::Signature = key.sign_prehash_with_rng(&mut OsRng, &hash).map_err(broken)?;
    let private = secret.to_pkcs8_der().map_err(broken)?;
    let public = secret.public_key().to_public_key_der().map_err(broken)?;
    Ok(ProvenKey::of(private.as_bytes(), public.into_vec(), signature.to_der().as_bytes().to_vec()))
}

fn rsa(bits: usize, text: &[u8]) -> Result<ProvenKey> {
    let secret = rsa::RsaPrivateKey::new(&mut OsRng, bits).map_err(broken)?;
    let private = secret.to_pkcs8_der().map_err(broken)?;
    let public = secret.to_public_key().to_public_key_der().map_err(broken)?;
    let pair = RsaKeyPair::from_pkcs8(private.as_bytes()).map_err(broken)?;
    let mut proof = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PSS_SHA256, &SystemRandom::new(), text, &mut proof).map_err(broken)?;
    Ok(ProvenKey::of(private.as_bytes(), public.into_vec(), proof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::{prelude::FromDer, x509::SubjectPublicKeyInfo};

    #[test]
    fn a_key_is_of_the_kind_that_was_asked_for_and_new_each_time() {
        let made = |kind: &str| ProvenKey::make(kind, b"pod-uid");
        for (kind, size, algorithm) in [
            ("ED25519", 44, "1.3.101.112"),
            ("ECDSAP256", 91, "1.2.840.10045.2.1"),
            ("ECDSAP384", 120, "1.2.840.10045.2.1"),
            ("ECDSAP521", 158, "1.2.840.10045.2.1"),
            ("RSA3072", 422, "1.2.840.113549.1.1.1"),
        ] {
            let key = made(kind).unwrap();
            let (_, info) = SubjectPublicKeyInfo::from_der(&key.public).unwrap();
            assert_eq!(
                (info.algorithm.algorithm.to_id_string().as_str(), key.public.len()),
                (algorithm, size),
                "{kind}"
            );
            assert!(key.private.starts_with("-----BEGIN PRIVATE KEY-----\nM"), "{kind}");
            assert_ne!(made(kind).unwrap().private, key.private, "{kind}");
        }
        let why = made("RSA1024").err().unwrap().to_string();
        assert_eq!(why, "a new key is broken: unknown key type \"RSA1024\"");
    }

    #[test]
    fn the_key_of_an_edwards_curve_is_the_one_that_its_seed_makes() {
        let key = ProvenKey::make("ED25519", b"text").unwrap();
        // A key that rcgen reads is read by others too: it takes both forms.
        let pair = rcgen::KeyPair::from_pem(&key.private).unwrap();
        assert_eq!(rcgen::PublicKeyData::subject_public_key_info(&pair), key.public);
        assert_eq!(rcgen::SigningKey::sign(&pair, b"text").unwrap(), key.proof, "these signatures are always the same");
    }
}
