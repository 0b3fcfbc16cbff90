//! Plugins that are well, away, slow and lie, under a store.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use clock::Duration;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use parking_lot::Mutex;
use store::{Change, Commit, Expect, Range, Store, StoreError, embedded::Embedded};

use super::{Connect, Endpoint, Failure, Plugin, Service, Status, Wrapped};
use crate::{Current, Encrypted, Table, configuration, rewrite};

const VALUE: &[u8] = br#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"vector"}}"#;
const PATH: &str = "/registry/secrets/default/vector";

/// Made with Python's `cryptography`: the seed 0, 1, 2, … with annotations, and the same bytes as a key.
const VECTORS: [&str; 2] = [
    "azhzOmVuYzprbXM6djI6cGx1Z2luOgp8ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoPIycrLzM3Oz9DR0tMWRA4YSizEOFVDLn88S4ck6v0/vW13I5GRqaQtNcGm6M3sXtsWzhFbzJyNLiZIiTdULaBXoKhQKsJySmoreAqcX4eb417+N0FO21WOxBlt7xIFa2V5LTEaB3dyYXBwZWQiEgoNYS5leGFtcGxlLmNvbRIBeCgB",
    "azhzOmVuYzprbXM6djI6cGx1Z2luOgpcyMnKy8zNzs/Q0dLTaloKsuio2RpWb3rdbGOfNsyljdhtPc1WnsBUj/iriZ/9rgaE/3pey1aeMMaSLXrCsdB23aY31WZ+ezL603A6QWKtvDT+4DqfsmGr2v7RR8QSBWtleS0xGgd3cmFwcGVk",
];

/// The behaviour of a plugin in memory. Its ciphertext is the plaintext behind a mark.
#[derive(Clone)]
struct Mood {
    key_id: String,
    /// Another key than it says of itself.
    encrypts_with: Option<String>,
    healthz: String,
    version: String,
    away: bool,
    /// The answer to each question for a plaintext instead of the right one.
    decrypts_to: Option<Vec<u8>>,
    asked: BTreeMap<&'static str, usize>,
}

struct Fake(Mutex<Mood>);

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Fake(Mutex::new(Mood {
            key_id: "key-1".to_owned(),
            encrypts_with: None,
            healthz: "ok".to_owned(),
            version: "v2".to_owned(),
            away: false,
            decrypts_to: None,
            asked: BTreeMap::new(),
        })))
    }

    fn change(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.0.lock());
    }

    fn asked(&self, method: &str) -> usize {
        self.0.lock().asked.get(method).copied().unwrap_or_default()
    }

    fn answer<T: Send + 'static>(
        &self,
        method: &'static str,
        answer: impl FnOnce(&Mood) -> T,
    ) -> BoxFuture<'static, Result<T, Failure>> {
        let mut mood = self.0.lock();
        *mood.asked.entry(method).or_default() += 1;
        let failure = || Failure { code: "Unavailable".to_owned(), words: "rpc error: away".to_owned() };
        let answer = if mood.away { Err(failure()) } else { Ok(answer(&mood)) };
        std::future::ready(answer).boxed()
    }
}

impl Service for Fake {
    fn status(&self) -> BoxFuture<'_, Result<Status, Failure>> {
        self.answer("status", |mood| Status {
            version: mood.version.clone(),
            healthz: mood.healthz.clone(),
            key_id: mood.key_id.clone(),
        })
    }

    fn encrypt(&self, _: String, plaintext: Vec<u8>) -> BoxFuture<'_, Result<Wrapped, Failure>> {
        self.answer("encrypt", |mood| Wrapped {
            ciphertext: [b"wrapped".to_vec(), plaintext].concat(),
            key_id: mood.encrypts_with.clone().unwrap_or_else(|| mood.key_id.clone()),
            annotations: BTreeMap::from([("version.example.com".to_owned(), b"1".to_vec())]),
        })
    }

    fn decrypt(&self, _: String, wrapped: Wrapped) -> BoxFuture<'_, Result<Vec<u8>, Failure>> {
        self.answer("decrypt", |mood| {
            // The vectors hold no seed: it is known to whoever made them.
            let plain = wrapped.ciphertext.strip_prefix(b"wrapped").unwrap_or_default().to_vec();
            let known = if plain.is_empty() { (0..32).collect() } else { plain };
            mood.decrypts_to.clone().unwrap_or(known)
        })
    }
}

fn table(providers: &str, fake: &Arc<Fake>) -> Table {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets, configmaps]\n  providers: [{providers}]\n"
    );
    let connect = |endpoint: &Endpoint| {
        assert_eq!(endpoint, &Endpoint { socket: "/run/kms.sock".into(), limit: Duration::from_secs(3) });
        fake.clone() as Arc<dyn Service>
    };
    configuration::parse(&text, &connect as Connect<'_>).unwrap()
}

const PLUGIN: &str = "{kms: {apiVersion: v2, name: plugin, endpoint: \"unix:///run/kms.sock\"}}";

struct Bench {
    fake: Arc<Fake>,
    below: Arc<Embedded>,
    current: Arc<Current>,
    above: Encrypted,
}

impl Bench {
    async fn with(providers: &str) -> Self {
        let (fake, below) = (Fake::new(), Arc::new(Embedded::memory()));
        let current = Current::new(table(providers, &fake));
        let above = Encrypted::new(below.clone(), current.clone());
        let bench = Bench { fake, below, current, above };
        bench.check().await.unwrap();
        bench
    }

    fn plugin(&self) -> Arc<Plugin> {
        self.current.get().plugins()[0].clone()
    }

    async fn check(&self) -> Result<(), String> {
        self.plugin().check().await
    }

    /// The next look that is not answered from memory.
    async fn checked_later(&self) -> Result<(), String> {
        clock::sleep(super::plugin::HEALTHY_FOR).await;
        self.check().await
    }

    /// A server that is started again: it remembers nothing.
    async fn restarted(mut self) -> Self {
        self.current = Current::new(table(PLUGIN, &self.fake));
        self.above = Encrypted::new(self.below.clone(), self.current.clone());
        self
    }

    async fn put(&self, name: &str) -> Result<(), StoreError> {
        let change = Change::Put { value: Bytes::from_static(VALUE), ttl_seconds: None };
        self.above.commit(Commit { key: key(name).into(), expect: Expect::Any, change }).await.map(|_| ())
    }

    async fn get(&self, name: &str) -> Result<Bytes, String> {
        match self.above.get(&key(name)).await {
            Ok((entry, _)) => Ok(entry.expect("stored").value),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn stored(&self, name: &str) -> Bytes {
        self.below.get(&key(name)).await.unwrap().0.unwrap().value
    }
}

fn key(name: &str) -> String {
    format!("/registry/secrets/default/{name}")
}

/// Upstream's spans and events, of which only those of a server that does not know the seed yet ask the plugin.
#[tokio::test]
async fn values_on_their_way_are_parts_of_a_request() {
    let bench = Bench::with(PLUGIN).await;
    let (tracer, mut sent) = spans::Tracer::new(1_000_000);
    let served = tracer.serve("GET".into(), None, false);
    let parts = |sent: &mut tokio::sync::mpsc::Receiver<spans::Facts>| {
        let part = sent.try_recv().unwrap();
        assert_eq!(part.parent, Some(served.context().span));
        assert_eq!(part.attributes, [("transformer.provider.name", "plugin".into())]);
        let events: Vec<&str> = part.events.iter().map(|event| event.name).collect();
        format!("{}: {}", part.name.split(' ').next().unwrap(), events.join(", "))
    };
    served.around(bench.put("a")).await.unwrap();
    let encrypted = "TransformToStorage: About to encrypt data using DEK, Data encryption succeeded, About to encode encrypted \
                     object, Encoded encrypted object";
    assert_eq!(parts(&mut sent), encrypted);
    served.around(bench.get("a")).await.unwrap();
    let decoded = "TransformFromStorage: About to decode encrypted object, Decoded encrypted object";
    let decrypted = "About to decrypt data using DEK, Data decryption succeeded";
    assert_eq!(parts(&mut sent), format!("{decoded}, {decrypted}"));
    let bench = bench.restarted().await;
    bench.fake.change(|mood| mood.away = true);
    served.around(bench.get("a")).await.unwrap_err();
    let asked = "About to decrypt DEK using remote service";
    assert_eq!(parts(&mut sent), format!("{decoded}, {asked}, DEK decryption failed, exception"));
    bench.fake.change(|mood| mood.away = false);
    served.around(bench.get("a")).await.unwrap();
    assert_eq!(parts(&mut sent), format!("{decoded}, {asked}, DEK decryption succeeded, {decrypted}"));
    // Work that no request is waiting for is told of nowhere.
    bench.get("a").await.unwrap();
    assert!(sent.try_recv().is_err());
}

#[tokio::test]
async fn what_others_wrote_is_read_and_only_at_its_place() {
    let bench = Bench::with(PLUGIN).await;
    for vector in VECTORS {
        let value = Bytes::from(BASE64_STANDARD.decode(vector).unwrap());
        for name in ["vector", "other"] {
            let change = Change::Put { value: value.clone(), ttl_seconds: None };
            bench.below.commit(Commit { key: key(name).into(), expect: Expect::Any, change }).await.unwrap();
        }
        assert_eq!(bench.get("vector").await.as_deref(), Ok(VALUE));
        assert!(bench.get("other").await.unwrap_err().ends_with("cipher: message authentication failed"));
        let (entry, _) = bench.above.get(PATH).await.unwrap();
        // A value with a key of its own is brought into the form of now.
        let old = vector == VECTORS[1];
        assert_eq!(bench.above.outdated(&entry.unwrap()).await.unwrap(), old, "{vector}");
    }
}

#[tokio::test]
async fn values_go_through_one_seed_that_is_asked_for_once() {
    let bench = Bench::with(PLUGIN).await;
    let mut watch = bench.above.watch("/registry/secrets/", None).await.unwrap();
    for name in ["a", "b", "c"] {
        bench.put(name).await.unwrap();
    }
    assert!(bench.stored("a").await.starts_with(b"k8s:enc:kms:v2:plugin:"));
    assert_ne!(bench.stored("a").await, bench.stored("b").await);
    assert_eq!((bench.fake.asked("encrypt"), bench.fake.asked("decrypt")), (1, 0));
    assert_eq!(bench.get("b").await.as_deref(), Ok(VALUE));
    let event = loop {
        let batch = watch.next().await.unwrap().unwrap();
        if let Some(event) = batch.events.into_iter().next() {
            break event;
        }
    };
    assert_eq!(event.entry.unwrap().value, VALUE);
    // Another server, or this one later, asks once for all of them.
    let bench = bench.restarted().await;
    let page = bench.above.range(Range::prefix("/registry/")).await.unwrap();
    assert!(page.entries.len() == 3 && page.entries.iter().all(|entry| entry.value == VALUE));
    assert_eq!((bench.fake.asked("encrypt"), bench.fake.asked("decrypt")), (1, 1));
    // It writes as soon as the plugin told its key.
    let refused = bench.put("d").await.unwrap_err().to_string();
    assert_eq!(refused, "KMS plugin \"plugin\" was not reached since the server started");
    assert!(bench.below.get(&key("d")).await.unwrap().0.is_none(), "nothing is stored in another way");
    bench.check().await.unwrap();
    bench.put("d").await.unwrap();
    // A conflict shows what is there.
    let commit = Commit { key: key("d").into(), expect: Expect::Absent, change: Change::Delete };
    let Err(StoreError::Conflict { current: Some(entry), .. }) = bench.above.commit(commit).await else {
        panic!("a conflict")
    };
    assert_eq!(entry.value, VALUE);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_away_stops_writes_after_three_minutes_and_no_reads_of_what_is_known() {
    let bench = Bench::with(PLUGIN).await;
    bench.put("a").await.unwrap();
    bench.fake.change(|mood| mood.away = true);
    assert_eq!(bench.check().await, Ok(()), "what was found a moment ago holds");
    let away = "failed to perform status section of the healthz check for KMS Provider plugin, error: rpc error: away";
    assert_eq!(bench.checked_later().await, Err(away.to_owned()));
    clock::sleep(Duration::from_secs(150)).await;
    bench.put("b").await.unwrap();
    clock::sleep(Duration::from_secs(20)).await;
    let error = bench.put("c").await.unwrap_err().to_string();
    assert!(
        error.starts_with("encryptedDEKSource with keyID hash \"sha256:") && error.contains("expired at"),
        "{error}"
    );
    assert_eq!(bench.get("a").await.as_deref(), Ok(VALUE));
    // A key that was never met cannot be read.
    let bench = bench.restarted().await;
    let error = bench.get("a").await.unwrap_err();
    assert_eq!(error, format!("unable to transform key {:?}: failed to decrypt DEK, error: rpc error: away", key("a")));
    bench.fake.change(|mood| mood.away = false);
    assert_eq!(bench.get("a").await.as_deref(), Ok(VALUE));
    bench.check().await.unwrap();
    bench.put("c").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_followed_and_everything_can_be_brought_to_it() {
    let bench = Bench::with(PLUGIN).await;
    bench.put("a").await.unwrap();
    bench.fake.change(|mood| mood.key_id = "key-2".to_owned());
    bench.checked_later().await.unwrap();
    bench.put("b").await.unwrap();
    assert_eq!(bench.fake.asked("encrypt"), 2);
    assert_eq!(bench.get("a").await.as_deref(), Ok(VALUE));
    let done = rewrite::rewrite(bench.below.clone(), bench.current.clone(), |_| None).await.unwrap();
    assert_eq!((done.written, done.right, done.unreadable.len()), (1, 1, 0));
    // From other keys to a plugin, and back.
    let secretbox = "{secretbox: {keys: [{name: a, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}";
    for (first, second, prefix) in
        [(secretbox, PLUGIN, "k8s:enc:secretbox:v1:a:"), (PLUGIN, secretbox, "k8s:enc:kms:v2:plugin:")]
    {
        bench.current.replace(table(&format!("{first}, {second}"), &bench.fake));
        bench.check().await.unwrap();
        let done = rewrite::rewrite(bench.below.clone(), bench.current.clone(), |_| None).await.unwrap();
        assert_eq!((done.written, done.right, done.unreadable.len()), (2, 0, 0), "{first}");
        assert!(bench.stored("a").await.starts_with(prefix.as_bytes()));
        assert_eq!(bench.get("b").await.as_deref(), Ok(VALUE));
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_lies_changes_nothing() {
    let bench = Bench::with(PLUGIN).await;
    bench.put("a").await.unwrap();
    let good = bench.fake.0.lock().clone();
    let check = async |change: fn(&mut Mood), expected: &str| {
        bench.fake.change(change);
        let error = bench.checked_later().await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(bench.put("b").await.map_err(|e| e.to_string()), Ok(()));
        bench.fake.change(|mood| *mood = good.clone());
        clock::sleep(super::plugin::UNHEALTHY_FOR).await;
        bench.check().await.unwrap();
    };
    let head = "kmsv2 Provider plugin is not healthy, error: ";
    check(|mood| mood.healthz = "ill".to_owned(), &format!("{head}got unexpected healthz status: ill")).await;
    check(|mood| mood.version = "v3".to_owned(), &format!("{head}expected KMSv2 API version v2, got v3")).await;
    check(|mood| mood.version = "v2beta1".to_owned(), "API version should not change").await;
    check(|mood| mood.key_id = String::new(), "got invalid KMSv2 KeyID hash \"\": keyID is empty").await;
    check(|mood| mood.key_id = "k".repeat(1025), "keyID is 1025 bytes, which exceeds the max size of 1024").await;
    check(
        |mood| (mood.key_id, mood.encrypts_with) = ("key-2".to_owned(), Some("key-3".to_owned())),
        "it was encrypted with another key",
    )
    .await;
    // A wrong plaintext opens nothing, and one that is too short is none.
    for (plain, expected) in [
        (vec![1; 32], "cipher: message authentication failed"),
        (vec![1; 31], "invalid seed length 31 used for key generation"),
    ] {
        let bench = Bench { fake: bench.fake.clone(), below: bench.below.clone(), ..Bench::with(PLUGIN).await };
        let bench = bench.restarted().await;
        bench.fake.change(|mood| mood.decrypts_to = Some(plain));
        let error = bench.get("a").await.unwrap_err();
        assert!(error.ends_with(expected), "{error}");
        bench.fake.change(|mood| *mood = good.clone());
    }
}

#[tokio::test]
async fn figures_have_upstreams_names() {
    let bench = Bench::with(PLUGIN).await;
    bench.put("a").await.unwrap();
    bench.get("a").await.unwrap();
    let page = super::figures(bench.current.get().plugins(), "sha256:ab");
    let labels = "transformation_type=\"to_storage\",provider_name=\"plugin\",key_id_hash=\"sha256:";
    for expected in [
        &format!("apiserver_envelope_encryption_key_id_hash_total{{{labels}")[..],
        "# TYPE apiserver_envelope_encryption_kms_operations_latency_seconds histogram\n",
        "method_name=\"/v2.KeyManagementService/Encrypt\",grpc_status_code=\"OK\",le=\"+Inf\"} 1\n",
        "apiserver_envelope_encryption_dek_source_cache_size{provider_name=\"plugin\"} 1\n",
    ] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    assert_eq!(super::figures(&[], "sha256:ab"), "");
}

#[test]
fn wrong_plugins_are_refused_in_upstreams_words() {
    let refused = |providers: &str, expected: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [secrets]\n  providers: [{providers}]\n"
        );
        assert_eq!(configuration::parse(&text, &crate::tests::no_plugins).unwrap_err(), expected);
    };
    let kms = |fields: &str| format!("{{kms: {{apiVersion: v2, {fields}}}}}");
    let place = "resources[0].providers[0].kms";
    refused(
        &kms("name: a"),
        &format!("{place}.endpoint: Invalid value: \"\": endpoint is a mandatory field for a kms"),
    );
    refused(
        &kms("name: a, endpoint: \"http://x\""),
        &format!(
            "{place}.endpoint: Invalid value: \"http://x\": unsupported scheme \"http\" for KMS provider, only unix is supported"
        ),
    );
    refused(
        &kms("name: \"a:b\", endpoint: \"unix:///x\""),
        &format!("{place}.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':'"),
    );
    refused(
        &kms("endpoint: \"unix:///x\""),
        &format!("{place}.name: Required value: name is a mandatory field for a provider"),
    );
    refused(
        &kms("name: a, endpoint: \"unix:///x\", timeout: -1s"),
        &format!("{place}.timeout: Invalid value: \"-1s\": timeout should be a positive value"),
    );
    refused(
        &kms("name: a, endpoint: \"unix:///x\", timeout: soon"),
        &format!("{place}.timeout: it must be a duration such as 3s or 1m30s"),
    );
    refused(
        &kms("name: a, endpoint: \"unix:///x\", cachesize: 5"),
        &format!("{place}.cachesize: Invalid value: 5: cachesize is not supported in v2"),
    );
    refused(
        "{kms: {apiVersion: v3, name: a, endpoint: \"unix:///x\"}}",
        &format!(
            "{place}.apiVersion: Invalid value: \"v3\": unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported"
        ),
    );
    let twice = kms("name: a, endpoint: \"unix:///x\"");
    refused(
        &format!("{twice}, {twice}"),
        "resources[0].providers[1].kms.name: Invalid value: \"a\": duplicate KMS provider name a, names must be unique",
    );
}
