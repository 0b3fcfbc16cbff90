//! The whole server from its settings: authentication, authorization, admission and allocation over one object
//! store, the objects that every cluster has, and the table of special subresources.

use std::{net::SocketAddr, ops::RangeInclusive, sync::Arc, time::Duration};

use api::{
    Value,
    features::{Feature, Features, RuntimeConfig},
    kind::Definition,
    status::StatusError,
};
use store::Store;

use crate::{
    Server,
    admission::{
        self, Charges, Configuration, Plugins,
        policy::source::{self, Policies},
        webhook::source as webhook,
    },
    aggregator::Aggregator,
    allocation::{self, ServiceAllocation},
    audit::{self, Auditor},
    auth::{
        Authorizer,
        authn::{
            Authentication,
            bootstrap_token::BootstrapTokens,
            certificate::Certificates,
            front_proxy::FrontProxy,
            oidc::Told,
            service_account::{
                ServiceAccountTokens, Signer, Signing,
                expiry::Expiry,
                external::{self, External},
                keys::Keys,
            },
            structured::{self, Structured},
            token::Tokens,
            token_file::TokenFile,
            token_webhook::{self, TokenWebhook},
        },
        credentials::Identities,
        impersonation::Impersonation,
        metrics,
        modes::{self, Modes},
        node::{self, NodeAuthorizer},
        rbac::{self, Rbac},
    },
    bootstrap::{self, Cluster, flow_control, keep::Keeper},
    custom,
    fairness::Fairness,
    http::{encoding::Encoding, web::Web},
    outbound::{service::Routing, webhook::Webhooks},
    pages::{
        debug::Debugging,
        health::Checks,
        issuer::IssuerDocuments,
        openapi::Documents,
        started::{self, Started},
        version::Build,
        zpages::Zpages,
    },
    router::Router,
    special::{self, connect::connector::Connector, token::Issuer},
    state::{Allocations, Limits, State},
    storage::{informer::EventHandler, kinds::Kinds, loopback::Loopback, object_store::ObjectStore},
};

/// The settings that a server is built from.
pub struct Options {
    pub store: Arc<dyn Store>,
    pub cluster: Cluster,
    /// Verifies client certificates; without it none is believed.
    pub client_certificates: Option<pki::ClientCertificates>,
    /// Verifies the front proxy's certificate.
    pub front_proxy: Option<pki::ClientCertificates>,
    pub service_accounts: ServiceAccounts,
    /// A static token file's name and text.
    pub token_file: Option<(String, String)>,
    pub anonymous: bool,
    /// The issuers whose tokens are believed beside the server's own, and who is let in without any.
    pub authentication: structured::Settings,
    /// The server that is asked about bearer tokens.
    pub token_webhook: Option<token_webhook::Settings>,
    /// The authorizers and their settings.
    pub authorization: modes::Settings,
    /// The server's name among those of the cluster, of which metrics show a hash.
    pub identity: String,
    pub node_ports: RangeInclusive<u16>,
    pub connector: Option<Connector>,
    /// The front proxy's certificate, shown to other API servers; without it none is reached.
    pub front_proxy_client: Option<Arc<pki::Serving>>,
    /// Which address behind the Service of another API server is dialed.
    pub routing: Routing,
    /// Which admission plugins are at work.
    pub admission_plugins: admission::Choice,
    /// How many seconds Pods stay on a node that is not ready, and on one that cannot be reached, when they do not say.
    pub toleration_seconds: (i64, i64),
    /// The settings of the admission plugins.
    pub admission: Configuration,
    /// How the rest of the control plane is, by name: what `componentstatuses` shows beside the store.
    pub components: Checks,
    /// The further checks that count for the server's own health.
    pub checks: Checks,
    pub limits: Limits,
    /// The settings about browsers and load balancers.
    pub web: Web,
    /// The settings of the audit, if anything is audited.
    pub audit: Option<audit::Settings>,
    /// The source that this program was built from.
    pub build: Build,
    /// The maker of the spans of requests; `None` where none are sent.
    pub tracer: Option<Arc<spans::Tracer>>,
    /// The pages for developers.
    pub debugging: Debugging,
    pub features: Features,
    /// Which versions and kinds are served.
    pub runtime_config: RuntimeConfig,
}

/// Tokens of service accounts: who issues them, and for how long.
pub struct ServiceAccounts {
    /// The first one is the issuer of new tokens; those of the others are believed too. There is one at least.
    pub issuers: Vec<String>,
    /// The audiences that this server answers to; its issuers where there are none.
    pub audiences: Vec<String>,
    pub signed_by: SignedBy,
    /// Further keys under which tokens are believed, beside a key of this server's own.
    pub keys: Vec<pki::VerifyingKey>,
    /// Where others find the keys; at this server when not given.
    pub keys_url: Option<String>,
    /// Whether a Pod's tokens live longer than it is told.
    pub extend: bool,
    /// The longest life of a token that is asked for.
    pub longest: Option<Duration>,
}

pub enum SignedBy {
    Key(pki::SigningKey),
    /// A program beside this one.
    External(Arc<dyn external::Service>),
}

impl ServiceAccounts {
    pub fn new(issuer: &str, key: pki::SigningKey) -> Self {
        ServiceAccounts {
            issuers: vec![issuer.to_owned()],
            audiences: Vec::new(),
            signed_by: SignedBy::Key(key),
            keys: Vec::new(),
            keys_url: None,
            extend: true,
            longest: None,
        }
    }
}

/// Why a server cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error("cannot read the store: {0}")]
    Store(#[from] store::StoreError),
    #[error("cannot make the objects that every cluster has: {0}")]
    Bootstrap(#[from] StatusError),
    #[error("{0}")]
    Setting(String),
}

/// Kinds that are looked up on many requests and of which there are few: kept as live copies.
const INFORMED: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("scheduling.k8s.io", "priorityclasses"),
];
const RBAC_KINDS: &[&str] = &["roles", "clusterroles", "rolebindings", "clusterrolebindings"];

/// Builds the server and makes the objects that every cluster has. When this returns, it can answer.
pub async fn assemble(options: Options) -> Result<Server, AssembleError> {
    let (kinds, warnings) = api::kinds::table(options.features, &options.runtime_config);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let objects = ObjectStore::with_kinds(options.store.clone(), Kinds::new(Arc::new(kinds))).await?;
    let keeper = Arc::new(Keeper::new(objects.clone(), &options.cluster).await?);
    bootstrap::ensure(&objects, &options.cluster, options.features).await?;
    let start = Started::default();
    start.done(started::BOOTSTRAPPED);
    let loopback = Arc::new(Loopback::new(objects.clone(), INFORMED).await?);
    start.done(started::INFORMED);
    let rbac = Arc::new(Rbac::default());
    for plural in RBAC_KINDS {
        objects
            .add_event_handler(&objects.definition(rbac::GROUP, plural)?, Arc::new(RbacHandler(rbac.clone())))
            .await?;
    }
    let nodes = Arc::new(NodeAuthorizer::new(options.features));
    for (group, plural) in node::graph::FOLLOWED {
        let handler = NodeGraphHandler { authorizer: nodes.clone(), names_node: *plural != "persistentvolumes" };
        objects.add_event_handler(&objects.definition(group, plural)?, Arc::new(handler)).await?;
    }
    let own = modes::Own { node: nodes.clone(), rbac: rbac.clone() };
    let modes = Arc::new(Modes::new(&options.authorization, own).map_err(AssembleError::Setting)?);
    let authorizer: Arc<dyn Authorizer> = modes.clone();
    let webhooks = Arc::new(Webhooks::new(&objects, options.routing));
    let policies = Arc::new(Policies::default());
    for plural in source::FOLLOWED {
        objects.add_event_handler(&objects.definition(source::GROUP, plural)?, policies.clone()).await?;
    }
    let hooks = Arc::new(webhook::Webhooks::new(webhooks.clone(), options.admission.webhooks));
    for plural in [webhook::MUTATING, webhook::VALIDATING] {
        objects.add_event_handler(&objects.definition(webhook::GROUP, plural)?, hooks.clone()).await?;
    }
    let context = admission::Context {
        objects: loopback.clone(),
        rbac: rbac.clone(),
        authorizer: authorizer.clone(),
        pod_security: options.admission.pod_security,
        pod_security_counts: Default::default(),
        optional: options.admission.optional,
        toleration_seconds: options.toleration_seconds,
        charges: Charges::new(options.admission.quota),
        deletions: Default::default(),
        policies: policies.clone(),
        webhooks: hooks.clone(),
        features: options.features,
    };
    let admission = Arc::new(Plugins::new(context, &options.admission_plugins).map_err(AssembleError::Setting)?);
    let plugins = admission.clone();
    start.done(started::ADMITS);
    let (ranges, ports) = (&options.cluster.service_ranges, options.node_ports.clone());
    let services = ServiceAllocation::start(objects.clone(), ranges, ports).await?;
    start.done(started::ALLOCATES);
    let allocations: Allocations = vec![(allocation::KEY, Arc::new(services))];
    let accounts = Accounts::new(options.service_accounts).await.map_err(AssembleError::Setting)?;
    let mut authenticator = authentication(&accounts, loopback, &options.token_file)?;
    let told = Told { metrics: Arc::default(), server: metrics::hash(&options.identity) };
    let own = accounts.issuers.clone();
    let structured = Structured::new(&options.authentication.configuration, own, told);
    let structured = Arc::new(structured.map_err(AssembleError::Setting)?);
    authenticator.tokens.push(structured.clone());
    authenticator.structured = Some(structured.clone());
    if let Some(settings) = &options.token_webhook {
        let asked = TokenWebhook::new(settings, accounts.audiences.clone()).map_err(AssembleError::Setting)?;
        authenticator.tokens.push(Arc::new(asked));
    }
    let uids = options.features.enabled(Feature::AllowParsingUserUIDFromCertAuth);
    authenticator.certificates = options.client_certificates.map(|trusted| Certificates::new(trusted, uids));
    let Cluster { front_proxy_names, front_proxy_headers, .. } = &options.cluster;
    authenticator.front_proxy = options.front_proxy.map(|authorities| FrontProxy {
        authorities,
        allowed_names: front_proxy_names.clone(),
        headers: front_proxy_headers.clone(),
    });
    let identities = Identities::of(front_proxy_headers);
    authenticator.anonymous.enabled = options.anonymous;
    let authenticator = Arc::new(authenticator);
    let identified = authenticator.clone();
    let address = SocketAddr::new(options.cluster.advertise_address, options.cluster.secure_port);
    let documents =
        IssuerDocuments::new(&accounts.issuers[0], address, accounts.keys_url.clone(), accounts.keys.clone());
    let documents = documents.inspect_err(|why| {
        tracing::warn!(
            "the issuer of service account tokens is not told of at /.well-known/openid-configuration: {why}"
        );
    });
    let counted = accounts.metrics.clone();
    let followed = accounts.external();
    let issuer = Issuer {
        signing: accounts.signing,
        name: accounts.issuers[0].clone(),
        expiry: accounts.expiry,
        audiences: accounts.audiences,
        same_uid: options.features.enabled(Feature::TokenRequestServiceAccountUIDValidation),
    };
    let parts = special::Parts {
        authentication: authenticator.clone(),
        tokens: Arc::new(issuer),
        components: options.components,
        connector: options.connector,
    };
    let mut state = State::new(objects, authorizer, admission, allocations, options.limits);
    state.address = Some(address);
    if options.features.enabled(Feature::ConstrainedImpersonation) {
        state.impersonation = Impersonation::Constrained;
    }
    if options.features.enabled(Feature::CBORServingAndStorage) {
        state.encodings = Encoding::WITH_CBOR;
    }
    state.aggregator = Arc::new(Aggregator::new(options.front_proxy_client, options.routing));
    let mut background = state.aggregator.start(&state.objects).await?;
    start.done(started::AGGREGATES);
    state.fairness = state.limits.seats.map(|seats| Fairness::new(seats, state.limits.request_timeout));
    if let Some(fairness) = &state.fairness {
        for plural in [flow_control::SCHEMAS, flow_control::LEVELS_PLURAL] {
            let definition = state.objects.definition(flow_control::GROUP, plural)?;
            state.objects.add_event_handler(&definition, fairness.clone()).await?;
        }
        start.done(started::SHARES);
        background.spawn(fairness.clone().run());
        background.spawn(fairness.clone().keep(state.objects.clone()));
    } else {
        start.done(started::BOUNDS);
    }
    if let Some(external) = followed {
        background.spawn(external.follow());
    }
    let fairness = state.fairness.clone();
    state.tracer = options.tracer;
    state.auditor = options.audit.map(|settings| Auditor::new(settings, &mut background));
    let auditor = state.auditor.clone();
    if let Some((file, text)) = options.authentication.file {
        background.spawn(structured.clone().follow(file, text));
    }
    if let Some((file, text)) = options.authorization.file {
        background.spawn(modes.clone().follow(file, text, metrics::hash(&options.identity)));
    }
    let state = Arc::new(state);
    custom::start(&state, webhooks, options.features, &mut background).await?;
    start.done(started::CUSTOM);
    background.spawn(keeper.clone().run());
    let shares = state.fairness.is_some();
    let mut router = Router::new(state, authenticator);
    router.checks.extend(start.checks(shares, options.checks));
    router.specials = special::all(parts);
    router.issuer = documents.ok();
    router.identities = identities;
    router.documents = Documents::new(options.features);
    router.background = background;
    router.keeper = Some(keeper);
    router.build = options.build;
    let status = || meter::process::started().and_then(|at| clock::Timestamp::from_second(at as i64).ok());
    router.zpages = Zpages {
        status: options.features.enabled(Feature::ComponentStatusz).then(status).flatten(),
        flags: options.features.enabled(Feature::ComponentFlagz).then(|| options.debugging.flags.clone()),
    };
    router.debugging = options.debugging;
    router.web = options.web.goaway_of_strangers(options.features.enabled(Feature::UnauthenticatedHTTP2DOSMitigation));
    let server = Server::new(router);
    server.add_metrics(move || options.features.metrics());
    server.add_metrics(move || hooks.metrics.render());
    server.add_metrics(move || policies.metrics.render());
    server.add_metrics(move || plugins.render());
    server.add_metrics(move || identified.render());
    server.add_metrics(move || modes.render());
    server.add_metrics(move || structured.render());
    server.add_metrics(move || counted.render());
    server.add_metrics(move || nodes.metrics.render());
    if let Some(fairness) = fairness {
        server.add_metrics(move || fairness.render());
    }
    if let Some(auditor) = auditor {
        server.add_metrics(move || auditor.render());
    }
    Ok(server)
}

/// The settings of the tokens of service accounts.
struct Accounts {
    /// The first one is that of new tokens.
    issuers: Vec<String>,
    audiences: Vec<String>,
    keys_url: Option<String>,
    signing: Signing,
    keys: Arc<Keys>,
    expiry: Expiry,
    metrics: Arc<meter::Metrics>,
}

impl Accounts {
    async fn new(settings: ServiceAccounts) -> Result<Self, String> {
        let metrics = Arc::<meter::Metrics>::default();
        let (signing, keys, signer) = match settings.signed_by {
            SignedBy::Key(key) => {
                let signer = Signer::new(&key)?;
                (Signing::Own(Box::new(signer)), Keys::own([vec![key.public], settings.keys].concat()), None)
            }
            SignedBy::External(service) => {
                let (external, longest) = External::start(service, metrics.clone()).await?;
                (Signing::External(external.clone()), Keys::External(external), Some(longest))
            }
        };
        let expiry = Expiry::new(settings.extend, settings.longest, signer)?;
        let (issuers, keys_url) = (settings.issuers, settings.keys_url);
        if issuers.is_empty() {
            return Err("tokens of service accounts need an issuer".to_owned());
        }
        let audiences = if settings.audiences.is_empty() { issuers.clone() } else { settings.audiences };
        Ok(Accounts { issuers, audiences, keys_url, signing, keys: Arc::new(keys), expiry, metrics })
    }

    /// The program whose keys have to be followed.
    fn external(&self) -> Option<Arc<External>> {
        match &self.signing {
            Signing::Own(_) => None,
            Signing::External(external) => Some(external.clone()),
        }
    }
}

fn authentication(
    accounts: &Accounts,
    objects: Arc<Loopback>,
    token_file: &Option<(String, String)>,
) -> Result<Authentication, AssembleError> {
    let (issuers, keys) = (accounts.issuers.clone(), accounts.keys.clone());
    let issued = ServiceAccountTokens::new(issuers, keys, objects.clone(), accounts.metrics.clone());
    let mut tokens: Vec<Arc<dyn Tokens>> = Vec::new();
    if let Some((name, text)) = token_file {
        tokens.push(Arc::new(TokenFile::parse(name, text).map_err(AssembleError::Setting)?));
    }
    tokens.push(Arc::new(issued));
    tokens.push(Arc::new(BootstrapTokens(objects)));
    let mut authentication = Authentication::new(accounts.audiences.clone());
    authentication.tokens = tokens;
    Ok(authentication)
}

struct RbacHandler(Arc<Rbac>);

impl EventHandler for RbacHandler {
    fn changed(&self, definition: &Definition, namespace: &str, name: &str, object: Option<&Value>) {
        self.0.changed(&definition.plural, namespace, name, object);
    }
}

struct NodeGraphHandler {
    authorizer: Arc<NodeAuthorizer>,
    /// The objects name their node; volumes are tied to it through a claim.
    names_node: bool,
}

impl EventHandler for NodeGraphHandler {
    /// A Pod that is on no node concerns no node. (Inside a string the quotes would be escaped, so the text finds the
    /// field and nothing else.)
    fn wants(&self, stored: &[u8]) -> bool {
        const FIELD: &[u8] = b"\"nodeName\":\"";
        !self.names_node || memchr::memmem::find(stored, FIELD).is_some()
    }

    fn changed(&self, definition: &Definition, namespace: &str, name: &str, object: Option<&Value>) {
        self.authorizer.changed(&definition.group, &definition.plural, namespace, name, object);
    }
}
