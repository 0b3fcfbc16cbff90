//! The providers of a resource: the first one writes, all read.
//!
//! Upstream counterpart: apiserver/pkg/storage/value/transformer.go.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    cipher::{Cipher, Sort},
    kms::{self, Locked, Plugin},
    opened::Opened,
};

/// The beginning of every encrypted value.
pub const ENCRYPTED: &[u8] = b"k8s:enc:";

/// The error where a value is encrypted and nothing here decrypts.
pub const NOT_PLAIN: &str = "identity transformer tried to read encrypted data";

/// A key with its name.
pub struct Key {
    pub name: String,
    pub cipher: Box<dyn Cipher>,
}

impl Key {
    /// The part behind the name of this key.
    fn sealed<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        data.strip_prefix(self.name.as_bytes())?.strip_prefix(b":")
    }
}

/// One provider of a configuration.
pub enum Provider {
    /// Values as they are.
    Identity,
    /// The first key writes, all read.
    Keys(Sort, Vec<Key>),
    /// The plugin writes and reads those with its name.
    Kms(Arc<Plugin>),
}

/// All providers of a resource, in their order.
#[derive(Default)]
pub struct Providers(pub Vec<Provider>);

/// Why a value was not opened.
#[derive(Debug)]
pub enum Closed {
    /// It cannot be. The words are upstream's.
    Wrong(String),
    /// A plugin has to be asked first.
    Locked(Locked),
}

impl fmt::Debug for Providers {
    /// Names no key: this may end in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} providers", self.0.len())
    }
}

impl Providers {
    /// The value in the form in which it is stored at this path. It fails where a plugin cannot write.
    pub fn seal(&self, path: &str, value: &Bytes) -> Result<Bytes, String> {
        let (prefix, name, sealed) = match self.0.first() {
            Some(Provider::Kms(plugin)) => (kms::PREFIX, plugin.name(), plugin.seal(path, value)?),
            Some(Provider::Keys(sort, keys)) => match keys.first() {
                Some(key) => (sort.prefix(), key.name.as_str(), key.cipher.seal(path, value)),
                None => return Ok(value.clone()),
            },
            Some(Provider::Identity) | None => return Ok(value.clone()),
        };
        Ok([prefix.as_bytes(), name.as_bytes(), b":", &sealed].concat().into())
    }

    /// The beginning of what the first one writes, up to the name of its key.
    pub fn prefix(&self) -> String {
        match self.0.first() {
            Some(Provider::Kms(plugin)) => format!("{}{}:", kms::PREFIX, plugin.name()),
            Some(Provider::Keys(sort, _)) => sort.prefix().to_owned(),
            Some(Provider::Identity) | None => String::new(),
        }
    }

    /// Whether a key has the name that an encrypted value gives.
    pub fn knows(&self, stored: &[u8]) -> bool {
        self.0.iter().any(|provider| match provider {
            Provider::Identity => false,
            Provider::Keys(sort, keys) => {
                let rest = stored.strip_prefix(sort.prefix().as_bytes());
                rest.is_some_and(|rest| keys.iter().any(|key| key.sealed(rest).is_some()))
            }
            Provider::Kms(plugin) => of_plugin(plugin, stored).is_some(),
        })
    }

    /// The value that is stored at this path in this form.
    pub fn open(&self, path: &str, stored: &Bytes) -> Result<Opened, Closed> {
        let mut errors: Vec<&str> = Vec::new();
        for (at, provider) in self.0.iter().enumerate() {
            match provider {
                Provider::Identity if !stored.starts_with(ENCRYPTED) => {
                    return Ok(Opened { value: stored.clone(), stale: at > 0 });
                }
                Provider::Identity => {}
                Provider::Kms(plugin) => {
                    // No other provider has this name.
                    let Some(sealed) = of_plugin(plugin, stored) else { continue };
                    return match plugin.open(path, sealed) {
                        Ok(Ok(opened)) => Ok(Opened { stale: opened.stale || at > 0, ..opened }),
                        Ok(Err(locked)) => Err(Closed::Locked(locked.behind(at))),
                        Err(why) => Err(Closed::Wrong(why)),
                    };
                }
                Provider::Keys(sort, keys) => {
                    let Some(rest) = stored.strip_prefix(sort.prefix().as_bytes()) else { continue };
                    match open_with(*sort, keys, path, rest) {
                        Ok((value, first)) => return Ok(Opened { value: value.into(), stale: at > 0 || !first }),
                        // A later provider of this sort may have the key.
                        Err(why) => {
                            errors.extend(why.into_iter().filter(|why| !errors.contains(why)).collect::<Vec<_>>())
                        }
                    }
                }
            }
        }
        Err(Closed::Wrong(match errors.as_slice() {
            [] => "no matching prefix found".to_owned(),
            [one] => (*one).to_owned(),
            several => format!("[{}]", several.join(", ")),
        }))
    }
}

/// The part of a value behind the name of a plugin, when that wrote it.
fn of_plugin<'a>(plugin: &Plugin, stored: &'a [u8]) -> Option<&'a [u8]> {
    stored.strip_prefix(kms::PREFIX.as_bytes())?.strip_prefix(plugin.name().as_bytes())?.strip_prefix(b":")
}

/// The plaintext of the part of a value behind the prefix of its provider, and whether the first key opened it.
fn open_with(sort: Sort, keys: &[Key], path: &str, data: &[u8]) -> Result<(Vec<u8>, bool), Vec<&'static str>> {
    let mut errors = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        match key.sealed(data).map(|sealed| key.cipher.open(path, sealed)) {
            Some(Ok(value)) => return Ok((value, at == 0)),
            Some(Err(why)) => errors.push(why),
            None => {}
        }
    }
    Err(if errors.is_empty() { vec![sort.unknown_key()] } else { errors })
}
