//! The devices of this node: asking their plugins, and giving them to Pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clock::Instant;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use runtime::grpc::{self, Channel};
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    affinity::{
        hints::{Hints, NodeMask},
        requests,
    },
    devices::{
        aligned,
        checkpoint::{Checkpoint, Kept},
        given::Given,
        messages::{
            ALLOCATE, AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
            Device, DevicePluginOptions, HEALTHY, PRE_START, PREFERRED, PreStartContainerRequest,
            PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
        },
        state::{Choice, Resource, Seen, State, Wish},
    },
    volumes::folder::blocking,
};

/// A plugin may take this long for an answer about a Pod. Nobody else waits for it.
const ANSWER: Duration = Duration::from_secs(60);
const PRE_START_ANSWER: Duration = Duration::from_secs(30);

/// The plugin behind a resource.
#[derive(Clone)]
pub struct Endpoint {
    /// Tells it from those before and after it.
    pub id: u64,
    pub socket: PathBuf,
    pub channel: Channel,
    pub options: DevicePluginOptions,
}

/// The endpoint with the task that follows its list, which ends with it.
struct Held {
    endpoint: Endpoint,
    follower: AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Devices that a container is to have, until the plugin has answered or nobody waits for its answer.
struct Reservation<'a> {
    state: &'a Mutex<State>,
    wish: &'a Wish<'a>,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.state.lock().give_up(self.wish);
    }
}

/// The file, and how many changes are in it. Held while it is written, so that the newest state is written last.
struct Writer {
    checkpoint: Checkpoint,
    written: u64,
}

pub struct Devices {
    folder: PathBuf,
    state: Mutex<State>,
    endpoints: Mutex<BTreeMap<String, Held>>,
    writer: Arc<tokio::sync::Mutex<Writer>>,
    changes: watch::Sender<()>,
    numbers: AtomicU64,
}

/// How many devices of each resource a container is limited to. A device is never shared, so its request is the same.
fn wishes(container: &Container) -> BTreeMap<&str, usize> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let count = |amount| usize::try_from(api::rules::quantity::parse(amount).value()).unwrap_or(0);
    limits.map(|(name, amount)| (name.as_str(), count(amount))).collect()
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

impl Devices {
    /// The devices as an earlier kubelet gave them away. No plugin is there yet.
    pub fn new(kubelet_root: &Path) -> Arc<Devices> {
        let folder = kubelet_root.join("device-plugins");
        let checkpoint = Checkpoint::new(&folder);
        let Kept { allocations, resources } = checkpoint.read();
        let gone = || Resource { gone_since: Some(Instant::now()), ..Default::default() };
        let resources = resources.into_iter().map(|name| (name, gone())).collect();
        Arc::new(Devices {
            folder,
            state: Mutex::new(State { resources, allocations, changes: 0 }),
            endpoints: Mutex::default(),
            writer: Arc::new(tokio::sync::Mutex::new(Writer { checkpoint, written: 0 })),
            changes: watch::channel(()).0,
            numbers: AtomicU64::new(1),
        })
    }

    /// Where plugins put their sockets and find the kubelet's.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Told whenever [`Devices::capacity`] may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// How many devices of each resource there are, and how many of them are healthy.
    pub fn capacity(&self) -> BTreeMap<String, (usize, usize)> {
        self.state.lock().capacity(Instant::now())
    }

    /// The devices that a container has.
    pub fn seen(&self, uid: &str, container: &str) -> Vec<Seen> {
        self.state.lock().seen_of(uid, container)
    }

    /// The Pods, by uid, that have devices.
    pub fn pods(&self) -> Vec<String> {
        self.state.lock().allocations.keys().cloned().collect()
    }

    /// All devices that are healthy, whoever has them.
    pub fn all_healthy(&self) -> Vec<Seen> {
        self.state.lock().all_healthy()
    }

    /// Another number for an endpoint.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a resource's devices are given out here, also while its plugin is away.
    pub fn knows(&self, resource: &str) -> bool {
        self.state.lock().knows(resource)
    }

    /// There is room for this resource.
    pub fn admits(&self, resource: &str) -> bool {
        self.state.lock().admits(resource)
    }

    /// Puts a plugin in the place of the one before it. Its devices are those of the one before until it lists its own.
    pub async fn connected(&self, resource: &str, endpoint: Endpoint, follower: AbortHandle) {
        {
            let mut state = self.state.lock();
            if !state.knows(resource) {
                state.changes += 1;
            }
            state.resources.entry(resource.to_owned()).or_default().gone_since = None;
        }
        self.endpoints.lock().insert(resource.to_owned(), Held { endpoint, follower });
        self.write_or_tell().await;
    }

    fn is_current(&self, resource: &str, id: u64) -> bool {
        self.endpoints.lock().get(resource).is_some_and(|held| held.endpoint.id == id)
    }

    /// Takes in the devices that a plugin lists.
    pub fn listed(&self, resource: &str, id: u64, devices: Vec<Device>) {
        if !self.is_current(resource, id) {
            return;
        }
        let nodes = devices.iter().filter_map(|device| Some((device.id.clone(), device.topology.as_ref()?)));
        let nodes = nodes.map(|(id, topology)| (id, topology.nodes.iter().map(|node| node.id).collect())).collect();
        let devices = devices.into_iter().map(|device| (device.id, device.health == HEALTHY)).collect();
        if let Some(held) = self.state.lock().resources.get_mut(resource) {
            (held.devices, held.nodes) = (devices, nodes);
        }
        self.changes.send_replace(());
    }

    /// The plugin is gone: its devices are there and not healthy, and after a time no longer there.
    pub fn disconnected(&self, resource: &str, id: u64) {
        if !self.is_current(resource, id) {
            return;
        }
        self.endpoints.lock().remove(resource);
        if let Some(held) = self.state.lock().resources.get_mut(resource) {
            held.devices.values_mut().for_each(|healthy| *healthy = false);
            held.gone_since = Some(Instant::now());
        }
        self.changes.send_replace(());
    }

    pub fn endpoint(&self, resource: &str) -> Option<Endpoint> {
        self.endpoints.lock().get(resource).map(|held| held.endpoint.clone())
    }

    /// Whether a Pod has devices, or wishes for some.
    pub fn concern(&self, pod: &Pod) -> bool {
        let state = self.state.lock();
        let mut containers =
            pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        state.allocations.contains_key(uid(pod))
            || containers.any(|container| wishes(container).into_keys().any(|resource| state.knows(resource)))
    }

    /// The containers of a Pod are about to get devices, one after the other in their order.
    pub fn giving<'a>(&'a self, pod: &'a Pod) -> Giving<'a> {
        Giving { devices: self, pod, reusable: BTreeMap::new() }
    }

    /// Gives a container what it wishes for, if it does not have it.
    async fn give(&self, wish: &Wish<'_>) -> Result<(), String> {
        let Some(choice) = self.state.lock().choice(wish)? else { return Ok(()) };
        let endpoint = self.endpoint(wish.resource);
        let preferred = match &endpoint {
            Some(endpoint) if endpoint.options.get_preferred_allocation_available && choice.missing > 0 => {
                preferred(endpoint, choice).await?
            }
            _ => Vec::new(),
        };
        let devices = {
            let mut state = self.state.lock();
            // Another Pod may have been faster.
            let Some(choice) = state.choice(wish)? else { return Ok(()) };
            state.reserve(wish, choice, &preferred)
        };
        // Whether the plugin refuses or nobody waits for it any more: what it has not answered for is nobody's again.
        let _reservation = Reservation { state: &self.state, wish };
        let endpoint = endpoint.ok_or_else(|| format!("unknown Device Plugin {}", wish.resource))?;
        let container_requests = vec![ContainerAllocateRequest { devices: devices.into_iter().collect() }];
        let request = AllocateRequest { container_requests };
        let answer = grpc::unary(&endpoint.channel, ALLOCATE, request, ANSWER).await;
        let answer: AllocateResponse = answer.map_err(|status| grpc::words(&status))?;
        let first = answer.container_responses.into_iter().next();
        let first = first.ok_or("no containers return in allocation response")?;
        self.state.lock().answered(wish, first);
        Ok(())
    }

    /// The part of a container's configuration that its devices bring when it is about to start. A Pod that began without a
    /// device which a plugin offers by now gets it first, near the nodes that were chosen for the container.
    pub async fn start(&self, pod: &Pod, container: &Container, nodes: Option<NodeMask>) -> Result<Given, String> {
        let lacks = {
            let state = self.state.lock();
            let held = state.of(uid(pod), &container.name);
            let has = |resource: &str| held.is_some_and(|all| all.get(resource).is_some_and(|a| a.answer.is_some()));
            wishes(container).into_iter().any(|(name, count)| count > 0 && state.knows(name) && !has(name))
        };
        if lacks {
            let mut giving = self.giving(pod);
            for other in requests::containers(pod) {
                giving.give(other, other.name == container.name, nodes).await?;
            }
            giving.end().await?;
        }
        let Some(held) = self.state.lock().of(uid(pod), &container.name).cloned() else { return Ok(Given::default()) };
        // Nothing runs with what is not written down.
        self.write().await?;
        let mut given = Given::default();
        for (resource, allocation) in &held {
            if let Some(endpoint) = self.endpoint(resource).filter(|e| e.options.pre_start_required) {
                let request = PreStartContainerRequest { devices: allocation.devices.iter().cloned().collect() };
                let asked = grpc::unary(&endpoint.channel, PRE_START, request, PRE_START_ANSWER).await;
                let _: PreStartContainerResponse = asked.map_err(|status| {
                    format!("device plugin PreStartContainer rpc failed with err: {}", grpc::words(&status))
                })?;
            }
            given.add(allocation.answer.as_ref().ok_or_else(|| format!("the plugin of {resource} has not answered"))?);
        }
        Ok(given)
    }

    /// Nothing of the Pod runs any more: its devices are free.
    pub async fn release(&self, uid: &str) {
        let freed = {
            let mut state = self.state.lock();
            let freed = state.allocations.remove(uid).is_some();
            state.changes += u64::from(freed);
            freed
        };
        if freed {
            self.write_or_tell().await;
        }
    }

    /// Frees the devices of all Pods but these.
    pub async fn retain(&self, is_here: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.state.lock().allocations.keys().filter(|uid| !is_here(uid)).cloned().collect();
        for uid in gone {
            self.release(&uid).await;
        }
    }

    /// After a restart a device that was freed may count as taken, until it is seen that its Pod is not there.
    async fn write_or_tell(&self) {
        if let Err(error) = self.write().await {
            tracing::warn!(error, "the record of devices is older than they are");
        }
    }

    /// Everything that was changed before the call is on the disk after it.
    async fn write(&self) -> Result<(), String> {
        let mut writer = self.writer.clone().lock_owned().await;
        let (kept, changes) = {
            let state = self.state.lock();
            if state.changes == writer.written {
                return Ok(());
            }
            let resources = state.resources.keys().cloned().collect();
            (Kept { allocations: state.allocations.clone(), resources }, state.changes)
        };
        // Whoever waits for it may give up; the next one writes after it all the same.
        blocking(move || {
            writer.checkpoint.write(&kept).map_err(|error| Checkpoint::failure(&error))?;
            writer.written = changes;
            Ok(())
        })
        .await
    }
}

/// See [`Devices::giving`].
pub struct Giving<'a> {
    devices: &'a Devices,
    pod: &'a Pod,
    /// The devices that init containers before have had, by resource.
    reusable: BTreeMap<String, BTreeSet<String>>,
}

impl Giving<'_> {
    /// The NUMA nodes of the machine that a container could get its devices from.
    pub fn hints(&self, container: &Container, nodes: &[u32]) -> Hints {
        let (state, none) = (self.devices.state.lock(), BTreeSet::new());
        let known = wishes(container).into_iter().filter(|(resource, _)| state.knows(resource));
        let hint = |(resource, count): (&str, usize)| {
            let reusable = self.reusable.get(resource).unwrap_or(&none);
            let name = &container.name;
            let wish = Wish { uid: uid(self.pod), container: name, resource, count, reusable, nodes: None };
            (resource.to_owned(), aligned::hints(&state, &wish, nodes))
        };
        known.map(hint).collect()
    }

    /// The NUMA nodes that the whole Pod could get its devices from.
    pub fn hints_of_pod(&self, nodes: &[u32]) -> Hints {
        let state = self.devices.state.lock();
        let all: BTreeSet<&str> = requests::containers(self.pod).flat_map(|c| wishes(c).into_keys()).collect();
        let hint = |resource: &str| {
            let of =
                |c: &Container| wishes(c).get(resource).map_or(0, |count| u64::try_from(*count).unwrap_or(u64::MAX));
            let count = usize::try_from(requests::at_once(self.pod, of)).unwrap_or(usize::MAX);
            (resource.to_owned(), aligned::hints_of_pod(&state, uid(self.pod), (resource, count), nodes))
        };
        all.into_iter().filter(|resource| state.knows(resource)).map(hint).collect()
    }

    /// Gives a container all devices that it wishes for if it is about to begin, near these NUMA nodes if there are any. Devices that
    /// it has stay its own, so this can be done again; they are refused when they are no longer healthy.
    pub async fn give(&mut self, container: &Container, begins: bool, nodes: Option<NodeMask>) -> Result<(), String> {
        let uid = uid(self.pod);
        for (resource, count) in wishes(container) {
            if begins && self.devices.state.lock().knows(resource) {
                let none = BTreeSet::new();
                let reusable = self.reusable.get(resource).unwrap_or(&none);
                let wish = Wish { uid, container: &container.name, resource, count, reusable, nodes };
                self.devices.give(&wish).await?;
            }
        }
        // A device that an init container has had is free for those after it; one that another container has is not.
        let (state, ends) = (self.devices.state.lock(), requests::makes_way(self.pod, &container.name));
        for (resource, allocation) in state.of(uid, &container.name).into_iter().flatten() {
            let free = self.reusable.entry(resource.clone()).or_default();
            if ends {
                free.extend(allocation.devices.iter().cloned());
            } else {
                free.retain(|id| !allocation.devices.contains(id));
            }
        }
        Ok(())
    }

    /// All that was given is on the disk afterwards.
    pub async fn end(self) -> Result<(), String> {
        self.devices.write().await
    }
}

/// The devices that the plugin would choose.
async fn preferred(endpoint: &Endpoint, choice: Choice) -> Result<Vec<String>, String> {
    let size = i32::try_from(choice.reused.len() + choice.missing).unwrap_or(i32::MAX);
    let request = ContainerPreferredAllocationRequest {
        available: choice.available.union(&choice.reused).cloned().collect(),
        must_include: choice.reused.into_iter().collect(),
        size,
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let answer = grpc::unary(&endpoint.channel, PREFERRED, request, ANSWER).await;
    let answer: PreferredAllocationResponse = answer.map_err(|status| {
        format!("device plugin GetPreferredAllocation rpc failed with err: {}", grpc::words(&status))
    })?;
    Ok(answer.container_responses.into_iter().next().map(|first| first.devices).unwrap_or_default())
}
