//! The form of a value in the store: the encrypted data and, beside it, the encrypted seed of its key. It is upstream's, so
//! that either server reads what the other wrote.

use std::collections::BTreeMap;

use api::validation::{field::Path, names};
use prost::Message;

/// Upstream's limits, in bytes: longer ones are refused.
const KEY_ID_MAX: usize = 1024;
const SEED_MAX: usize = 1024;
const ANNOTATIONS_MAX: usize = 32 * 1024;

/// How the plaintext of a wrapped seed becomes a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Source {
    /// It is the key, of AES-GCM. Nothing is written so; old values are read.
    Key = 0,
    /// A key of AES-GCM for each value follows from it and from 32 bytes that stand before the value.
    Seed = 1,
}

/// The message in the store. Field numbers are upstream's.
#[derive(Clone, PartialEq, Eq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    seed: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
    #[prost(enumeration = "Source", tag = "5")]
    source: i32,
}

/// A seed or key as the plugin encrypted it, with what it wants to have back for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wrapped {
    pub ciphertext: Vec<u8>,
    pub key_id: String,
    pub annotations: BTreeMap<String, Vec<u8>>,
}

impl Wrapped {
    /// The error is in upstream's words.
    pub fn check(&self) -> Result<(), String> {
        match self.ciphertext.len() {
            0 => return Err("failed to validate encrypted DEK source: encrypted DEK source is empty".to_owned()),
            length if length > SEED_MAX => {
                return Err(format!(
                    "failed to validate encrypted DEK source: encrypted DEK source is {length} bytes, which exceeds the max \
                     size of {SEED_MAX}"
                ));
            }
            _ => {}
        }
        check_key_id(&self.key_id).map_err(|why| format!("failed to validate key id: {why}"))?;
        self.check_annotations().map_err(|why| format!("failed to validate annotations: {why}"))
    }

    fn check_annotations(&self) -> Result<(), String> {
        let path = Path::new("annotations");
        let wrong = self.annotations.keys().flat_map(|name| names::fully_qualified_domain_name(&path, name));
        let mut errors: Vec<String> = wrong.map(|error| error.to_string()).collect();
        let bytes: usize = self.annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ANNOTATIONS_MAX {
            errors
                .push(format!("total size of annotations is {bytes}, which exceeds the max size of {ANNOTATIONS_MAX}"));
        }
        match errors.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}

pub fn check_key_id(id: &str) -> Result<(), String> {
    match id.len() {
        0 => Err("keyID is empty".to_owned()),
        length if length > KEY_ID_MAX => {
            Err(format!("keyID is {length} bytes, which exceeds the max size of {KEY_ID_MAX}"))
        }
        _ => Ok(()),
    }
}

/// A value taken out of its envelope, still encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    pub data: Vec<u8>,
    pub source: Source,
    pub wrapped: Wrapped,
}

impl Envelope {
    pub fn encode(data: Vec<u8>, source: Source, wrapped: &Wrapped) -> Vec<u8> {
        let Wrapped { ciphertext, key_id, annotations } = wrapped.clone();
        EncryptedObject { data, key_id, seed: ciphertext, annotations, source: source.into() }.encode_to_vec()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let object = EncryptedObject::decode(bytes).map_err(|error| error.to_string())?;
        let source = Source::try_from(object.source)
            .map_err(|_| format!("unknown encryptedDEKSourceType: {}", object.source))?;
        if object.data.is_empty() {
            return Err("encrypted data is empty".to_owned());
        }
        let wrapped = Wrapped { ciphertext: object.seed, key_id: object.key_id, annotations: object.annotations };
        wrapped.check()?;
        Ok(Envelope { data: object.data, source, wrapped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(ciphertext: usize, key_id: usize, annotations: &[(&str, usize)]) -> Wrapped {
        Wrapped {
            ciphertext: vec![1; ciphertext],
            key_id: "k".repeat(key_id),
            annotations: annotations.iter().map(|(name, bytes)| ((*name).to_owned(), vec![2; *bytes])).collect(),
        }
    }

    #[test]
    fn what_a_plugin_gives_has_limits() {
        let check = |wrapped: Wrapped, expected: &str| {
            assert_eq!(wrapped.check().err().unwrap_or_default(), expected);
            let read = Envelope::decode(&Envelope::encode(vec![7], Source::Seed, &wrapped));
            assert_eq!(read.err().unwrap_or_default(), expected);
        };
        check(wrapped(1024, 1024, &[("a.b.c", 32 * 1024 - 5)]), "");
        check(wrapped(0, 1, &[]), "failed to validate encrypted DEK source: encrypted DEK source is empty");
        check(
            wrapped(1025, 1, &[]),
            "failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size of 1024",
        );
        check(wrapped(1, 0, &[]), "failed to validate key id: keyID is empty");
        check(
            wrapped(1, 1025, &[]),
            "failed to validate key id: keyID is 1025 bytes, which exceeds the max size of 1024",
        );
        check(
            wrapped(1, 1, &[("a.b.c", 32 * 1024)]),
            "failed to validate annotations: total size of annotations is 32773, which exceeds the max size of 32768",
        );
        check(
            wrapped(1, 1, &[("a", 1)]),
            "failed to validate annotations: annotations: Invalid value: \"a\": should be a domain with at least two \
             segments separated by dots",
        );
    }

    #[test]
    fn what_is_no_envelope_is_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let error = Envelope::decode(bytes).expect_err("refused");
            assert!(error.contains(expected), "{error}");
        };
        check(b"\xff", "failed to decode");
        check(b"", "encrypted data is empty");
        check(&[0x0a, 1, 7, 0x28, 2], "unknown encryptedDEKSourceType: 2");
        let whole = Envelope::encode(vec![7; 9], Source::Key, &wrapped(3, 3, &[("a.b.c", 3)]));
        assert_eq!(Envelope::decode(&whole).map(|e| e.data), Ok(vec![7; 9]));
        for end in 0..whole.len() {
            assert!(
                Envelope::decode(&whole[..end]).is_err() || Envelope::decode(&whole[..end]) != Envelope::decode(&whole)
            );
        }
    }
}
