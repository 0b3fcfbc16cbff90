//! A driver of devices of the tests' own, which can be told to refuse, to hang, and to answer for other claims than it was asked
//! about. The claims that it has prepared outlive it, as devices do. Dropped, it is gone with its sockets.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use futures::StreamExt;
use parking_lot::Mutex;
use runtime::grpc::{Server, Status};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use crate::{
    claims::messages::*,
    plugins::messages::PluginInfo,
    tests::{
        plugin::{Registering, Service},
        world::{Gate, World},
    },
};

/// How it answers.
#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    Willing,
    Refusing,
    /// Answers, with an error for each claim.
    Failing,
    Hanging,
    /// Answers for no claim.
    Silent,
    /// Answers for a claim that it was not asked about.
    Lying,
}

/// The claims that are prepared on the node, and by which calls that came about.
#[derive(Clone, Default)]
pub struct Hardware {
    /// Names of claims, with their uids.
    prepared: Arc<Mutex<BTreeMap<String, String>>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Hardware {
    pub fn prepared(&self) -> Vec<String> {
        self.prepared.lock().keys().cloned().collect()
    }

    /// How many calls came since the last question about them.
    pub fn asked(&self) -> usize {
        self.calls.lock().len()
    }

    /// The calls since the last question, as `verb claims`.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

#[derive(Clone)]
struct Shared {
    mood: Arc<Mutex<Mood>>,
    hardware: Hardware,
    gate: Gate,
}

impl Shared {
    /// Passes the gate on the way there; what the driver does about it; and the gate on the way back. The answer is an error for
    /// each claim, by uid, which is mostly empty.
    async fn called(
        self,
        verb: &str,
        request: Request,
        work: impl Fn(&Hardware, &Claim),
    ) -> Result<BTreeMap<String, String>, Status> {
        self.gate.pass().await;
        let names: Vec<&str> = request.claims.iter().map(|claim| claim.name.as_str()).collect();
        self.hardware.calls.lock().push(format!("{verb} {}", names.join(" ")));
        let mood = *self.mood.lock();
        let mut answer: BTreeMap<_, _> = request.claims.iter().map(|c| (c.uid.clone(), String::new())).collect();
        match mood {
            Mood::Refusing => return Err(Status::unavailable("not now")),
            Mood::Hanging => std::future::pending().await,
            Mood::Silent => answer.clear(),
            Mood::Failing => answer.values_mut().for_each(|error| *error = "broken".to_owned()),
            Mood::Lying => drop(answer.insert("other".to_owned(), String::new())),
            Mood::Willing => request.claims.iter().for_each(|claim| work(&self.hardware, claim)),
        }
        self.gate.pass().await;
        Ok(answer)
    }

    async fn prepare(self, request: Request) -> Result<PrepareResponse, Status> {
        let claims = request.claims.clone();
        let answer = self.called("prepare", request, |hardware, claim| {
            hardware.prepared.lock().insert(claim.name.clone(), claim.uid.clone());
        });
        let answer = answer.await?;
        // The first request has a device of its own; another device is for all of them, and one for a request that is not there.
        let device = |requests: &[&str], claim: &str, number: u8| Device {
            request_names: requests.iter().map(|name| (*name).to_owned()).collect(),
            pool_name: "pool".to_owned(),
            device_name: format!("d{number}"),
            cdi_device_ids: vec![format!("a.io/d={claim}-{number}")],
        };
        let of = |(uid, error): (String, String)| {
            let name = claims.iter().find(|claim| claim.uid == uid).map(|c| c.name.clone()).unwrap_or_default();
            let devices = vec![device(&["r"], &name, 1), device(&[], &name, 2), device(&["none"], &name, 3)];
            (uid, Prepared { devices, error })
        };
        Ok(PrepareResponse { claims: answer.into_iter().map(of).collect() })
    }

    async fn unprepare(self, request: Request) -> Result<UnprepareResponse, Status> {
        let answer = self.called("unprepare", request, |hardware, claim| {
            hardware.prepared.lock().retain(|_, uid| *uid != claim.uid);
        });
        let claims = answer.await?.into_iter().map(|(uid, error)| (uid, Unprepared { error })).collect();
        Ok(UnprepareResponse { claims })
    }
}

pub struct DraDriver {
    health: watch::Sender<NodeWatchResourcesResponse>,
    mood: Arc<Mutex<Mood>>,
    pub registering: Registering,
    service: Service,
    endpoint: PathBuf,
}

impl DraDriver {
    /// Registers with a kubelet under the driver's name. It speaks one version of the protocol.
    pub fn new(world: &World, name: &str, version: usize, hardware: &Hardware) -> DraDriver {
        let mood = Arc::new(Mutex::new(Mood::Willing));
        let shared = Shared { mood: mood.clone(), hardware: hardware.clone(), gate: world.gate() };
        let spoken = &SERVICES[version];
        let (prepares, unprepares) = (shared.clone(), shared);
        let health = watch::channel(NodeWatchResourcesResponse::default()).0;
        let reported = health.clone();
        let server = Server::default()
            .streaming(WATCH_HEALTH, move |_: NodeWatchResourcesRequest| {
                WatchStream::from_changes(reported.subscribe()).map(Ok)
            })
            .unary(spoken.prepare, move |request| prepares.clone().prepare(request))
            .unary(spoken.unprepare, move |request| unprepares.clone().unprepare(request));
        let endpoint = world.registry().with_file_name("plugins").join(name).join("dra.sock");
        let service = Service::at(&endpoint, server);
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.display().to_string(),
            supported_versions: vec![spoken.name.to_owned()],
        };
        let registering = Registering::at(&world.registry().join(format!("{name}-reg.sock")), info);
        DraDriver { health, mood, registering, service, endpoint }
    }

    pub fn becomes(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    /// Reports that devices of its pool are healthy (1) or not (2).
    pub fn reports(&self, devices: &[(&str, i32)]) {
        let of = |(name, health): &(&str, i32)| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "pool".to_owned(), device_name: (*name).to_owned() }),
            health: *health,
            ..Default::default()
        };
        self.health.send_replace(NodeWatchResourcesResponse { devices: devices.iter().map(of).collect() });
    }

    /// It breaks off, without the time to take its registration away.
    pub fn crash(self) -> Registering {
        drop(self.service);
        assert!(!self.endpoint.exists());
        self.registering
    }
}
