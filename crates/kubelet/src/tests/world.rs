//! All that is outside a kubelet and outlives it: folders, mounts, the engine, the API server, and time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use api::features::{Feature, Features};
use clock::Timestamp;
use files::modes;
use futures::FutureExt;
use json::{Value, json};
use parking_lot::Mutex;
use runtime::fake::{Fake, Moment};
use tokio::sync::watch;

use crate::{
    affinity::{self, fixture::Topology},
    config::Config,
    configuration::settings::Settings,
    kubelet::{Host, Kubelet},
    node::{cgroup::Cgroups, huge_pages::HugePages, machine::Machine},
    pod::spec::{
        hardening::{Modules, Sysctls},
        selinux,
    },
    shutdown::logind::Place,
    tests::api::Api,
    users::range::Part,
    volumes::mounter::Recorded,
};

/// The gate that every call of a kubelet to the outside passes, on its way there and on its way back. At the pass that a
/// test names the kubelet dies.
#[derive(Clone, Default)]
pub struct Gate {
    /// How many passes are left, while they are counted.
    left: Arc<Mutex<Option<u64>>>,
    dead: Arc<watch::Sender<bool>>,
}

impl Gate {
    pub async fn pass(&self) {
        // Another task may run meanwhile.
        tokio::task::yield_now().await;
        let dies = self.left.lock().as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        if dies {
            self.dead.send_replace(true);
        }
        if *self.dead.borrow() {
            std::future::pending::<()>().await;
        }
    }

    fn set(&self, left: Option<u64>) {
        *self.left.lock() = left;
        self.dead.send_replace(false);
    }

    async fn death(&self) {
        // The sender lives as long as the gate.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }
}

/// Calls that change nothing: whether a kubelet dies in one of them or at its next step makes no difference.
const READS: [&str; 8] =
    ["version", "status", "sandboxes", "sandbox_status", "containers", "container_status", "images", "image"];

/// Whether something waits for a condition for ever is known after this much of the world's time.
const PATIENCE: Duration = Duration::from_secs(1200);

pub struct World {
    folder: tempfile::TempDir,
    pub engine: Fake,
    pub api: Api,
    pub mounts: Arc<Recorded>,
    /// The settings of the next kubelet, and its feature gates.
    pub settings: Mutex<Settings>,
    pub features: Mutex<Features>,
    /// The SELinux label of containers' files; none where the next kubelet finds no SELinux.
    pub labels: Mutex<Option<Arc<selinux::Context>>>,
    /// The part of the machine's user ids that the next kubelet has.
    pub users_part: Mutex<Option<Part>>,
    /// The machine that the next kubelet finds, in place of this one.
    machine: Option<Machine>,
    /// The folder of logs of the next kubelet, where that is not its own.
    pub shared_logs: Mutex<Option<crate::SharedLogs>>,
    /// The gate that Pods pass before their containers begin.
    pub network: Mutex<Option<crate::Gate>>,
    /// Where the next kubelet looks for logind.
    pub logind: Mutex<Option<Place>>,
    /// The kernel's log, as the next kubelet finds it.
    pub kernel_log: Mutex<Option<PathBuf>>,
    /// Where the kubelet sends its spans.
    pub tracing: Mutex<Option<spans::config::Config>>,
    gate: Gate,
    now: Mutex<Timestamp>,
    told: Mutex<BTreeSet<&'static str>>,
    kubelet: Mutex<Weak<Kubelet>>,
}

impl World {
    pub fn new() -> Self {
        let gate = Gate::default();
        let engine = Fake::default();
        let passed = gate.clone();
        engine.intercept(Some(Arc::new(move |call, _| {
            let (gate, is_read) = (passed.clone(), READS.contains(&call));
            async move {
                if is_read {
                    tokio::task::yield_now().await
                } else {
                    gate.pass().await
                }
                Ok(())
            }
            .boxed()
        })));
        let world = World {
            folder: tempfile::tempdir().unwrap(),
            engine,
            api: Api::new(gate.clone()),
            mounts: Arc::default(),
            settings: Mutex::default(),
            features: Mutex::new(
                Features::default()
                    .with(Feature::PodCertificateRequest, true)
                    .with(Feature::ResourceHealthStatus, true)
                    .with(Feature::ClusterTrustBundle, true)
                    .with(Feature::ClusterTrustBundleProjection, true),
            ),
            labels: Mutex::default(),
            shared_logs: Mutex::default(),
            users_part: Mutex::default(),
            machine: None,
            network: Mutex::default(),
            logind: Mutex::default(),
            kernel_log: Mutex::default(),
            tracing: Mutex::default(),
            gate,
            now: Mutex::new(Timestamp::from_second(1_700_000_000).unwrap()),
            told: Mutex::default(),
            kubelet: Mutex::default(),
        };
        modes::make(&world.manifests(), modes::NODE_FOLDER).unwrap();
        world
    }

    /// The next kubelet finds the engine and the folders, and an API server that has never heard of any Pod.
    pub fn with_another_api_server(self) -> Self {
        World { api: Api::new(self.gate.clone()), ..self }
    }

    /// A world whose machine has these processors, and that number of GiB on each of its NUMA nodes.
    pub fn on_machine(topology: &Topology, gib: u64) -> Self {
        let mut world = World::new();
        affinity::fixture::write(&world.path("sys"), topology, gib);
        let (cpus, nodes) = (topology.cpus.len(), topology.nodes.len());
        let memory = i64::try_from(gib * nodes as u64).unwrap() << 30;
        world.machine = Some(Machine { cpus: i64::try_from(cpus).unwrap(), memory, ..Machine::read() });
        world
    }

    /// A world whose machine has these huge pages.
    pub fn with_huge_pages(mut self, huge_pages: Vec<HugePages>) -> Self {
        self.machine = self.machine.map(|machine| Machine { huge_pages, ..machine });
        self
    }

    /// Where the trees of cgroups are.
    pub fn cgroups(&self) -> PathBuf {
        self.path("cgroup")
    }

    /// From now on the engine does this at the moments of its calls.
    pub fn engine_does(
        &self,
        what: impl Fn(&str, Moment) -> futures::future::BoxFuture<'static, runtime::Result<()>> + Send + Sync + 'static,
    ) {
        self.engine.intercept(Some(Arc::new(what)));
    }

    pub fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    /// Where device plugins are.
    pub fn device_folder(&self) -> PathBuf {
        self.path("kubelet/device-plugins")
    }

    /// Where the message bus of the machine is, and the additions to logind's configuration.
    pub fn place_of_logind(&self) -> Place {
        Place { socket: self.path("bus"), drop_ins: self.path("logind.conf.d") }
    }

    /// Where plugins register.
    pub fn registry(&self) -> PathBuf {
        self.path("kubelet/plugins_registry")
    }

    /// The kubelet that lives, as its own server sees it.
    pub fn kubelet(&self) -> Arc<Kubelet> {
        self.kubelet.lock().upgrade().expect("a kubelet that lives")
    }

    /// Where everything of the kubelet is.
    pub fn kubelet_folder(&self) -> PathBuf {
        self.path("kubelet")
    }

    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Remembers over the lives of kubelets that a story has come this far.
    pub fn tell(&self, what: &'static str) {
        self.told.lock().insert(what);
    }

    pub fn was_told(&self, what: &str) -> bool {
        self.told.lock().contains(what)
    }

    pub fn pod_dir(&self, name: &str) -> PathBuf {
        self.path(&format!("kubelet/pods/{name}-1"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, client: client::Client) -> Config {
        Config {
            node_name: "n1".into(),
            node_ip: std::net::Ipv4Addr::LOCALHOST.into(),
            second_node_ip: None,
            root_dir: self.path("kubelet"),
            log_dir: self.path("logs"),
            shared_logs: self.shared_logs.lock().clone(),
            local_volumes: None,
            client,
            runtime: Arc::new(self.engine.clone()),
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            manifest_dir: Some(self.manifests()),
            cgroup_root: "/".into(),
            max_pods: 110,
            users_part: *self.users_part.lock(),
            evictions: Default::default(),
            sysctls: Sysctls::new(&[]).unwrap(),
            selinux_labels: self.labels.lock().is_some(),
            features: *self.features.lock(),
            settings: Settings { tracing: self.tracing.lock().clone(), ..self.settings.lock().clone() },
            document: None,
            node_labels: Default::default(),
            node_annotations: Default::default(),
            gate: self.network.lock().clone(),
            sharing: None,
            serving: None,
        }
    }

    /// One life of a kubelet, which ends with the story, or before it at the given pass of a call to the outside. Whether the
    /// story came to its end. All that the kubelet has begun ends with its life, at the await where it is.
    pub fn life(&self, ends_at: Option<u64>, story: impl AsyncFnOnce()) -> bool {
        self.gate.set(ends_at);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let ended = runtime.block_on(async {
            clock::simulate(*self.now.lock(), 1);
            let client = self.api.client();
            let config = self.config(client.clone());
            let labels = self.labels.lock().clone();
            let host = Host {
                machine: self.machine.clone().unwrap_or_else(Machine::read),
                sys: self.machine.as_ref().map_or("/sys/devices/system".into(), |_| self.path("sys")),
                modules: Modules { selinux: labels.is_some(), apparmor: false },
                labels,
                // A tree without any controller: nothing is written.
                cgroups: Cgroups::new(&self.cgroups(), "/"),
                mounter: self.mounts.clone(),
                plugins: true,
                logind: self.logind.lock().clone(),
                kernel_log: self.kernel_log.lock().clone(),
            };
            let caches = client::Caches::new(client);
            let (kubelet, pressures) = crate::make(host, config, &caches).unwrap();
            *self.kubelet.lock() = Arc::downgrade(&kubelet);
            let ended = tokio::select! {
                ended = crate::live(kubelet, pressures, caches) => panic!("the kubelet ended: {ended:?}"),
                () = self.gate.death() => false,
                () = story() => true,
            };
            *self.now.lock() = clock::now().checked_add(Duration::from_secs(1)).unwrap();
            ended
        });
        // Work on files without an await is not cut off in the middle.
        drop(runtime);
        ended
    }

    /// Makes a Pod on this node.
    pub fn make_pod(&self, name: &str, spec: Value) {
        self.make_pod_with(name, spec, Value::Null);
    }

    /// Makes a Pod on this node about which somebody has already said something.
    pub fn make_pod_with(&self, name: &str, spec: Value, status: Value) {
        let mut spec = spec;
        spec["nodeName"] = "n1".into();
        let created = self.now.lock().to_string();
        let metadata =
            json!({"name": name, "namespace": "d", "uid": format!("{name}-1"), "creationTimestamp": created});
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status});
        self.api.put(&pod_path(name), pod);
    }

    /// Changes what a Pod wants, as a client does.
    pub fn change_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = self.pod(name).unwrap();
        change(&mut pod["spec"]);
        pod["metadata"]["generation"] = (pod["metadata"]["generation"].as_i64().unwrap_or(1) + 1).into();
        self.api.put(&pod_path(name), pod);
    }

    /// Writes over what the kubelet says of a Pod.
    pub fn overwrite_status(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = self.pod(name).unwrap();
        change(&mut pod["status"]);
        self.api.put(&pod_path(name), pod);
    }

    /// A condition of a Pod; null while it has none of that type.
    pub fn said(&self, name: &str, kind: &str) -> Value {
        let pod = self.pod(name).unwrap_or_default();
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
    }

    /// The health of the devices of a Pod's first container, as `resource device health`.
    pub fn health(&self, name: &str) -> Vec<String> {
        let pod = self.pod(name).unwrap_or_default();
        let list = |at: &Value| at.as_array().cloned().unwrap_or_default();
        let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
        let resources = list(&pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"]);
        let of = |resource: &Value| -> Vec<String> {
            let words =
                |d: &Value| format!("{} {} {}", text(&resource["name"]), text(&d["resourceID"]), text(&d["health"]));
            list(&resource["resources"]).iter().map(words).collect()
        };
        resources.iter().flat_map(of).collect()
    }

    pub fn pod(&self, name: &str) -> Option<Value> {
        self.api.get(&pod_path(name))
    }

    /// Asks for the Pod's end, as a client does.
    pub fn delete_pod(&self, name: &str) {
        let mut pod = self.pod(name).unwrap();
        pod["metadata"]["deletionTimestamp"] = clock::now_seconds().to_string().into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 5.into();
        self.api.put(&pod_path(name), pod);
    }

    pub fn is_ready(&self, name: &str) -> bool {
        self.condition(name, "Ready") == "True"
    }

    pub fn phase(&self, name: &str) -> String {
        self.pod(name).and_then(|pod| Some(pod["status"]["phase"].as_str()?.to_owned())).unwrap_or_default()
    }

    fn condition(&self, name: &str, kind: &str) -> String {
        let pod = self.pod(name).unwrap_or_default();
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|c| c["type"] == kind);
        found.and_then(|c| c["status"].as_str()).unwrap_or_default().to_owned()
    }

    /// How often the engine was asked for something.
    pub fn asked(&self, call: &str) -> usize {
        self.engine.calls().iter().filter(|c| *c == call).count()
    }

    /// The traces that are left on the node of any Pod.
    pub fn left(&self) -> Vec<String> {
        let below = |folder: &Path| -> Vec<String> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect()
        };
        let in_memory = self.path("kubelet/volumes-in-memory");
        let mut left = below(&self.path("kubelet/pods"));
        left.extend(below(&in_memory));
        left.extend(below(&self.path("logs")));
        for shared in self.shared_logs.lock().iter() {
            left.extend(below(&shared.folder).into_iter().filter(|path| path.contains("/d_")));
            left.extend(below(&shared.links).into_iter().filter(|path| path.contains("_d_")));
        }
        // The file system that all Pods share stays for the next ones.
        let mounted = self.mounts.points().into_iter().filter(|point| *point != in_memory);
        left.extend(mounted.map(|point| format!("mounted: {}", point.display())));
        if !self.engine.is_empty() {
            left.push("something in the engine".to_owned());
        }
        left
    }
}

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/d/pods/{name}")
}

/// Waits until something is so, in the world's time.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = clock::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        clock::sleep(Duration::from_millis(250)).await;
    }
}
