//! The task that keeps Services, IPAddresses, the map of node ports and the default ServiceCIDR in order: at the start,
//! and again some time after IPAddresses or ServiceCIDRs changed. A quiet cluster costs nothing.
//!
//! The disorder is judged in `mend.rs`, of a snapshot of one revision; every step compares the state that it was judged
//! by. So servers of one store may do this at the same time, and a Service that is written meanwhile keeps what it has.
//! Upstream counterpart: as `mend.rs`, and pkg/controlplane/controller/defaultservicecidr.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use api::{Value, kind::Target, meta, status::StatusError};
use clock::Instant;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use ipnet::IpNet;
use json::json;
use store::{Change, Commit, Entry, Expect, Range, Refused, Revision, StoreError};
use tokio_util::task::AbortOnDropHandle;

use super::{
    addresses::{self, Addresses, ranges_of},
    held,
    mend::{self, About, Holder, Plan, Snapshot, Step, Told},
    port_map::{self, PortMap},
};
use crate::{
    bootstrap::system,
    storage::{error::store_error, object, object_store::ObjectStore},
};

/// The time between two looks at everything, upstream's.
const INTERVAL: Duration = Duration::from_secs(180);
/// How many further looks follow one that had something to mend.
const ROUNDS: usize = 4;
/// Steps under way at the same time.
const AT_ONCE: usize = 64;
/// The most events that one look tells users.
const TOLD_MAX: usize = 100;
/// Decoded objects between which others get their turn on this thread.
const DECODED: usize = 64;

const GROUP: &str = "networking.k8s.io";

/// The task; dropping it ends it.
pub struct Task(#[expect(dead_code, reason = "held for its end")] AbortOnDropHandle<()>);

pub struct Repair {
    objects: Arc<ObjectStore>,
    addresses: Arc<Addresses>,
    ranges: Vec<IpNet>,
    node_ports: RangeInclusive<u16>,
}

impl Repair {
    pub fn new(
        objects: Arc<ObjectStore>,
        addresses: Arc<Addresses>,
        ranges: &[IpNet],
        node_ports: RangeInclusive<u16>,
    ) -> Self {
        let ranges = ranges.iter().map(IpNet::trunc).collect();
        Repair { objects, addresses, ranges, node_ports }
    }

    /// Returns when everything was looked at once.
    pub async fn start(self) -> Result<Task, StatusError> {
        self.keep_default_range().await?;
        let again = self.look().await?;
        let task = tokio::spawn(self.run(again.map(|again| Instant::now() + again)));
        Ok(Task(AbortOnDropHandle::new(task)))
    }

    async fn run(self, mut due: Option<Instant>) {
        loop {
            let soon = Instant::now() + INTERVAL;
            tokio::select! {
                () = self.addresses.changed() => {
                    due.get_or_insert(soon);
                }
                () = self.addresses.cidrs_changed() => {
                    due.get_or_insert(soon);
                    if let Err(error) = self.keep_default_range().await {
                        tracing::warn!(error = error.message, "the default ServiceCIDR cannot be kept");
                    }
                }
                () = clock::sleep_until(due.unwrap_or(soon)), if due.is_some() => {
                    due = match self.look().await {
                        Ok(again) => again.map(|again| Instant::now() + again),
                        Err(error) => {
                            tracing::warn!(error = error.message, "addresses and ports of Services cannot be looked at");
                            Some(soon)
                        }
                    };
                }
            }
        }
    }

    /// Looks at everything and mends it; returns when something wants to be looked at again.
    async fn look(&self) -> Result<Option<Duration>, StatusError> {
        let mut again = None;
        for _ in 0..ROUNDS {
            let (snapshot, seen) = self.snapshot().await?;
            let plan = mend::plan(&snapshot);
            again = plan.again;
            for told in plan.told.iter().take(TOLD_MAX) {
                tracing::warn!(reason = told.reason, "{}", told.message);
                self.tell(told, &snapshot).await;
            }
            if plan.steps.is_empty() && plan.map.is_none() {
                break;
            }
            self.act(&plan, &snapshot, seen).await?;
        }
        Ok(again)
    }

    async fn act(&self, plan: &Plan, snapshot: &Snapshot, seen: Option<Revision>) -> Result<(), StatusError> {
        if let Some(map) = &plan.map {
            let expect = seen.map_or(Expect::Absent, Expect::Modified);
            let change = Change::Put { value: map.encode(), ttl_seconds: None };
            self.commit(Commit { key: port_map::KEY.into(), expect, change }).await?;
        }
        let steps: Vec<BoxFuture<'_, _>> = plan.steps.iter().map(|step| self.step(step, snapshot).boxed()).collect();
        stream::iter(steps).buffer_unordered(AT_ONCE).try_collect::<()>().await
    }

    async fn step(&self, step: &Step, snapshot: &Snapshot) -> Result<(), StatusError> {
        let remove = |address, seen| {
            let key = self.addresses.key(address);
            self.commit(Commit { key, expect: Expect::Modified(seen), change: Change::Delete })
        };
        let (address, place) = match step {
            Step::Remove(address, seen) => return remove(address, *seen).await,
            Step::Recreate(address, seen, place) => {
                remove(address, *seen).await?;
                (address, *place)
            }
            Step::Create(address, place) => (address, *place),
        };
        let service = &snapshot.services[place];
        let value = addresses::stored_form(address, &service.namespace, &service.name);
        let change = Change::Put { value, ttl_seconds: None };
        self.commit(Commit { key: self.addresses.key(address), expect: Expect::Absent, change }).await
    }

    /// Commits a step. When somebody else was faster, the next look sees what they did.
    async fn commit(&self, commit: Commit) -> Result<(), StatusError> {
        match self.objects.store.commit_all(vec![commit]).await {
            Ok(_) | Err(Refused { error: StoreError::Conflict { .. }, .. }) => Ok(()),
            Err(refused) => Err(store_error(refused.error)),
        }
    }

    /// Everything as of one revision, and the revision that wrote the map of node ports.
    async fn snapshot(&self) -> Result<(Snapshot, Option<Revision>), StatusError> {
        let services = self.objects.definition("", "services")?;
        let page = self.objects.store.range(Range::prefix(&object::key(&services, "", ""))).await;
        let page = page.map_err(store_error)?;
        let mut holders = Vec::with_capacity(page.entries.len());
        for entries in page.entries.chunks(DECODED) {
            holders.extend(entries.iter().map(|entry| holder(&object::value(&entry.value, entry.modified))));
            tokio::task::yield_now().await;
        }
        let at = async |prefix: String| -> Result<Vec<Entry>, StatusError> {
            let range = Range { revision: Some(page.revision), ..Range::prefix(&prefix) };
            Ok(self.objects.store.range(range).await.map_err(store_error)?.entries)
        };
        let mut addresses = Vec::new();
        for entries in at(object::key(&*self.objects.definition(GROUP, "ipaddresses")?, "", "")).await?.chunks(DECODED)
        {
            addresses.extend(entries.iter().map(|e| (object::value(&e.value, e.modified), e.modified)));
            tokio::task::yield_now().await;
        }
        let cidrs = at(object::key(&*self.objects.definition(GROUP, "servicecidrs")?, "", "")).await?;
        let ranges = cidrs.iter().flat_map(|entry| ranges_of(&object::value(&entry.value, entry.modified))).collect();
        let map = at(port_map::KEY.to_owned()).await?.into_iter().find(|entry| &*entry.key == port_map::KEY);
        let snapshot = Snapshot {
            services: holders,
            addresses,
            ranges,
            map: map.as_ref().and_then(|entry| PortMap::decode(&entry.value, &self.node_ports).ok()),
            node_ports: self.node_ports.clone(),
            now: clock::now(),
        };
        Ok((snapshot, map.map(|entry| entry.modified)))
    }

    /// Makes the ServiceCIDR of the flag when there is none, and adds the second family to it. One that says something else
    /// is the administrator's.
    async fn keep_default_range(&self) -> Result<(), StatusError> {
        let definition = self.objects.definition(GROUP, "servicecidrs")?;
        let wanted = system::service_range(&self.ranges, &clock::now_seconds().to_string()).object;
        let name = meta::name(&wanted).to_owned();
        let cidrs = &wanted["spec"]["cidrs"];
        let widen = |present: &mut Value| {
            let own = ranges_of(present);
            let joins = own.len() == 1 && self.ranges.len() == 2 && own[0] == self.ranges[0];
            if joins && meta::deletion_timestamp(present).is_none() {
                present["spec"]["cidrs"] = cidrs.clone();
            }
            Ok(joins)
        };
        match self.objects.update(&definition, ("", &name), Target::Object, widen).await {
            Err(error) if error.code == 404 => {}
            done => return done,
        }
        match self.objects.create(&definition, wanted).await {
            // Another server was faster.
            Err(error) if error.code == 409 => Ok(()),
            done => done,
        }
    }

    async fn tell(&self, told: &Told, snapshot: &Snapshot) {
        let regarding = match told.about {
            About::Service(place) => {
                let Holder { namespace, name, uid, .. } = &snapshot.services[place];
                json!({"apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": name, "uid": uid})
            }
            About::Address(place) => {
                let object = &snapshot.addresses[place].0;
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "name": meta::name(object),
                    "uid": meta::uid(object)})
            }
        };
        if let Err(error) = self.write_event(told, regarding).await {
            tracing::debug!(error = error.message, reason = told.reason, "an event could not be written");
        }
    }

    async fn write_event(&self, told: &Told, regarding: Value) -> Result<(), StatusError> {
        let now = clock::now();
        let text = |field: &str| regarding[field].as_str().filter(|text| !text.is_empty());
        let (name, namespace) = (text("name").unwrap_or("unknown"), text("namespace").unwrap_or("default"));
        let mut event = json!({
            "metadata": {"name": format!("{name}.{:x}", now.as_nanosecond()), "namespace": namespace},
            "reason": told.reason, "message": told.message, "type": "Warning", "involvedObject": regarding,
            "reportingComponent": told.component,
        });
        if told.action.is_empty() {
            event["source"] = json!({"component": told.component});
            event["firstTimestamp"] = json!(clock::now_seconds());
            event["lastTimestamp"] = json!(clock::now_seconds());
            event["count"] = json!(1);
        } else {
            event["action"] = json!(told.action);
            event["eventTime"] = json!(format!("{now:.6}"));
            event["reportingInstance"] = json!(told.component);
        }
        self.objects.create(&*self.objects.definition("", "events")?, event).await
    }
}

fn holder(service: &Value) -> Holder {
    let (addresses, ports) = held(service);
    Holder {
        namespace: meta::namespace(service).to_owned(),
        name: meta::name(service).to_owned(),
        uid: meta::uid(service).to_owned(),
        addresses,
        ports,
    }
}
