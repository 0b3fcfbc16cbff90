//! A CSI driver of the tests' own: it writes down its calls and what it has staged and published, and can be told to refuse, to
//! hang, to do what it says it has not done, and to say that it has done what it has not. It fails a test by what it is asked
//! against the protocol. Dropped, its process is gone with its sockets; what it knows is kept in [`Disks`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;
use runtime::grpc::{Code, Server, Status};

use crate::{
    csi::messages::*,
    plugins::messages::PluginInfo,
    tests::{
        plugin::{Registering, Service},
        world::{Gate, World},
    },
    volumes::mounter::{Mounter, Recorded},
};

/// How it answers to a call.
#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    /// It does nothing.
    Refusing(&'static str),
    /// As `Refusing`, with a code of its own.
    Failing(Code),
    /// It does it, and says that it does not know.
    Unsure,
    Hanging,
    /// It does nothing, and says that it has done it.
    Lying,
}

#[derive(Default)]
struct State {
    moods: BTreeMap<String, Mood>,
    calls: Vec<String>,
    /// Staging places by volume.
    staged: BTreeMap<String, String>,
    /// Volumes by the places where they are published.
    published: BTreeMap<String, String>,
    wrong: Vec<String>,
    last_stage: StageRequest,
    last_publish: PublishRequest,
    last_expand: ExpandRequest,
    stats: StatsResponse,
}

/// The state that outlives a process of the driver.
#[derive(Clone)]
pub struct Disks {
    state: Arc<Mutex<State>>,
    pub info: Arc<Mutex<NodeInfo>>,
    pub abilities: Arc<Mutex<Vec<Ability>>>,
    mounts: Arc<Recorded>,
    gate: Gate,
}

type Answer<A> = Result<A, Status>;

impl Disks {
    pub fn new(world: &World) -> Disks {
        let info = NodeInfo { node_id: "node-1".to_owned(), ..NodeInfo::default() };
        Disks {
            state: Arc::default(),
            info: Arc::new(Mutex::new(info)),
            abilities: Arc::default(),
            mounts: world.mounts.clone(),
            gate: world.gate(),
        }
    }

    /// A call comes and goes through the gate, where its kubelet may die.
    async fn called<A: Default>(
        self,
        method: &'static str,
        what: String,
        work: impl FnOnce(&Disks, &mut State) -> Answer<A>,
    ) -> Answer<A> {
        self.gate.pass().await;
        let mood = {
            let mut state = self.state.lock();
            state.calls.push(format!("{method} {what}").trim().to_owned());
            state.moods.get(method).copied()
        };
        let answer = match mood {
            Some(Mood::Refusing(why)) => Err(Status::internal(why)),
            Some(Mood::Failing(code)) => Err(Status::new(code, "no")),
            Some(Mood::Hanging) => std::future::pending().await,
            Some(Mood::Lying) => Ok(A::default()),
            Some(Mood::Unsure) => work(&self, &mut self.state.lock()).and_then(|_| Err(Status::unavailable("perhaps"))),
            None => work(&self, &mut self.state.lock()),
        };
        self.gate.pass().await;
        answer
    }

    pub fn becomes(&self, method: &str, mood: Option<Mood>) {
        let moods = &mut self.state.lock().moods;
        moods.remove(method);
        moods.extend(mood.map(|mood| (method.to_owned(), mood)));
    }

    /// The calls since the last question, without those that ask what the driver is.
    pub fn calls(&self) -> Vec<String> {
        let mut calls = std::mem::take(&mut self.state.lock().calls);
        calls.retain(|call| !call.starts_with("Get"));
        calls
    }

    pub fn last_stage(&self) -> StageRequest {
        self.state.lock().last_stage.clone()
    }

    pub fn last_publish(&self) -> PublishRequest {
        self.state.lock().last_publish.clone()
    }

    pub fn last_expand(&self) -> ExpandRequest {
        self.state.lock().last_expand.clone()
    }

    /// From now on it says this of its volumes.
    pub fn says(&self, stats: StatsResponse) {
        self.state.lock().stats = stats;
    }

    /// The volumes that it has in use: `staged volume` and `published volume`.
    pub fn in_use(&self) -> Vec<String> {
        let state = self.state.lock();
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
        let staged = state.staged.keys().map(|volume| format!("staged {volume}"));
        staged.chain(state.published.values().map(|volume| format!("published {volume}"))).collect()
    }

    fn stage(&self, state: &mut State, request: StageRequest) -> Answer<Empty> {
        let (volume, place) = (request.volume_id.clone(), request.staging_target_path.clone());
        if !Path::new(&place).is_dir() {
            state.wrong.push(format!("{volume} is to be staged at {place}, where no folder is"));
        }
        if state.staged.insert(volume.clone(), place.clone()).is_some_and(|held| held != place) {
            state.wrong.push(format!("{volume} is staged twice"));
        }
        state.last_stage = request;
        self.mounts.bind(Path::new("/disk"), Path::new(&place)).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Empty {})
    }

    fn unstage(&self, state: &mut State, request: UnstageRequest) -> Answer<Empty> {
        let (volume, place) = (request.volume_id, request.staging_target_path);
        if state.published.values().any(|published| *published == volume) {
            state.wrong.push(format!("{volume} is unstaged while it is published"));
        }
        state.staged.remove(&volume);
        self.mounts.unmount(Path::new(&place)).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Empty {})
    }

    fn publish(&self, state: &mut State, request: PublishRequest) -> Answer<Empty> {
        let (volume, place) = (request.volume_id.clone(), request.target_path.clone());
        let staged = state.staged.get(&volume).cloned().unwrap_or_default();
        if staged != request.staging_target_path {
            let asked = &request.staging_target_path;
            state.wrong.push(format!("{volume} is staged at {staged:?}, and published from {asked:?}"));
        }
        state.published.insert(place.clone(), volume);
        state.last_publish = request;
        let target = Path::new(&place);
        let made = if target.is_dir() { Ok(()) } else { fs::create_dir(target) };
        made.and_then(|()| self.mounts.bind(Path::new("/disk"), target))
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Empty {})
    }

    fn unpublish(&self, state: &mut State, request: UnpublishRequest) -> Answer<Empty> {
        let target = Path::new(&request.target_path);
        state.published.remove(&request.target_path);
        let gone = self.mounts.unmount(target);
        let gone = gone.and_then(|()| if target.exists() { fs::remove_dir(target) } else { Ok(()) });
        gone.map_err(|error| Status::internal(error.to_string())).map(|()| Empty {})
    }

    fn server(&self) -> Server {
        let held: [Disks; 8] = std::array::from_fn(|_| self.clone());
        let [info, abilities, stage, unstage, publish, unpublish, expand, stats] = held;
        Server::default()
            .unary(GET_INFO, move |_: Empty| {
                info.clone().called("GetInfo", String::new(), |disks, _| Ok(disks.info.lock().clone()))
            })
            .unary(GET_CAPABILITIES, move |_: Empty| {
                let capability = |a: &Ability| Capability { rpc: Some(Rpc { r#type: *a as i32 }) };
                abilities.clone().called("GetCapabilities", String::new(), move |disks, _| {
                    Ok(Capabilities { capabilities: disks.abilities.lock().iter().map(capability).collect() })
                })
            })
            .unary(STAGE, move |request: StageRequest| {
                let what = request.volume_id.clone();
                stage.clone().called("Stage", what, |disks, state| disks.stage(state, request))
            })
            .unary(UNSTAGE, move |request: UnstageRequest| {
                let what = request.volume_id.clone();
                unstage.clone().called("Unstage", what, |disks, state| disks.unstage(state, request))
            })
            .unary(PUBLISH, move |request: PublishRequest| {
                let what = request.volume_id.clone();
                publish.clone().called("Publish", what, |disks, state| disks.publish(state, request))
            })
            .unary(EXPAND, move |request: ExpandRequest| {
                let what = request.volume_id.clone();
                expand.clone().called("Expand", what, |_, state| {
                    state.last_expand = request;
                    Ok(ExpandResponse::default())
                })
            })
            .unary(STATS, move |request: StatsRequest| {
                stats.clone().called("GetStats", request.volume_id, |_, state| Ok(state.stats.clone()))
            })
            .unary(UNPUBLISH, move |request: UnpublishRequest| {
                let what = request.volume_id.clone();
                unpublish.clone().called("Unpublish", what, |disks, state| disks.unpublish(state, request))
            })
    }
}

/// A process of the driver.
pub struct CsiDriver {
    pub disks: Disks,
    registering: Registering,
    _service: Service,
}

impl CsiDriver {
    /// Registers under a name with the kubelet of a world, which may still have to make its folder.
    pub fn at(world: &World, name: &str, versions: &[&str]) -> CsiDriver {
        CsiDriver::with(world, name, versions, name, Disks::new(world))
    }

    /// As a process with sockets of its own.
    pub fn with(world: &World, name: &str, versions: &[&str], process: &str, disks: Disks) -> CsiDriver {
        let socket = world.kubelet_folder().join("plugins").join(process).join("csi.sock");
        let service = Service::at(&socket, disks.server());
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: name.to_owned(),
            endpoint: socket.display().to_string(),
            supported_versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        };
        let shown = world.kubelet_folder().join(format!("plugins_registry/{process}.sock"));
        CsiDriver { disks, registering: Registering::at(&shown, info), _service: service }
    }

    /// The answers to its registrations, in order.
    pub fn told(&self) -> Vec<(bool, String)> {
        self.registering.told()
    }

    pub fn is_registered(&self) -> bool {
        self.told().last().is_some_and(|(registered, _)| *registered)
    }
}

/// The names of the volumes that the node says it uses.
pub fn volumes_in_use(world: &World) -> BTreeSet<String> {
    let node = world.api.get("/api/v1/nodes/n1").unwrap_or_default();
    let names = node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
    names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}
