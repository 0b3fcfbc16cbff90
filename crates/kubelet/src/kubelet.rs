//! The parts of a kubelet that every other part may use: its settings, its machine, the engine, the API server and the
//! list of its Pods.
//!
//! Only that list changes here. All other state has one owner, which others ask or watch: a Pod's worker keeps what it knows
//! of its Pod, the dispatcher says which Pods there are, the eviction manager measures pressures and ages images.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::features::Feature;
use client::{Cache, Caches, EventKind, Key};
use k8s_openapi::api::core::v1::{Node, Service};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};

use crate::{
    affinity::allocate::Affinity,
    claims::{drivers::Drivers, prepare::Claims},
    config::Config,
    counted::Figures,
    csi::Csi,
    devices::allocate::Devices,
    engine::{
        log_folders::LogFolders,
        measured::Measured,
        parallel_starts::{self, ParallelStarts},
    },
    error::Error,
    events::Events,
    eviction::pressure::Pressures,
    followed::Watches,
    images::Images,
    local::LocalVolumes,
    node::{capacity, cgroup::Cgroups, huge_pages, machine::Machine, network::Network, reserved},
    oom::counts::Counts,
    pod::{
        backoff::Pauses,
        desired::DesiredPod,
        probes::counts::ProbeCounts,
        spec::{
            downward::Facts,
            hardening::Modules,
            linux::Ground,
            resources::{self, PodLimits},
            selinux::{self, Labels},
        },
        workers::PodWorkers,
    },
    sharing::Sharing,
    shutdown::logind,
    traced::Traces,
    usage::rates::Rates,
    users::held::Users,
    volume_room::VolumeUsages,
    volumes::{
        folder::PodFolder,
        mounter::{self, Mounter},
        plugin::Means,
        plugins::exclusive::Exclusive,
        remote::Remote,
        sources::{ApiSources, certificates::Certificates},
        state,
    },
};

/// How long the API server is waited for by what goes on without it: containers that restart, statuses, the node's own heartbeats.
pub const PATIENCE: Duration = Duration::from_secs(10);

const SYS: &str = "/sys/devices/system";
/// Where the kernel writes what it has to say.
pub const KERNEL_LOG: &str = "/dev/kmsg";

/// The machine below a kubelet.
pub struct Host {
    pub machine: Machine,
    pub modules: Modules,
    /// The SELinux label of containers' files, where the engine gives labels.
    pub labels: Option<Arc<selinux::Context>>,
    pub cgroups: Cgroups,
    pub mounter: Arc<dyn Mounter>,
    /// Where the kernel tells of processors and NUMA nodes.
    pub sys: PathBuf,
    /// Programs of the machine may plug in.
    pub plugins: bool,
    /// logind tells when the machine is about to end.
    pub logind: Option<logind::Place>,
    /// The kernel tells there when memory runs out.
    pub kernel_log: Option<PathBuf>,
}

impl Host {
    pub fn here(config: &Config, cgroups: Cgroups) -> Self {
        let modules = Modules::of_this_kernel();
        let labels = modules.selinux && config.selinux_labels;
        Host {
            machine: Machine::read(),
            modules,
            labels: labels.then(|| selinux::Context::of_files(Path::new("/")).map(Arc::new)).flatten(),
            cgroups,
            mounter: Arc::new(mounter::Kernel),
            sys: PathBuf::from(SYS),
            plugins: true,
            logind: Some(logind::Place::of_this_machine()),
            kernel_log: Some(PathBuf::from(KERNEL_LOG)),
        }
    }

    /// This machine, where nobody mounts anything or makes a cgroup: below that folder there is no controller.
    pub fn hollow() -> Self {
        Host {
            machine: Machine::read(),
            modules: Modules::default(),
            labels: None,
            cgroups: Cgroups::new(Path::new("/dev/null"), "/"),
            mounter: Arc::new(mounter::Nothing),
            sys: PathBuf::from(SYS),
            plugins: false,
            logind: None,
            kernel_log: None,
        }
    }
}

pub struct Kubelet {
    pub config: Config,
    pub host: Host,
    pub events: Arc<Events>,
    pub services: Arc<Cache<Service>>,
    /// The Node object of this node.
    pub node: Arc<Cache<Node>>,
    /// The objects that volumes and environments are made from.
    pub sources: Arc<ApiSources>,
    /// The watches of those that volumes show.
    pub followed: Watches,
    pub images: Arc<Images>,
    pub pods: PodWorkers,
    /// The sandboxes and containers that the engine is starting.
    pub starts: ParallelStarts,
    /// Where the logs of its Pods are.
    pub logs: LogFolders,
    /// The devices of plugins, and which Pods have them.
    pub devices: Arc<Devices>,
    /// The processors and the memory that containers have for themselves.
    pub affinity: Affinity,
    /// The claims that drivers of devices have prepared for Pods.
    pub claims: Arc<Claims>,
    /// The CSI drivers of the node.
    pub csi: Arc<Csi>,
    /// The volumes that this node makes itself.
    pub local: LocalVolumes,
    /// The ids of Pods whose users are none of the node's.
    pub users: Arc<Users>,
    /// The ways of the machine to volumes on servers.
    pub remote: Arc<Remote>,
    pub exclusive: Arc<Exclusive>,
    /// How full the Pods' volumes are, as they were measured last.
    pub volume_usages: VolumeUsages,
    /// How much of a processor is used, as it was read last.
    pub rates: Rates,
    /// The metrics that the engine has, once it has told.
    pub engine_metrics: OnceCell<Vec<runtime::cri_api::MetricDescriptor>>,
    /// Images that it shares with other nodes, if it does.
    pub sharing: Option<Sharing>,
    /// The figures of its work.
    pub figures: Arc<Figures>,
    /// How often memory ran out, by cgroups.
    pub ooms: Counts,
    /// The answers to its probes, counted.
    pub probe_counts: ProbeCounts,
    /// The spans of its work.
    pub traces: Traces,
    /// Which pressures the node is under, as the eviction manager measures them.
    pub pressures: watch::Receiver<Pressures>,
    /// Whether the machine is about to end, as [`crate::shutdown`] says.
    pub shuts_down: watch::Sender<bool>,
    /// Whether the engine's network is ready for Pods.
    pub network: Network,
    engine_name: OnceCell<String>,
}

impl Kubelet {
    /// Fails when nobody can say any more what an earlier kubelet has left to undo.
    pub fn new(
        mut config: Config,
        host: Host,
        caches: &Caches,
        pressures: watch::Receiver<Pressures>,
    ) -> Result<Arc<Self>, Error> {
        let figures = Arc::new(Figures::default());
        config.runtime = Arc::new(Measured { engine: config.runtime, figures: figures.clone() });
        let events = Arc::new(Events::new(config.client.clone(), &config.node_name));
        let node = caches.selected::<Node>(&format!("metadata.name={}", config.node_name));
        let of_this_node = || caches.selected(&format!("spec.nodeName={}", config.node_name));
        let told = events.clone();
        let certificates = Certificates {
            client: config.client.clone(),
            warn: Box::new(move |pod, reason, message| told.object(pod, EventKind::Warning, reason, message)),
            node_name: config.node_name.clone(),
            node: node.clone(),
            requests: config.features.enabled(Feature::PodCertificateRequest).then(of_this_node),
            lives: Mutex::default(),
        };
        let (client, mounter) = (config.client.clone(), host.mounter.clone());
        let told = events.clone();
        let tell = Box::new(move |object: &_, kind, reason: &str, text: &str| told.about(object, kind, reason, text));
        let limits_change = config.features.enabled(Feature::MutableCSINodeAllocatableCount);
        let told = (limits_change, tell as _, figures.clone());
        let csi = Arc::new(Csi::new(client, &config.node_name, &config.root_dir, node.clone(), mounter, told));
        let drivers = Drivers::new(
            config.client.clone(),
            &config.node_name,
            config.features.enabled(Feature::ResourceHealthStatus),
        );
        let claims = Claims::new(&config.root_dir, config.client.clone(), drivers)?;
        let logs = LogFolders::open(&config.root_dir, &config.log_dir, config.shared_logs.as_ref())
            .map_err(|source| Error::Folder { path: config.log_folder().display().to_string(), source })?;
        let affinity = Affinity::new(&config, &host.machine, &host.sys).map_err(Error::Machine)?;
        let host = Host { cgroups: host.cgroups.clone().with_cfs(config.settings.cfs), ..host };
        let sources = Arc::new(ApiSources::new(config.client.clone().patient(PATIENCE), certificates, config.features));
        let starts = ParallelStarts::new(parallel_starts::most(host.machine.cpus));
        Ok(Arc::new(Kubelet {
            host,
            events,
            services: caches.of::<Service>(),
            node,
            images: Arc::new(Images::new(&config, sources.clone())),
            sources,
            followed: Watches::default(),
            pods: PodWorkers::default(),
            starts,
            logs,
            devices: Devices::new(&config.root_dir),
            affinity,
            users: Arc::new(Users::new(&config.root_dir, config.settings.users_per_pod)),
            csi,
            local: LocalVolumes::new(config.local_volumes.clone()),
            remote: Arc::new(Remote::of_this_machine()),
            exclusive: Arc::new(Exclusive::new(state::held_alone(&config.root_dir))),
            volume_usages: VolumeUsages::default(),
            rates: Rates::default(),
            engine_metrics: OnceCell::new(),
            sharing: config.sharing.as_ref().map(|of| Sharing::new(of, &config.node_name)),
            figures,
            ooms: Counts::default(),
            probe_counts: ProbeCounts::default(),
            traces: Traces::new(config.settings.tracing.as_ref(), &config.node_name)?,
            pressures,
            shuts_down: watch::Sender::new(false),
            network: Network::default(),
            claims,
            engine_name: OnceCell::new(),
            config,
        }))
    }

    /// The engine's own name. Container ids in statuses begin with it: `containerd://…`.
    pub async fn engine_name(&self) -> runtime::Result<&str> {
        let ask = async || self.config.runtime.version().await.map(|version| version.runtime_name);
        self.engine_name.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Gives the processes of each class of Pods the weight that their requests add up to.
    pub fn weigh(&self) -> std::io::Result<()> {
        let active: Vec<_> =
            self.pods.all().into_iter().filter(|pod| !pod.is_over()).map(|pod| pod.desired()).collect();
        let (reserved, cgroups) = (&self.config.settings.reserved, &self.host.cgroups);
        let all = reserved::of_all_pods(reserved, &self.host.machine);
        let weights = resources::weights(active.iter().map(|desired| &*desired.pod), all, self.keeps_memory());
        weights.into_iter().try_for_each(|(class, limits)| cgroups.create(&cgroups.class(class), limits))
    }

    /// Keeps all Pods together to the machine's huge pages, and each Pod to what it asks for.
    pub fn bound_huge_pages(&self, desired: Option<&DesiredPod>) -> std::io::Result<()> {
        let (machine, cgroups) = (&self.host.machine.huge_pages, &self.host.cgroups);
        let Some(desired) = desired else {
            return huge_pages::bound(cgroups, &cgroups.class(api::rules::pod::GUARANTEED), machine);
        };
        let most = huge_pages::limits(machine, &api::rules::pod::requests(desired.spec()));
        huge_pages::bound(cgroups, &cgroups.path(api::rules::pod::qos(&desired.pod), desired.uid()), &most)
    }

    /// Requests of memory are kept for who made them.
    fn keeps_memory(&self) -> bool {
        self.config.features.enabled(Feature::MemoryQoS) && self.host.cgroups.is_unified()
    }

    /// How long containers that end wait before they start again.
    pub fn restart_pauses(&self) -> Pauses {
        let are_reduced = self.config.features.enabled(Feature::ReduceDefaultCrashLoopBackOffDecay);
        let usual = if are_reduced { Pauses::REDUCED } else { Pauses::USUAL };
        usual.at_most(self.config.settings.restart_pause)
    }

    /// The facts of this node that decide what containers get.
    pub fn ground(&self) -> Ground<'_> {
        let (settings, cgroups) = (&self.config.settings, &self.host.cgroups);
        let (unified, counts_swap) = (cgroups.is_unified(), cgroups.counts_swap());
        Ground {
            memory: self.host.machine.memory,
            allocatable_memory: self.facts(Vec::new()).memory_bytes,
            huge_pages: &self.host.machine.huge_pages,
            unified,
            kills_one: settings.kills_one.unwrap_or(!unified),
            counts_swap,
            swap: (settings.limited_swap && unified && counts_swap).then_some(self.host.machine.swap),
            cfs: settings.cfs,
            throttling: self.keeps_memory().then_some(settings.memory_throttling),
        }
    }

    /// The limits of the cgroup of a whole Pod.
    pub fn pod_limits(&self, desired: &DesiredPod) -> PodLimits {
        let spec = desired.spec();
        let requested = || api::rules::pod::requests(spec).get("memory").map_or(0, |q| q.value());
        let kept = self.keeps_memory().then(requested).filter(|bytes| *bytes > 0);
        let of_spec = resources::of_pod(spec, self.config.settings.cfs);
        // A quota for the Pod would bound the container that has processors of its own.
        let quota = of_spec.quota.filter(|_| !self.affinity.frees_quota_of_pod(desired.uid()));
        PodLimits { kept, quota, pids: self.config.settings.pod_pids, ..of_spec }
    }

    /// The facts that only this node knows and a Pod may ask for.
    pub fn facts(&self, pod_ips: Vec<String>) -> Facts {
        let allocatable = capacity::allocatable(&self.config, &self.host.machine, None);
        let amount = |name: &str| allocatable.get(name).map(api::rules::quantity::parse).unwrap_or_default();
        Facts {
            node_name: self.config.node_name.clone(),
            host_ips: self.config.node_ips().map(|ip| ip.to_string()).collect(),
            pod_ips,
            cpu_millis: amount("cpu").milli_value(),
            memory_bytes: amount("memory").value(),
            storage_bytes: amount("ephemeral-storage").value(),
        }
    }

    /// The means by which volumes are mounted.
    pub fn volume_means(&self) -> Means {
        let events = self.events.clone();
        let tell = Box::new(move |object: &_, kind, reason: &str, text: &str| events.about(object, kind, reason, text));
        let held = self.node.get(&Key::new("", &self.config.node_name));
        Means {
            facts: self.facts(Vec::new()),
            node_labels: capacity::labels_of(held.as_deref(), &self.config),
            sources: self.sources.clone(),
            mounter: self.host.mounter.clone(),
            csi: self.csi.clone(),
            local: self.local.clone(),
            labels: Labels::new(self.host.labels.clone(), self.config.features),
            remote: self.remote.clone(),
            exclusive: self.exclusive.clone(),
            tell: Arc::new(tell as _),
            figures: self.figures.clone(),
        }
    }

    pub fn pod_folder(&self, uid: &str) -> PodFolder {
        PodFolder::new(&self.config.root_dir, uid)
    }
}
