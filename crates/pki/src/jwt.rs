//! Service account keys as the JWT library wants them, and its cryptography: ring's, like that of TLS, so that the
//! process holds one implementation of each algorithm.

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error as JwtError, ErrorKind, Result as JwtResult},
    signature::{Error, Signer, Verifier},
};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
        ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair,
        RsaPublicKeyComponents, UnparsedPublicKey,
    },
};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use crate::{PkiError, Result, SigningKey, VerifyingKey, signing::Numbers};

static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

/// Only the first call counts; all install the same.
fn install() {
    let _ = PROVIDER.install_default();
}

impl SigningKey {
    pub fn for_jwt(&self) -> Result<EncodingKey> {
        install();
        let broken = |e: &dyn std::fmt::Display| PkiError::broken("the service account signing key", e);
        let der = PrivatePkcs8KeyDer::from_pem_slice(self.private.as_bytes()).map_err(|e| broken(&e))?;
        let der = der.secret_pkcs8_der();
        Ok(match self.public.algorithm {
            "RS256" => EncodingKey::from_rsa_der(der),
            _ => EncodingKey::from_ec_der(der),
        })
    }
}

impl VerifyingKey {
    pub fn for_jwt(&self) -> DecodingKey {
        install();
        match &self.numbers {
            Numbers::Rsa { modulus, exponent } => DecodingKey::from_rsa_raw_components(modulus, exponent),
            Numbers::Ec { x, y } => DecodingKey::from_ec_der(&[&[4], x.as_slice(), y].concat()),
        }
    }

    pub fn jwt_algorithm(&self) -> Algorithm {
        match self.algorithm {
            "RS256" => Algorithm::RS256,
            "ES384" => Algorithm::ES384,
            _ => Algorithm::ES256,
        }
    }
}

enum Private {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, Algorithm),
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> JwtResult<Box<dyn JwtSigner>> {
    let der = key.as_bytes();
    let ec = |curve| {
        EcdsaKeyPair::from_pkcs8(curve, der, &SystemRandom::new())
            .map_err(|_| JwtError::from(ErrorKind::InvalidEcdsaKey))
    };
    let private = match algorithm {
        Algorithm::RS256 => {
            Private::Rsa(RsaKeyPair::from_pkcs8(der).map_err(|e| ErrorKind::InvalidRsaKey(e.to_string()))?)
        }
        Algorithm::ES256 => Private::Ec(ec(&ECDSA_P256_SHA256_FIXED_SIGNING)?, Algorithm::ES256),
        Algorithm::ES384 => Private::Ec(ec(&ECDSA_P384_SHA384_FIXED_SIGNING)?, Algorithm::ES384),
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(private))
}

impl Signer<Vec<u8>> for Private {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        match self {
            Private::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(|_| Error::new())?;
                Ok(signature)
            }
            Private::Ec(key, _) => key.sign(&random, message).map(|s| s.as_ref().to_vec()).map_err(|_| Error::new()),
        }
    }
}

impl JwtSigner for Private {
    fn algorithm(&self) -> Algorithm {
        match self {
            Private::Rsa(_) => Algorithm::RS256,
            Private::Ec(_, algorithm) => *algorithm,
        }
    }
}

struct Public {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> JwtResult<Box<dyn JwtVerifier>> {
    Ok(Box::new(Public { algorithm: *algorithm, key: key.kind().clone() }))
}

impl Verifier<Vec<u8>> for Public {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let outcome = match (&self.key, self.algorithm) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Algorithm::RS256) => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(point), Algorithm::ES256) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (DecodingKeyKind::SecretOrDer(point), Algorithm::ES384) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        outcome.map_err(|_| Error::new())
    }
}

impl JwtVerifier for Public {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jsonwebtoken::{Header, Validation};
    use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384};

    use super::*;

    fn signed(key: &SigningKey, text: &str) -> String {
        let header = Header::new(key.public.jwt_algorithm());
        jsonwebtoken::encode(&header, &BTreeMap::from([("text", text)]), &key.for_jwt().unwrap()).unwrap()
    }

    fn read(key: &VerifyingKey, token: &str) -> Option<String> {
        let mut validation = Validation::new(key.jwt_algorithm());
        (validation.validate_exp, validation.validate_aud) = (false, false);
        validation.required_spec_claims.clear();
        let data = jsonwebtoken::decode::<BTreeMap<String, String>>(token, &key.for_jwt(), &validation).ok()?;
        data.claims.get("text").cloned()
    }

    #[test]
    fn what_a_key_signed_only_that_key_vouches_for() {
        let larger = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
        let keys = [SigningKey::create().unwrap(), SigningKey::create().unwrap(), SigningKey::load(&larger).unwrap()];
        for (signer, key) in keys.iter().enumerate() {
            let token = signed(key, "hello");
            for (reader, other) in keys.iter().enumerate() {
                let expected = (signer == reader).then(|| "hello".to_owned());
                assert_eq!(read(&other.public, &token), expected, "{signer} read by {reader}");
            }
            let (content, signature) = token.rsplit_once('.').unwrap();
            let changed = format!("{content}A.{signature}");
            assert_eq!(read(&key.public, &changed), None);
        }
    }

    /// An RSA key of another tool, and a token that it signed.
    #[test]
    fn rsa_keys_of_other_tools_sign_and_vouch() {
        let Ok(made) = std::process::Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
            .output()
        else {
            eprintln!("SKIPPED: no openssl here");
            return;
        };
        let key = SigningKey::load(&String::from_utf8(made.stdout).unwrap()).unwrap();
        assert_eq!(key.public.algorithm, "RS256");
        assert_eq!(read(&key.public, &signed(&key, "hello")).as_deref(), Some("hello"));
    }
}
