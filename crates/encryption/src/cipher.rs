//! The ciphers of values at rest, in upstream's layouts. The prefix before their output is the provider's.
//!
//! Upstream counterpart: apiserver/pkg/storage/value/encrypt.

use aes::{Aes128, Aes192, Aes256, cipher::consts::U12};
use aes_gcm::{
    AesGcm,
    aead::{Aead, Payload},
};
use cbc::cipher::{
    BlockCipher, BlockDecryptMut, BlockEncryptMut, BlockSizeUser, InnerIvInit, KeyInit, block_padding::Pkcs7,
    consts::U16,
};
use crypto_secretbox::XSalsa20Poly1305;

/// The error of every cipher for data that it cannot have made.
pub const SHORT: &str = "the stored data was shorter than the required size";
const BLOCK: usize = 16;
const GCM_NONCE: usize = 12;
const SECRETBOX_NONCE: usize = 24;
const SECRETBOX_TAG: usize = 16;

/// Values encrypted with one key. `path` is the key of the value in the store.
pub trait Cipher: Send + Sync {
    fn seal(&self, path: &str, value: &[u8]) -> Vec<u8>;
    /// The error is in upstream's words.
    fn open(&self, path: &str, data: &[u8]) -> Result<Vec<u8>, &'static str>;
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    clock::fill_random(&mut bytes);
    bytes
}

/// AES in CBC mode with PKCS#7 padding: the vector, then the blocks. Nothing is authenticated.
struct Cbc<C>(C);

impl<C> Cipher for Cbc<C>
where
    C: BlockCipher + BlockSizeUser<BlockSize = U16> + BlockEncryptMut + BlockDecryptMut + Clone + Send + Sync,
{
    fn seal(&self, _: &str, value: &[u8]) -> Vec<u8> {
        let vector = random::<BLOCK>();
        let mode = cbc::Encryptor::inner_iv_init(self.0.clone(), &vector.into());
        [&vector[..], &mode.encrypt_padded_vec_mut::<Pkcs7>(value)].concat()
    }

    fn open(&self, _: &str, data: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (vector, blocks) = data.split_first_chunk::<BLOCK>().ok_or(SHORT)?;
        match blocks.len() {
            0 => return Err("invalid PKCS7 data (empty or not padded)"),
            length if !length.is_multiple_of(BLOCK) => {
                return Err("the stored data is not a multiple of the block size");
            }
            _ => {}
        }
        let mode = cbc::Decryptor::inner_iv_init(self.0.clone(), vector.into());
        mode.decrypt_padded_vec_mut::<Pkcs7>(blocks).map_err(|_| "invalid padding on input")
    }
}

/// AES in GCM: the nonce, then data and tag. The path is authenticated, so that a value counts at its own place only.
struct Gcm<C>(AesGcm<C, U12>);

impl<C> Cipher for Gcm<C>
where
    AesGcm<C, U12>: Aead + aes_gcm::AeadCore<NonceSize = U12> + Send + Sync,
{
    fn seal(&self, path: &str, value: &[u8]) -> Vec<u8> {
        let nonce = random::<GCM_NONCE>();
        let payload = Payload { msg: value, aad: path.as_bytes() };
        let sealed = self.0.encrypt(&nonce.into(), payload).expect("a value of the store is shorter than 64 GiB");
        [&nonce[..], &sealed].concat()
    }

    fn open(&self, path: &str, data: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (nonce, sealed) = data.split_first_chunk::<GCM_NONCE>().ok_or(SHORT)?;
        let payload = Payload { msg: sealed, aad: path.as_bytes() };
        self.0.decrypt(nonce.into(), payload).map_err(|_| "cipher: message authentication failed")
    }
}

/// NaCl's secretbox: the nonce, then tag and data.
struct Secretbox(XSalsa20Poly1305);

impl Cipher for Secretbox {
    fn seal(&self, _: &str, value: &[u8]) -> Vec<u8> {
        let nonce = random::<SECRETBOX_NONCE>();
        let sealed = self.0.encrypt(&nonce.into(), value).expect("a value of the store is shorter than 256 GiB");
        [&nonce[..], &sealed].concat()
    }

    fn open(&self, _: &str, data: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (nonce, sealed) = data.split_first_chunk::<SECRETBOX_NONCE>().ok_or(SHORT)?;
        if sealed.len() < SECRETBOX_TAG {
            return Err(SHORT);
        }
        // Upstream's words, though they are about something else.
        self.0.decrypt(nonce.into(), sealed).map_err(|_| "output array was not large enough for encryption")
    }
}

/// The sorts of keys that a configuration can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    AesCbc,
    AesGcm,
    Secretbox,
}

impl Sort {
    pub const ALL: [Sort; 3] = [Sort::AesGcm, Sort::AesCbc, Sort::Secretbox];

    /// The field of the configuration.
    pub fn field(self) -> &'static str {
        match self {
            Sort::AesCbc => "aescbc",
            Sort::AesGcm => "aesgcm",
            Sort::Secretbox => "secretbox",
        }
    }

    /// The beginning of a value, before the name of its key.
    pub fn prefix(self) -> &'static str {
        match self {
            Sort::AesCbc => "k8s:enc:aescbc:v1:",
            Sort::AesGcm => "k8s:enc:aesgcm:v1:",
            Sort::Secretbox => "k8s:enc:secretbox:v1:",
        }
    }

    /// The error where no key has the name that a value gives.
    pub fn unknown_key(self) -> &'static str {
        match self {
            Sort::AesCbc | Sort::AesGcm => "no matching key was found for the provided AES transformer",
            Sort::Secretbox => "no matching key was found for the provided Secretbox transformer",
        }
    }

    /// The lengths of its keys in bytes.
    pub fn key_lengths(self) -> &'static [usize] {
        match self {
            Sort::AesCbc | Sort::AesGcm => &[16, 24, 32],
            Sort::Secretbox => &[32],
        }
    }

    /// The cipher with a key; `None` when it has another length.
    pub fn cipher(self, key: &[u8]) -> Option<Box<dyn Cipher>> {
        Some(match (self, key.len()) {
            (Sort::AesCbc, 16) => Box::new(Cbc(Aes128::new_from_slice(key).ok()?)),
            (Sort::AesCbc, 24) => Box::new(Cbc(Aes192::new_from_slice(key).ok()?)),
            (Sort::AesCbc, 32) => Box::new(Cbc(Aes256::new_from_slice(key).ok()?)),
            (Sort::AesGcm, 16) => Box::new(Gcm::<Aes128>(AesGcm::new_from_slice(key).ok()?)),
            (Sort::AesGcm, 24) => Box::new(Gcm::<Aes192>(AesGcm::new_from_slice(key).ok()?)),
            (Sort::AesGcm, 32) => Box::new(Gcm::<Aes256>(AesGcm::new_from_slice(key).ok()?)),
            (Sort::Secretbox, 32) => Box::new(Secretbox(XSalsa20Poly1305::new_from_slice(key).ok()?)),
            _ => return None,
        })
    }
}
