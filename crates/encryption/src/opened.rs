//! The values that come out of decryption.

use bytes::Bytes;

/// A value as it was before it was stored.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    pub value: Bytes,
    /// A write would store it in another form: with another key or provider.
    pub stale: bool,
}
