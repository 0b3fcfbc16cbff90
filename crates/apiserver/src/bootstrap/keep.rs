//! Keeps the objects in order that the server itself must find while it runs: the `kubernetes` Service and its endpoints, the
//! namespaces of the system, what extension servers read about authentication, and since when uses of old tokens are noted. Whoever
//! deletes or changes one finds it restored. The store tells of their changes; with a store of its own a quiet server does nothing.
//!
//! Built-in APIServices are restored at starts alone, as their label `onstart` says; those of custom kinds are kept by `custom`.
//!
//! Upstream counterpart: pkg/controlplane/controller (kubernetesservice, systemnamespaces, clusterauthenticationtrust,
//! legacytokentracking).

use std::sync::Arc;

use api::{kind::Target, meta, status::StatusError};
use clock::{Duration, Instant};
use futures::{StreamExt, stream};
use json::{Value, json};
use store::Watch;
use tokio::sync::{Mutex, Notify};

use super::{
    cluster::Cluster,
    endpoints::{LEASES, Place, RENEWAL},
    ensure_one,
    object::BootstrapObject,
    system,
};
use crate::storage::{error::store_error, object, object_store::ObjectStore};

/// The wait after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the note about tokens is made anew: servers with other settings must not make and delete it in turns.
const TRACKED_EVERY: Duration = Duration::from_secs(30 * 60);
/// The longest that a server which stops waits for a store that does not answer.
const LEAVING: Duration = Duration::from_secs(20);

pub struct Keeper {
    objects: Arc<ObjectStore>,
    place: Place,
    /// Made where they are missing, and left alone otherwise.
    made: Vec<BootstrapObject>,
    /// The object that extension servers are told by now. Held while it is written: nothing undoes what is told next.
    authentication: Mutex<BootstrapObject>,
    /// When this server last made the note about tokens.
    tracked: Mutex<Option<Instant>>,
    /// Held while endpoints are written; true once the server has taken its address away.
    left: Mutex<bool>,
    leaving: Notify,
}

impl Keeper {
    /// Before the objects are made, so that it knows whether this server makes them.
    pub async fn new(objects: Arc<ObjectStore>, cluster: &Cluster) -> Result<Self, StatusError> {
        let note = system::token_tracking(&cluster.now);
        let is_noted = is_there(&objects, &note).await?;
        let service = system::service(cluster).into_iter().filter(|one| one.plural == "services");
        Ok(Keeper {
            place: Place::of(cluster),
            made: system::namespaces().into_iter().chain(service).collect(),
            authentication: Mutex::new(system::authentication(cluster)),
            tracked: Mutex::new((!is_noted).then(Instant::now)),
            left: Mutex::new(false),
            leaving: Notify::new(),
            objects,
        })
    }

    /// Works until the server leaves, or for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            match self.changes().await {
                Ok(changes) => self.follow(changes).await,
                Err(error) => tracing::warn!(%error, "the server's own objects cannot be followed"),
            }
            if *self.left.lock().await {
                return;
            }
            clock::sleep(PAUSE).await;
        }
    }

    /// Everything that happens to the objects from now on.
    async fn changes(&self) -> Result<Watch, StatusError> {
        let mut all = Vec::new();
        for key in self.keys()? {
            all.push(self.objects.store.watch(&key, None).await.map_err(store_error)?);
        }
        Ok(stream::select_all(all).boxed())
    }

    fn keys(&self) -> Result<Vec<String>, StatusError> {
        let key = |group: &str, plural: &str, of: &Value| {
            let definition = self.objects.definition(group, plural)?;
            Ok(object::key(&definition, meta::namespace(of), meta::name(of)))
        };
        let of = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let mut keys = vec![
            key("", "endpoints", &of("default", "kubernetes"))?,
            key("discovery.k8s.io", "endpointslices", &of("default", "kubernetes"))?,
            key("", "configmaps", &of("kube-system", system::AUTHENTICATION))?,
            key("", "configmaps", &of("kube-system", system::TOKEN_TRACKING))?,
        ];
        for one in &self.made {
            keys.push(key(one.group, one.plural, &one.object)?);
        }
        keys.extend(self.objects.store.is_shared().then(|| LEASES.to_owned()));
        Ok(keys)
    }

    /// Puts everything right, and again whenever something changes; returns when the changes end or the server leaves.
    async fn follow(&self, mut changes: Watch) {
        let (mut renewed, mut begun): (Option<Instant>, bool) = (None, false);
        let (mut dirty, mut troubled) = (true, false);
        loop {
            let now = Instant::now();
            let due = self.objects.store.is_shared() && renewed.is_none_or(|at| now >= at + RENEWAL);
            let looked = async {
                let later = if dirty { self.look().await? } else { None };
                if dirty || due {
                    self.write_endpoints(due, !begun).await?;
                }
                Ok::<_, StatusError>(later)
            };
            let later = match looked.await {
                Ok(later) => {
                    (dirty, begun) = (false, true);
                    if std::mem::take(&mut troubled) {
                        tracing::info!("the server's own objects are kept in order again");
                    }
                    renewed = if due { Some(now) } else { renewed };
                    later
                }
                Err(error) => {
                    // Once: while the store is away there is one for each attempt.
                    if !std::mem::replace(&mut troubled, true) {
                        tracing::warn!(%error, "the server's own objects could not be kept in order");
                    }
                    dirty = true;
                    Some(PAUSE)
                }
            };
            let renewal = renewed.map(|at| (at + RENEWAL).saturating_duration_since(Instant::now()));
            let rest = async {
                match later.into_iter().chain(renewal).min() {
                    Some(rest) => clock::sleep(rest).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.leaving.notified() => return,
                () = rest => dirty |= later.is_some(),
                changed = changed(&mut changes) => {
                    if !changed {
                        return;
                    }
                    dirty = true;
                }
            }
        }
    }

    /// Makes and mends everything but the endpoints; says after how long there is something to do again.
    async fn look(&self) -> Result<Option<Duration>, StatusError> {
        for one in &self.made {
            if !is_there(&self.objects, one).await? {
                ensure_one(&self.objects, one).await?;
            }
        }
        let authentication = self.authentication.lock().await;
        ensure_one(&self.objects, &authentication).await?;
        drop(authentication);
        self.track_tokens().await
    }

    async fn track_tokens(&self) -> Result<Option<Duration>, StatusError> {
        let mut tracked = self.tracked.lock().await;
        let note = system::token_tracking(&clock::now_seconds().to_string());
        if is_there(&self.objects, &note).await? {
            let definition = self.objects.definition("", "configmaps")?;
            let mend = |present: &mut Value| {
                let known = present["data"]["since"].as_str().is_some_and(system::is_day);
                if !known {
                    present["data"]["since"] = note.object["data"]["since"].clone();
                }
                Ok(!known)
            };
            let of = (meta::namespace(&note.object), meta::name(&note.object));
            return match self.objects.update(&definition, of, Target::Object, mend).await {
                Err(error) if error.code != 404 => Err(error),
                _ => Ok(None),
            };
        }
        let now = Instant::now();
        if let Some(again) = tracked.map(|at| at + TRACKED_EVERY).filter(|again| now < *again) {
            return Ok(Some(again - now));
        }
        ensure_one(&self.objects, &note).await?;
        *tracked = Some(now);
        Ok(None)
    }

    async fn write_endpoints(&self, renew: bool, ports: bool) -> Result<(), StatusError> {
        let left = self.left.lock().await;
        if *left {
            return Ok(());
        }
        if renew {
            self.place.renew(&self.objects).await?;
        }
        self.place.write(&self.objects, ports).await
    }

    /// Tells extension servers whose certificates are believed now, and no longer those that this server told of before.
    pub async fn tell(&self, now: &Cluster) -> Result<(), StatusError> {
        let mut authentication = self.authentication.lock().await;
        let told = authentication.object["data"].clone();
        *authentication = system::authentication(now);
        ensure_one(&self.objects, &BootstrapObject { joins: Some(told), ..authentication.clone() }).await
    }

    /// Ends the work, and takes the server's address away from those where others are asked.
    pub async fn leave(&self) {
        let leave = async {
            let mut left = self.left.lock().await;
            if std::mem::replace(&mut *left, true) {
                return Ok(());
            }
            self.leaving.notify_one();
            self.place.leave(&self.objects).await
        };
        match clock::timeout(LEAVING, leave).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the server's address stays among the endpoints of kubernetes"),
            Err(_) => tracing::warn!("the store did not take the server's address away in time"),
        }
    }
}

async fn is_there(objects: &ObjectStore, one: &BootstrapObject) -> Result<bool, StatusError> {
    let definition = objects.definition(one.group, one.plural)?;
    match objects.entry(&definition, meta::namespace(&one.object), meta::name(&one.object)).await {
        Ok(_) => Ok(true),
        Err(error) if error.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for a change that matters; false when the changes end. That a server renewed its key means nothing.
async fn changed(changes: &mut Watch) -> bool {
    while let Some(Ok(batch)) = changes.next().await {
        let is_renewal =
            |event: &store::Event| event.key.starts_with(LEASES) && event.entry.is_some() && event.previous.is_some();
        if batch.events.iter().any(|event| !is_renewal(event)) {
            return true;
        }
    }
    false
}
