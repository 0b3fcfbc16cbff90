//! The file of `--encryption-provider-config`: upstream's `EncryptionConfiguration`, read strictly.
//!
//! No error shows a key, nor the lines around what is wrong.
//! Upstream counterparts: apiserver/pkg/server/options/encryptionconfig, apiserver/pkg/apis/apiserver/validation.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    Value,
    validation::{field::FieldError, section::Section},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use clock::Duration;

use crate::{
    cipher::Sort,
    file::{self, Entry, GivenKey, GivenPlugin, GivenProvider},
    kms::{Connect, Endpoint, Plugin},
    provider::{Key, Provider, Providers},
    table::{Resource, Table},
    validation,
};

/// A file that is larger is none of this sort.
const BYTES_MAX: usize = 1 << 20;

/// Reads a configuration. The error says everything that is wrong. `connect` opens the way to each plugin that is named.
pub fn parse(text: &str, connect: Connect<'_>) -> Result<Table, String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > BYTES_MAX {
        return Err(format!("it has {} bytes, more than {BYTES_MAX}", text.len()));
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| match error.location() {
        Some(at) => format!("it is not valid YAML: line {}, column {}", at.line(), at.column()),
        None => "it is not valid YAML".to_owned(),
    })?;
    let entries = file::entries(&Section::of("", &value)?)?;
    let errors = validation::errors(&entries);
    if !errors.is_empty() {
        return Err(joined(&errors));
    }
    table(&entries, connect)
}

/// As upstream joins errors.
fn joined(errors: &[FieldError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// The table that follows from entries that are right. Several entries for a resource add up; one that an earlier
/// wildcard leaves nothing to is a mistake.
fn table(entries: &[Entry], connect: Connect<'_>) -> Result<Table, String> {
    let plugins: BTreeMap<&str, Arc<Plugin>> = entries
        .iter()
        .flat_map(|entry| entry.providers.iter().flatten())
        .filter_map(|given| match given {
            GivenProvider::Kms(given) => Some((given.name.as_str(), plugin(given, connect))),
            _ => None,
        })
        .collect();
    let mut rules: Vec<(Resource, Vec<usize>)> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        for resource in entry.resources.iter().map(|text| Resource::parse(text)) {
            if let Some((earlier, _)) = rules.iter().find(|(earlier, _)| earlier.masks(&resource)) {
                return Err(format!("resource {:?} is masked by earlier rule {:?}", resource.text(), earlier.text()));
            }
            match rules.iter_mut().find(|(known, _)| *known == resource) {
                Some((_, places)) => places.push(at),
                None => rules.push((resource, vec![at])),
            }
        }
    }
    let rule = |(resource, places): (Resource, Vec<usize>)| {
        let providers = places.into_iter().flat_map(|at| &entries[at].providers).flatten();
        let providers =
            providers.map(|given| ready(given, &plugins)).collect::<Option<_>>().ok_or("a key cannot be used")?;
        Ok((resource, Arc::new(Providers(providers))))
    };
    let rules = rules.into_iter().map(rule).collect::<Result<_, String>>()?;
    Ok(Table::new(rules, plugins.into_values().collect()))
}

fn plugin(given: &GivenPlugin, connect: Connect<'_>) -> Arc<Plugin> {
    let socket = given.endpoint.strip_prefix("unix://").unwrap_or(&given.endpoint).into();
    let limit = Duration::from_nanos(given.timeout.1.unsigned_abs());
    Plugin::new(&given.name, connect(&Endpoint { socket, limit }))
}

fn ready(given: &GivenProvider, plugins: &BTreeMap<&str, Arc<Plugin>>) -> Option<Provider> {
    let key = |sort: Sort, key: &GivenKey| Some(Key { name: key.name.clone(), cipher: sort.cipher(&key.bytes()?)? });
    match given {
        GivenProvider::Identity => Some(Provider::Identity),
        GivenProvider::Keys(sort, keys) => {
            Some(Provider::Keys(*sort, keys.iter().map(|given| key(*sort, given)).collect::<Option<_>>()?))
        }
        GivenProvider::Kms(given) => plugins.get(given.name.as_str()).cloned().map(Provider::Kms),
    }
}

/// The configuration of a cluster that was told nothing: Secrets, with a key of the cluster's own.
///
/// The cipher is secretbox. Its nonces are drawn from 192 bits, so that one key lasts for as many writes as a cluster can
/// make; upstream advises against AES-GCM with a key that nobody renews, since its 96 bits repeat. AES-GCM would tie a value
/// to its place, which secretbox does not; but who can write to the store can as well put a plain ClusterRoleBinding there.
/// Upstream's kube-apiserver reads this file too.
pub fn own() -> String {
    let mut secret = [0; 32];
    clock::fill_random(&mut secret);
    format!(
        "# The keys with which this cluster's Secrets are encrypted in its store. Without them nobody reads them again:\n\
         # keep a copy with each copy of the store, but not in the same place.\n\
         apiVersion: apiserver.config.k8s.io/v1\n\
         kind: EncryptionConfiguration\n\
         resources:\n\
         - resources: [secrets]\n  \
           providers:\n  \
           - secretbox:\n      \
               keys:\n      \
               - name: own-{}\n        \
                 secret: {}\n  \
           - identity: {{}}\n",
        clock::name_suffix(8),
        BASE64_STANDARD.encode(secret)
    )
}
