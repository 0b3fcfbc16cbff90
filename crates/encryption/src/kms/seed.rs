//! One key for each value, made of a seed: HKDF's second half (SHA-256) over 32 random bytes that stand before the value,
//! which AES-GCM then encrypts. A seed lasts for as many writes as a cluster can make.

use ring::hkdf;

use crate::cipher::{Cipher, SHORT, Sort};

/// The length of seeds, of what keys are made with, and of keys.
const BYTES: usize = 32;

pub struct Seed(hkdf::Prk);

impl Seed {
    pub fn new(seed: &[u8]) -> Result<Self, String> {
        if seed.len() < BYTES {
            return Err(format!("invalid seed length {} used for key generation", seed.len()));
        }
        Ok(Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, seed)))
    }

    /// A new seed, and the bytes that a plugin is to encrypt.
    pub fn fresh() -> (Self, Vec<u8>) {
        let mut bytes = vec![0; BYTES];
        clock::fill_random(&mut bytes);
        (Seed(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &bytes)), bytes)
    }

    fn key(&self, info: &[u8; BYTES]) -> Box<dyn Cipher> {
        let mut key = [0; BYTES];
        let parts = [&info[..]];
        let expanded = self.0.expand(&parts, hkdf::HKDF_SHA256).and_then(|made| made.fill(&mut key));
        expanded.expect("a key is as long as one of the hash's blocks");
        Sort::AesGcm.cipher(&key).expect("the length is one of AES")
    }
}

impl Cipher for Seed {
    fn seal(&self, path: &str, value: &[u8]) -> Vec<u8> {
        let mut info = [0; BYTES];
        clock::fill_random(&mut info);
        [&info[..], &self.key(&info).seal(path, value)].concat()
    }

    fn open(&self, path: &str, data: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (info, sealed) = data.split_first_chunk::<BYTES>().ok_or(SHORT)?;
        self.key(info).open(path, sealed)
    }
}
