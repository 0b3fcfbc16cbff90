//! One Pod's use of a volume: all that its driver is asked with. And turns: what is done about a volume is done one after another.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{
    csi::{
        drivers::Driver,
        messages::{Ability, VolumeCapability},
        record::Record,
        volume::{SecretName, Settings, Volume},
    },
    volumes::{folder::PodFolder, sources::Sources},
};

/// The wish of a Pod for a volume.
pub struct Wish<'a> {
    pub pod: &'a Pod,
    /// The volume's name in the Pod.
    pub name: &'a str,
    pub folder: &'a PodFolder,
    pub sources: &'a dyn Sources,
    pub volume: Volume,
    /// The group that is to own the files.
    pub group: Option<u32>,
    /// The SELinux label that it is to be mounted with, if its driver can do that, or why there is none.
    pub label: Result<Option<String>, String>,
    /// The Pod has it: it is published again if its driver wants that.
    pub is_mounted: bool,
}

pub struct Usage<'a> {
    pub wish: &'a Wish<'a>,
    pub settings: Settings,
    pub record: Record,
    pub driver: Arc<Driver>,
    pub abilities: BTreeSet<Ability>,
    /// The attacher's message to the driver.
    pub context: BTreeMap<String, String>,
}

impl Usage<'_> {
    pub fn can(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    pub fn capability(&self) -> VolumeCapability {
        let group = self.wish.group.filter(|_| self.can(Ability::VolumeMountGroup));
        self.wish.volume.capability(&self.abilities, group, &self.record.label)
    }

    /// The content of a Secret that the driver wants to see.
    pub async fn secret(&self, secret: &SecretName) -> Result<BTreeMap<String, String>, String> {
        let (namespace, name) = secret;
        let found = self.wish.sources.secret(namespace, name).await;
        let found = found.map_err(|error| error.to_string());
        let data = found.and_then(|data| data.ok_or_else(|| format!("secrets {name:?} not found"))).map_err(|why| {
            format!("{namespace}/{name} failed: failed to find the secret {name} in the namespace {namespace} with error: {why}")
        })?;
        Ok(data.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned())).collect())
    }
}

type Turn = tokio::sync::Mutex<()>;

/// The volumes that are worked on, each with its turn. Those that nobody works on are not in it.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<(String, String), Weak<Turn>>>);

impl Turns {
    /// Waits for its turn at a volume; dropping it is the end of that.
    pub async fn take(&self, record: &Record) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let held = turns.entry((record.driver.clone(), record.handle.clone())).or_default();
            held.upgrade().unwrap_or_else(|| {
                let turn = Arc::default();
                *held = Arc::downgrade(&turn);
                turn
            })
        };
        turn.lock_owned().await
    }
}
