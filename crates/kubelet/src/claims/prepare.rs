//! Asks drivers to prepare the claims of Pods, and to take them back.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::rules::{pod, quantity};
use client::{Api, Client, Key};
use k8s_openapi::api::{
    core::v1::{Container, Pod, ResourceClaim as ResourceClaimRef},
    resource::v1::ResourceClaim,
};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::{
    claims::{
        checkpoint::{self, Checkpoint},
        drivers::{Driver, Drivers},
        messages::{Claim, Device},
        state::{Batches, ClaimToPrepare, Held, State},
    },
    volumes::folder::blocking,
};

/// The record of an earlier kubelet cannot be read, so nobody knows what its drivers have to take back.
#[derive(Debug, thiserror::Error)]
#[error("the record of prepared devices {path} cannot be read: {source}; drain the node and remove that file")]
pub struct Unreadable {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The file, and how many changes are in it. Held while it is written, so that the newest state is written last.
struct Writer {
    checkpoint: Checkpoint,
    written: u64,
}

pub struct Claims {
    pub drivers: Arc<Drivers>,
    client: Client,
    state: Mutex<State>,
    /// Held by whoever asks drivers about a claim: two Pods never do that about the same claim at once.
    locks: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    writer: Arc<tokio::sync::Mutex<Writer>>,
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// Compares an answer with the claims that were asked about: each of them has to be in it, no other one, and none with an
/// error. `call` is the name of the call, for people to read.
fn check<'a>(call: &str, claims: &[Claim], answer: impl Iterator<Item = (&'a String, &'a str)>) -> Result<(), String> {
    let mut answered = 0;
    for (uid, error) in answer {
        let Some(claim) = claims.iter().find(|claim| claim.uid == *uid) else {
            return Err(format!("{call} returned result for unknown claim UID {uid}"));
        };
        if !error.is_empty() {
            return Err(format!("{call} failed for ResourceClaim {}: {error}", claim.name));
        }
        answered += 1;
    }
    match claims.len() - answered {
        0 => Ok(()),
        skipped => Err(format!("{call} skipped {skipped} ResourceClaims")),
    }
}

/// A claim as its Pod may use it, in the words of upstream where it may not.
fn usable(pod: &Pod, named: &pod::DeviceClaim, claim: &ResourceClaim) -> Result<ClaimToPrepare, String> {
    let (key, name) = (Key::of(claim), pod.metadata.name.as_deref().unwrap_or_default());
    let claim_uid = claim.metadata.uid.clone().unwrap_or_default();
    if !named.is(claim, pod) {
        let place = namespace(pod);
        return Err(format!("ResourceClaim {key} was not created for pod {place}/{name} (pod is not owner)"));
    }
    if !pod::is_reserved_for(claim, pod) {
        let (claim_name, uid) = (&key.name, uid(pod));
        return Err(format!("pod {name} ({uid}) is not allowed to use ResourceClaim {claim_name} ({claim_uid})"));
    }
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| format!("ResourceClaim {}: not allocated", key.name))?;
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    Ok(ClaimToPrepare { drivers: results.map(|result| result.driver.clone()).collect(), key, uid: claim_uid })
}

/// The claims that a container uses, each with the name of a request of it, which is empty for all of them.
fn requests(pod: &Pod, container: &Container) -> Vec<(Key, String)> {
    let mut found = Vec::new();
    let of_container = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    for used in of_container {
        let named = pod::device_claims(pod).filter(|claim| claim.claim == used.name).filter_map(|claim| claim.name);
        found.extend(named.map(|name| (Key::new(namespace(pod), name), used.request.clone().unwrap_or_default())));
    }
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    if let Some(made) = extended {
        let asks = |resource: &str| {
            let amounts = container.resources.iter().flat_map(|resources| resources.requests.iter().flatten());
            amounts.into_iter().any(|(name, amount)| name == resource && quantity::parse(amount).value() > 0)
        };
        let mapped = made.request_mappings.iter();
        let own = mapped.filter(|one| one.container_name == container.name && asks(&one.resource_name));
        let key = Key::new(namespace(pod), made.resource_claim_name.as_str());
        found.extend(own.map(|one| (key.clone(), one.request_name.clone())));
    }
    found
}

impl Claims {
    /// The claims that an earlier kubelet had prepared. No driver is here yet.
    pub fn new(kubelet_root: &Path, client: Client, drivers: Arc<Drivers>) -> Result<Arc<Claims>, Unreadable> {
        let checkpoint = Checkpoint::new(kubelet_root);
        let read = checkpoint.read().map_err(|source| Unreadable { path: checkpoint.path().to_owned(), source });
        Ok(Arc::new(Claims {
            drivers,
            client,
            state: Mutex::new(State { claims: read?, changes: 0 }),
            locks: Mutex::default(),
            writer: Arc::new(tokio::sync::Mutex::new(Writer { checkpoint, written: 0 })),
        }))
    }

    /// Whether anything may be prepared for this Pod.
    pub fn holds(&self, pod: &str) -> bool {
        self.state.lock().claims.values().any(|held| held.pods.contains(pod))
    }

    /// The Pods, by uid, for which something may be prepared.
    pub fn pods(&self) -> BTreeSet<String> {
        self.state.lock().claims.values().flat_map(|held| held.pods.iter().cloned()).collect()
    }

    /// Nobody else asks drivers about these claims, which come in the order of their keys.
    async fn lock(&self, keys: BTreeSet<&Key>) -> Vec<OwnedMutexGuard<()>> {
        let locks: Vec<_> = {
            let mut locks = self.locks.lock();
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            keys.into_iter().map(|key| locks.entry(key.clone()).or_default().clone()).collect()
        };
        let mut held = Vec::new();
        for lock in locks {
            held.push(lock.lock_owned().await);
        }
        held
    }

    /// The claims of a Pod, which it may all use.
    async fn wanted(&self, pod: &Pod) -> Result<Vec<ClaimToPrepare>, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace(pod));
        let extended = pod::extended_claim(pod).map(|name| pod::DeviceClaim {
            claim: String::new(),
            name: Some(name.to_owned()),
            is_own: false,
        });
        let mut wanted: Vec<ClaimToPrepare> = Vec::new();
        for named in pod::device_claims(pod).chain(extended) {
            let name = named.name.as_deref().ok_or_else(|| {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                format!("pod \"{}/{name}\": ResourceClaim not created yet", namespace(pod))
            })?;
            let fetched = claims.get(name).await.map_err(|error| format!("fetch ResourceClaim {name}: {error}"))?;
            let claim = usable(pod, &named, &fetched)?;
            if !wanted.iter().any(|one| one.key == claim.key) {
                wanted.push(claim);
            }
        }
        Ok(wanted)
    }

    /// Has everything prepared that a Pod claims, or says why not. A claim that is prepared stays so, and this can be
    /// called again.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        // Nothing is written down before it is clear that there is somebody to ask: such a Pod can go without being stuck.
        let wanted = self.wanted(pod).await?;
        let mut drivers: BTreeMap<&str, Driver> = BTreeMap::new();
        for driver in wanted.iter().flat_map(|claim| &claim.drivers) {
            drivers.insert(driver, self.drivers.get(driver)?);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let _alone = self.lock(wanted.iter().map(|claim| &claim.key).collect()).await;
        let batches = self.state.lock().join(uid(pod), &wanted)?;
        self.write().await.map_err(|error| format!("checkpoint ResourceClaim cache: {error}"))?;
        self.ask(&drivers, batches).await?;
        self.state.lock().prepared(wanted.iter().map(|claim| &claim.key));
        self.write().await.map_err(|error| format!("checkpoint ResourceClaim state: {error}"))
    }

    async fn ask(&self, drivers: &BTreeMap<&str, Driver>, batches: Batches) -> Result<(), String> {
        for (name, claims) in batches {
            let driver = match drivers.get(name.as_str()) {
                Some(driver) => driver.clone(),
                None => self.drivers.get(&name)?,
            };
            let answer = driver.prepare(claims.clone()).await?;
            check("NodePrepareResources", &claims, answer.claims.iter().map(|(uid, one)| (uid, one.error.as_str())))?;
            let mut state = self.state.lock();
            for (uid, prepared) in answer.claims {
                if let Some(claim) = claims.iter().find(|claim| claim.uid == uid) {
                    state.named(claim, &name, prepared.devices);
                }
            }
        }
        Ok(())
    }

    /// The claims of a container of a Pod, as they were prepared.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Vec<(Key, Held)> {
        let keys: BTreeSet<Key> = requests(pod, container).into_iter().map(|(key, _)| key).collect();
        let state = self.state.lock();
        keys.into_iter().filter_map(|key| state.claims.get(&key).cloned().map(|held| (key, held))).collect()
    }

    /// The health of a container's devices by their names, for each of its requests.
    pub fn health(&self, pod: &Pod, container: &Container) -> Vec<(String, BTreeMap<String, &'static str>)> {
        let state = self.state.lock();
        let used = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        let of = |used: &ResourceClaimRef| {
            let named = pod::device_claims(pod).find(|claim| claim.claim == used.name)?.name?;
            let held = state.claims.get(&Key::new(namespace(pod), named))?;
            let request = used.request.as_deref().unwrap_or_default();
            // Drivers know nothing of the alternatives of a request.
            let base = request.split('/').next().unwrap_or_default();
            let is_for = |d: &&Device| {
                base.is_empty() || d.request_names.is_empty() || d.request_names.iter().any(|n| n == base)
            };
            let health = |(driver, all): (&String, &Vec<Device>)| -> Vec<(String, &'static str)> {
                let id = |d: &Device| format!("{driver}/{}/{}", d.pool_name, d.device_name);
                let id = |d: &Device| d.cdi_device_ids.first().cloned().unwrap_or_else(|| id(d));
                all.iter().filter(is_for).map(|d| (id(d), self.drivers.health(driver, d))).collect()
            };
            let devices: BTreeMap<_, _> = held.drivers.iter().flat_map(health).collect();
            let name = &used.name;
            let name = if request.is_empty() { format!("claim:{name}") } else { format!("claim:{name}/{request}") };
            Some((name, devices)).filter(|(_, devices)| !devices.is_empty())
        };
        used.filter_map(of).collect()
    }

    /// The names of the devices that a container of a Pod gets.
    pub fn given(&self, pod: &Pod, container: &Container) -> Result<BTreeSet<String>, String> {
        let state = self.state.lock();
        let mut given = BTreeSet::new();
        for (key, request) in requests(pod, container) {
            given.extend(state.ids(&key, &request)?.cloned());
        }
        Ok(given)
    }

    /// Nothing of a Pod runs any more: its drivers take back what no other Pod uses.
    pub async fn unprepare(&self, pod: &str) -> Result<(), String> {
        let keys = self.state.lock().of(pod);
        let _alone = self.lock(keys.iter().collect()).await;
        let batches = {
            let mut state = self.state.lock();
            let (batches, last) = state.last(pod);
            // Whatever comes of it: a Pod that comes to share them has to have them prepared.
            state.doubt(&last);
            batches
        };
        for (name, claims) in batches {
            let answer = self.drivers.get(&name)?.unprepare(claims.clone()).await?;
            check("NodeUnprepareResources", &claims, answer.claims.iter().map(|(uid, one)| (uid, one.error.as_str())))?;
        }
        self.state.lock().leave(pod);
        self.write().await.map_err(|error| format!("checkpoint ResourceClaim state: {error}"))
    }

    /// Everything that was changed before the call is on the disk after it.
    async fn write(&self) -> Result<(), io::Error> {
        let mut writer = self.writer.clone().lock_owned().await;
        let (text, changes) = {
            let state = self.state.lock();
            if state.changes == writer.written {
                return Ok(());
            }
            (checkpoint::render(&state), state.changes)
        };
        // Whoever waits for it may give up; the next one writes after it all the same.
        blocking(move || {
            writer.checkpoint.write(&text)?;
            writer.written = changes;
            Ok(())
        })
        .await
    }
}
