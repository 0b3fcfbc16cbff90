//! Signatures of tokens by a service account key, in the form of RFC 7518. They are checked where others' are: in `jwk`.

use p521::ecdsa::signature::RandomizedSigner as _;
use p521::elliptic_curve::rand_core::OsRng;
use p521::pkcs8::DecodePrivateKey as _;
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
        RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use crate::{PkiError, Result, SigningKey, VerifyingKey, jwk};

/// A private key, ready to sign with its algorithm.
pub struct JwtSigner(Private);

enum Private {
    Rsa(RsaKeyPair),
    Curve(EcdsaKeyPair),
    /// On the curve that ring does not have.
    Largest(p521::ecdsa::SigningKey),
}

fn broken(why: impl std::fmt::Display) -> PkiError {
    PkiError::broken("the service account signing key", why)
}

impl SigningKey {
    pub fn for_jwt(&self) -> Result<JwtSigner> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(self.private.as_bytes()).map_err(broken)?;
        let der = der.secret_pkcs8_der();
        let curve = |algorithm: &'static EcdsaSigningAlgorithm| {
            EcdsaKeyPair::from_pkcs8(algorithm, der, &SystemRandom::new()).map(Private::Curve).map_err(broken)
        };
        Ok(JwtSigner(match self.public.algorithm {
            "RS256" => Private::Rsa(RsaKeyPair::from_pkcs8(der).map_err(broken)?),
            "ES256" => curve(&ECDSA_P256_SHA256_FIXED_SIGNING)?,
            "ES384" => curve(&ECDSA_P384_SHA384_FIXED_SIGNING)?,
            _ => {
                let secret = p521::SecretKey::from_pkcs8_der(der).map_err(broken)?;
                Private::Largest(p521::ecdsa::SigningKey::from_slice(&secret.to_bytes()).map_err(broken)?)
            }
        }))
    }
}

impl JwtSigner {
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.0 {
            Private::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(broken)?;
                Ok(signature)
            }
            Private::Curve(key) => Ok(key.sign(&random, message).map_err(broken)?.as_ref().to_vec()),
            Private::Largest(key) => {
                let signature: p521::ecdsa::Signature = key.try_sign_with_rng(&mut OsRng, message).map_err(broken)?;
                Ok(signature.to_bytes().to_vec())
            }
        }
    }
}

impl VerifyingKey {
    /// Whether the private half made this signature of the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        jwk::verifies(&self.numbers, self.algorithm, message, signature)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384};

    use super::*;
    use crate::ProvenKey;

    #[test]
    fn what_a_key_signed_only_that_key_vouches_for() {
        let larger = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
        let largest = || SigningKey::load(&ProvenKey::make("ECDSAP521", b"").unwrap().private).unwrap();
        let keys = [
            SigningKey::create().unwrap(),
            SigningKey::create().unwrap(),
            SigningKey::load(&larger).unwrap(),
            largest(),
            largest(),
        ];
        assert_eq!(keys.each_ref().map(|key| key.public.algorithm), ["ES256", "ES256", "ES384", "ES512", "ES512"]);
        for (signer, key) in keys.iter().enumerate() {
            let signature = key.for_jwt().unwrap().sign(b"hello").unwrap();
            for (reader, other) in keys.iter().enumerate() {
                assert_eq!(other.public.verifies(b"hello", &signature), signer == reader, "{signer} read by {reader}");
            }
            assert!(!key.public.verifies(b"hallo", &signature));
        }
    }

    /// Keys of another tool.
    #[test]
    fn keys_of_other_tools_sign_and_vouch() {
        let kinds = [
            ("RS256", ["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
            ("ES384", ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"]),
            ("ES512", ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"]),
        ];
        for (algorithm, arguments) in kinds {
            let Ok(made) = std::process::Command::new("openssl").arg("genpkey").args(arguments).output() else {
                eprintln!("SKIPPED: no openssl here");
                return;
            };
            let private = String::from_utf8(made.stdout).unwrap();
            let key = SigningKey::load(&private).unwrap();
            assert_eq!(key.public.algorithm, algorithm);
            let signature = key.for_jwt().unwrap().sign(b"hello").unwrap();
            let public = crate::VerifyingKey::load_all(&format!("{}{private}", key.public.pem)).unwrap();
            assert_eq!(public, [key.public.clone(), key.public.clone()]);
            assert!(public[0].verifies(b"hello", &signature), "{algorithm}");
        }
    }
}
