//! Values that others encrypted, what is refused, and both sides of the line in a store.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::StreamExt;
use store::{
    Change, Commit, Entry, Expect, Range, Store, StoreError,
    embedded::{Embedded, Options},
};

use crate::{
    Current, Encrypted, Table,
    cipher::Sort,
    configuration,
    kms::{Endpoint, Service},
    provider::Closed,
    rewrite::{self, Known, Rewritten},
};

const VALUE: &[u8] = br#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"vector"}}"#;
const PATH: &str = "/registry/secrets/default/vector";

/// Made with Python's `cryptography` and PyNaCl: keys 0, 1, 2, … of 16, 24 and 32 bytes, named after their length.
const VECTORS: &[&str] = &[
    "azhzOmVuYzphZXNnY206djE6azE2OmRlZmdoaWprbG1ub2FAJcy1ZprAuW0yc/SvX84cqhmP+/+4KIcG3vmeyNWFi95+BuZ9U/DuOVMnr7g/JbX8cBa/PGNepu11Mr68GB3w9xujjcxX2H4YeNXy16iw",
    "azhzOmVuYzphZXNjYmM6djE6azE2OsjJysvMzc7P0NHS09TV1td+lTewTFqxnK/h0PjlEMNiTE5ohuMbWGd8xKIkHA9lQ89RsvMCJURzQMK0Yt4OvpUpkUnZsUq7JSn2UA9t+oVFRdq8MLefqkKOsGFy4HXVVA==",
    "azhzOmVuYzphZXNnY206djE6azI0OmRlZmdoaWprbG1ub5JK0BU8yywC8YKHYoiX75zxez+6k98UnfIqJ6SUVLo2a3YrvTVwMNEa8hfQDjhbzg4PQz2jN4Br3PIiYOFDrE3aGnzlAAyZkd1X6JDWSSLp",
    "azhzOmVuYzphZXNjYmM6djE6azI0OsjJysvMzc7P0NHS09TV1tfY9rA3DEJ9PFkx2tAxGYnW0ZQm+T6W4lRZy3dRCzdlwcwMXoVSacYAYzgXu9mP7LawkPLWoVkD+0a7cxQOKaMh6VbM5OXLXsSiOua0ncGaFg==",
    "azhzOmVuYzphZXNnY206djE6azMyOmRlZmdoaWprbG1ubzM5tQ8XjXSkHDE6i6gAHt9u4Gd64jqWANS4wybZmYc+pcts4iF372WZkgxe33ix7XU69YICcGNen5LYuZ2j2PeMSPH8q7FxEEP/kpybHSRo",
    "azhzOmVuYzphZXNjYmM6djE6azMyOsjJysvMzc7P0NHS09TV1tcH0W/mc12Yt4tqu4jjbeiYVg/6pSUZ0whKgeWyVKuZNdMdA0qFM8e2YbaEL6/IgtzbNwQoZK0xUISpEPycgxnekuwn1SzF+ayw2ZLnWt7X5w==",
    "azhzOmVuYzpzZWNyZXRib3g6djE6azMyOjIzNDU2Nzg5Ojs8PT4/QEFCQ0RFRkdISd7qYQ5YRhGuPxkKu2UUacNVJjqXl6/QXEAEZMnS/bZUCCQsSOa0H0no8LOayTTNVR9KLFZ70l8WpCammyV4WdIBo/FlgLrIuGQNqfaeIHim",
];

fn key(length: u8) -> String {
    BASE64_STANDARD.encode((0..length).collect::<Vec<u8>>())
}

/// One key of a sort, as a provider.
fn provider(sort: &str, name: &str, secret: &str) -> String {
    format!("{{{sort}: {{keys: [{{name: {name}, secret: \"{secret}\"}}]}}}}")
}

/// A configuration with `(resources, providers)` in each entry, both as lists in YAML.
fn configured(entries: &[(&str, &str)]) -> String {
    let mut text = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n".to_owned();
    for (resources, providers) in entries {
        text += &format!("- resources: [{resources}]\n  providers: [{providers}]\n");
    }
    text
}

pub fn no_plugins(_: &Endpoint) -> Arc<dyn Service> {
    panic!("no plugin is named")
}

fn table(providers: &[String]) -> Table {
    configuration::parse(&configured(&[("secrets", &providers.join(", "))]), &no_plugins).unwrap()
}

fn words(closed: Closed) -> String {
    let Closed::Wrong(why) = closed else { panic!("a plugin is asked") };
    why
}

fn open(table: &Table, path: &str, stored: &[u8]) -> Result<Bytes, String> {
    table.of(path).0.unwrap().open(path, &Bytes::copy_from_slice(stored)).map(|opened| opened.value).map_err(words)
}

fn seal(table: &Table, path: &str) -> Vec<u8> {
    table.of(path).0.unwrap().seal(path, &Bytes::from_static(VALUE)).unwrap().to_vec()
}

#[test]
fn what_others_encrypted_is_read() {
    let all = [16, 24, 32]
        .map(|n| [provider("aesgcm", &format!("k{n}"), &key(n)), provider("aescbc", &format!("k{n}"), &key(n))]);
    let mut all = all.concat();
    all.push(provider("secretbox", "k32", &key(32)));
    let table = table(&all);
    for vector in VECTORS {
        let stored = BASE64_STANDARD.decode(vector).unwrap();
        assert_eq!(open(&table, PATH, &stored).as_deref(), Ok(VALUE), "{vector}");
        // Only AES-GCM ties a value to its place, as upstream.
        let elsewhere = open(&table, "/registry/secrets/default/other", &stored);
        assert_eq!(elsewhere.is_ok(), !stored.starts_with(Sort::AesGcm.prefix().as_bytes()));
    }
}

#[test]
fn values_come_back_and_changed_ones_do_not() {
    for (sort, length, prefix) in [
        ("aescbc", 16, "k8s:enc:aescbc:v1:a:"),
        ("aescbc", 24, "k8s:enc:aescbc:v1:a:"),
        ("aesgcm", 32, "k8s:enc:aesgcm:v1:a:"),
        ("secretbox", 32, "k8s:enc:secretbox:v1:a:"),
    ] {
        let table = table(&[provider(sort, "a", &key(length))]);
        let stored = seal(&table, PATH);
        assert!(stored.starts_with(prefix.as_bytes()));
        assert_ne!(stored, seal(&table, PATH), "the same value looks different each time");
        assert_eq!(open(&table, PATH, &stored).as_deref(), Ok(VALUE));
        for cut in [prefix.len(), prefix.len() + 11, prefix.len() + 16] {
            assert!(open(&table, PATH, &stored[..cut]).is_err(), "{sort} of {cut} bytes");
        }
        let mut changed = stored.clone();
        *changed.last_mut().unwrap() ^= 1;
        // CBC notices in its padding or not at all; what it gives is another value then.
        assert_ne!(open(&table, PATH, &changed).as_deref(), Ok(VALUE), "{sort}");
    }
    let table = table(&[provider("aesgcm", "a", &key(32))]);
    let mut changed = seal(&table, PATH);
    changed[40] ^= 1;
    assert_eq!(open(&table, PATH, &changed).unwrap_err(), "cipher: message authentication failed");
}

#[test]
fn the_first_writes_and_all_read() {
    let (one, two) = (provider("secretbox", "one", &key(32)), provider("aescbc", "two", &key(32)));
    let identity = "{identity: {}}".to_owned();
    let old = seal(&table(std::slice::from_ref(&one)), PATH);
    let stale = |providers: &[String], stored: &[u8]| {
        let opened = table(providers).of(PATH).0.unwrap().open(PATH, &Bytes::copy_from_slice(stored)).map_err(words);
        opened.map(|opened| opened.stale)
    };
    assert_eq!(stale(&[one.clone(), two.clone()], &old), Ok(false));
    assert_eq!(stale(&[two.clone(), one.clone()], &old), Ok(true));
    assert_eq!(stale(&[identity.clone(), one.clone()], &old), Ok(true));
    assert_eq!(stale(&[identity.clone(), one.clone()], VALUE), Ok(false));
    assert_eq!(stale(&[one.clone(), identity.clone()], VALUE), Ok(true));
    assert_eq!(stale(&[two.clone(), identity], &old).unwrap_err(), "no matching prefix found");
    assert_eq!(stale(std::slice::from_ref(&one), VALUE).unwrap_err(), "no matching prefix found");
    let other = provider("secretbox", "other", &key(32));
    let unknown = "no matching key was found for the provided Secretbox transformer";
    assert_eq!(stale(std::slice::from_ref(&other), &old).unwrap_err(), unknown);
    // Two providers of one sort read what either wrote; a second key of one provider is not the one that writes.
    assert_eq!(stale(&[other, one], &old), Ok(true));
    let keys =
        format!("{{secretbox: {{keys: [{{name: new, secret: \"{0}\"}}, {{name: one, secret: \"{0}\"}}]}}}}", key(32));
    assert_eq!(stale(&[keys], &old), Ok(true));
}

#[test]
fn names_count_before_wildcards() {
    let providers = |name: &str| provider("secretbox", name, &key(32));
    let (a, b, c) = (providers("a"), providers("b"), providers("c"));
    let text =
        configured(&[("secrets, deployments.apps, ships.sea.io", &a), ("\"*.apps\", \"*.\"", &b), ("\"*.*\"", &c)]);
    let table = configuration::parse(&text, &no_plugins).unwrap();
    for (path, name) in [
        ("/registry/secrets/n/x", "a"),
        ("/registry/deployments/n/x", "a"),
        ("/registry/sea.io/ships/n/x", "a"),
        ("/registry/daemonsets/n/x", "b"),
        ("/registry/services/specs/n/x", "b"),
        ("/registry/minions/x", "b"),
        ("/registry/events/n/x", "b"),
        ("/registry/leases/n/x", "c"),
        ("/registry/sea.io/boats/n/x", "c"),
        ("/registry/apiregistration.k8s.io/apiservices/x", "c"),
        // No objects, which have no REST API.
        ("/registry/ranges/servicenodeports", ""),
    ] {
        let stored = table.of(path).0.map(|providers| providers.seal(path, &Bytes::from_static(VALUE)).unwrap());
        let expected = format!("k8s:enc:secretbox:v1:{name}:");
        assert_eq!(stored.is_some_and(|stored| stored.starts_with(expected.as_bytes())), !name.is_empty(), "{path}");
    }
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    assert_eq!(configuration::parse(text, &no_plugins).unwrap_err(), expected);
}

#[test]
fn wrong_configurations_are_refused_in_upstreams_words() {
    let good = provider("secretbox", "a", &key(32));
    let resources = |names: &str, expected: &str| refused(&configured(&[(names, &good)]), expected);
    let providers = |given: &str, expected: &str| refused(&configured(&[("secrets", given)]), expected);
    refused("", "it is empty");
    refused("kind: Secret", "kind: it must be EncryptionConfiguration, not \"Secret\"");
    refused(&configured(&[]), "resources: Required value: at least one resources is required");
    resources("", "resources[0].resources: Required value: at least one resources[0].resources is required");
    resources(
        "Secrets",
        "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital letters",
    );
    resources(
        "\"*\"",
        "resources[0].resources[0]: Invalid value: \"*\": use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
    );
    resources(
        "\"secrets.*\"",
        "resources[0].resources[0]: Invalid value: \"secrets.*\": encrypting the same resource across groups is not supported",
    );
    resources(
        "events.events.k8s.io",
        "resources[0].resources[0]: Invalid value: \"events.events.k8s.io\": '*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
    );
    resources(
        "serviceipallocations",
        "resources[0].resources[0]: Invalid value: \"serviceipallocations\": resources which do not have REST API/s cannot be encrypted",
    );
    resources(
        "secrets, secrets",
        "resources[0].resources: Invalid value: [\"secrets\",\"secrets\"]: the same resource cannot be specified multiple times",
    );
    resources(
        "secrets, \"*.\"",
        "resources[0].resources: Invalid value: [\"secrets\",\"*.\"]: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
    );
    refused(
        &configured(&[("\"*.*\"", &good), ("secrets", &good)]),
        "resource \"secrets\" is masked by earlier rule \"*.*\"",
    );
    providers("", "resources[0].providers: Required value: at least one resources[0].providers is required");
    providers(
        "{}",
        "resources[0].providers[0]: Invalid value: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
    );
    providers(
        "{identity: {}, secretbox: {keys: []}}",
        "resources[0].providers[0]: Invalid value: more than one provider specified in a single element, should split into different list elements",
    );
    providers(
        "{kms: {name: a, endpoint: \"unix:///x\"}}",
        "resources[0].providers[0].kms.apiVersion: Forbidden: KMSv1 is deprecated and will only receive security updates \
         going forward. Use KMSv2 instead: this server asks plugins in v2 only",
    );
    providers(
        "{aesgcm: {keys: []}}",
        "resources[0].providers[0].aesgcm.keys: Required value: at least one keys is required",
    );
    providers(
        &provider("aescbc", "a", &key(31)),
        "resources[0].providers[0].aescbc.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 31, expected one of [16 24 32]",
    );
    providers(
        &provider("secretbox", "a", "!!!"),
        "resources[0].providers[0].secretbox.keys[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded",
    );
    providers(
        "{secretbox: {keys: [{}]}}",
        "[resources[0].providers[0].secretbox.keys[0].name: Required value: name is a mandatory field for a key, resources[0].providers[0].secretbox.keys[0].secret: Required value: secret is a mandatory field for a key]",
    );
    providers(
        "{secretbox: {keys: [{nam: a}]}}",
        "resources[0].providers[0].secretbox.keys[0].nam: there is no such field; there are name, secret",
    );
    // No error shows a key.
    for text in
        [configured(&[("secrets", "{secretbox: {keys: SECRET}}")]), "a: SECRET: b".to_owned(), "[SECRET".to_owned()]
    {
        let said = configuration::parse(&text, &no_plugins).unwrap_err();
        assert!(!said.contains("SECRET"), "{said}");
    }
}

fn put(key: &str, value: &'static [u8], expect: Expect) -> Commit {
    Commit { key: key.into(), expect, change: Change::Put { value: Bytes::from_static(value), ttl_seconds: None } }
}

/// A store and the one above it.
fn both(providers: &[String]) -> (Arc<Embedded>, Encrypted, Arc<Current>) {
    let below = Arc::new(Embedded::memory());
    let current = Current::new(table(providers));
    (below.clone(), Encrypted::new(below, current.clone()), current)
}

async fn value(store: &dyn Store, key: &str) -> Bytes {
    store.get(key).await.unwrap().0.unwrap().value
}

#[tokio::test]
async fn values_are_plain_above_the_line_and_encrypted_below() {
    let (below, above, _) = both(&[provider("aesgcm", "a", &key(32))]);
    let mut changes = above.watch("/registry/", None).await.unwrap();
    let written = above.commit(put(PATH, VALUE, Expect::Absent)).await.unwrap();
    assert_eq!(written.value, VALUE);
    assert!(value(&*below, PATH).await.starts_with(b"k8s:enc:aesgcm:v1:a:"));
    assert_eq!(value(&above, PATH).await, VALUE);
    assert_eq!(above.at_hand(PATH).await.unwrap().0, Some(written.clone()));
    assert_eq!(above.range(Range::prefix("/registry/")).await.unwrap().entries, std::slice::from_ref(&written));
    match above.commit(put(PATH, b"other", Expect::Absent)).await {
        Err(StoreError::Conflict { current, .. }) => assert_eq!(current.as_ref(), Some(&written)),
        other => panic!("{other:?}"),
    }
    let all =
        vec![put("/registry/secrets/n/b", b"b", Expect::Absent), put(PATH, b"new", Expect::Modified(written.modified))];
    let entries = above.commit_all(all).await.unwrap();
    assert_eq!(entries.iter().map(|e| &e.value[..]).collect::<Vec<_>>(), [b"b".as_slice(), b"new"]);
    let refused = above.commit_all(vec![put(PATH, b"x", Expect::Modified(1))]).await.unwrap_err();
    assert!(matches!(refused.error, StoreError::Conflict { current: Some(entry), .. } if entry.value == "new"));
    let removed = Commit { key: PATH.into(), expect: Expect::Any, change: Change::Delete };
    assert_eq!(above.commit(removed).await.unwrap().value, "new");
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let batch = changes.next().await.unwrap().unwrap();
        let text = |entry: Option<Entry>| entry.map_or(String::new(), |e| String::from_utf8(e.value.to_vec()).unwrap());
        seen.extend(batch.events.into_iter().map(|event| (text(event.previous), text(event.entry))));
    }
    let vector = String::from_utf8(VALUE.to_vec()).unwrap();
    let expected = [("", vector.as_str()), ("", "b"), (vector.as_str(), "new"), ("new", "")];
    assert_eq!(seen, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[tokio::test]
async fn other_resources_are_not_touched() {
    let (below, above, _) = both(&[provider("aesgcm", "a", &key(32))]);
    let path = "/registry/configmaps/n/a";
    above.commit(put(path, VALUE, Expect::Absent)).await.unwrap();
    let stored = value(&*below, path).await;
    assert_eq!(stored, VALUE);
    // Not even copied.
    assert_eq!(value(&above, path).await.as_ptr(), stored.as_ptr());
    // A value that is encrypted where nothing decrypts is no object.
    below.commit(put("/registry/configmaps/n/b", b"k8s:enc:aesgcm:v1:a:x", Expect::Absent)).await.unwrap();
    let error = above.get("/registry/configmaps/n/b").await.unwrap_err();
    let expected =
        "unable to transform key \"/registry/configmaps/n/b\": identity transformer tried to read encrypted data";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn one_value_that_cannot_be_read_harms_no_other() {
    let (below, above, _) = both(&[provider("aesgcm", "a", &key(32))]);
    above.commit(put(PATH, VALUE, Expect::Absent)).await.unwrap();
    above.commit(put("/registry/configmaps/n/a", VALUE, Expect::Absent)).await.unwrap();
    let mut changes = above.watch("/registry/", None).await.unwrap();
    // Somebody copies a value to another place.
    let copied = Change::Put { value: value(&*below, PATH).await, ttl_seconds: None };
    let moved = "/registry/secrets/kube-system/x";
    below.commit(Commit { key: moved.into(), expect: Expect::Absent, change: copied }).await.unwrap();
    let unreadable = |error: StoreError| {
        let expected = format!("unable to transform key {moved:?}: cipher: message authentication failed");
        assert_eq!(error.to_string(), expected);
    };
    unreadable(above.get(moved).await.unwrap_err());
    unreadable(above.range(Range::prefix("/registry/secrets/")).await.unwrap_err());
    unreadable(above.commit(put(moved, b"x", Expect::Absent)).await.unwrap_err());
    unreadable(changes.next().await.unwrap().unwrap_err());
    assert!(changes.next().await.is_none());
    assert_eq!(value(&above, PATH).await, VALUE);
    assert_eq!(above.range(Range::prefix("/registry/configmaps/")).await.unwrap().entries.len(), 1);
    assert_eq!(above.range(Range::prefix("/registry/secrets/default/")).await.unwrap().entries.len(), 1);
    // Whoever overwrites it blindly is told nothing of what it was, and it is an object again.
    let mut changes = above.watch("/registry/", None).await.unwrap();
    above.commit(put(moved, b"x", Expect::Any)).await.unwrap();
    let event = changes.next().await.unwrap().unwrap().events.remove(0);
    assert_eq!((event.previous.unwrap().value, event.entry.unwrap().value), (Bytes::new(), "x".into()));
}

#[tokio::test]
async fn keys_are_rotated_while_the_store_is_at_work() {
    let (one, two) = (provider("secretbox", "one", &key(32)), provider("aesgcm", "two", &key(32)));
    let identity = "{identity: {}}".to_owned();
    let (below, above, current) = both(std::slice::from_ref(&identity));
    for name in ["/registry/secrets/n/a", "/registry/secrets/n/b", "/registry/configmaps/n/c"] {
        above.commit(put(name, VALUE, Expect::Absent)).await.unwrap();
    }
    let step = async |providers: &[String], expected: (usize, usize), prefix: &str| {
        current.replace(table(providers));
        let entry = above.get("/registry/secrets/n/a").await.unwrap().0.unwrap();
        assert_eq!(entry.value, VALUE);
        assert_eq!(above.outdated(&entry).await.unwrap(), expected.0 > 0);
        let done = rewrite::rewrite(below.clone(), current.clone(), |_| None).await.unwrap();
        assert_eq!(done, Rewritten { written: expected.0, right: expected.1, unreadable: Vec::new() });
        for name in ["/registry/secrets/n/a", "/registry/secrets/n/b"] {
            assert!(value(&*below, name).await.starts_with(prefix.as_bytes()), "{prefix}");
        }
    };
    step(&[one.clone(), identity], (2, 0), "k8s:enc:secretbox:v1:one:").await;
    step(&[one.clone(), two.clone()], (0, 2), "k8s:enc:secretbox:v1:one:").await;
    step(&[two.clone(), one.clone()], (2, 0), "k8s:enc:aesgcm:v1:two:").await;
    step(std::slice::from_ref(&two), (0, 2), "k8s:enc:aesgcm:v1:two:").await;
    let known = async |providers: &[String]| rewrite::known(&*below, &table(providers)).await.unwrap();
    assert_eq!(known(&[two]).await, Known::Enough);
    assert_eq!(known(std::slice::from_ref(&one)).await, Known::None { key: "/registry/secrets/n/a".to_owned() });
    // A value that nobody can read stays, and is told of.
    current.replace(table(&[one]));
    let done = rewrite::rewrite(below.clone(), current.clone(), |_| None).await.unwrap();
    assert_eq!((done.written, done.unreadable.len()), (0, 2));
    assert_eq!(value(&*below, "/registry/configmaps/n/c").await, VALUE);
}

#[tokio::test]
async fn nothing_plain_is_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let secret: &[u8] = b"correct-horse-battery-staple";
    let store = |text: &str| {
        let below = Arc::new(Embedded::open(folder.path(), Options::default()).unwrap());
        Encrypted::new(below, Current::new(configuration::parse(text, &no_plugins).unwrap()))
    };
    let own = configuration::own();
    let above = store(&own);
    above.commit(put(PATH, secret, Expect::Absent)).await.unwrap();
    above.commit(put("/registry/configmaps/n/a", b"plain-as-ever", Expect::Absent)).await.unwrap();
    drop(above);
    let holds = |text: &[u8]| {
        let files = std::fs::read_dir(folder.path()).unwrap();
        let contents = files.filter_map(|file| std::fs::read(file.unwrap().path()).ok());
        contents.into_iter().any(|content| content.windows(text.len()).any(|window| window == text))
    };
    assert!(holds(b"plain-as-ever") && !holds(secret));
    assert_eq!(value(&store(&own), PATH).await, secret);
    assert_ne!(own, configuration::own());
}
