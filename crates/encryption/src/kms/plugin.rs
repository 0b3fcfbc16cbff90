//! One KMS plugin: the seed that values are written with, the seeds that were met, and how the plugin is.
//!
//! The seed to write with is made when the plugin names a key for the first time, and anew whenever it names another. It
//! counts for three minutes after the last good answer: a plugin that cannot be asked for longer may have lost or changed its
//! key, and what would be written then is nobody's to say. Reading goes on with what is known.

use std::{fmt, sync::Arc};

use clock::{Duration, Instant, Timestamp};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};
use spans::{Span, event};

use crate::{
    cipher::{Cipher, Sort},
    kms::{
        Service, Status,
        envelope::{Envelope, Source, Wrapped, check_key_id},
        figures::{Figures, Text},
        known_keys::KnownKeys,
        seed::Seed,
    },
    opened::Opened,
    way::Way,
};

/// The time after the plugin's last good answer for which its seed is written with.
const WRITES_FOR: Duration = Duration::from_secs(3 * 60);
/// The time for which an answer about the plugin's health holds: anybody may ask for it.
pub(super) const HEALTHY_FOR: Duration = Duration::from_secs(20);
pub(super) const UNHEALTHY_FOR: Duration = Duration::from_secs(3);
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// The seed that values are written with, and until when.
struct Writing {
    seed: Arc<Seed>,
    wrapped: Wrapped,
    key_hash: String,
    until: Instant,
    until_wall: Timestamp,
}

/// The plugin's health, by its last answer.
#[derive(Default)]
struct Health {
    answer: Option<(Instant, Result<(), String>)>,
    /// The version that it said first, which must not change.
    version: Option<String>,
}

pub struct Plugin {
    name: String,
    service: Arc<dyn Service>,
    writing: RwLock<Option<Writing>>,
    known: Mutex<KnownKeys>,
    health: futures::lock::Mutex<Health>,
    figures: Figures,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KMS plugin {}", self.name)
    }
}

fn hash_of(key_id: &str) -> String {
    let hex = base16ct::lower::encode_string(&Sha256::digest(key_id));
    format!("sha256:{hex}")
}

fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Says of the current span how a step ended.
fn told<T, E: AsRef<str>>(ended: Result<T, E>, done: &'static str, failed: &'static str) -> Result<T, E> {
    match &ended {
        Ok(_) => event(done),
        Err(why) => {
            event(failed);
            spans::error(why.as_ref());
        }
    }
    ended
}

fn over<T>(span: Option<&Span>, work: impl FnOnce() -> T) -> T {
    match span {
        None => work(),
        Some(span) => span.over(work),
    }
}

/// A value whose seed nobody asked the plugin for yet.
#[derive(Debug)]
pub struct Locked {
    plugin: Arc<Plugin>,
    envelope: Box<Envelope>,
    /// The span of its reading.
    span: Option<Span>,
    /// Another provider writes now.
    stale: bool,
}

impl Locked {
    /// The locked value of a plugin that stands at this place of its providers: only the first one writes.
    pub fn behind(self, place: usize) -> Self {
        Locked { stale: place > 0, ..self }
    }

    /// Asks the plugin for the seed and opens the value. The error is in upstream's words.
    pub async fn open(mut self, path: &str) -> Result<Opened, String> {
        let span = self.span.take();
        spans::within(span, || self.asked(path)).await
    }

    async fn asked(self, path: &str) -> Result<Opened, String> {
        let Envelope { data, source, wrapped } = *self.envelope;
        event("About to decrypt DEK using remote service");
        let question = self.plugin.service.decrypt(clock::uuid(), wrapped.clone());
        let plain = self.plugin.figures.call("/v2.KeyManagementService/Decrypt", question).await;
        let plain = told(plain.map_err(|failure| failure.words), "DEK decryption succeeded", "DEK decryption failed");
        let plain = plain.map_err(|why| format!("failed to decrypt DEK, error: {why}"))?;
        let cipher: Arc<dyn Cipher> = match source {
            Source::Seed => Arc::new(Seed::new(&plain)?),
            Source::Key => {
                let wrong = || format!("crypto/aes: invalid key size {}", plain.len());
                Sort::AesGcm.cipher(&plain).ok_or_else(wrong)?.into()
            }
        };
        self.plugin.known.lock().put((source, wrapped.clone()), cipher.clone());
        let opened = self.plugin.opened(path, &*cipher, &Envelope { data, source, wrapped })?;
        Ok(Opened { stale: opened.stale || self.stale, ..opened })
    }
}

impl Plugin {
    pub fn new(name: &str, service: Arc<dyn Service>) -> Arc<Self> {
        Arc::new(Plugin {
            name: name.to_owned(),
            service,
            writing: RwLock::default(),
            known: Mutex::default(),
            health: futures::lock::Mutex::default(),
            figures: Figures::default(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The span of a value's way, which has upstream's name.
    fn span(&self, name: &'static str) -> Option<Span> {
        let mut span = spans::part(name)?;
        span.set("transformer.provider.name", &*self.name);
        Some(span)
    }

    /// The value in its envelope.
    pub fn seal(&self, path: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        let span = self.span("TransformToStorage with envelopeTransformer");
        over(span.as_ref(), || self.sealed(path, value))
    }

    fn sealed(&self, path: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        let writing = self.writing.read();
        let Some(writing) = &*writing else {
            return Err(format!("KMS plugin {:?} was not reached since the server started", self.name));
        };
        if Instant::now() > writing.until {
            return Err(format!(
                "encryptedDEKSource with keyID hash {:?} expired at {} (current time is {})",
                writing.key_hash,
                rfc3339(writing.until_wall),
                rfc3339(clock::now())
            ));
        }
        event("About to encrypt data using DEK");
        let data = writing.seed.seal(path, value);
        event("Data encryption succeeded");
        self.figures.used(&writing.key_hash, Way::ToStorage);
        event("About to encode encrypted object");
        let encoded = Envelope::encode(data, Source::Seed, &writing.wrapped);
        event("Encoded encrypted object");
        Ok(encoded)
    }

    /// The value in an envelope; `Ok(Err(…))` where the plugin has to be asked first.
    pub fn open(self: &Arc<Self>, path: &str, data: &[u8]) -> Result<Result<Opened, Locked>, String> {
        let span = self.span("TransformFromStorage with envelopeTransformer");
        let opened = over(span.as_ref(), || {
            event("About to decode encrypted object");
            let envelope = Envelope::decode(data);
            let envelope = told(envelope, "Decoded encrypted object", "Decoding encrypted object failed")?;
            let known = self.known.lock().get(&(envelope.source, envelope.wrapped.clone()));
            match known {
                Some(cipher) => self.opened(path, &*cipher, &envelope).map(Ok),
                None => Ok(Err(envelope)),
            }
        })?;
        Ok(opened.map_err(|envelope| Locked { plugin: self.clone(), envelope: envelope.into(), span, stale: false }))
    }

    fn opened(&self, path: &str, cipher: &dyn Cipher, envelope: &Envelope) -> Result<Opened, String> {
        event("About to decrypt data using DEK");
        let value = cipher.open(path, &envelope.data);
        let value = told(value, "Data decryption succeeded", "Data decryption failed")?;
        let key_id = &envelope.wrapped.key_id;
        self.figures.used(&hash_of(key_id), Way::FromStorage);
        let current = self.writing.read().as_ref().is_some_and(|writing| writing.wrapped.key_id == *key_id);
        Ok(Opened { value: value.into(), stale: !current || envelope.source != Source::Seed })
    }

    /// Whether the plugin is well. Asks it, unless somebody did a moment ago, and follows a change of its key.
    pub async fn check(&self) -> Result<(), String> {
        // One question at a time; the others wait for its answer.
        let mut health = self.health.lock().await;
        if let Some((when, answer)) = &health.answer {
            let holds = if answer.is_ok() { HEALTHY_FOR } else { UNHEALTHY_FOR };
            if when.elapsed() < holds {
                return answer.clone();
            }
        }
        let answer = self.ask(&mut health.version).await;
        health.answer = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn ask(&self, version: &mut Option<String>) -> Result<(), String> {
        // The permission that the answer gives begins before the question: it must not count for longer because the
        // plugin is slow.
        let (asked, asked_wall) = (Instant::now(), clock::now());
        let status = self.figures.call("/v2.KeyManagementService/Status", self.service.status()).await;
        let status = status.map_err(|failure| {
            format!(
                "failed to perform status section of the healthz check for KMS Provider {}, error: {}",
                self.name, failure.words
            )
        })?;
        let mut wrong = self.what_is_wrong(&status, version);
        match check_key_id(&status.key_id) {
            Ok(()) => {
                self.figures.told(&hash_of(&status.key_id));
                wrong.extend(self.follow(&status.key_id, asked, asked_wall).await.err());
            }
            Err(why) => {
                self.figures.invalid_id(if status.key_id.is_empty() { "empty" } else { "too_long" });
                let hash = if status.key_id.is_empty() { String::new() } else { hash_of(&status.key_id) };
                wrong.push(format!("got invalid KMSv2 KeyID hash {hash:?}: {why}"));
            }
        }
        let words = match wrong.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        Err(format!("kmsv2 Provider {} is not healthy, error: {words}", self.name))
    }

    fn what_is_wrong(&self, status: &Status, first: &mut Option<String>) -> Vec<String> {
        let mut wrong = Vec::new();
        if status.healthz != "ok" {
            wrong.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !VERSIONS.contains(&status.version.as_str()) {
            wrong.push(format!("expected KMSv2 API version {}, got {}", VERSIONS[0], status.version));
            return wrong;
        }
        let first = first.get_or_insert_with(|| status.version.clone());
        if *first != status.version {
            wrong.push(format!(
                "KMSv2 API version should not change after the initial status response version {first}, got {}",
                status.version
            ));
        }
        wrong
    }

    /// Goes on with the seed of now while the plugin's key is the same; otherwise makes a new one. When that fails the old one
    /// stays, until its time is over.
    async fn follow(&self, key_id: &str, asked: Instant, asked_wall: Timestamp) -> Result<(), String> {
        let (until, until_wall) = (asked + WRITES_FOR, asked_wall + WRITES_FOR);
        if let Some(writing) = self.writing.write().as_mut().filter(|writing| writing.wrapped.key_id == key_id) {
            (writing.until, writing.until_wall) = (until, until_wall);
            return Ok(());
        }
        let uid = clock::uuid();
        let failed = |why: String| {
            let of_now = self.writing.read().as_ref().map(|writing| writing.key_hash.clone()).unwrap_or_default();
            let wanted = hash_of(key_id);
            format!("failed to rotate DEK uid={uid:?}: {why}, statusKeyIDHash={wanted:?}, stateKeyIDHash={of_now:?}")
        };
        let (seed, plain) = Seed::fresh();
        let question = self.service.encrypt(uid.clone(), plain);
        let wrapped = self.figures.call("/v2.KeyManagementService/Encrypt", question).await;
        let wrapped = wrapped.map_err(|failure| failed(format!("failed to encrypt DEK, error: {}", failure.words)))?;
        wrapped.check().map_err(failed)?;
        if wrapped.key_id != key_id {
            return Err(failed(format!(
                "it was encrypted with another key, encryptKeyIDHash={:?}",
                hash_of(&wrapped.key_id)
            )));
        }
        let seed = Arc::new(seed);
        // Values written with it are read without a question.
        self.known.lock().put((Source::Seed, wrapped.clone()), seed.clone());
        *self.writing.write() = Some(Writing { seed, wrapped, key_hash: hash_of(key_id), until, until_wall });
        Ok(())
    }

    /// Adds the plugin's lines to a page of figures.
    pub(super) fn write_figures(&self, out: &mut Text) {
        let cached = self.known.lock().len();
        self.figures.write(&self.name, cached, out);
    }
}

/// The figures of these plugins, as lines of the page of a server with an identity of this hash.
pub fn figures(plugins: &[Arc<Plugin>], server: &str) -> String {
    let mut text = Text::of(server);
    plugins.iter().for_each(|plugin| plugin.write_figures(&mut text));
    text.page()
}
