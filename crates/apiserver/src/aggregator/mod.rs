//! The aggregator: group versions that other API servers serve, as APIServices name them.
//!
//! `registrations` is the table by which requests are resolved, kept by the changes of the objects. For each group version that
//! another server serves, one task keeps the condition `Available` (`availability`) and one what the server tells of itself for
//! discovery and OpenAPI (`told`). Passing a request on is `special/aggregated.rs`.
//! Upstream counterpart: kube-aggregator.

pub mod availability;
pub mod backend;
pub mod identity;
pub mod openapi;
pub mod registrations;
pub mod told;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use api::{Value, kind::Definition, meta, status::StatusError};
use dialer::Endpoint;
use meter::{Metric, Metrics, labels, told as page};
use parking_lot::{Mutex, RwLock};
use pki::Serving;
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
};

use self::{
    availability::Verdict,
    registrations::{Backend, Registration, Registrations, Trust},
    told::Told,
};
use crate::{
    outbound::{
        dialer::Dialer,
        service::{Routing, SLICE_OF},
    },
    storage::{informer::EventHandler, object_store::ObjectStore},
};

static UNAVAILABLE: Metric = Metric::gauge(
    "aggregator_unavailable_apiservice",
    "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
);
static FELL: Metric = Metric::counter(
    "aggregator_unavailable_apiservice_total",
    "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
);

/// The number of trusts whose connections are kept; with one more all begin anew.
const DIALERS: usize = 256;

/// Group versions of other servers. One with the default settings reaches none.
pub struct Aggregator {
    /// The certificate of the front proxy.
    shown: Option<Arc<Serving>>,
    /// Which address behind a Service is dialed.
    pub routing: Routing,
    /// Reaches servers whose certificates nobody checks, for the condition.
    checker: Result<Dialer, String>,
    /// Tells this server apart from others that a request may have come through.
    pub id: String,
    table: RwLock<Arc<Registrations>>,
    /// Connections by what is believed on them.
    dialers: Mutex<HashMap<Trust, Arc<Dialer>>>,
    told: RwLock<HashMap<String, Told>>,
    /// Grows with what is told.
    generation: AtomicU64,
    wakes: Mutex<HashMap<String, Arc<Wakes>>>,
    changed: Notify,
    counts: Metrics,
}

/// Wakes the tasks of one group version.
#[derive(Default)]
pub struct Wakes {
    check: Notify,
    ask: Notify,
}

impl Default for Aggregator {
    fn default() -> Self {
        Aggregator::new(None, Routing::default())
    }
}

impl Aggregator {
    /// `shown` is the front proxy's certificate.
    pub fn new(shown: Option<Arc<Serving>>, routing: Routing) -> Self {
        Aggregator {
            checker: backend::dialer(&Trust::Anybody, shown.as_ref()),
            shown,
            routing,
            id: clock::uuid(),
            table: RwLock::default(),
            dialers: Mutex::default(),
            told: RwLock::default(),
            generation: AtomicU64::new(0),
            wakes: Mutex::default(),
            changed: Notify::new(),
            counts: Metrics::new(),
        }
    }

    /// Follows APIServices, and the Services that they name, from now on. The tasks end when the set is dropped.
    pub async fn start(self: &Arc<Self>, objects: &Arc<ObjectStore>) -> Result<JoinSet<()>, StatusError> {
        let follow = async |group, plural, handler: Arc<dyn EventHandler>| {
            objects.add_event_handler(&objects.definition(group, plural)?, handler).await
        };
        follow("apiregistration.k8s.io", "apiservices", Arc::new(Following(self.clone()))).await?;
        for (group, plural) in [("", "services"), ("discovery.k8s.io", "endpointslices")] {
            follow(group, plural, Arc::new(Nearby(self.clone()))).await?;
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(run(self.clone(), objects.clone()));
        Ok(tasks)
    }

    pub fn table(&self) -> Arc<Registrations> {
        self.table.read().clone()
    }

    /// The documents that another server told of a group version.
    pub fn told(&self, name: &str) -> Option<Told> {
        self.told.read().get(name).cloned()
    }

    /// Grows with every change of what other servers told.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn learn(&self, name: &str, told: Told) {
        if self.told.read().get(name) != Some(&told) {
            self.told.write().insert(name.to_owned(), told);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn wakes(&self, name: &str) -> Arc<Wakes> {
        self.wakes.lock().entry(name.to_owned()).or_default().clone()
    }

    /// Connections on which this is believed. The error is a setting's.
    pub fn dialer(&self, trust: &Trust) -> Result<Arc<Dialer>, String> {
        let mut dialers = self.dialers.lock();
        if let Some(dialer) = dialers.get(trust) {
            return Ok(dialer.clone());
        }
        let dialer = Arc::new(backend::dialer(trust, self.shown.as_ref())?);
        if dialers.len() >= DIALERS {
            dialers.clear();
        }
        dialers.insert(trust.clone(), dialer.clone());
        Ok(dialer)
    }

    /// Where a server listens now.
    pub async fn endpoint(&self, objects: &ObjectStore, to: &Backend) -> Result<Endpoint, StatusError> {
        self.routing.endpoint(objects, (&to.namespace, &to.name, to.port)).await
    }

    /// A line for each APIService, as upstream's page of metrics has it; nothing where there are none.
    pub fn metrics(&self) -> String {
        let table = self.table();
        let lines = table.all().map(|r| (labels(&[("name", &r.name)]), f64::from(u8::from(!r.available))));
        page(&UNAVAILABLE, lines) + &self.counts.render()
    }

    fn set(&self, name: &str, registration: Option<Registration>) {
        let old = self.table().by_name(name).cloned();
        let without_condition =
            |r: &Registration| Registration { available: false, reason: String::new(), ..r.clone() };
        let moved = old.as_deref().map(without_condition) != registration.as_ref().map(without_condition);
        let turned = old.as_ref().map(|r| r.available) != registration.as_ref().map(|r| r.available);
        if let Some(now) = registration.as_ref().filter(|now| !now.available)
            && old.as_ref().is_some_and(|old| old.available)
        {
            self.counts.count(&FELL, &[("name", name), ("reason", &now.reason)]);
        }
        let mut table = self.table.write();
        *table = Arc::new(table.with(name, registration));
        drop(table);
        let wakes = self.wakes(name);
        if moved {
            wakes.check.notify_one();
            self.changed.notify_one();
        }
        if moved || turned {
            self.generation.fetch_add(1, Ordering::AcqRel);
            wakes.ask.notify_one();
        }
    }

    /// Forgets what belongs to group versions that no other server serves any more.
    fn forget(&self) {
        let table = self.table();
        let stays = |name: &String| table.passed_on().any(|r| r.name == *name);
        self.told.write().retain(|name, _| stays(name));
        self.wakes.lock().retain(|name, _| stays(name));
    }
}

/// Starts the tasks of each group version that another server serves, and puts local ones right.
async fn run(aggregator: Arc<Aggregator>, objects: Arc<ObjectStore>) {
    let mut tasks = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        aggregator.forget();
        let table = aggregator.table();
        for registration in table.passed_on() {
            if running.get(&registration.name).is_none_or(AbortHandle::is_finished) {
                let (aggregator, objects, name) = (aggregator.clone(), objects.clone(), registration.name.clone());
                let task = tasks.spawn(async move {
                    tokio::join!(
                        availability::keep(&aggregator, &objects, &name),
                        told::keep(&aggregator, &objects, &name)
                    );
                });
                running.insert(registration.name.clone(), task);
            }
        }
        for local in table.all().filter(|r| r.backend.is_none() && (!r.available || r.reason != "Local")) {
            if let Err(error) = availability::tell(&objects, &local.name, &Verdict::local()).await {
                tracing::debug!(name = local.name, %error, "the condition of an APIService cannot be written");
            }
        }
        while tasks.try_join_next().is_some() {}
        running.retain(|_, task| !task.is_finished());
        aggregator.changed.notified().await;
    }
}

/// Takes over each change of an APIService.
struct Following(Arc<Aggregator>);

impl EventHandler for Following {
    fn changed(&self, _: &Definition, _: &str, name: &str, object: Option<&Value>) {
        self.0.set(name, object.and_then(Registration::of));
    }
}

/// Notes that something changed about a Service that an APIService names.
struct Nearby(Arc<Aggregator>);

impl EventHandler for Nearby {
    /// Inside a string the quotes would be escaped, so the text finds the name as a value and nothing else.
    fn wants(&self, stored: &[u8]) -> bool {
        let table = self.0.table();
        let mut backends = table.passed_on().filter_map(|r| r.backend.as_ref());
        backends.any(|to| memchr::memmem::find(stored, format!("\"{}\"", to.name).as_bytes()).is_some())
    }

    fn changed(&self, definition: &Definition, namespace: &str, name: &str, object: Option<&Value>) {
        let table = self.0.table();
        let of = |to: &Backend| {
            let named = match object {
                Some(object) if definition.plural == "endpointslices" => {
                    meta::labels(object).and_then(|l| l.get(SLICE_OF)).is_some_and(|of| *of == *to.name)
                }
                // The content of a slice that is gone is not known, but its name begins with its Service's.
                _ => name.starts_with(&to.name),
            };
            to.namespace == namespace && named
        };
        for registration in table.passed_on().filter(|r| r.backend.as_ref().is_some_and(of)) {
            self.0.wakes(&registration.name).check.notify_one();
        }
    }
}
