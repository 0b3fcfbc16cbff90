//! Starts one container: its image, its environment, its mounts, the engine's two calls, and its postStart hook.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use api::features::Feature;
use client::EventKind;
use files::modes;
use k8s_cri::v1::{ImageSpec, PodSandboxConfig};
use k8s_openapi::api::core::v1::{Container, FileKeySelector};
use runtime::container::ContainerConfig;

use crate::{
    engine::{handler, image, linked, log_folders, parallel_starts::Turn},
    pod::{
        act::{Round, later},
        backoff::Backoff,
        memory::{Cause, KillReason},
        probes::hook,
        resize,
        running::{Sandbox, State},
        spec::{
            env, env_file, linux,
            mounts::{self, MountSetting},
            names,
            render::{self, ContainerSetting},
            resources,
            security::{self, Seccomp},
        },
    },
    volumes::folder::blocking,
};

/// A container that is about to be made, in the sandbox where it will run.
struct Start<'a> {
    container: &'a Container,
    restarts: i32,
    sandbox: Sandbox,
    config: PodSandboxConfig,
    /// The images that it mounts, by the names of their volumes.
    images: BTreeMap<String, ImageSpec>,
}

/// The words of a CreateContainerConfigError.
fn wrong(message: String) -> Cause {
    Cause::new("CreateContainerConfigError", message)
}

/// Why the engine did not do a call.
fn refused(reason: &'static str) -> impl Fn(runtime::Error) -> Cause {
    move |error| Cause::new(reason, error.words())
}

impl Round<'_> {
    /// Why the container could not be started is in its status and its events.
    pub(super) async fn start(&mut self, container: &Container, restarts: i32) {
        waypoint::kubelet::start_container(&self.desired.full_name());
        let name = &container.name;
        // A sandbox that was made in this round is seen by the next one.
        let Some(sandbox) = self.running.sandbox().cloned() else { return };
        let config = self.sandbox_config(sandbox.attempt);
        let (kubelet, desired) = (self.kubelet, self.desired);
        let Some(image) = image::ensure(kubelet, desired, container, &config, self.memory).await else { return };
        let images = image::ensure_mounted(kubelet, desired, container, &config, self.memory).await;
        let Some(images) = images else { return };
        let last = self.running.latest(name).filter(|r| r.state == State::Exited);
        let record = self.memory.container_mut(name);
        if let Some(ended) = last.filter(|_| record.renewal.is_none()).and_then(|r| r.finished_at) {
            let pauses = kubelet.restart_pauses();
            record.backoff = Some(Backoff::next(record.backoff, ended, clock::now(), pauses));
        }
        let ip = sandbox.ips.first().cloned().unwrap_or_default();
        let created = self.create(Start { container, restarts, sandbox, config, images }, image).await;
        let failure = created.as_ref().err().map(|cause| cause.reason.as_str());
        kubelet.figures.started_container(self.sort(name), failure);
        match created {
            Ok(id) => {
                let record = self.memory.container_mut(name);
                (record.waiting, record.retry_at) = (None, None);
                (record.is_anew, record.renewal) = (false, None);
                let wanted = resources::Limits::wanted(desired.spec(), container, self.memory.cfs);
                let run = self.memory.run_mut(&id);
                run.applied = Some(wanted);
                run.memory_request = Some(resize::memory_request(container));
                self.post_start(container, &id, &ip).await;
            }
            Err(cause) => {
                self.warn_of(name, "Failed", &format!("Error: {}", cause.message));
                let record = self.memory.container_mut(name);
                (record.waiting, record.retry_at) = (Some(cause), Some(later()));
            }
        }
    }

    /// A warning about one container.
    fn warn_of(&self, name: &str, reason: &str, text: &str) {
        self.kubelet.events.container(self.desired, name, EventKind::Warning, reason, text);
    }

    /// Waits until the network is ready for this Pod at its addresses. The node's own network always is.
    async fn pass_gate(&self, sandbox: &Sandbox) -> Result<(), Cause> {
        let Some(gate) = self.kubelet.config.gate.as_ref().filter(|_| !self.desired.host_network()) else {
            return Ok(());
        };
        let addresses = sandbox.ips.iter().filter_map(|ip| api::rules::ip::parse(ip)).collect();
        gate(self.desired.pod.clone(), addresses).await.map_err(|why| Cause::new("CreateContainerError", why))
    }

    async fn create(&self, start: Start<'_>, image: image::Held) -> Result<String, Cause> {
        self.pass_gate(&start.sandbox).await?;
        let rendered = self.render(&start, image).await.map_err(wrong)?;
        let tell = |reason: &str, text: &str| {
            self.kubelet.events.container(self.desired, &start.container.name, EventKind::Normal, reason, text);
        };
        let engine = &self.kubelet.config.runtime;
        // Two of one container would want the same ports and files.
        if let Some(before) = self.running.latest(&start.container.name).filter(|run| run.is_given_up()) {
            engine.end_given_up(&before.id).await.map_err(refused("CreateContainerError"))?;
        }
        let of_linux = rendered.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let cpus = of_linux.map(|resources| resources.cpuset_cpus.clone()).unwrap_or_default();
        let log = Path::new(&start.config.log_directory).join(&rendered.log_path);
        let is_first = self.running.current(&start.container.name).is_none();
        let turn = Turn::of_container(self.desired, is_first);
        let calls = async {
            let _at_engine = self.at_engine.lock().await;
            let made = engine.create_container(&start.sandbox.id, rendered, start.config).await;
            let id = made.map_err(refused("CreateContainerError"))?;
            self.kubelet.affinity.made(&id, self.desired.uid(), &start.container.name, &cpus);
            tell("Created", "Container created");
            engine.start_container(&id).await.map_err(refused("RunContainerError"))?;
            tell("Started", "Container started");
            Ok(id)
        };
        let id = self.kubelet.starts.run(turn, calls).await?;
        if let Err(error) = linked::make(self.kubelet, self.desired, &start.container.name, &id, &log) {
            tracing::warn!(pod = self.desired.full_name(), %error, "there is no link to a container's log");
        }
        Ok(id)
    }

    /// The container as the engine is to make it; its files and mounts are made on the way.
    async fn render(&self, start: &Start<'_>, image: image::Held) -> Result<ContainerConfig, String> {
        let (kubelet, desired, container) = (self.kubelet, self.desired, start.container);
        let config = &kubelet.config;
        let node_ips = || config.node_ips().map(|ip| ip.to_string()).collect();
        let ips = if desired.host_network() { node_ips() } else { start.sandbox.ips.clone() };
        self.write_hosts(&ips).map_err(|e| format!("cannot write the hosts file: {e}"))?;
        let log = render::log_path(&container.name, start.restarts);
        let made = kubelet.logs.make_for(&log_folders::of(desired), Path::new(&log));
        made.map_err(|e| format!("cannot make the folder of its log: {e}"))?;
        let user = image.user_of(desired, container)?;
        let env = self.environment(container, &ips).await?;
        let nodes = kubelet.affinity.mask(desired.uid(), &container.name);
        let mut given = kubelet.devices.start(&desired.pod, container, nodes).await?;
        given.cdi.extend(kubelet.claims.given(&desired.pod, container)?);
        let recursive = mounts::ask_recursive(container) && handler::makes_recursive(kubelet, desired).await?;
        let volumes = self.memory.life.volumes().ok_or("the Pod's volumes are not mounted")?;
        given.devices.extend(mounts::devices(container, volumes)?);
        let restarts = start.restarts;
        let parts_of_images =
            mounts::ask_part_of_image(desired, container) && handler::mounts_parts_of_images(kubelet).await?;
        let images = &start.images;
        let setting =
            MountSetting { desired, container, volumes, env: &env, restarts, recursive, images, parts_of_images };
        let mounts = mounts::mounts(kubelet, &setting)?;
        let mut resources = linux::of_container(desired, container, &kubelet.ground());
        kubelet.affinity.put(desired.uid(), &container.name, &mut resources);
        let setting = ContainerSetting {
            restarts,
            image: image.id,
            env,
            mounts,
            given,
            resources,
            target: self.target(container)?,
            groups: security::groups(desired, Some(volumes)),
            stop_signals: config.features.enabled(Feature::ContainerStopSignals),
            users: kubelet.users.of(desired.uid(), desired.spec())?,
            seccomp: Seccomp { folder: config.root_dir.join("seccomp"), by_default: config.settings.seccomp_default },
        };
        let mut rendered = render::container(desired, container, setting)?;
        if let Some(security) = rendered.linux.as_mut().and_then(|l| l.security_context.as_mut()) {
            user.put(security);
        }
        Ok(rendered)
    }

    /// A container's sort, as metrics call it.
    fn sort(&self, name: &str) -> &'static str {
        let is_in = |list: &[Container]| list.iter().any(|c| c.name == name);
        match () {
            () if is_in(self.desired.init_containers()) => "init_container",
            () if is_in(self.desired.ephemeral_containers()) => "ephemeral_container",
            () => "container",
        }
    }

    /// The id of the container that a debugging container looks into.
    fn target(&self, container: &Container) -> Result<Option<String>, String> {
        let Some(name) = self.desired.target(&container.name) else { return Ok(None) };
        let found = self.running.alive().find(|r| r.name == name);
        found.map(|r| Some(r.id.clone())).ok_or_else(|| format!("unable to find target container \"{name}\""))
    }

    async fn post_start(&mut self, container: &Container, id: &str, ip: &str) {
        let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else { return };
        let of = hook::Of { desired: self.desired, container, id, ip };
        if let Err(error) = hook::run(self.kubelet, handler, of).await {
            tracing::warn!(
                pod = self.desired.full_name(),
                container = container.name,
                error,
                "the postStart hook failed"
            );
            self.warn_of(&container.name, "FailedPostStartHook", "PostStartHook failed");
            self.memory.container_mut(&container.name).waiting = Some(Cause::new("PostStartHookError", error));
            let why = KillReason { message: "FailedPostStartHook".to_owned(), ..KillReason::default() };
            self.memory.run_mut(id).condemned = Some(why);
        }
    }

    fn write_hosts(&self, ips: &[String]) -> io::Result<()> {
        let config = &self.kubelet.config;
        let of_node = fs::read_to_string("/etc/hosts").unwrap_or_default();
        let text = names::hosts(self.desired, &config.cluster_domain, ips, &of_node);
        let at = config.pod_dir(self.desired.uid()).join("etc-hosts");
        // Containers that run have this very file mounted: it is written over, never replaced. They may have made it as long
        // as they like, so no more of it is read than what it should be.
        let mut held = Vec::new();
        let read = fs::File::open(&at).and_then(|file| file.take(text.len() as u64 + 1).read_to_end(&mut held));
        if read.is_ok() && held == text.as_bytes() { Ok(()) } else { modes::write(&at, modes::SEEN_FILE, text) }
    }

    /// The files of volumes that variables come from, as far as they can be read.
    async fn variable_files(&self, container: &Container) -> BTreeMap<(String, String), Vec<u8>> {
        let variables = container.env.iter().flatten();
        let wanted = variables.filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
        let place = |file: &FileKeySelector| {
            let mounted = self.memory.life.volumes()?.get(&file.volume_name)?;
            Some(((file.volume_name.clone(), file.path.clone()), mounted.path.clone()))
        };
        let places: BTreeMap<(String, String), PathBuf> = wanted.filter_map(place).collect();
        let pod = self.desired.full_name();
        let read = move |(file, volume): ((String, String), PathBuf)| match env_file::read(&volume, &file.1) {
            Ok(content) => Some((file, content)),
            Err(error) => {
                tracing::warn!(pod, file = file.1, %error, "a file of variables cannot be read");
                None
            }
        };
        blocking(move || places.into_iter().filter_map(read).collect()).await
    }

    /// Fetches what the environment refers to, then renders it.
    async fn environment(&self, container: &Container, ips: &[String]) -> Result<Vec<(String, String)>, String> {
        let (kubelet, desired) = (self.kubelet, self.desired);
        let mut given = env::Given { facts: kubelet.facts(ips.to_vec()), ..Default::default() };
        if clock::timeout(Duration::from_secs(10), kubelet.services.synced()).await.is_err() {
            return Err("services have not yet been read at least once, cannot construct envvars".to_owned());
        }
        let links = desired.spec().enable_service_links.unwrap_or(true);
        given.services = env::services(desired.namespace(), links, &kubelet.services.list());
        let (mut maps, mut secrets) = (Vec::new(), Vec::new());
        for from in container.env_from.iter().flatten() {
            maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for from in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
            secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
        }
        for name in maps {
            let data = kubelet.sources.texts(&desired.pod, &name).await.map_err(|e| e.to_string())?;
            given.config_maps.extend(data.map(|data| (name, data)));
        }
        for name in secrets {
            let data = kubelet.sources.secret_texts(&desired.pod, &name).await.map_err(|e| e.to_string())?;
            given.secrets.extend(data.map(|data| (name, data)));
        }
        if kubelet.config.features.enabled(Feature::EnvFiles) {
            given.files = Some(self.variable_files(container).await);
        }
        env::render(&desired.pod, container, &given)
    }
}
