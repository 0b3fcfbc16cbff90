//! Signatures under DER: of certificates by their authority, of requests by their own key.

use rcgen::{KeyPair, SigningKey};

use crate::{PkiError, Result, der};

/// The `AlgorithmIdentifier` of what a key signs.
pub fn identifier(key: &KeyPair) -> Result<Vec<u8>> {
    let rsa = |last: u32| der::sequence(&[der::oid(&[1, 2, 840, 113_549, 1, 1, last]).as_slice(), der::NULL]);
    let other = |numbers: &[u32]| der::sequence(&[der::oid(numbers)]);
    let known = [
        (&rcgen::PKCS_ECDSA_P256_SHA256, other(&[1, 2, 840, 10045, 4, 3, 2])),
        (&rcgen::PKCS_ECDSA_P384_SHA384, other(&[1, 2, 840, 10045, 4, 3, 3])),
        (&rcgen::PKCS_ED25519, other(&[1, 3, 101, 112])),
        (&rcgen::PKCS_RSA_SHA256, rsa(11)),
        (&rcgen::PKCS_RSA_SHA384, rsa(12)),
        (&rcgen::PKCS_RSA_SHA512, rsa(13)),
    ];
    let found = known.into_iter().find(|(algorithm, _)| **algorithm == *key.algorithm());
    found.map(|(_, identifier)| identifier).ok_or_else(|| PkiError::broken("a signing key", "its kind is not known"))
}

/// A signed message as one DER sequence: the message, the algorithm and the signature.
pub fn signed(key: &KeyPair, content: Vec<u8>) -> Result<Vec<u8>> {
    let signature = key.sign(&content)?;
    Ok(der::sequence(&[content, identifier(key)?, der::bit_string(0, &signature)]))
}
