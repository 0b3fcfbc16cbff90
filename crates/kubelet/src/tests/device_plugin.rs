//! A device plugin of the tests' own, which can be told to refuse, to hang, and to say that devices are broken. Dropped, it is
//! gone with its socket.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use futures::StreamExt;
use parking_lot::Mutex;
use runtime::grpc::{self, Server, Status};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use crate::{
    devices::messages::*,
    tests::{
        plugin::Service,
        world::{Gate, World},
    },
};

/// How it answers to `Allocate`.
#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    Willing,
    Refusing,
    Hanging,
    /// Answers for no container.
    Empty,
}

/// The state that the test and the service share.
#[derive(Clone)]
struct Shared {
    mood: Arc<Mutex<Mood>>,
    calls: Arc<Mutex<Vec<String>>>,
    gate: Gate,
}

impl Shared {
    /// A call comes and goes through the gate, where its kubelet may die.
    async fn called(&self, call: String) {
        self.gate.pass().await;
        self.calls.lock().push(call);
        self.gate.pass().await;
    }

    async fn allocate(self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let devices = request.container_requests[0].devices.join("+");
        self.called(format!("allocate {devices}")).await;
        let mood = *self.mood.lock();
        match mood {
            Mood::Refusing => return Err(Status::unknown("no")),
            Mood::Hanging => std::future::pending().await,
            Mood::Empty => return Ok(AllocateResponse::default()),
            Mood::Willing => {}
        }
        // The fake engine shows annotations.
        let annotations = BTreeMap::from([("devices".to_owned(), devices)]);
        Ok(AllocateResponse {
            container_responses: vec![ContainerAllocateResponse { annotations, ..Default::default() }],
        })
    }
}

pub struct DevicePlugin {
    shared: Shared,
    devices: watch::Sender<ListAndWatchResponse>,
    _service: Service,
}

fn list(devices: &[(&str, bool)]) -> ListAndWatchResponse {
    let health = |healthy: bool| if healthy { HEALTHY } else { "Unhealthy" };
    // The first one of them has named its place, and the last one another.
    let node = |id: &str| match id {
        id if id.ends_with('1') => Some(0),
        id if id.ends_with('9') => Some(1),
        _ => None,
    };
    let devices = devices.iter().map(|(id, healthy)| Device {
        id: (*id).to_owned(),
        health: health(*healthy).to_owned(),
        topology: node(id).map(|id| TopologyInfo { nodes: vec![NumaNode { id }] }),
    });
    ListAndWatchResponse { devices: devices.collect() }
}

impl DevicePlugin {
    /// Serves at a socket. It prefers the devices that come last, and wants to be asked before each start.
    pub fn at(socket: &Path, gate: Gate, devices: &[(&str, bool)]) -> DevicePlugin {
        let shared = Shared { mood: Arc::new(Mutex::new(Mood::Willing)), calls: Arc::default(), gate };
        let devices = watch::channel(list(devices)).0;
        let listed = devices.clone();
        let (allocates, starts, prefers, options) = (shared.clone(), shared.clone(), shared.clone(), shared.clone());
        let server = Server::default()
            .unary(OPTIONS, move |_: Empty| {
                let gate = options.gate.clone();
                async move {
                    gate.pass().await;
                    Ok(DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true })
                }
            })
            .streaming(LIST_AND_WATCH, move |_: Empty| WatchStream::new(listed.subscribe()).map(Ok))
            .unary(PREFERRED, move |request: PreferredAllocationRequest| {
                let gate = prefers.gate.clone();
                async move {
                    gate.pass().await;
                    let mut devices = request.container_requests[0].available.clone();
                    devices.reverse();
                    // A device that it was not offered is not taken from it.
                    devices.insert(0, "none".to_owned());
                    Ok(PreferredAllocationResponse {
                        container_responses: vec![ContainerPreferredAllocationResponse { devices }],
                    })
                }
            })
            .unary(ALLOCATE, move |request| allocates.clone().allocate(request))
            .unary(PRE_START, move |request: PreStartContainerRequest| {
                let shared = starts.clone();
                async move {
                    shared.called(format!("start {}", request.devices.join("+"))).await;
                    Ok(PreStartContainerResponse {})
                }
            });
        DevicePlugin { shared, devices, _service: Service::at(socket, server) }
    }

    /// Serves in the folder of a kubelet that is running or about to, and registers with it.
    pub async fn registered(world: &World, resource: &str, devices: &[(&str, bool)]) -> DevicePlugin {
        let kubelet = world.device_folder().join("kubelet.sock");
        loop {
            // A new kubelet takes all sockets away.
            while !kubelet.exists() {
                clock::sleep(clock::Duration::from_millis(100)).await;
            }
            let plugin = DevicePlugin::at(&world.device_folder().join("p.sock"), world.gate(), devices);
            match register(&kubelet, VERSION, resource, "p.sock").await {
                Ok(()) => return plugin,
                Err(_) => clock::sleep(clock::Duration::from_millis(100)).await,
            }
        }
    }

    pub fn lists(&self, devices: &[(&str, bool)]) {
        self.devices.send_replace(list(devices));
    }

    pub fn becomes(&self, mood: Mood) {
        *self.shared.mood.lock() = mood;
    }

    /// The calls since the last question, as `verb devices`.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.calls.lock())
    }
}

/// Asks a kubelet to register a plugin; the words of its refusal.
pub async fn register(kubelet: &Path, version: &str, resource: &str, endpoint: &str) -> Result<(), String> {
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    let answer = grpc::unary(&grpc::channel(kubelet), REGISTER, request, clock::Duration::from_secs(20)).await;
    answer.map(|_: Empty| ()).map_err(|status| status.message().to_owned())
}
