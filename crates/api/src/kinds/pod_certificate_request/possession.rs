//! Proofs that whoever asks for a certificate has the key that it is for: a signature over a text that the asker can't choose.
//! Keys are Ed25519, ECDSA on P-256, P-384 or P-521, or RSA with 3072 or 4096 bits.

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm,
};
use sha2::{Digest, Sha256};
use x509_parser::{
    prelude::FromDer,
    public_key::{PublicKey, RSAPublicKey},
    x509::SubjectPublicKeyInfo,
};

/// The fault of a key or a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    Unreadable,
    Unknown,
    Curve,
    /// The number of bits of an RSA key.
    Size(usize),
    Proof,
}

/// Numbers of an algorithm or a curve, as DER has them.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];
const EDWARDS: &[u8] = &[0x2b, 0x65, 0x70];

/// Whether the owner of a key (DER of a `SubjectPublicKeyInfo`) has signed the text.
pub fn check(key: &[u8], text: &[u8], proof: &[u8]) -> Result<(), Wrong> {
    let (rest, info) = SubjectPublicKeyInfo::from_der(key).map_err(|_| Wrong::Unreadable)?;
    if !rest.is_empty() {
        return Err(Wrong::Unreadable);
    }
    let bits: &[u8] = &info.subject_public_key.data;
    let signed = |algorithm: &'static dyn VerificationAlgorithm| {
        UnparsedPublicKey::new(algorithm, bits).verify(text, proof).map_err(|_| Wrong::Proof)
    };
    match info.algorithm.algorithm.as_bytes() {
        EDWARDS => signed(&ED25519),
        ELLIPTIC => {
            let curve = info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
            match curve.ok_or(Wrong::Unreadable)?.as_bytes() {
                P256 => signed(&ECDSA_P256_SHA256_ASN1),
                P384 => signed(&ECDSA_P384_SHA256_ASN1),
                P521 => p521(bits, text, proof),
                _ => Err(Wrong::Curve),
            }
        }
        RSA => match info.parsed() {
            Ok(PublicKey::RSA(key)) => rsa(&key, text, proof),
            _ => Err(Wrong::Unreadable),
        },
        _ => Err(Wrong::Unknown),
    }
}

/// `ring` does not have this curve.
fn p521(key: &[u8], text: &[u8], proof: &[u8]) -> Result<(), Wrong> {
    let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(key).map_err(|_| Wrong::Unreadable)?;
    let proof = p521::ecdsa::Signature::from_der(proof).map_err(|_| Wrong::Proof)?;
    // As a number the hash is the same with zeros before it. The library takes none that is so much shorter than the key.
    let mut hash = [0; 66];
    hash[66 - 32..].copy_from_slice(&Sha256::digest(text));
    key.verify_prehash(&hash, &proof).map_err(|_| Wrong::Proof)
}

/// RSASSA-PSS with SHA-256 and a salt of any length (RFC 8017, 8.1.2 and 9.1.2). Kubelets make it as long as it can be, which
/// `ring` does not read.
fn rsa(key: &RSAPublicKey<'_>, text: &[u8], proof: &[u8]) -> Result<(), Wrong> {
    let modulus = &key.modulus[key.modulus.iter().take_while(|byte| **byte == 0).count()..];
    let exponent = key.try_exponent().map_err(|_| Wrong::Unreadable)?;
    // Larger exponents make work, and nobody has them.
    if modulus.last().is_none_or(|last| last % 2 == 0) || !(3..1 << 32).contains(&exponent) || exponent % 2 == 0 {
        return Err(Wrong::Unreadable);
    }
    if ![3072 / 8, 4096 / 8].contains(&modulus.len()) {
        return Err(Wrong::Size(modulus.len() * 8));
    }
    if proof.len() != modulus.len() || proof >= modulus {
        return Err(Wrong::Proof);
    }
    let encoded = power(proof, exponent, modulus);
    let spare = modulus[0].leading_zeros() + 1;
    // With a modulus of 8n+1 bits the encoding has a byte less.
    let encoded = if spare == 8 { encoded.strip_prefix(&[0]).ok_or(Wrong::Proof)? } else { &encoded[..] };
    is_encoding_of(encoded, spare % 8, &Sha256::digest(text)).then_some(()).ok_or(Wrong::Proof)
}

/// Whether bytes are the PSS encoding of a hash; the first `spare` bits of the first byte are not used.
fn is_encoding_of(encoded: &[u8], spare: u32, hash: &[u8]) -> bool {
    let Some((rest, 0xbc)) = encoded.split_last().map(|(last, rest)| (rest, *last)) else { return false };
    let Some(end) = rest.len().checked_sub(hash.len()) else { return false };
    let (masked, seal) = rest.split_at(end);
    let mut block: Vec<u8> = masked.iter().zip(mask(seal)).map(|(byte, mask)| byte ^ mask).collect();
    let unused = 0xff_u8.checked_shl(8 - spare).unwrap_or(0);
    let Some(first) = block.first_mut().filter(|_| masked[0] & unused == 0) else { return false };
    *first &= !unused;
    // Zeros, a one, and the salt.
    let zeros = block.iter().take_while(|byte| **byte == 0).count();
    let Some((1, salt)) = block[zeros..].split_first().map(|(one, salt)| (*one, salt)) else { return false };
    let sealed = Sha256::new().chain_update([0; 8]).chain_update(hash).chain_update(salt).finalize();
    sealed[..] == *seal
}

/// Bytes without end that follow from a seed (MGF1).
fn mask(seed: &[u8]) -> impl Iterator<Item = u8> {
    (0_u32..).flat_map(move |count| Sha256::new().chain_update(seed).chain_update(count.to_be_bytes()).finalize())
}

/// `base` to the power of `exponent`, modulo an odd `modulus`. All are big-endian; `base` is less than `modulus` and as long.
/// Nothing here is secret, so that it need not take the same time for all numbers.
fn power(base: &[u8], exponent: u64, modulus: &[u8]) -> Vec<u8> {
    let field = Field::new(digits(modulus));
    let one = field.shifted(&field.unit(), field.modulus.len() * 64);
    let base = field.shifted(&digits(base), field.modulus.len() * 64);
    let mut result = one;
    for bit in (0..64 - exponent.leading_zeros()).rev() {
        result = field.multiply(&result, &result);
        if exponent >> bit & 1 == 1 {
            result = field.multiply(&result, &base);
        }
    }
    let plain = field.multiply(&result, &field.unit());
    let bytes: Vec<u8> = plain.iter().rev().flat_map(|digit| digit.to_be_bytes()).collect();
    bytes[bytes.len() - modulus.len()..].to_vec()
}

/// A number in digits of 64 bits, the lowest first.
fn digits(bytes: &[u8]) -> Vec<u64> {
    bytes.rchunks(8).map(|chunk| chunk.iter().fold(0, |digit, byte| digit << 8 | u64::from(*byte))).collect()
}

/// Montgomery's arithmetic modulo an odd number.
struct Field {
    modulus: Vec<u64>,
    /// The factor that makes the lowest digit of a multiple of the modulus one less than nothing.
    inverse: u64,
}

impl Field {
    fn new(modulus: Vec<u64>) -> Self {
        // Each step doubles the number of bits that are right.
        let inverse = (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(modulus[0].wrapping_mul(x))));
        Field { modulus, inverse: inverse.wrapping_neg() }
    }

    fn unit(&self) -> Vec<u64> {
        let mut unit = vec![0; self.modulus.len()];
        unit[0] = 1;
        unit
    }

    /// Takes the modulus away once where the number, with this digit on top, is not below it.
    fn reduce(&self, mut number: Vec<u64>, top: u64) -> Vec<u64> {
        if top == 0 && number.iter().rev().lt(self.modulus.iter().rev()) {
            return number;
        }
        let mut borrow = 0;
        for (digit, less) in number.iter_mut().zip(&self.modulus) {
            let difference = i128::from(*digit) - i128::from(*less) - borrow;
            borrow = i128::from(difference < 0);
            *digit = difference as u64;
        }
        number
    }

    /// Doubles a number `times` times.
    fn shifted(&self, number: &[u64], times: usize) -> Vec<u64> {
        (0..times).fold(number.to_vec(), |number, _| {
            let top = number.last().map_or(0, |last| last >> 63);
            let lower = std::iter::once(0).chain(number.iter().map(|digit| digit >> 63));
            let doubled = number.iter().zip(lower).map(|(digit, carry)| digit << 1 | carry).collect();
            self.reduce(doubled, top)
        })
    }

    /// The product, divided by two to the power of the modulus's bits.
    fn multiply(&self, one: &[u64], other: &[u64]) -> Vec<u64> {
        let size = self.modulus.len();
        let mut sum = vec![0_u64; size + 2];
        for digit in other {
            self.add(&mut sum, one, *digit);
            let zeroing = sum[0].wrapping_mul(self.inverse);
            self.add(&mut sum, &self.modulus, zeroing);
            sum.rotate_left(1);
            sum[size + 1] = 0;
        }
        let top = sum[size];
        sum.truncate(size);
        self.reduce(sum, top)
    }

    /// Adds a number times a digit.
    fn add(&self, sum: &mut [u64], number: &[u64], digit: u64) {
        let mut carry = 0_u128;
        for (i, place) in sum.iter_mut().enumerate() {
            let more = number.get(i).map_or(0, |n| u128::from(*n) * u128::from(digit));
            let total = u128::from(*place) + more + carry;
            *place = total as u64;
            carry = total >> 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;

    /// `what key proof`, made with OpenSSL over the text `pod-uid`.
    const MADE: &str = include_str!("possession.txt");

    #[test]
    fn a_proof_is_of_its_key_and_its_text() {
        let mut seen = Vec::new();
        for line in MADE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, key, proof] = words[..] else { panic!("{line}") };
            let (key, mut proof) = (STANDARD.decode(key).unwrap(), STANDARD.decode(proof).unwrap());
            let expected = match what {
                "rsa2048" => Err(Wrong::Size(2048)),
                "x25519" => Err(Wrong::Unknown),
                "rsa3072-pkcs1" => Err(Wrong::Proof),
                _ => Ok(()),
            };
            assert_eq!(check(&key, b"pod-uid", &proof), expected, "{what}");
            seen.push(what);
            if expected.is_err() {
                continue;
            }
            assert_eq!(check(&key, b"pod-uie", &proof), Err(Wrong::Proof), "{what}");
            let last = proof.len() - 1;
            proof[last] ^= 1;
            assert_eq!(check(&key, b"pod-uid", &proof), Err(Wrong::Proof), "{what}");
            assert_eq!(check(&key, b"pod-uid", &proof[..last]), Err(Wrong::Proof), "{what}");
            assert_eq!(check(&key, b"pod-uid", &vec![0xff; last + 1]), Err(Wrong::Proof), "{what}");
            assert_eq!(check(&key, b"pod-uid", &vec![0; last + 1]), Err(Wrong::Proof), "{what}");
            assert_eq!(check(&key[..key.len() - 1], b"pod-uid", &proof), Err(Wrong::Unreadable), "{what}");
            assert_eq!(check(&[&key[..], b"x"].concat(), b"pod-uid", &proof), Err(Wrong::Unreadable), "{what}");
        }
        let all = ["ed25519", "p256", "p384", "p521", "rsa3072-max", "rsa3072-32", "rsa3072-0", "rsa4096-max"];
        assert!(all.iter().all(|what| seen.contains(what)), "{seen:?}");
        assert_eq!(check(b"", b"pod-uid", b""), Err(Wrong::Unreadable));
    }

    #[test]
    fn other_curves_and_points_beside_the_curve_are_not_taken() {
        let key = |curve: &[u8], point: &[u8]| {
            let value = |tag: u8, content: &[u8]| {
                let length = u8::try_from(content.len()).unwrap();
                let long = if length < 128 { vec![length] } else { vec![0x81, length] };
                [&[tag][..], &long, content].concat()
            };
            let algorithm = value(0x30, &[value(6, ELLIPTIC), value(6, curve)].concat());
            value(0x30, &[algorithm, value(3, &[&[0][..], point].concat())].concat())
        };
        // secp256k1
        let other = key(&[0x2b, 0x81, 0x04, 0x00, 0x0a], &[4; 65]);
        assert_eq!(check(&other, b"pod-uid", b""), Err(Wrong::Curve));
        assert_eq!(check(&key(P521, &[4; 133]), b"pod-uid", b""), Err(Wrong::Unreadable));
        assert_eq!(check(&key(P521, &[4; 65]), b"pod-uid", b""), Err(Wrong::Unreadable));
    }

    #[test]
    fn powers_are_those_of_small_numbers() {
        let modulus = 0xffff_ffff_ffff_ffc5_u64;
        let product = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64;
        for base in [0, 1, 2, 0x1234_5678_9abc_def0, modulus - 1] {
            for exponent in [1, 3, 17, 65537, u64::from(u32::MAX)] {
                let mut expected = 1;
                for bit in (0..64).rev() {
                    expected = product(expected, expected);
                    if exponent >> bit & 1 == 1 {
                        expected = product(expected, base);
                    }
                }
                let found = power(&base.to_be_bytes(), exponent, &modulus.to_be_bytes());
                assert_eq!(found, expected.to_be_bytes(), "{base} {exponent}");
            }
        }
    }
}
