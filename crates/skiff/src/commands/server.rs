//! The control plane in one process: store, API server, controllers and scheduler, and who they are to each other.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use api::features::Feature;
use apiserver::{
    Listening, Options, User,
    auth::authn::service_account::{Reference, Signer},
    bootstrap::Cluster,
    pages::{
        debug::Debugging,
        health::{Checks, Counts},
        version::Build,
    },
    special::connect::connector::Connector,
};
use client::{
    Caches, Client,
    election::{self, Candidate},
};
use controllers::service_account::tokens::TokenSigner;
use pki::{Names, Pki};
use store::{Store, embedded::Embedded, etcd::watch_cache::WatchCache};
use tokio::task::JoinSet;

use crate::{
    allocator, configz,
    control_plane::{
        admin,
        at_rest::AtRest,
        audit, cluster_dns,
        fresh::Fresh,
        front_proxy::FrontProxies,
        local_storage,
        told::Told,
        trust::{self, Clients},
        welcome,
    },
    flags::options::{self, ControlPlane},
    given,
    layout::Layout,
    node::address,
    program_text,
    progress::Progress,
};

/// The source of this program, as the build script found it.
pub const BUILD: Build = Build { commit: env!("SKIFF_COMMIT"), tree: env!("SKIFF_TREE"), date: env!("SKIFF_DATE") };

/// The runtime of every command, with as many open files as the system allows.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    listener::descriptors::raise();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().on_thread_park(allocator::give_back);
    builder.build().context("cannot start the async runtime")
}

/// Resolves when the process is asked to end. One that is asked again does so at once, and what it was about to finish is broken off.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let mut asked = async move || {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    Ok(async move {
        asked().await;
        tokio::spawn(async move {
            asked().await;
            tracing::warn!("asked to end once more, ending at once");
            std::process::exit(1);
        });
    })
}

/// `skiff server`.
pub fn run(options: options::Server) -> anyhow::Result<ExitCode> {
    options.common.logging.install()?;
    options.control_plane.check()?;
    let layout = Layout::new(&options.common.data_dir);
    layout.open()?;
    let _held = layout.hold()?;
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        let control_plane = start(&options.control_plane, &layout, &Progress::default()).await?;
        tokio::select! {
            () = stop => {}
            never = program_text::keep_small() => match never {},
        }
        control_plane.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The longest wait for audit events on their way when the server ends.
const FLUSH: clock::Duration = clock::Duration::from_secs(10);

/// A control plane at work.
pub struct Running {
    pub server: apiserver::Server,
    pub pki: Arc<Pki>,
    /// The task that keeps the certificates valid that come from there.
    pub fresh: Fresh,
    pub options: ControlPlane,
    listening: Listening,
    tasks: JoinSet<()>,
    /// Shown by `/readyz` while the server still answers.
    ending: Arc<AtomicBool>,
}

impl Running {
    /// A client of a program that is the given user, calling the server in this process.
    pub fn client(&self, program: &'static str, user: &str, groups: &[&str]) -> Client {
        client_as(&self.server, program, user, groups)
    }

    /// Ends controllers and scheduler, answers on for as long as load balancers need to hear of it, then takes no more
    /// requests and waits for those in flight.
    pub async fn stop(mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.server.leave().await;
        self.tasks.shutdown().await;
        let web = &self.options.web;
        clock::sleep(web.shutdown_delay_duration).await;
        if !self.server.end(self.listening, web.shutdown_send_retry_after, FLUSH).await {
            tracing::warn!("some audit events could not be sent");
        }
    }
}

fn client_as(server: &apiserver::Server, program: &'static str, user: &str, groups: &[&str]) -> Client {
    let all = groups.iter().copied().chain(["system:authenticated"]).map(str::to_owned).collect();
    let user = User { name: user.to_owned(), groups: all, ..User::default() };
    client::connect::in_process(server.in_process().as_user(user)).named(program)
}

/// A controller's own identity: a service account in `kube-system`, with the rights of its own role.
fn controller_client(server: &apiserver::Server, account: &str) -> Client {
    let user = format!("system:serviceaccount:kube-system:{account}");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    client_as(server, "kube-controller-manager", &user, &groups)
}

/// Whether a part of the control plane is at work in this process.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicBool>);

impl Alive {
    fn check(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err("it does not run in this process".to_owned()) }
    }

    /// Does the work, and has begun from then on: a server that ends is not ill.
    async fn begins<T>(self, work: impl Future<Output = T>) -> T {
        self.0.store(true, Ordering::Relaxed);
        work.await
    }

    /// Does the work; however that ends, the part is alive no longer.
    async fn during<T>(self, work: impl Future<Output = T>) -> T {
        struct Ends(Alive);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.0.store(false, Ordering::Relaxed);
            }
        }
        self.0.store(true, Ordering::Relaxed);
        let _ends = Ends(self);
        work.await
    }
}

/// Starts everything, in the order in which it depends on each other.
pub async fn start(options: &ControlPlane, layout: &Layout, progress: &Progress) -> anyhow::Result<Running> {
    let address = match options.advertise_address {
        Some(address) => address,
        // The address goes into the Endpoints of the `kubernetes` Service, which may not be a loopback one.
        None if !options.bind_address.is_unspecified() && !options.bind_address.is_loopback() => options.bind_address,
        None => address::own_address(options.service_cluster_ip_range.first().addr().is_ipv6())?,
    };
    options.gates.warn()?;
    options.admission.check()?;
    if options.profiling && profile::heap::record().is_err() {
        tracing::warn!("who asks for memory cannot be recorded on this machine");
    }
    let scheduling_settings = options.scheduler()?;
    let below = progress.step("store opened", open_store(options, layout)).await?;
    let pki = Arc::new(Pki::open(&layout.pki())?);
    let at_rest = AtRest::open(&options.encryption, layout, below).await?;
    let names = Names {
        cluster_domain: options.cluster_domain.clone(),
        service_addresses: options
            .service_cluster_ip_range
            .all()
            .iter()
            .map(|range| options::service_address(*range, 1))
            .collect(),
        hosts: [address::host_name()?, address.to_string()].into_iter().chain(options.tls_san.clone()).collect(),
    };
    let fresh = Fresh::new(layout.pki());
    let serving = fresh.shown(&pki, move |pki| pki.server(&names))?;
    let (shown, followed) = trust::shown(&options.serving, serving)?;
    let clients = Clients::open(&options.serving, &pki)?;
    let proxies = FrontProxies::open(&options.front_proxy, &pki, &fresh, &clients.authorities())?;
    let protocols = options.serving.protocols()?;
    protocols.warnings().iter().for_each(|why| tracing::warn!("the API server's TLS: {why}"));
    let tls =
        pki::server_config_speaking(&protocols, shown, Some(clients.hints(&proxies).as_str()), &["h2", "http/1.1"])?;
    let (scheduling, controlling) = (Alive::default(), Alive::default());
    let components = [("scheduler", &scheduling), ("controller-manager", &controlling)];
    let components = components.map(|(name, part)| (name, part.clone()));
    let (beside, ending) = (Beside::default(), Arc::<AtomicBool>::default());
    let cluster = cluster(options, &clients, &proxies, address);
    let audit = audit::settings(&options.audit, layout)?;
    let instance = controllers::api_server::identity::name(&address::host_name()?);
    let about = vec![("service.name", "apiserver".to_owned()), ("service.instance.id", instance.clone())];
    let traces = options.tracing.config()?.map(|config| runtime::traces::begin(&config, about));
    let traces = traces.transpose().map_err(anyhow::Error::msg)?;
    let (tracer, sending) = traces.unzip();
    let around = (&cluster, (&clients, &proxies), tracer);
    let server = assembled(options, &pki, &fresh, (&at_rest, &beside, ending.clone()), around, audit, components);
    let server = progress.step("API server assembled", server).await?;
    server.on_rewrite(at_rest.clone().answering());
    server.show_configurations(configz::of(options, &scheduling_settings));
    let bind = SocketAddr::new(options.listen_address(), options.secure_port);
    let listening = server.listen(bind, Arc::new(tls)).await.with_context(|| cannot_listen(bind))?;
    let (kubeconfig, port) = (layout.admin_kubeconfig(), options.secure_port);
    fresh.keep(&pki, move |pki| admin::keep(&kubeconfig, pki, port))?;
    let mut tasks = JoinSet::new();
    tasks.spawn(fresh.clone().run());
    sending.into_iter().for_each(|sending| drop(tasks.spawn(sending)));
    server.add_metrics(client::metrics::render);
    server.add_metrics(controllers::queue_metrics);
    server.add_metrics(controllers::storage::metrics);
    server.add_metrics(controllers::workloads::pod_garbage::metrics);
    let told = Told::new(server.clone(), cluster);
    let followed = [followed, clients.followed(&told, &proxies)].into_iter().flatten();
    for followed in followed.chain(proxies.followed(&told)) {
        tasks.spawn(followed.run());
    }
    server.add_metrics({
        let at_rest = at_rest.clone();
        move || at_rest.figures(&instance)
    });
    tasks.spawn(at_rest.clone().tend());
    tasks.spawn(beside.encryption.begins(at_rest.follow()));
    let caches = Caches::new(client_as(&server, "kube-controller-manager", "system:kube-controller-manager", &[]));
    let host = address::host_name()?;
    if options.runs("controllers") {
        let me = options.candidate("kube-controller-manager", &host);
        let (server, caches, options, pki) = (server.clone(), caches.clone(), options.clone(), pki.clone());
        let client = caches.client().clone();
        let work = move || controllers(server.clone(), caches.clone(), options.clone(), pki.clone());
        tasks.spawn(controlling.during(leading(client, me, work)));
    }
    if options.runs("scheduler") {
        let me = options.candidate("kube-scheduler", &host);
        let client = client_as(&server, "kube-scheduler", "system:kube-scheduler", &[]);
        let reader = client.clone();
        let metrics = Arc::<scheduler::Metrics>::default();
        server.add_metrics({
            let metrics = metrics.clone();
            move || metrics.render()
        });
        let work = move || scheduler::run(Caches::new(reader.clone()), scheduling_settings.clone(), metrics.clone());
        tasks.spawn(scheduling.during(leading(client, me, work)));
    }
    if options.coordinated().is_some() {
        let (client, me) = (
            client_as(&server, "kube-apiserver", "system:apiserver", &["system:masters"]),
            format!("{host}_{}", clock::uuid()),
        );
        tasks.spawn(async move { controllers::leader_election::run(client, &me).await });
    }
    let this = controllers::api_server::Server {
        host: host.clone(),
        features: options.gates.features()?,
        served: options.served.config()?,
    };
    let client = client_as(&server, "kube-apiserver", "system:apiserver", &["system:masters"]);
    tasks.spawn(beside.identity.begins(async move { this.tell(&client).await }));
    // Nobody may forbid the objects that skiff itself keeps in the cluster.
    let own = || client_as(&server, "skiff", "system:skiff", &["system:masters"]);
    let reached_at = if options.bind_address.is_loopback() { options.bind_address } else { address };
    let url = format!("https://{}", SocketAddr::new(reached_at, options.secure_port));
    let authority = pki.authority.certificate().to_owned();
    tasks.spawn(welcome::run(own(), url, authority, welcome::Settings::of(options)));
    if options.runs("local-storage") {
        tasks.spawn(local_storage::run(own()));
    }
    if options.runs("network") {
        tasks.spawn(policy::status::run(own(), options.runs("dns")));
    }
    if options.runs("dns") {
        tasks.spawn(cluster_dns::run(own(), caches, options.dns_service()));
    }
    tracing::info!(address = %listening.address, "the API server answers");
    Ok(Running { server, pki, fresh, options: options.clone(), listening, tasks, ending })
}

/// Does the work whenever this process leads; without a candidate nobody else could. Work that is begun anew knows nothing of
/// what it did before, and reads what there is.
async fn leading<W: Future>(client: Client, me: Option<Candidate>, work: impl Fn() -> W) {
    match me {
        Some(me) => while election::lead(&client, &me, work()).await.is_none() {},
        None => drop(work().await),
    }
}

/// Signs with the key of service accounts; a key that cannot be used was told of when the API server took it.
fn token_signer(options: &ControlPlane, pki: &Pki) -> Option<TokenSigner> {
    let key = options.service_accounts.signing_key(pki).ok()?;
    let signer = Signer::new(&key).ok()?;
    Some(TokenSigner(Arc::new(move |subject| {
        let account = Reference { name: subject.account.to_owned(), uid: subject.uid.to_owned() };
        signer.sign_for_secret(subject.namespace, subject.secret, &account)
    })))
}

async fn controllers(server: apiserver::Server, caches: Caches, options: ControlPlane, pki: Arc<Pki>) {
    let settings = controllers::Options {
        enabled: options.enabled_controllers(),
        pod_ranges: options.node_ranges.of(&options.cluster_cidr).unwrap_or_default(),
        root_ca: pki.authority.certificate().to_owned(),
        authority: Some(pki.authority.clone()),
        token_signer: options.service_accounts.signs_here().then(|| token_signer(&options, &pki)).flatten(),
        autoscaling: options.autoscaling(),
        features: options.gates.features().unwrap_or_default(),
        served: options.served.config().unwrap_or_default(),
        nodes: options.lost_nodes.limits(),
        volumes: options.volumes.settings().unwrap_or_default(),
        unmount_patience: options.volumes.unmount_patience(),
        ..controllers::Options::default()
    };
    let mut running = controllers::run(&caches, |account| controller_client(&server, account), &settings);
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended");
        }
    }
}

async fn open_store(options: &ControlPlane, layout: &Layout) -> anyhow::Result<Arc<dyn Store>> {
    if options.etcd.etcd_servers.is_empty() {
        let folder = layout.store();
        let opened = tokio::task::spawn_blocking(move || Embedded::open(&folder, store::embedded::Options::default()));
        return Ok(Arc::new(opened.await??));
    }
    let etcd = options.etcd.connect().await?.reading(apiserver::storage::foreign::arriving);
    Ok(Arc::new(WatchCache::open(etcd, "/registry/").await?))
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn cannot_listen(bind: SocketAddr) -> String {
    let advice = match std::net::TcpListener::bind(SocketAddr::new(bind.ip(), 0)) {
        Ok(_) => "choose another port with --secure-port",
        Err(_) => "this machine does not have that address, choose another with --bind-address",
    };
    format!("the API server cannot listen on {bind}; {advice}")
}

/// The parts that are at work beside those of the API server itself, each with the names that upstream has for its hooks.
#[derive(Clone, Default)]
struct Beside {
    identity: Alive,
    encryption: Alive,
}

const IDENTITY: &[&str] =
    &["start-kube-apiserver-identity-lease-controller", "start-kube-apiserver-identity-lease-garbage-collector"];
const ENCRYPTION: &[&str] = &["start-encryption-provider-config-automatic-reload"];

/// The checks that count for the server's health beside its own parts.
fn checks(
    options: &ControlPlane,
    at_rest: &AtRest,
    beside: &Beside,
    ending: Arc<AtomicBool>,
) -> anyhow::Result<Checks> {
    let mut checks = Checks::default();
    if at_rest.asks_plugins() {
        let at_rest = at_rest.clone();
        checks = checks.with_slow("kms-providers", Counts::Everywhere, move || at_rest.clone().plugins_are_well());
    }
    let encryption = options.encryption.encryption_provider_config_automatic_reload;
    let identity = options.gates.features()?.enabled(Feature::APIServerIdentity);
    let hooks = ENCRYPTION.iter().filter(|_| encryption).map(|name| (name, &beside.encryption));
    for (name, part) in hooks.chain(IDENTITY.iter().filter(|_| identity).map(|name| (name, &beside.identity))) {
        let part = part.clone();
        checks = checks.with(&format!("poststarthook/{name}"), Counts::Everywhere, move || part.check());
    }
    Ok(checks.with("shutdown", Counts::Ready, move || {
        if ending.load(Ordering::Relaxed) { Err("process is shutting down".to_owned()) } else { Ok(()) }
    }))
}

fn cluster(options: &ControlPlane, clients: &Clients, proxies: &FrontProxies, address: IpAddr) -> Cluster {
    Cluster {
        service_ranges: options.service_cluster_ip_range.all().to_vec(),
        advertise_address: address,
        secure_port: options.secure_port,
        client_authority: clients.authorities(),
        front_proxy_authority: Some(proxies.authorities.clone()),
        front_proxy_names: proxies.names.clone(),
        front_proxy_headers: proxies.headers.clone(),
        now: clock::now_seconds().to_string(),
    }
}

async fn assembled(
    options: &ControlPlane,
    pki: &Pki,
    fresh: &Fresh,
    (at_rest, beside, ending): (&AtRest, &Beside, Arc<AtomicBool>),
    (cluster, (clients, proxies), tracer): (&Cluster, (&Clients, &FrontProxies), Option<Arc<spans::Tracer>>),
    audit: Option<apiserver::audit::Settings>,
    components: [(&str, Alive); 2],
) -> anyhow::Result<apiserver::Server> {
    let token_file = match &options.token_auth_file {
        Some(path) => Some((path.display().to_string(), read_text(path)?)),
        None => None,
    };
    let authority = pki.authority.certificate();
    let tls = pki::client_config_showing(authority, fresh.shown(pki, Pki::kubelet_client)?, &["http/1.1"])?;
    let features = options.gates.features()?;
    let connector = Connector::new(Arc::new(tls), ["InternalIP", "Hostname", "ExternalIP"].map(str::to_owned).to_vec())
        .selecting_streams(features.enabled(Feature::PodLogsQuerySplitStreams));
    let authorization = options.authorization.settings()?;
    let strangers = options.authentication.anonymous_auth.unwrap_or(true);
    let anonymous = strangers && !authorization.configuration.allows_everything();
    if anonymous != strangers {
        tracing::warn!(
            "requests without credentials are not let in, for --authorization-mode=AlwaysAllow lets through what they ask"
        );
    }
    let server = apiserver::assemble(Options {
        store: at_rest.store(features.enabled(Feature::CBORServingAndStorage)),
        cluster: cluster.clone(),
        client_certificates: Some(clients.certificates.clone()),
        front_proxy: Some(proxies.certificates.clone()),
        service_accounts: options.service_accounts.settings(&options.issuer(), pki)?,
        token_file,
        anonymous,
        authentication: options.authentication.settings(&options.issuers())?,
        token_webhook: options.authentication.token_webhook(),
        authorization,
        identity: controllers::api_server::identity::name(&address::host_name()?),
        node_ports: options.service_node_port_range.clone(),
        connector: Some(connector),
        front_proxy_client: Some(proxies.shown.clone()),
        routing: options.routing(),
        features,
        runtime_config: options.served.config()?,
        admission_plugins: options.admission.choice()?,
        toleration_seconds: options.admission.toleration_seconds(),
        admission: options.admission.configuration()?,
        components: components
            .into_iter()
            .fold(Checks::default(), |all, (name, part)| all.with(name, Counts::Everywhere, move || part.check())),
        checks: checks(options, at_rest, beside, ending)?,
        web: options.web.settings()?,
        limits: options.limits(),
        audit,
        build: BUILD,
        tracer,
        debugging: Debugging { profiling: options.profiling, flags: given::all() },
    });
    Ok(server.await?)
}
