//! One node: container engine, network, kubelet, Service proxy and cluster DNS, in one process.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use api::{
    features::Features,
    rules::certificate_request::{NODE_SERVICES, node_services},
};
use client::{Caches, Client, EventRecorder, Key};
use files::modes;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as ApiNode;
use runtime::{CgroupDriver, Cri, Runtime, archives, containerd, images};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    commands::{check, down, server},
    control_plane::{cluster_dns, welcome::Settings},
    flags::{
        kube_proxy::{NodePorts, node_ports},
        kubelet_config,
        options::{Agent, Node},
    },
    layout::Layout,
    node::{
        address, alone,
        certificate::{Purpose, Renewal},
        certificate_figures::Figures,
        domains,
        join::{self, Member},
        oom,
    },
    program_text,
    progress::Progress,
    reach,
    siblings::{self, process},
};

/// The facts about its cluster that a node needs.
struct Cluster {
    node_client: Client,
    proxy_client: Client,
    /// For the Pod network, network policies, and what is shared between nodes, all of which see the whole cluster.
    network_caches: Caches,
    dns_client: Client,
    /// PEM of the authority that signs clients of the kubelet.
    authority: String,
    /// The certificate that the kubelet shows.
    serving: Arc<pki::Serving>,
    settings: Settings,
    /// The node's addresses, the first one first.
    addresses: Vec<IpAddr>,
    parts: Parts,
    features: Features,
    /// The certificate that the node shows to others, where it has one of its own.
    own: Option<Own>,
    figures: Arc<Figures>,
    /// The task that keeps the node's certificates fresh, where the control plane is elsewhere.
    renewal: Option<Renewal>,
}

/// A node's client certificate, in files that are renewed.
struct Own {
    certificate: PathBuf,
    key: PathBuf,
    /// PEM of the authority that signs the certificates of all nodes.
    authority: String,
}

/// Which parts of a node run in this process.
#[derive(Clone, Copy)]
struct Parts {
    proxy: bool,
    network: bool,
    dns: bool,
}

/// A node at work. Its parts end when it is dropped; its Pods go on.
pub struct Running {
    #[allow(dead_code, reason = "dropping the set ends the tasks")]
    tasks: JoinSet<()>,
    #[allow(dead_code, reason = "the machine has this one node as long as it is held")]
    alone: alone::Claim,
    failures: mpsc::Receiver<anyhow::Error>,
}

impl Running {
    /// Resolves when a part of the node cannot go on.
    pub async fn failed(mut self) -> anyhow::Error {
        match self.failures.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }
}

/// The name of this machine's own node.
pub fn node_name(options: &Node) -> anyhow::Result<String> {
    match &options.node_name {
        Some(name) => Ok(name.clone()),
        None => address::host_name(),
    }
}

/// `skiff agent`: a node of a control plane that runs elsewhere.
pub fn run(options: Agent) -> anyhow::Result<ExitCode> {
    options.common.logging.install()?;
    if !nix::unistd::geteuid().is_root() {
        bail!("`skiff agent` makes network interfaces, cgroups and mounts and so needs root; run it with sudo");
    }
    options.gates.warn()?;
    siblings::enter(options.network_namespace.as_deref())?;
    let layout = Layout::new(&options.common.data_dir);
    layout.open()?;
    let _held = layout.hold()?;
    let alone = alone::claim()?;
    check::require(&check::for_node(&options))?;
    server::runtime()?.block_on(async {
        let signal = server::stop_signal()?;
        let stop = async {
            tokio::select! {
                () = signal => {}
                () = process::parent_ended() => {}
            }
        };
        let name = node_name(&options.node)?;
        tokio::pin!(stop);
        let asked_to_end = || anyhow::anyhow!("asked to end before the node was ready");
        let member = tokio::select! {
            member = join::join(&options, &layout, &name) => member?,
            () = &mut stop => return Err(asked_to_end()),
        };
        let started = tokio::select! {
            started = start_member(&options, &layout, member, alone) => started,
            () = &mut stop => Err(asked_to_end()),
        };
        let node = match started {
            Ok(node) => node,
            Err(error) => {
                down::undo_start(&layout, &options.node).await;
                return Err(error);
            }
        };
        tracing::info!(node = name, "the node is ready");
        tokio::select! {
            () = stop => {
                let folder = layout.root.display();
                tracing::info!("asked to end; Pods keep running, `skiff down --data-dir {folder}` ends them");
                Ok(ExitCode::SUCCESS)
            }
            error = node.failed() => Err(error),
            never = program_text::keep_small() => match never {},
        }
    })
}

/// The node of a member. It begins with a certificate of its own making if it has none, until the cluster signs one.
async fn start_member(
    options: &Agent,
    layout: &Layout,
    member: Member,
    alone: alone::Claim,
) -> anyhow::Result<Running> {
    let Member { server, client, mut holder, own } = member;
    let (settings, is_skiffs) = reach::insist(async || {
        let asked = Settings::for_agent(&client, options).await;
        asked.map_err(|error| reach::explain(&server, &error)).context("cannot read the cluster's settings")
    })
    .await?;
    let addresses = address::of_node(&options.node.node_ip, &settings.cluster_cidrs)?;
    holder.hosts.extend(addresses.iter().map(IpAddr::to_string));
    let authority = match &options.client_ca_file {
        None => holder.authority.clone(),
        Some(path) => pki::file::authorities(path)?,
    };
    let credential = match holder.held(Purpose::Serving)? {
        Some((held, _)) => held,
        None => {
            pki::Authority::create(&holder.node)?.issue(&pki::Subject::server(&holder.node, holder.hosts.clone()))?
        }
    };
    let serving = pki::Serving::new(&credential)?;
    let shown = holder.held(Purpose::Client)?.map(|_| {
        let [certificate, key] = holder.files(Purpose::Client);
        Own { certificate, key, authority: holder.authority.clone() }
    });
    let runs = |part: &str| !options.disable.iter().any(|d| d == part);
    // Another's control plane gives them nothing of their own: there they have the rights that the node was given.
    let (of_services, services) = match is_skiffs {
        true => join::services(&server, &client, &holder).await.map(|(client, way)| (client, Some((way, server))))?,
        false => (client.clone(), None),
    };
    let of_client = own.as_ref().map(|_| holder.files(Purpose::Client)[0].clone());
    let figures = Figures::new(&holder.node, serving.clone(), of_client);
    let cluster = Cluster {
        node_client: client.clone().named("kubelet"),
        proxy_client: of_services.clone().named("kube-proxy"),
        network_caches: Caches::new(of_services.clone().named("kube-network")),
        dns_client: of_services.named("coredns"),
        authority,
        serving: serving.clone(),
        settings,
        addresses,
        parts: Parts { proxy: runs("proxy"), network: runs("network"), dns: runs("dns") },
        features: options.gates.features()?,
        own: shown,
        figures: figures.clone(),
        renewal: Some(Renewal { holder, client, serving, own, services, figures }),
    };
    start(&options.node, layout, cluster, alone, &Progress::default()).await
}

/// The node beside a control plane in the same process: calls go to it directly, each part with rights of its own.
pub async fn start_beside(
    control_plane: &server::Running,
    options: &Node,
    layout: &Layout,
    alone: alone::Claim,
    progress: &Progress,
) -> anyhow::Result<Running> {
    let name = node_name(options)?;
    let flags = &control_plane.options;
    let settings = Settings::of(flags);
    let addresses = address::of_node(&options.node_ip, &settings.cluster_cidrs)?;
    let node_client = control_plane.client("kubelet", &format!("system:node:{name}"), &["system:nodes"]);
    let own = || {
        let (held, pki) = (name.clone(), &control_plane.pki);
        control_plane.fresh.keep(pki, move |pki| Ok(pki.node_client(&held).map(drop)?))?;
        let [certificate, key] = pki.node_client_files(&name);
        anyhow::Ok(Own { certificate, key, authority: pki.authority.certificate().to_owned() })
    };
    let own = options.embedded_registry.then(own).transpose()?;
    let hosts: Vec<String> = [name.clone()].into_iter().chain(addresses.iter().map(IpAddr::to_string)).collect();
    let serving = {
        let name = name.clone();
        control_plane.fresh.shown(&control_plane.pki, move |pki| pki.node_server(&name, &hosts))?
    };
    let cluster = Cluster {
        proxy_client: control_plane.client("kube-proxy", "system:kube-proxy", &[]),
        network_caches: Caches::new(control_plane.client("kube-network", &node_services(&name), &[NODE_SERVICES])),
        dns_client: control_plane.client("coredns", cluster_dns::USER, &[]),
        node_client,
        authority: control_plane.pki.authority.certificate().to_owned(),
        // The node's way to the API server in this process needs no certificate.
        figures: Figures::new(&name, serving.clone(), None),
        serving,
        settings,
        addresses,
        parts: Parts { proxy: flags.runs("proxy"), network: flags.runs("network"), dns: flags.runs("dns") },
        features: flags.gates.features()?,
        own,
        renewal: None,
    };
    start(options, layout, cluster, alone, progress).await
}

async fn start(
    options: &Node,
    layout: &Layout,
    mut cluster: Cluster,
    alone: alone::Claim,
    progress: &Progress,
) -> anyhow::Result<Running> {
    let (name, addresses) = (node_name(options)?, cluster.addresses.clone());
    let node_ports = node_ports(&options.nodeport_addresses, options.proxy_mode).context("--nodeport-addresses")?;
    if cluster.parts.network {
        network::require(cluster.settings.pod_network)?;
    }
    let (fail, mut failures) = mpsc::channel::<anyhow::Error>(8);
    let mut tasks = JoinSet::new();
    if let Some(renewal) = cluster.renewal.take() {
        tasks.spawn(renewal.run());
    }
    plugins(layout)?;
    let settings = kubelet_config::settings(options.kubelet_config.document()?.as_ref())?;
    oom::spare(settings.oom_score, containerd::pid(&layout.engine_options()));
    let mirror = mirror(options, layout, &cluster)?;
    let engine =
        engine(options, layout, (cluster.parts.network, mirror, settings.cgroup_driver), (&mut tasks, progress))
            .await?;
    let mut config = kubelet_config(options, layout, &cluster, &name, engine)?;
    let mut learner = None;
    // Another network enforces policies itself.
    if cluster.parts.network {
        let (gate, arrivals) = policy::gate();
        config.gate = Some(gate_of(gate));
        let (names, heard) = policy::names();
        learner = cluster.parts.dns.then(|| Arc::new(domains::Learning(names)) as Arc<dyn dns::plugins::Learner>);
        let heard = learner.as_ref().map(|_| heard);
        let config = policy::Config { node_name: name.clone(), pod_links: network::POD_LINKS };
        let client = cluster.network_caches.client().clone().named("kube-network-policies");
        tasks.spawn(policy::run(client, config, arrivals, heard));
    }
    let (caches, failed) = (Caches::new(cluster.node_client.clone()), fail.clone());
    tasks.spawn(async move {
        if let Err(error) = kubelet::run(config, caches).await {
            let advice = match &error {
                kubelet::Error::Listen { .. } => "; choose another port with --kubelet-port",
                kubelet::Error::Folder { .. } | kubelet::Error::Machine(_) | kubelet::Error::Claims(_) => "",
            };
            let _ = failed.send(anyhow::anyhow!("{error}{advice}")).await;
        }
    });
    if cluster.parts.network {
        let config = network::Config {
            node_name: name.clone(),
            node: cluster.node_client.clone(),
            conf_dir: layout.cni_conf(),
            state_dir: layout.cni_addresses(),
            cluster_cidrs: cluster.settings.cluster_cidrs.clone(),
            node_addresses: addresses.clone(),
            mode: cluster.settings.pod_network,
            key_file: layout.wireguard_key(),
        };
        let caches = cluster.network_caches;
        tasks.spawn(async move {
            if let Err(error) = network::run(caches, config).await {
                let _ = fail.send(error.into()).await;
            }
        });
    }
    if cluster.parts.proxy {
        let mode = options.proxy_mode;
        let families = served(&name, &addresses, &cluster.settings.cluster_cidrs, &node_ports);
        mode.available(&families).await?;
        let (mark, is_iptables) = (layout.wrote_iptables(), matches!(mode, proxy::Mode::Iptables(_)));
        // Chains of iptables that this node did not write may be another proxy's.
        let others = is_iptables || mark.exists();
        if is_iptables {
            modes::write(&mark, modes::PRIVATE_FILE, "")?;
        }
        let config = proxy::Config {
            node_name: name.clone(),
            families,
            mode,
            conntrack: proxy::apply::limits::Limits::default(),
            healthz: listening(&options.proxy_healthz_bind_address, &addresses),
            metrics: listening(&options.proxy_metrics_bind_address, &addresses),
        };
        tasks.spawn(async move {
            if others && mode.remove_other().await && !is_iptables {
                let _ = std::fs::remove_file(mark);
            }
            proxy::run(Caches::new(cluster.proxy_client), config).await;
        });
    }
    if cluster.parts.dns {
        let own = cluster.settings.dns_service;
        let reached = addresses.iter().find(|address| address.is_ipv6() == own.is_ipv6());
        let address = reached.with_context(|| {
            format!("this node has no address of the family of cluster DNS ({own}); give one with --node-ip")
        })?;
        let config = dns::Config {
            listen: SocketAddr::new(*address, options.dns_port),
            domain: cluster.settings.cluster_domain.clone(),
            clients: cluster.settings.cluster_cidrs.clone(),
            resolv_conf: options.resolv_conf.clone(),
            own_addresses: vec![own],
            learner,
        };
        let caches = Caches::new(cluster.dns_client);
        // The node whose DNS does not follow a Corefile tells what is wrong in it.
        let events = EventRecorder::new(cluster.node_client.clone(), "coredns", Some(&name));
        let advise = |e| anyhow::anyhow!("{e}; choose another port with --dns-port");
        let server = dns::bind(&config, events).await.map_err(advise)?;
        tasks.spawn(server.run(caches));
    }
    // A part that fails before the node is ready would keep it from ever being.
    let first = async {
        tokio::select! {
            ready = ready(cluster.node_client, &name) => ready,
            Some(error) = failures.recv() => Err(error),
        }
    };
    for pressure in progress.step("node registered and ready", first).await? {
        progress.note(&format!(
            "the node is under {pressure}: Pods are not scheduled on it until there is room again, or less is asked for with --eviction-hard"
        ));
    }
    Ok(Running { tasks, alone, failures })
}

/// The node for the proxy: Services are served in each family that Pods have addresses of.
fn served(name: &str, addresses: &[IpAddr], clusters: &[IpNet], node_ports: &NodePorts) -> Vec<proxy::node::Node> {
    let of = |pods: &IpNet| {
        let family = proxy::Family::of(pods.addr());
        let ip = addresses.iter().copied().find(|ip| proxy::Family::of(*ip) == family);
        proxy::node::Node {
            name: name.to_owned(),
            family,
            ip,
            pods: Some(proxy::node::FromPods::Range(*pods)),
            node_ports: node_ports.of(family, ip),
            ..Default::default()
        }
    };
    clusters.iter().map(of).collect()
}

/// Where to listen, if anywhere.
fn listening(flag: &str, node: &[IpAddr]) -> Option<SocketAddr> {
    Some(on_all(flag.parse().ok()?, node.iter().any(IpAddr::is_ipv6)))
}

/// As with upstream, all addresses of IPv4 are those of IPv6 too where the node has one.
pub fn on_all(mut address: SocketAddr, with_v6: bool) -> SocketAddr {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && with_v6 {
        address.set_ip(Ipv6Addr::UNSPECIFIED.into());
    }
    address
}

/// The policies' gate, as the kubelet asks it.
fn gate_of(gate: policy::Gate) -> kubelet::Gate {
    Arc::new(move |pod, addresses| {
        let gate = gate.clone();
        Box::pin(async move { gate.pass(&pod, addresses).await.map_err(|error| error.to_string()) })
    })
}

/// The engine finds the network plugins under their names in a folder of ours: links to this binary.
fn plugins(layout: &Layout) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find the skiff binary")?;
    modes::folder(&layout.cni_bin(), modes::PRIVATE_FOLDER).context("cannot make the folder of the network plugins")?;
    for name in network::PLUGINS {
        let link = layout.cni_bin().join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            continue;
        }
        // An older link leads to a binary that may be gone.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&binary, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// Where our containerd asks for images before it asks their registries: this node's kubelet, which asks other nodes.
fn mirror(options: &Node, layout: &Layout, cluster: &Cluster) -> anyhow::Result<Option<containerd::Mirror>> {
    if !options.embedded_registry {
        return Ok(None);
    }
    if options.container_runtime_endpoint.is_some() {
        bail!("--embedded-registry needs a containerd of our own; leave --container-runtime-endpoint out");
    }
    let own = cluster.own.as_ref();
    let own = own.context("--embedded-registry needs a certificate of the node's own; join with a token")?;
    let authority = layout.pki().join("nodes-ca.crt");
    pki::file::write(&authority, own.authority.as_bytes())?;
    let address = *cluster.addresses.first().context("the node has no address")?;
    Ok(Some(containerd::Mirror {
        server: format!("https://{}", SocketAddr::new(address, options.kubelet_port)),
        authority,
        certificate: own.certificate.clone(),
        key: own.key.clone(),
    }))
}

/// The engine that was named, or a containerd of our own with the images that every node has.
async fn engine(
    options: &Node,
    layout: &Layout,
    (own_network, mirror, cgroups): (bool, Option<containerd::Mirror>, CgroupDriver),
    (tasks, progress): (&mut JoinSet<()>, &Progress),
) -> anyhow::Result<Arc<dyn Runtime>> {
    if let Some(endpoint) = &options.container_runtime_endpoint {
        let engine = Cri::new(endpoint);
        let version =
            engine.version().await.with_context(|| format!("the container engine at {endpoint} does not answer"))?;
        tracing::info!(engine = version.runtime_name, version = version.runtime_version, "using the container engine");
        import_archives(&engine, options, layout, progress).await;
        return Ok(Arc::new(engine));
    }
    let settings = containerd::Options {
        mirror,
        selinux: options.selinux,
        systemd_cgroups: cgroups == CgroupDriver::Systemd,
        ..layout.engine_options()
    };
    let settings = if own_network { settings } else { settings.with_installed_network() };
    let containerd = progress.step("container engine", containerd::Containerd::start(settings)).await?;
    let engine = containerd.cri();
    match images::busybox(images::BUSYBOX) {
        Ok(recipe) => {
            let folder = layout.image_builds();
            modes::folder(&folder, modes::PRIVATE_FOLDER)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            let made = images::ensure(&engine, engine.socket(), &recipe, &folder);
            progress.step("image skiff.local/busybox:1", made).await?;
        }
        Err(error) => tracing::warn!(%error, "the image {} is not there", images::BUSYBOX),
    }
    import_archives(&engine, options, layout, progress).await;
    tasks.spawn(containerd.supervise());
    Ok(Arc::new(engine))
}

/// Imports the user's image archives, as far as they are new. One that is broken is told, and the node starts without it.
async fn import_archives(engine: &Cri, options: &Node, layout: &Layout, progress: &Progress) {
    let folder = options.image_archives.clone().unwrap_or_else(|| layout.images());
    let begun = clock::Instant::now();
    let imports = archives::import_folder(engine, engine.socket(), &folder, &layout.image_imports()).await;
    for (archive, images) in &imports.images {
        tracing::info!(archive, ?images, "an image archive was imported");
    }
    for why in &imports.failures {
        progress.note(why);
    }
    if !imports.images.is_empty() {
        progress.done(&format!("image archives imported: {}", imports.images.len()), begun.elapsed());
    }
}

fn kubelet_config(
    options: &Node,
    layout: &Layout,
    cluster: &Cluster,
    name: &str,
    engine: Arc<dyn Runtime>,
) -> anyhow::Result<kubelet::Config> {
    let document = options.kubelet_config.document()?;
    kubelet_config::warn(document.as_ref());
    let settings = kubelet_config::settings(document.as_ref())?;
    let manifests = options.pod_manifest_path.clone().unwrap_or_else(|| layout.manifests());
    make(&manifests)?;
    settings.protocols.warnings().iter().for_each(|why| tracing::warn!("the kubelet's TLS: {why}"));
    let shown = cluster.serving.clone();
    let tls = pki::server_config_speaking(&settings.protocols, shown, Some(&cluster.authority), &["http/1.1"])?;
    Ok(kubelet::Config {
        node_name: name.to_owned(),
        node_ip: *cluster.addresses.first().context("the node has no address")?,
        second_node_ip: cluster.addresses.get(1).copied(),
        root_dir: layout.kubelet(),
        log_dir: layout.pod_logs(),
        shared_logs: layout.shared_logs(settings.pod_logs.as_deref())?,
        local_volumes: Some(layout.local_volumes()),
        client: cluster.node_client.clone(),
        runtime: engine,
        cluster_dns: cluster.settings.cluster_dns.iter().map(IpAddr::to_string).collect(),
        cluster_domain: cluster.settings.cluster_domain.clone(),
        resolv_conf: options.resolv_conf.clone(),
        manifest_dir: Some(manifests),
        cgroup_root: options.cgroup_root.clone(),
        max_pods: options.max_pods,
        users_part: options.users_part(),
        evictions: options.evictions.limits().map_err(anyhow::Error::msg)?,
        sysctls: kubelet::Sysctls::new(&options.allowed_unsafe_sysctls)
            .map_err(|why| anyhow!("--allowed-unsafe-sysctls is not usable: {why}"))?,
        features: cluster.features,
        settings: kubelet::configuration::settings::Settings {
            credential_providers: options.image_credentials.providers(cluster.features)?,
            ..settings
        },
        document,
        selinux_labels: options.selinux || options.container_runtime_endpoint.is_some(),
        node_labels: BTreeMap::new(),
        node_annotations: cluster
            .parts
            .dns
            .then(|| (cluster_dns::PORT_ANNOTATION.to_owned(), options.dns_port.to_string()))
            .into_iter()
            .collect(),
        gate: None,
        sharing: cluster.own.as_ref().filter(|_| options.embedded_registry).map(|own| kubelet::Sharing {
            caches: cluster.network_caches.clone(),
            socket: layout.engine_options().socket(),
            certificate: own.certificate.clone(),
            key: own.key.clone(),
            authority: own.authority.clone(),
        }),
        serving: Some(kubelet::Serving {
            port: options.kubelet_port,
            tls: Arc::new(tls),
            client_authority: cluster.authority.clone(),
            metrics: {
                let figures = cluster.figures.clone();
                Arc::new(move || figures.page())
            },
        }),
    })
}

fn make(folder: &Path) -> anyhow::Result<PathBuf> {
    modes::make(folder, modes::PRIVATE_FOLDER).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Waits until the API shows this node as ready; says what it is short of.
pub async fn ready(client: Client, name: &str) -> anyhow::Result<Vec<String>> {
    let caches = Caches::new(client);
    let nodes = caches.selected::<ApiNode>(&format!("metadata.name={name}"));
    let mut changes = nodes.subscribe();
    let is_ready = || {
        let node = nodes.get(&Key::new("", name))?;
        let conditions = node.status.as_ref()?.conditions.as_ref()?;
        let mut holding = conditions.iter().filter(|c| c.status == "True");
        holding.clone().find(|c| c.type_ == "Ready")?;
        Some(holding.by_ref().map(|c| c.type_.clone()).filter(|t| t.ends_with("Pressure")).collect())
    };
    nodes.synced().await;
    loop {
        if let Some(pressures) = is_ready() {
            return Ok(pressures);
        }
        // Lost changes only mean another look.
        let _ = changes.recv().await;
    }
}
