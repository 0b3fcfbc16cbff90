//! Public keys of others as RFC 7517 writes them, and the signatures of RFC 7518 that they check. Every algorithm is one of a
//! private key: a shared secret, or none, signs nothing here.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use p521::ecdsa::signature::Verifier as _;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

use crate::signing::{CURVES, Curve, Numbers};

/// The algorithms whose signatures are checked.
pub const ALGORITHMS: [&str; 9] = ["ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"];

fn number(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// An RSA key of the members `n` and `e`.
pub fn rsa(modulus: &str, exponent: &str) -> Option<Numbers> {
    let trimmed = |text: &str| Some(number(text)?.into_iter().skip_while(|byte| *byte == 0).collect());
    Some(Numbers::Rsa { modulus: trimmed(modulus)?, exponent: trimmed(exponent)? })
}

/// A key on the curve `crv` of the members `x` and `y`.
pub fn curve(name: &str, x: &str, y: &str) -> Option<Numbers> {
    let Curve { bytes, .. } = CURVES.into_iter().find(|known| known.name == name)?;
    // Some write numbers without the zeros in front.
    let whole = |text: &str| {
        let number = number(text)?;
        let missing = bytes.checked_sub(number.len())?;
        Some([vec![0; missing], number].concat())
    };
    Some(Numbers::Ec { x: whole(x)?, y: whole(y)? })
}

/// Whether the key made this signature of the message, by this algorithm.
pub fn verifies(key: &Numbers, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
    match key {
        Numbers::Rsa { modulus: n, exponent: e } => rsa_parameters(algorithm)
            .is_some_and(|parameters| RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()),
        Numbers::Ec { x, y } => {
            let point = [&[4], x.as_slice(), y].concat();
            let by = |known: &'static dyn VerificationAlgorithm| {
                UnparsedPublicKey::new(known, &point).verify(message, signature).is_ok()
            };
            match (algorithm, x.len()) {
                ("ES256", 32) => by(&ECDSA_P256_SHA256_FIXED),
                ("ES384", 48) => by(&ECDSA_P384_SHA384_FIXED),
                ("ES512", 66) => largest(&point, message, signature).is_some(),
                _ => false,
            }
        }
    }
}

fn rsa_parameters(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// The curve that ring does not have.
fn largest(point: &[u8], message: &[u8], signature: &[u8]) -> Option<()> {
    let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(point).ok()?;
    let signature = p521::ecdsa::Signature::from_slice(signature).ok()?;
    key.verify(message, &signature).ok()
}

#[cfg(test)]
mod tests {
    use p521::{ecdsa::signature::RandomizedSigner as _, elliptic_curve::rand_core::OsRng};
    use ring::{
        rand::SystemRandom,
        signature::{
            RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512,
            RsaEncoding, RsaKeyPair,
        },
    };
    use rsa::pkcs8::EncodePrivateKey;

    use super::*;
    use crate::SigningKey;

    fn text(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    #[test]
    fn a_signature_is_good_for_its_key_algorithm_and_message_alone() {
        let pair = RsaKeyPair::from_pkcs8(
            rsa::RsaPrivateKey::new(&mut OsRng, 2048).unwrap().to_pkcs8_der().unwrap().as_bytes(),
        )
        .unwrap();
        let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let rsa_key = super::rsa(&text(&public.n), &text(&public.e)).unwrap();
        let sign = |encoding: &'static dyn RsaEncoding| {
            let mut signature = vec![0; pair.public().modulus_len()];
            pair.sign(encoding, &SystemRandom::new(), b"hello", &mut signature).unwrap();
            signature
        };
        let secret = p521::ecdsa::SigningKey::random(&mut OsRng);
        let point = p521::ecdsa::VerifyingKey::from(&secret).to_encoded_point(false);
        let large = curve("P-521", &text(point.x().unwrap()), &text(point.y().unwrap())).unwrap();
        let large_signature: p521::ecdsa::Signature = secret.sign_with_rng(&mut OsRng, b"hello");
        let signatures: Vec<(&str, &Numbers, Vec<u8>)> = vec![
            ("RS256", &rsa_key, sign(&RSA_PKCS1_SHA256)),
            ("RS384", &rsa_key, sign(&RSA_PKCS1_SHA384)),
            ("RS512", &rsa_key, sign(&RSA_PKCS1_SHA512)),
            ("PS256", &rsa_key, sign(&RSA_PSS_SHA256)),
            ("PS384", &rsa_key, sign(&RSA_PSS_SHA384)),
            ("PS512", &rsa_key, sign(&RSA_PSS_SHA512)),
            ("ES512", &large, large_signature.to_bytes().to_vec()),
        ];
        let other = SigningKey::create().unwrap().public.numbers;
        for (algorithm, key, signature) in &signatures {
            for tried in ALGORITHMS.into_iter().chain(["none", "HS256", ""]) {
                assert_eq!(verifies(key, tried, b"hello", signature), tried == *algorithm, "{algorithm} as {tried}");
            }
            assert!(
                !verifies(key, algorithm, b"hallo", signature) && !verifies(&other, algorithm, b"hello", signature)
            );
            assert!(!verifies(key, algorithm, b"hello", b""));
        }
    }

    #[test]
    fn keys_are_read_as_others_write_them() {
        let jwk = SigningKey::create().unwrap().public;
        let Numbers::Ec { x, y } = &jwk.numbers else { panic!("a curve") };
        assert_eq!(curve("P-256", &text(x), &text(y)), Some(jwk.numbers.clone()));
        let short = curve("P-256", &text(&[7]), &text(y)).unwrap();
        assert!(matches!(short, Numbers::Ec { x, .. } if x.len() == 32 && x[31] == 7));
        for (name, x, y) in [("P-256", "*", "AQ"), ("secp256k1", "AQ", "AQ"), ("P-256", &*text(&[1; 33]), "AQ")] {
            assert_eq!(curve(name, x, y), None, "{name}");
        }
        assert_eq!(super::rsa("*", "AQAB"), None);
    }
}
