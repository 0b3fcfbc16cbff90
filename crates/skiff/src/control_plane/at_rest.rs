//! Values at rest: which keys the store's values are encrypted with, from a file that is followed while it changes.
//!
//! Without a flag a cluster encrypts its Secrets with a key of its own, which is made once and stands with the cluster's
//! other keys. It is never made where something is encrypted already: with another key nothing of that would be read.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use api::status::StatusError;
use apiserver::{auth::metrics::hash, router::Rewrite, storage::foreign};
use encryption::{
    Current, Encrypted, Table, configuration,
    kms::{self as plugins, Plugin},
    rewrite::{self, Known, Rewritten},
};
use futures::future::join_all;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use store::{Store, StoreError};
use tokio::sync::Mutex;

use crate::{
    control_plane::{fresh::LOOK, kms},
    flags::encryption::EncryptionFlags,
    layout::Layout,
};

/// The prefix of a cluster's keys in its store.
pub const REGISTRY: &str = "/registry/";

/// The pauses between questions to KMS plugins about their health, while all are well and while one is not.
const WELL: Duration = Duration::from_secs(60);
const ILL: Duration = Duration::from_secs(10);

/// How often a changed file was taken or refused, and when the last time.
#[derive(Default)]
struct Reloads {
    counts: [(AtomicU64, AtomicI64); 2],
    /// The hash of what is in use.
    taken: RwLock<String>,
}

impl Reloads {
    const STATUS: [&str; 2] = ["success", "failure"];

    fn count(&self, taken: bool) {
        let (count, second) = &self.counts[usize::from(!taken)];
        count.fetch_add(1, Ordering::Relaxed);
        second.store(clock::now().as_second(), Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, server: &str) {
        const NAME: &str = "apiserver_encryption_config_controller_automatic_reload";
        let happened =
            || Self::STATUS.iter().zip(&self.counts).filter(|(_, (count, _))| count.load(Ordering::Relaxed) > 0);
        if happened().next().is_none() {
            return;
        }
        let _ = writeln!(out, "# HELP {NAME}s_total Changes of the encryption configuration by what came of them.");
        let _ = writeln!(out, "# TYPE {NAME}s_total counter");
        for (status, (count, _)) in happened() {
            let _ = writeln!(
                out,
                "{NAME}s_total{{status=\"{status}\",apiserver_id_hash=\"{server}\"}} {}",
                count.load(Ordering::Relaxed)
            );
        }
        let _ = writeln!(out, "# HELP {NAME}_last_timestamp_seconds When the last of these was.");
        let _ = writeln!(out, "# TYPE {NAME}_last_timestamp_seconds gauge");
        for (status, (_, second)) in happened() {
            let second = second.load(Ordering::Relaxed);
            let labels = format!("status=\"{status}\",apiserver_id_hash=\"{server}\"");
            let _ = writeln!(out, "{NAME}_last_timestamp_seconds{{{labels}}} {second}");
        }
    }
}

/// The keys in use and the store below them.
#[derive(Clone)]
pub struct AtRest {
    file: PathBuf,
    /// The content of the file when it was read.
    read: Arc<Mutex<String>>,
    table: Arc<Current>,
    below: Arc<dyn Store>,
    follows: bool,
    reloads: Arc<Reloads>,
}

/// The first thing that is wrong with a plugin of the table. All are asked at once.
async fn ill(table: &Table) -> Option<String> {
    join_all(table.plugins().iter().map(|plugin: &Arc<Plugin>| plugin.check())).await.into_iter().find_map(Result::err)
}

impl AtRest {
    /// Reads the keys for a store, or makes the cluster's own. KMS plugins may come later: until then nothing is written that
    /// they are to encrypt.
    pub async fn open(flags: &EncryptionFlags, layout: &Layout, below: Arc<dyn Store>) -> anyhow::Result<Self> {
        let given = flags.encryption_provider_config.clone();
        let follows = given.is_none() || flags.encryption_provider_config_automatic_reload;
        let file = given.unwrap_or_else(|| layout.encryption());
        if flags.encryption_provider_config.is_none() && !file.exists() {
            let encrypted = rewrite::known(&*below, &encryption::Table::default()).await?;
            if let Known::None { key } = encrypted {
                bail!("the keys of this cluster's store are missing: {} is encrypted, and {}", key, missing(&file));
            }
            pki::file::write(&file, configuration::own().as_bytes())?;
        }
        let text = read(&file)?;
        let table = configuration::parse(&text, &kms::connect).map_err(|why| wrong(&file, &why))?;
        if let Some(why) = ill(&table).await {
            tracing::warn!("a KMS plugin is not ready: {why}");
        }
        if let Known::None { key } = rewrite::known(&*below, &table).await? {
            bail!(
                "{} names none of the keys that the store's values are encrypted with, such as that of {key}; add these keys \
                 behind the first, or start with the file that names them",
                file.display()
            );
        }
        let reloads = Reloads { taken: RwLock::new(hash(&text)), ..Reloads::default() };
        let (read, table) = (Arc::new(Mutex::new(text)), Current::new(table));
        Ok(AtRest { file, read, table, below, follows, reloads: Arc::new(reloads) })
    }

    /// The store as the API server sees it. With `cbor` custom objects are written as upstream writes them behind its gate.
    pub fn store(&self, cbor: bool) -> Arc<dyn Store> {
        let store = Encrypted::new(self.below.clone(), self.table.clone()).reading(foreign::as_text);
        Arc::new(store.writing(if cbor { Some(foreign::as_cbor) } else { None }))
    }

    /// Reads the file again if it may change. Keys that are in use stay when it is wrong, or names a plugin that is not well.
    pub async fn look(&self) -> anyhow::Result<()> {
        if !self.follows {
            return Ok(());
        }
        let text = read(&self.file)?;
        let mut known = self.read.lock().await;
        if *known == text {
            return Ok(());
        }
        let table = configuration::parse(&text, &kms::connect);
        let ready = match table {
            Ok(table) => ill(&table).await.map_or(Ok(table), Err),
            Err(why) => Err(why),
        };
        self.reloads.count(ready.is_ok());
        self.table.replace(ready.map_err(|why| wrong(&self.file, &why))?);
        *self.reloads.taken.write() = hash(&text);
        *known = text;
        tracing::info!(file = %self.file.display(), "the store's values are encrypted as the changed file says");
        Ok(())
    }

    /// Rewrites for those who ask the server.
    pub fn answering(self) -> Rewrite {
        Box::new(move || {
            let own = self.clone();
            Box::pin(async move {
                let mut done = Done::of(own.rewrite().await.map_err(|why| StatusError::internal(format!("{why:#}")))?);
                done.configuration = own.reloads.taken.read().clone();
                json::to_value(&done).map_err(StatusError::internal)
            })
        })
    }

    /// Follows the file until cancelled. A failure is said once, until it is another one.
    pub async fn follow(self) {
        if !self.follows {
            return;
        }
        let mut said = String::new();
        loop {
            clock::sleep(LOOK).await;
            let wrong = self.look().await.err().map(|e| format!("{e:#}")).unwrap_or_default();
            if wrong != said && !wrong.is_empty() {
                tracing::error!("the keys of the store's values stay as they were: {wrong}");
            }
            said = wrong;
        }
    }

    /// Asks the KMS plugins of now how they are, again and again, so that a change of their keys is followed. A failure is
    /// said once, until it is another one.
    pub async fn tend(self) {
        let mut said = None;
        loop {
            let wrong = ill(&self.table.get()).await;
            if let Some(why) = wrong.as_ref().filter(|_| wrong != said) {
                tracing::error!("a KMS plugin is not well: {why}");
            }
            clock::sleep(if wrong.is_some() { ILL } else { WELL }).await;
            said = wrong;
        }
    }

    /// Whether there are plugins, or may be some later: then their health is one of the server's checks.
    pub fn asks_plugins(&self) -> bool {
        self.follows || !self.table.get().plugins().is_empty()
    }

    /// Whether all plugins are well.
    pub async fn plugins_are_well(self) -> Result<(), String> {
        ill(&self.table.get()).await.map_or(Ok(()), Err)
    }

    /// The figures of values that were written and read, of plugins, and of changes of the file, as the server of this name shows
    /// them.
    pub fn figures(&self, server: &str) -> String {
        const INFO: &str = "apiserver_encryption_config_controller_last_config_info";
        let server = hash(server);
        let mut page = self.table.figures() + &plugins::figures(self.table.get().plugins(), &server);
        self.reloads.write(&mut page, &server);
        let _ = writeln!(page, "# HELP {INFO} The encryption configuration that was taken last, by its hash.");
        let _ = writeln!(page, "# TYPE {INFO} gauge");
        let taken = self.reloads.taken.read();
        let _ = writeln!(page, "{INFO}{{apiserver_id_hash=\"{server}\",hash=\"{taken}\"}} 1");
        page
    }

    /// Writes everything once more that is not encrypted with the first key, by the file as it is now.
    pub async fn rewrite(&self) -> anyhow::Result<Rewritten> {
        self.look().await?;
        rewrite::rewrite(self.below.clone(), self.table.clone(), lifetime).await.map_err(failed)
    }
}

/// A server's answer to one who asks it to rewrite.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    written: usize,
    right: usize,
    unreadable: Vec<String>,
    /// The hash of the configuration that the server follows.
    #[serde(default)]
    configuration: String,
}

/// The number of values that nobody can read that are named; the others are like them.
const NAMED: usize = 20;

impl Done {
    pub fn of(rewritten: Rewritten) -> Self {
        let Rewritten { written, right, unreadable } = rewritten;
        Done { written, right, unreadable, configuration: String::new() }
    }

    /// Refuses to take it for what was asked for where the server follows another file than this one.
    pub fn by(&self, file: &Path) -> anyhow::Result<()> {
        if hash(&read(file)?) == self.configuration {
            return Ok(());
        }
        bail!(
            "the server that runs encrypts as another file says than {}; change the file that it was started with, and leave \
             --encryption-provider-config out",
            file.display()
        )
    }

    /// Says it to people; an error when something is left as it was.
    pub fn show(&self) -> anyhow::Result<()> {
        println!("{} values written once more, {} were right already", self.written, self.right);
        if self.unreadable.is_empty() {
            return Ok(());
        }
        for why in self.unreadable.iter().take(NAMED) {
            println!("{why}");
        }
        bail!(
            "{} values cannot be read and stay as they are; name the keys that they are encrypted with, behind the first",
            self.unreadable.len()
        )
    }
}

fn failed(error: StoreError) -> anyhow::Error {
    anyhow::Error::new(error).context("what was rewritten before stays; try again")
}

fn missing(file: &Path) -> String {
    format!(
        "{} is not there; put it back (from a copy, or from another server of the cluster), or name the keys with \
         --encryption-provider-config",
        file.display()
    )
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn wrong(file: &Path, why: &str) -> anyhow::Error {
    anyhow::anyhow!("{}: {why}", file.display())
}

/// The lifetime of objects of some kinds, in seconds; one that is written once more lives for that time again.
pub fn lifetime(key: &str) -> Option<u32> {
    let folder = key.strip_prefix(REGISTRY)?.split('/').next()?;
    api::kinds::built_in().all().iter().find(|d| d.storage_prefix == folder)?.lifetime_seconds
}

#[cfg(test)]
mod tests {
    use store::{Change, Commit, Expect, embedded::Embedded};

    use super::*;

    /// The form of a Secret that is written now.
    async fn form(at_rest: &AtRest) -> String {
        let key: Arc<str> = "/registry/secrets/n/a".into();
        let change = Change::Put { value: "plain".into(), ttl_seconds: None };
        at_rest.store(false).commit(Commit { key: key.clone(), expect: Expect::Any, change }).await.unwrap();
        let stored = at_rest.below.get(&key).await.unwrap().0.unwrap().value;
        String::from_utf8_lossy(&stored).split(':').take(5).collect::<Vec<_>>().join(":")
    }

    fn configured(provider: &str) -> String {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n";
        format!("{head}- resources: [secrets]\n  providers: [{provider}]\n")
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_changes_is_followed_where_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, file) = (Layout::new(folder.path()), folder.path().join("keys.yaml"));
        let key = "{aescbc: {keys: [{name: a, secret: AAECAwQFBgcICQoLDA0ODw==}]}}";
        for follows in [true, false] {
            std::fs::write(&file, configured("{identity: {}}")).unwrap();
            let flags = EncryptionFlags {
                encryption_provider_config: Some(file.clone()),
                encryption_provider_config_automatic_reload: follows,
            };
            let at_rest = AtRest::open(&flags, &layout, Arc::new(Embedded::memory())).await.unwrap();
            let following = tokio::spawn(at_rest.clone().follow());
            assert_eq!(form(&at_rest).await, "plain");
            // A file that is wrong changes nothing.
            for (text, expected) in
                [("rubbish", "plain"), (&configured(key), "k8s:enc:aescbc:v1:a"), ("", "k8s:enc:aescbc:v1:a")]
            {
                std::fs::write(&file, text).unwrap();
                clock::sleep(LOOK * 2).await;
                assert_eq!(form(&at_rest).await, if follows { expected } else { "plain" });
            }
            following.abort();
        }
    }

    #[tokio::test]
    async fn a_plugin_that_is_away_keeps_no_server_from_starting_and_takes_no_keys_away() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, file) = (Layout::new(folder.path()), folder.path().join("keys.yaml"));
        let socket = folder.path().join("kms.sock");
        let plugin = format!("{{kms: {{apiVersion: v2, name: p, endpoint: \"unix://{}\"}}}}", socket.display());
        let flags = EncryptionFlags {
            encryption_provider_config: Some(file.clone()),
            encryption_provider_config_automatic_reload: true,
        };
        std::fs::write(&file, configured(&plugin)).unwrap();
        let at_rest = AtRest::open(&flags, &layout, Arc::new(Embedded::memory())).await.unwrap();
        assert!(at_rest.asks_plugins());
        let ill = at_rest.clone().plugins_are_well().await.unwrap_err();
        assert!(ill.contains("KMS Provider p, error: rpc error: code = Unavailable"), "{ill}");
        std::fs::write(&file, configured("{identity: {}}")).unwrap();
        at_rest.look().await.unwrap();
        assert_eq!(at_rest.clone().plugins_are_well().await, Ok(()));
        std::fs::write(&file, configured(&plugin)).unwrap();
        assert!(at_rest.look().await.is_err());
        assert_eq!(form(&at_rest).await, "plain");
        let page = at_rest.figures("apiserver-x");
        let server = hash("apiserver-x");
        let name = "apiserver_encryption_config_controller_automatic_reloads_total";
        for (status, count) in [("success", 1), ("failure", 1)] {
            assert!(
                page.contains(&format!("{name}{{status=\"{status}\",apiserver_id_hash=\"{server}\"}} {count}\n")),
                "{page}"
            );
        }
    }
}
