//! The ordered list of controllers, and what starts them.

use std::{future::Future, pin::Pin, sync::Arc};

use api::features::{Feature, Features, RuntimeConfig};
use client::{Caches, Client, EventRecorder};
use controller::{Controller, Setup};
use tokio::task::JoinSet;

use crate::{
    admission_policy::PolicyStatus,
    api_server::{collector::StorageVersionCollector, storage_versions},
    autoscaling::{self, HorizontalPodAutoscalers},
    bootstrap::{signer::BootstrapSigner, token_cleaner::TokenCleaner},
    certificates::{
        self, approve::Approver, approve_serving::ServingApprover, clean::Cleaner,
        clean_pod_requests::PodRequestCleaner, sign::Signer, trust_bundle::TrustBundle,
    },
    devices::{
        self,
        taint_eviction::{DeviceTaintEviction, Evicted},
        taint_rules::DeviceTaintRules,
    },
    endpoints::{legacy::LegacyEndpoints, mirroring::EndpointSliceMirroring, slices::EndpointSlices},
    garbage, names,
    namespace::Namespaces,
    node::{
        ipam::NodeIpam,
        lifecycle::{Limits as NodeLimits, NodeLifecycle},
        taint_eviction::TaintEviction,
        ttl::Ttl,
    },
    quota::ResourceQuotas,
    role_aggregation::RoleAggregation,
    service_account::{
        default::ServiceAccounts,
        legacy_tokens::LegacyTokens,
        root_ca::RootCa,
        tokens::{Removed, ServiceAccountTokens, TokenSigner},
    },
    service_cidr::ServiceRanges,
    storage::{
        attach_detach::{AttachDetach, Patience},
        attributes_class_protection::AttributesClassProtection,
        binder,
        claim_protection::ClaimProtection,
        ephemeral::EphemeralVolumes,
        expansion::Expansion,
        local,
        selinux_warning::SelinuxWarnings,
        volume_protection::VolumeProtection,
    },
    storage_migration::StorageMigrations,
    workloads::{
        cron_job::CronJobs,
        daemonset::DaemonSets,
        deployment::Deployments,
        disruption::Disruptions,
        job::{Jobs, OrphanedPods},
        pod_garbage::PodGarbage,
        replicaset::ReplicaSets,
        replication_controller::ReplicationControllers,
        stale_disruption::StaleDisruptions,
        statefulset::StatefulSets,
        ttl_after_finished::TtlAfterFinished,
    },
};

/// The settings of the controllers.
#[derive(Debug, Clone)]
pub struct Options {
    /// As `--controllers`: `*` is all that are on by default, `name` turns one on, `-name` off. The first match counts.
    pub enabled: Vec<String>,
    /// The ranges that nodes get their Pod addresses from, with the length of the prefix of a node's part.
    pub pod_ranges: Vec<(ipnet::IpNet, u8)>,
    /// The cluster's CA certificate in PEM, for `kube-root-ca.crt`.
    pub root_ca: String,
    /// Signs certificate requests; without it they are left to others.
    pub authority: Option<Arc<pki::Authority>>,
    /// Signs the tokens that live in Secrets; without it there are none.
    pub token_signer: Option<TokenSigner>,
    /// When nodes count as lost, and how fast they are emptied.
    pub nodes: NodeLimits,
    /// How many ended Pods are kept before the oldest are deleted; 0 keeps all.
    pub terminated_pods: usize,
    pub autoscaling: autoscaling::settings::Settings,
    pub features: Features,
    /// The fate of released volumes, and whether volumes are made.
    pub volumes: binder::Settings,
    /// How long nodes that are lost keep their volumes.
    pub unmount_patience: Patience,
    /// Which versions and kinds the server serves.
    pub served: RuntimeConfig,
    /// As in [`Setup`].
    pub backs_off: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            enabled: vec!["*".to_owned()],
            pod_ranges: vec![("10.244.0.0/16".parse().expect("a constant"), 24)],
            root_ca: String::new(),
            authority: None,
            token_signer: None,
            nodes: NodeLimits::default(),
            terminated_pods: 12500,
            autoscaling: Default::default(),
            features: Features::default(),
            volumes: binder::Settings::default(),
            unmount_patience: Patience::default(),
            served: RuntimeConfig::default(),
            backs_off: true,
        }
    }
}

impl Options {
    pub fn is_enabled(&self, name: &str) -> bool {
        let explicit = self.enabled.iter().find_map(|word| match word.strip_prefix('-') {
            Some(off) => (off == name).then_some(false),
            None => (word == name).then_some(true),
        });
        explicit.unwrap_or_else(|| names::runs_by_default(name) && self.enabled.iter().any(|word| word == "*"))
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One controller: its name, the service account that it acts as, and what starts it.
struct Entry {
    name: &'static str,
    account: &'static str,
    start: fn(Setup, &Options) -> Task,
    /// The feature that must be on for it to run.
    gate: Option<Gate>,
}

/// A feature, and the group, version and plural of the kind that it adds, if any: kinds that are served anyway are not among them.
#[derive(Clone, Copy)]
struct Gate {
    feature: Feature,
    kind: Option<(&'static str, &'static str, &'static str)>,
}

impl Entry {
    const fn behind(self, feature: Feature, kind: (&'static str, &'static str, &'static str)) -> Entry {
        Entry { gate: Some(Gate { feature, kind: Some(kind) }), ..self }
    }

    const fn part_of(self, feature: Feature) -> Entry {
        Entry { gate: Some(Gate { feature, kind: None }), ..self }
    }

    /// Why it does not run, as far as features decide it.
    fn why_not(&self, options: &Options) -> Option<String> {
        let Gate { feature, kind } = self.gate?;
        if !options.features.enabled(feature) {
            return Some(format!("it belongs to the feature gate {}, which is off", feature.name()));
        }
        let (group, version, plural) = kind?;
        let served = options.served.serves(group, version, plural, false);
        (!served).then(|| format!("{plural} of {group}/{version} are not served; --runtime-config switches them on"))
    }
}

const fn entry<C: Controller>(account: &'static str, start: fn(Setup, &Options) -> Task) -> Entry {
    Entry { name: C::NAME, account, start, gate: None }
}

fn start<C: Controller>(controller: C, setup: Setup) -> Task {
    Box::pin(controller::run(controller, setup))
}

/// It acts as the controller manager itself, as upstream: no role of its own lets a controller read Secrets.
fn start_tokens(setup: Setup, options: &Options) -> Task {
    let Some(signer) = options.token_signer.clone() else { return Box::pin(std::future::pending()) };
    let client = setup.caches.client().clone();
    let removed = Removed::default();
    start(ServiceAccountTokens { signer, root_ca: options.root_ca.clone(), removed }, Setup { client, ..setup })
}

fn start_signer(setup: Setup, options: &Options) -> Task {
    let Some(authority) = options.authority.clone() else { return Box::pin(std::future::pending()) };
    start(Signer { authority }, setup)
}

/// The component in the events of the controllers whose events name another one than their account, as upstream's do.
const COMPONENTS: &[(&str, &str)] = &[
    (NodeIpam::NAME, "cidrAllocator"),
    (TaintEviction::NAME, TaintEviction::NAME),
    (DaemonSets::NAME, DaemonSets::NAME),
    (Disruptions::NAME, "controllermanager"),
    (EndpointSlices::NAME, "endpoint-slice-controller"),
    (EndpointSliceMirroring::NAME, "endpoint-slice-mirroring-controller"),
    (ServiceRanges::NAME, ServiceRanges::NAME),
    (binder::NAME, "persistentvolume-controller"),
    (EphemeralVolumes::NAME, "ephemeral_volume"),
    (Expansion::NAME, "volume_expand"),
    (SelinuxWarnings::NAME, "selinux_warning"),
    (local::NAME, api::rules::local_volume::PROVISIONER),
    (devices::NAME, "resource_claim"),
    (garbage::NAME, garbage::NAME),
];

fn component(entry: &Entry) -> &'static str {
    COMPONENTS.iter().find(|(name, _)| *name == entry.name).map_or(entry.account, |(_, component)| component)
}

/// Jobs, and beside them the Pods that have lost theirs.
fn start_jobs(setup: Setup, _: &Options) -> Task {
    Box::pin(async {
        tokio::join!(start(Jobs::default(), setup.clone()), start(OrphanedPods, setup));
    })
}

/// Budgets, and beside them the Pods that were to be disrupted and were not.
fn start_disruptions(setup: Setup, _: &Options) -> Task {
    Box::pin(async {
        tokio::join!(start(Disruptions, setup.clone()), start(StaleDisruptions, setup));
    })
}

/// Of what belongs to a feature that is off, nothing runs.
fn start_device_taints(setup: Setup, options: &Options) -> Task {
    let on = |feature: Feature| options.features.enabled(feature);
    if !on(Feature::DRADeviceTaints) {
        return Box::pin(std::future::pending());
    }
    if !on(Feature::DRADeviceTaintRules) {
        return start(DeviceTaintEviction::new(None), setup);
    }
    let evicted = Arc::<Evicted>::default();
    Box::pin(async move {
        let eviction = DeviceTaintEviction::new(Some(evicted.clone()));
        tokio::join!(start(eviction, setup.clone()), start(DeviceTaintRules::new(evicted), setup));
    })
}

/// All controllers, in the order in which they start.
const ALL: &[Entry] = &[
    entry::<Namespaces>("namespace-controller", |s, _| start(Namespaces::default(), s)),
    entry::<ServiceAccounts>("service-account-controller", |s, _| start(ServiceAccounts, s)),
    entry::<ServiceAccountTokens>("service-account-controller", start_tokens),
    entry::<LegacyTokens>("legacy-service-account-token-cleaner", |s, _| start(LegacyTokens, s)),
    entry::<RootCa>("root-ca-cert-publisher", |s, o| start(RootCa { certificate: o.root_ca.clone() }, s)),
    entry::<Approver>(certificates::ACCOUNT, |s, _| start(Approver, s)),
    entry::<ServingApprover>(certificates::ACCOUNT, |s, _| start(ServingApprover, s)),
    entry::<Signer>(certificates::ACCOUNT, start_signer),
    entry::<Cleaner>(certificates::ACCOUNT, |s, _| start(Cleaner, s)),
    entry::<PodRequestCleaner>("podcertificaterequestcleaner", |s, _| start(PodRequestCleaner, s))
        .behind(Feature::PodCertificateRequest, ("certificates.k8s.io", "v1beta1", "podcertificaterequests")),
    entry::<BootstrapSigner>("bootstrap-signer", |s, _| start(BootstrapSigner, s)),
    entry::<TokenCleaner>("token-cleaner", |s, _| start(TokenCleaner, s)),
    entry::<NodeIpam>("node-controller", |s, o| start(NodeIpam::new(&o.pod_ranges), s)),
    entry::<NodeLifecycle>("node-controller", |s, o| start(NodeLifecycle::new(o.nodes), s)),
    entry::<TaintEviction>("node-controller", |s, _| start(TaintEviction::default(), s)),
    entry::<Ttl>("ttl-controller", |s, _| start(Ttl::default(), s)),
    entry::<ReplicaSets>("replicaset-controller", |s, _| start(ReplicaSets::default(), s)),
    entry::<ReplicationControllers>("replication-controller", |s, _| start(ReplicationControllers::default(), s)),
    entry::<Deployments>("deployment-controller", |s, _| start(Deployments, s)),
    entry::<StatefulSets>("statefulset-controller", |s, _| start(StatefulSets, s)),
    entry::<DaemonSets>("daemon-set-controller", |s, _| start(DaemonSets::default(), s)),
    entry::<Jobs>("job-controller", start_jobs),
    entry::<TtlAfterFinished>("ttl-after-finished-controller", |s, _| start(TtlAfterFinished, s)),
    entry::<CronJobs>("cronjob-controller", |s, _| start(CronJobs, s)),
    entry::<HorizontalPodAutoscalers>("horizontal-pod-autoscaler", |s, o| {
        start(HorizontalPodAutoscalers::new(o.autoscaling), s)
    }),
    entry::<ResourceQuotas>("resourcequota-controller", |s, o| start(ResourceQuotas::new(&o.features), s)),
    entry::<Disruptions>("disruption-controller", start_disruptions),
    entry::<EndpointSlices>("endpointslice-controller", |s, _| start(EndpointSlices::default(), s)),
    entry::<EndpointSliceMirroring>("endpointslicemirroring-controller", |s, _| start(EndpointSliceMirroring, s)),
    entry::<LegacyEndpoints>("endpoint-controller", |s, _| start(LegacyEndpoints, s)),
    entry::<ServiceRanges>("service-cidrs-controller", |s, _| start(ServiceRanges, s)),
    entry::<RoleAggregation>("clusterrole-aggregation-controller", |s, _| start(RoleAggregation, s)),
    entry::<PolicyStatus>("validatingadmissionpolicy-status-controller", |s, _| start(PolicyStatus, s)),
    Entry {
        name: binder::NAME,
        account: "persistent-volume-binder",
        start: |s, o| Box::pin(binder::run(s, o.volumes.clone())),
        gate: None,
    },
    entry::<AttachDetach>("attachdetach-controller", |s, o| start(AttachDetach::new(o.unmount_patience), s)),
    entry::<EphemeralVolumes>("ephemeral-volume-controller", |s, _| start(EphemeralVolumes, s)),
    entry::<Expansion>("expand-controller", |s, _| start(Expansion, s)),
    entry::<AttributesClassProtection>("volumeattributesclass-protection-controller", |s, _| {
        start(AttributesClassProtection, s)
    }),
    entry::<ClaimProtection>("pvc-protection-controller", |s, _| start(ClaimProtection, s)),
    entry::<VolumeProtection>("pv-protection-controller", |s, _| start(VolumeProtection, s)),
    Entry { name: local::NAME, account: local::ACCOUNT, start: |s, _| Box::pin(local::run(s)), gate: None },
    entry::<SelinuxWarnings>("selinux-warning-controller", |s, o| start(SelinuxWarnings::new(&o.features), s))
        .part_of(Feature::SELinuxChangePolicy),
    entry::<PodGarbage>("pod-garbage-collector", |s, o| start(PodGarbage::new(o.terminated_pods), s)),
    Entry {
        name: devices::NAME,
        account: "resource-claim-controller",
        start: |s, _| Box::pin(devices::start(s)),
        gate: None,
    },
    entry::<DeviceTaintEviction>("device-taint-eviction-controller", start_device_taints),
    Entry {
        name: garbage::NAME,
        account: "generic-garbage-collector",
        start: |s, _| Box::pin(garbage::run(s)),
        gate: None,
    },
    entry::<TrustBundle>("kube-apiserver-serving-clustertrustbundle-publisher", |s, o| {
        start(TrustBundle { certificate: o.root_ca.clone() }, s)
    })
    .behind(Feature::ClusterTrustBundle, ("certificates.k8s.io", "v1beta1", "clustertrustbundles")),
    entry::<StorageVersionCollector>("storage-version-garbage-collector", |s, _| start(StorageVersionCollector, s))
        .behind(Feature::StorageVersionAPI, storage_versions::KIND),
    entry::<StorageMigrations>("storage-version-migrator-controller", |s, _| start(StorageMigrations::default(), s))
        .behind(Feature::StorageVersionMigrator, ("storagemigration.k8s.io", "v1beta1", "storageversionmigrations")),
];

/// The names of all controllers that can run.
fn running() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|entry| entry.name)
}

fn why_absent(name: &str) -> Option<&'static str> {
    names::why_absent(name).filter(|_| !running().any(|known| known == name))
}

/// A word of `--controllers` with the name that the controller has today, or upstream's refusal.
pub fn parse(word: &str) -> Result<String, String> {
    let (sign, given) = word.strip_prefix('-').map_or(("", word), |name| ("-", name));
    let name = names::canonical(given);
    let is_known = word == "*" || running().any(|known| known == name) || why_absent(name).is_some();
    if is_known {
        Ok(format!("{sign}{name}"))
    } else {
        Err(format!("{given:?} is not in the list of known controllers"))
    }
}

/// Starts the enabled controllers on this runtime; dropping the set stops them. All read the same `caches`, whose client
/// must be allowed to list and watch everything (`system:kube-controller-manager`); each writes through
/// `client_for(service account)`, an account in `kube-system`.
pub fn run(caches: &Caches, client_for: impl Fn(&str) -> Client, options: &Options) -> JoinSet<()> {
    for (controller, reason) in options.enabled.iter().filter_map(|word| Some((word, why_absent(word)?))) {
        tracing::warn!(controller, "this controller does not run: {reason}");
    }
    let mut tasks = JoinSet::new();
    for entry in ALL.iter().filter(|entry| options.is_enabled(entry.name)) {
        if let Some(reason) = entry.why_not(options) {
            // Nobody has asked for what is off anyway.
            let asked = entry.gate.is_some_and(|gate| options.features.enabled(gate.feature));
            if asked || options.enabled.iter().any(|word| word == entry.name) {
                tracing::warn!(controller = entry.name, "this controller does not run: {reason}");
            }
            continue;
        }
        let client = client_for(entry.account);
        let recorder = EventRecorder::new(client.clone(), component(entry), None);
        let setup = Setup { caches: caches.clone(), client, recorder, backs_off: options.backs_off };
        tasks.spawn((entry.start)(setup, options));
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_turned_on_and_off_by_name() {
        let check = |words: &str, name: &str, expected: bool| {
            let enabled = words.split(',').map(str::to_owned).collect();
            assert_eq!(Options { enabled, ..Options::default() }.is_enabled(name), expected, "{words} {name}");
        };
        check("*", "a", true);
        check("*,-a", "a", false);
        check("-a,*", "a", false);
        check("a", "a", true);
        check("a", "b", false);
        check("*", SelinuxWarnings::NAME, false);
        check("*,selinux-warning-controller", SelinuxWarnings::NAME, true);
        check("-selinux-warning-controller,*,selinux-warning-controller", SelinuxWarnings::NAME, false);
    }

    #[test]
    fn a_controller_runs_where_its_feature_and_its_kind_are_on() {
        let check = |features: &str, served: &str, expected: Option<&str>| {
            let settings = api::features::settings(features).unwrap();
            let options = Options {
                features: Features::set(&settings).unwrap(),
                served: RuntimeConfig::parse(&[served.to_owned()]).unwrap(),
                ..Options::default()
            };
            let entry = ALL.iter().find(|entry| entry.name == StorageMigrations::NAME).unwrap();
            assert_eq!(entry.why_not(&options).as_deref(), expected, "{features} {served}");
            let free = ALL.iter().find(|entry| entry.name == Ttl::NAME).unwrap();
            assert_eq!(free.why_not(&options), None);
        };
        let off = "it belongs to the feature gate StorageVersionMigrator, which is off";
        let unserved = "storageversionmigrations of storagemigration.k8s.io/v1beta1 are not served; --runtime-config \
                        switches them on";
        check("", "", Some(off));
        check("", "api/all=true", Some(off));
        check("StorageVersionMigrator=true", "", Some(unserved));
        check("StorageVersionMigrator=true", "api/beta=true", None);
        check("AllBeta=true", "storagemigration.k8s.io/v1beta1=true", None);
    }

    /// All of v1.35.
    const UPSTREAM: &str = "serviceaccount-token-controller endpoints-controller endpointslice-controller \
        endpointslice-mirroring-controller replicationcontroller-controller pod-garbage-collector-controller \
        resourcequota-controller namespace-controller serviceaccount-controller garbage-collector-controller \
        daemonset-controller job-controller deployment-controller replicaset-controller \
        horizontal-pod-autoscaler-controller disruption-controller statefulset-controller cronjob-controller \
        certificatesigningrequest-signing-controller certificatesigningrequest-approving-controller \
        certificatesigningrequest-cleaner-controller podcertificaterequest-cleaner-controller ttl-controller \
        bootstrap-signer-controller token-cleaner-controller node-ipam-controller node-lifecycle-controller \
        service-lb-controller node-route-controller cloud-node-lifecycle-controller \
        persistentvolume-binder-controller persistentvolume-attach-detach-controller \
        persistentvolume-expander-controller clusterrole-aggregation-controller \
        persistentvolumeclaim-protection-controller persistentvolume-protection-controller \
        volumeattributesclass-protection-controller ttl-after-finished-controller \
        root-ca-certificate-publisher-controller kube-apiserver-serving-clustertrustbundle-publisher-controller \
        ephemeral-volume-controller storageversion-garbage-collector-controller resourceclaim-controller \
        device-taint-eviction-controller legacy-serviceaccount-token-cleaner-controller \
        validatingadmissionpolicy-status-controller taint-eviction-controller service-cidr-controller \
        storage-version-migrator-controller selinux-warning-controller";

    /// Not upstream's: the requests that `skiff` itself makes for its nodes are approved, and folders of nodes are made for
    /// claims.
    const OWN: &[&str] = &["kubelet-serving-approving-controller", "local-volume-provisioner-controller"];

    #[test]
    fn every_controller_of_upstream_runs_or_is_listed_with_its_reason() {
        let upstream: Vec<&str> = UPSTREAM.split_whitespace().collect();
        for name in &upstream {
            assert_eq!(parse(name).as_deref(), Ok(*name));
            assert_eq!(parse(&format!("-{name}")), Ok(format!("-{name}")));
        }
        let strange = running().chain(names::absent()).filter(|name| !upstream.contains(name));
        assert_eq!(strange.collect::<Vec<_>>(), OWN);
        let dangling = names::aliased().filter(|name| !upstream.contains(name));
        assert_eq!(dangling.count(), 0);
    }

    #[test]
    fn events_name_the_components_that_readers_know() {
        let all: Vec<(&str, &str)> = ALL.iter().map(|entry| (entry.name, component(entry))).collect();
        for expected in [
            ("job-controller", "job-controller"),
            ("replicationcontroller-controller", "replication-controller"),
            ("node-lifecycle-controller", "node-controller"),
            ("taint-eviction-controller", "taint-eviction-controller"),
            ("disruption-controller", "controllermanager"),
            ("daemonset-controller", "daemonset-controller"),
            ("horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler"),
            ("persistentvolume-attach-detach-controller", "attachdetach-controller"),
        ] {
            assert!(all.contains(&expected), "{expected:?}");
        }
        for (name, component) in COMPONENTS {
            let entry = ALL.iter().find(|entry| entry.name == *name).unwrap();
            assert_ne!(entry.account, *component, "{name} needs no line");
        }
    }

    #[test]
    fn older_words_are_understood_and_unknown_ones_refused() {
        let check = |word: &str, expected: Result<&str, &str>| {
            assert_eq!(parse(word), expected.map(str::to_owned).map_err(str::to_owned), "{word}");
        };
        check("*", Ok("*"));
        check("-podgc", Ok("-pod-garbage-collector-controller"));
        check("nodeipam", Ok("node-ipam-controller"));
        check("-service", Ok("-service-lb-controller"));
        check("nodes", Err("\"nodes\" is not in the list of known controllers"));
        check("-nodes", Err("\"nodes\" is not in the list of known controllers"));
        check("-*", Err("\"*\" is not in the list of known controllers"));
        check("", Err("\"\" is not in the list of known controllers"));
    }
}
