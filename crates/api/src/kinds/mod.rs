//! The built-in kinds. A kind's file says all about it, and the list below has one line for each.
//! Rules that several kinds share stand in `rules/`, how a kind is declared in `kind/`.

use std::sync::{Arc, LazyLock};

use crate::features::{Feature, Features, RuntimeConfig, is_stable};
use crate::kind::{BuiltIn, Definition, Kind, KindTable, Older, Scoped};

pub mod admission_policy;
pub mod api_service;
pub mod certificate_signing_request;
pub mod cluster_trust_bundle;
pub mod component_status;
pub mod config_map;
pub mod controller_revision;
pub mod cron_job;
pub mod custom_resource_definition;
pub mod daemon_set;
pub mod deployment;
pub mod endpoint_slice;
pub mod endpoints;
pub mod event;
pub mod flow_control;
pub mod horizontal_pod_autoscaler;
pub mod ingress;
pub mod ip_address;
pub mod job;
pub mod lease;
pub mod lease_candidate;
pub mod limit_range;
pub mod metrics;
pub mod namespace;
pub mod network_policy;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
pub mod pod_certificate_request;
pub mod pod_disruption_budget;
pub mod pod_template;
pub mod priority_class;
pub mod rbac;
pub mod replica_set;
pub mod replication_controller;
pub mod resource_claim;
pub mod resource_quota;
pub mod review;
mod rollout;
pub mod runtime_class;
pub mod scheduling_workload;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod stateful_set;
pub mod storage;
pub mod storage_version;
pub mod storage_version_migration;
mod volume_source;
pub mod webhook_configuration;
mod workload;

/// Sorts kinds by whether they are served.
struct Sorted<'a> {
    features: Features,
    runtime_config: &'a RuntimeConfig,
    served: Vec<Arc<Definition>>,
    unserved: Vec<Arc<Definition>>,
    warnings: Vec<String>,
}

impl Sorted<'_> {
    fn visit<T: BuiltIn>(&mut self, kind: Kind<T>)
    where
        T::Scope: Scoped,
    {
        let gate = kind.gate;
        self.put(kind.define(self.features), gate);
    }

    /// An older version of a kind.
    fn visit_older<T: BuiltIn>(&mut self, kind: Kind<T>, older: Older)
    where
        T::Scope: Scoped,
    {
        let gate = kind.gate;
        self.put(older.of(kind.define(self.features)), gate);
    }

    fn put(&mut self, definition: Definition, gate: Option<Feature>) {
        let definition = Arc::new(definition);
        let (group, version) = (&*definition.group, &*definition.version);
        // A measured kind belongs to no version that could be switched off: upstream's come from another server.
        let wanted = group == metrics::GROUP
            || self.runtime_config.serves(group, version, &definition.plural, is_stable(version));
        let off = gate.filter(|gate| !self.features.enabled(*gate));
        if let Some(gate) = off.filter(|_| wanted) {
            let (kind, gate) = (&definition.kind, gate.name());
            self.warnings.push(format!("{kind} storage is disabled because the {gate} feature gate is disabled"));
        }
        let list = if wanted && off.is_none() { &mut self.served } else { &mut self.unserved };
        list.push(definition);
    }
}

/// The kinds that are on when nothing is said.
pub fn built_in() -> &'static Arc<KindTable> {
    static BUILT_IN: LazyLock<Arc<KindTable>> =
        LazyLock::new(|| Arc::new(table(Features::default(), &RuntimeConfig::default()).0));
    &BUILT_IN
}

/// The kinds of Kubernetes v1.35 that these settings switch on, and what the user should know about the settings.
pub fn table(features: Features, runtime_config: &RuntimeConfig) -> (KindTable, Vec<String>) {
    let sorted = || Sorted { features, runtime_config, served: Vec::new(), unserved: Vec::new(), warnings: Vec::new() };
    let (mut own, mut carried) = (sorted(), sorted());
    resources(&mut own);
    bodies(&mut carried);
    let Sorted { served, unserved, mut warnings, .. } = own;
    let all = || served.iter().chain(&unserved);
    let there = |group: &str, version: &str, plural: Option<&str>| {
        all().any(|d| d.group == group && d.version == version && plural.is_none_or(|plural| d.plural == plural))
    };
    let missing = runtime_config.missing(there);
    warnings.extend(missing.iter().map(|key| format!("--runtime-config: nothing is here of {key}")));
    (KindTable::new(served, carried.served).keeping(unserved), warnings)
}

/// The kinds that are served under a path, in the order of discovery.
fn resources(to: &mut Sorted<'_>) {
    to.visit(component_status::BINDING);
    to.visit(component_status::COMPONENT_STATUS);
    to.visit(config_map::CONFIG_MAP);
    to.visit(endpoints::ENDPOINTS);
    to.visit(event::EVENT);
    to.visit(limit_range::LIMIT_RANGE);
    to.visit(namespace::NAMESPACE);
    to.visit(node::NODE);
    to.visit(persistent_volume_claim::PERSISTENT_VOLUME_CLAIM);
    to.visit(persistent_volume::PERSISTENT_VOLUME);
    to.visit(pod::POD);
    to.visit(pod_template::POD_TEMPLATE);
    to.visit(replication_controller::REPLICATION_CONTROLLER);
    to.visit(resource_quota::RESOURCE_QUOTA);
    to.visit(secret::SECRET);
    to.visit(service_account::SERVICE_ACCOUNT);
    to.visit(service::SERVICE);
    to.visit(api_service::API_SERVICE);
    to.visit(controller_revision::CONTROLLER_REVISION);
    to.visit(daemon_set::DAEMON_SET);
    to.visit(deployment::DEPLOYMENT);
    to.visit(replica_set::REPLICA_SET);
    to.visit(stateful_set::STATEFUL_SET);
    to.visit(event::NEW_EVENT);
    to.visit(review::SELF_SUBJECT_REVIEW);
    to.visit(review::TOKEN_REVIEW);
    to.visit(review::LOCAL_SUBJECT_ACCESS_REVIEW);
    to.visit(review::SELF_SUBJECT_ACCESS_REVIEW);
    to.visit(review::SELF_SUBJECT_RULES_REVIEW);
    to.visit(review::SUBJECT_ACCESS_REVIEW);
    to.visit(horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER);
    to.visit(horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER_V1);
    to.visit(cron_job::CRON_JOB);
    to.visit(job::JOB);
    to.visit(certificate_signing_request::CERTIFICATE_SIGNING_REQUEST);
    to.visit(cluster_trust_bundle::CLUSTER_TRUST_BUNDLE);
    to.visit(cluster_trust_bundle::CLUSTER_TRUST_BUNDLE_V1ALPHA1);
    to.visit(pod_certificate_request::POD_CERTIFICATE_REQUEST);
    to.visit(ingress::INGRESS_CLASS);
    to.visit(ingress::INGRESS);
    to.visit(ip_address::IP_ADDRESS);
    to.visit_older(ip_address::IP_ADDRESS, Older { deprecated: Some((34, 37, false)), ..Older::named("v1beta1") });
    to.visit(network_policy::NETWORK_POLICY);
    to.visit(service_cidr::SERVICE_CIDR);
    to.visit_older(service_cidr::SERVICE_CIDR, Older { deprecated: Some((34, 37, false)), ..Older::named("v1beta1") });
    to.visit(pod_disruption_budget::POD_DISRUPTION_BUDGET);
    to.visit(rbac::CLUSTER_ROLE_BINDING);
    to.visit(rbac::CLUSTER_ROLE);
    to.visit(rbac::ROLE_BINDING);
    to.visit(rbac::ROLE);
    to.visit(storage::CSI_DRIVER);
    to.visit(storage::CSI_NODE);
    to.visit(storage::CSI_STORAGE_CAPACITY);
    to.visit(storage::STORAGE_CLASS);
    to.visit(storage::VOLUME_ATTACHMENT);
    to.visit(storage::VOLUME_ATTRIBUTES_CLASS);
    let older = Older { deprecated: Some((34, 37, true)), ..Older::named("v1beta1") };
    to.visit_older(storage::VOLUME_ATTRIBUTES_CLASS, older);
    to.visit(webhook_configuration::MUTATING);
    to.visit(admission_policy::POLICY);
    to.visit(admission_policy::BINDING);
    to.visit(webhook_configuration::VALIDATING);
    to.visit(admission_policy::MUTATING_POLICY);
    to.visit(admission_policy::MUTATING_BINDING);
    to.visit_older(admission_policy::MUTATING_POLICY, Older::named("v1alpha1"));
    to.visit_older(admission_policy::MUTATING_BINDING, admission_policy::MUTATING_BINDING_V1ALPHA1);
    to.visit(custom_resource_definition::CUSTOM_RESOURCE_DEFINITION);
    to.visit(priority_class::PRIORITY_CLASS);
    to.visit(scheduling_workload::WORKLOAD);
    to.visit(lease::LEASE);
    to.visit(lease_candidate::LEASE_CANDIDATE);
    to.visit(lease_candidate::LEASE_CANDIDATE_V1ALPHA2);
    to.visit(runtime_class::RUNTIME_CLASS);
    to.visit(endpoint_slice::ENDPOINT_SLICE);
    to.visit(resource_claim::DEVICE_CLASS);
    to.visit(resource_claim::RESOURCE_CLAIM);
    to.visit(resource_claim::RESOURCE_CLAIM_TEMPLATE);
    to.visit(resource_claim::RESOURCE_SLICE);
    to.visit_older(resource_claim::DEVICE_CLASS, resource_claim::V1BETA2);
    to.visit_older(resource_claim::RESOURCE_CLAIM, resource_claim::V1BETA2);
    to.visit_older(resource_claim::RESOURCE_CLAIM_TEMPLATE, resource_claim::V1BETA2);
    to.visit_older(resource_claim::RESOURCE_SLICE, resource_claim::V1BETA2);
    to.visit_older(resource_claim::DEVICE_CLASS, resource_claim::V1BETA1);
    to.visit_older(resource_claim::RESOURCE_CLAIM, resource_claim::CLAIM_V1BETA1);
    to.visit_older(resource_claim::RESOURCE_CLAIM_TEMPLATE, resource_claim::TEMPLATE_V1BETA1);
    to.visit_older(resource_claim::RESOURCE_SLICE, resource_claim::SLICE_V1BETA1);
    to.visit(resource_claim::DEVICE_TAINT_RULE);
    to.visit(flow_control::FLOW_SCHEMA);
    to.visit(flow_control::PRIORITY_LEVEL_CONFIGURATION);
    to.visit(storage_version::STORAGE_VERSION);
    to.visit(storage_version_migration::STORAGE_VERSION_MIGRATION);
    to.visit(metrics::NODE_METRICS);
    to.visit(metrics::POD_METRICS);
}

/// The kinds that are only bodies of subresources.
fn bodies(to: &mut Sorted<'_>) {
    to.visit(horizontal_pod_autoscaler::SCALE);
    to.visit(pod_disruption_budget::EVICTION);
    to.visit(review::TOKEN_REQUEST);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use json::json;

    use super::*;
    use crate::{kind::Target, write::resets::Resets};

    /// The resources that are served by default, and those that are not.
    fn every_kind() -> Vec<Arc<Definition>> {
        let mut all = Sorted {
            features: Features::default(),
            runtime_config: &RuntimeConfig::default(),
            served: Vec::new(),
            unserved: Vec::new(),
            warnings: Vec::new(),
        };
        resources(&mut all);
        all.served.into_iter().chain(all.unserved).collect()
    }

    #[test]
    fn generations_count_as_upstreams_do() {
        let check = |plural: &str, field: &str, expected: [Option<i64>; 3]| {
            let kinds = every_kind();
            let strategy = &kinds.iter().find(|d| d.plural == plural).unwrap().strategy;
            let mut made = json!({"metadata": {"name": "a"}, field: 1});
            strategy.prepare_create(&mut made);
            let change = |old: &json::Value, value: i64| {
                let mut new = old.clone();
                new[field] = json!(value);
                strategy.prepare_update(&mut new, old, Target::Object);
                new
            };
            let changed = change(&change(&made, 2), 2);
            let again = change(&changed, 3);
            let found = [made, changed, again].map(|object| object["metadata"]["generation"].as_i64());
            assert_eq!(found, expected, "{plural}");
        };
        check("csidrivers", "spec", [None, Some(1), Some(2)]);
        check("priorityclasses", "description", [Some(1); 3]);
        check("networkpolicies", "spec", [Some(1), Some(2), Some(3)]);
        check("storageclasses", "provisioner", [None; 3]);
    }

    /// Upstream's strategies differ in this from kind to kind.
    #[test]
    fn a_write_of_the_status_leaves_of_the_metadata_what_upstream_leaves() {
        const FIELDS: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
        let mut stays: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let kinds: Vec<_> = every_kind().into_iter().filter(|d| d.status).collect();
        for definition in &kinds {
            let object = |text: &str| {
                let owner = json!({"apiVersion": "v1", "kind": "K", "name": text, "uid": text});
                json!({"metadata": {"name": "a", "labels": {"l": text}, "annotations": {"a": text}, "finalizers": [text],
                    "ownerReferences": [owner]}, "spec": {}, "status": {}})
            };
            let (old, mut new) = (object("old"), object("new"));
            definition.strategy.prepare_update(&mut new, &old, Target::Status);
            let kept = FIELDS.into_iter().filter(|field| new["metadata"][*field] == old["metadata"][*field]);
            let kept: BTreeSet<&str> = kept.collect();
            if !kept.is_empty() {
                stays.entry(&definition.plural).or_default().extend(kept);
            }
        }
        let whole = [
            "apiservices",
            "devicetaintrules",
            "flowschemas",
            "podcertificaterequests",
            "prioritylevelconfigurations",
            "resourceclaims",
            "servicecidrs",
            "storageversionmigrations",
            "storageversions",
            "validatingadmissionpolicies",
            "volumeattachments",
        ];
        let whole = whole.into_iter().map(|plural| (plural, BTreeSet::from(FIELDS)));
        let parts = [("deployments", BTreeSet::from(["labels"])), ("pods", BTreeSet::from(["ownerReferences"]))];
        assert_eq!(stays, whole.chain(parts).collect());
        assert!(kinds.len() > 30, "{} kinds have a status", kinds.len());
    }

    /// As upstream's strategies have it for the versions that they name.
    #[test]
    fn what_writes_reset_is_nobodys() {
        let paths = |resets: Resets| {
            let (all_but, paths) = match resets {
                Resets::These(paths) => ("", paths),
                Resets::AllBut(paths) => ("all but ", paths),
            };
            all_but.to_owned() + &paths.iter().map(|path| path.join(".")).collect::<Vec<_>>().join(",")
        };
        let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let all = every_kind();
        for definition in &all {
            let others = definition.subresources.iter().map(|sub| (sub.name, Target::Other(sub.name)));
            let status = definition.status.then_some(("status", Target::Status));
            for (name, target) in others.chain(status).chain([("", Target::Object)]) {
                let resets = paths(definition.strategy.resets(target));
                if !resets.is_empty() {
                    found.entry(format!("{name}: {resets}")).or_default().insert(&definition.plural);
                }
            }
        }
        let found: Vec<String> = found
            .into_iter()
            .map(|(what, kinds)| format!("{what} in {}", kinds.into_iter().collect::<Vec<_>>().join(" ")))
            .collect();
        let containers = ["containers", "initContainers"]
            .map(|list| format!("spec.{list}.*.resources,spec.{list}.*.resizePolicy"))
            .join(",");
        let with_status = "apiservices cronjobs customresourcedefinitions daemonsets deployments devicetaintrules flowschemas \
                           horizontalpodautoscalers ingresses jobs namespaces nodes persistentvolumeclaims persistentvolumes \
                           podcertificaterequests poddisruptionbudgets pods prioritylevelconfigurations replicasets \
                           replicationcontrollers resourceclaims resourcequotas servicecidrs services statefulsets \
                           storageversionmigrations storageversions validatingadmissionpolicies volumeattachments";
        let with_metadata = "apiservices customresourcedefinitions devicetaintrules flowschemas podcertificaterequests \
                             prioritylevelconfigurations resourceclaims servicecidrs storageversionmigrations \
                             storageversions validatingadmissionpolicies volumeattachments";
        let spec_alone = "cronjobs daemonsets horizontalpodautoscalers ingresses jobs namespaces nodes \
                          persistentvolumeclaims persistentvolumes poddisruptionbudgets replicasets \
                          replicationcontrollers resourcequotas services statefulsets";
        let expected = [
            ": spec,status in certificatesigningrequests".to_owned(),
            format!(": status in {with_status}"),
            "approval: spec,status.certificate in certificatesigningrequests".to_owned(),
            "ephemeralcontainers: all but spec.ephemeralContainers in pods".to_owned(),
            "finalize: status in namespaces".to_owned(),
            format!("resize: all but {containers} in pods"),
            format!("status: spec in {spec_alone}"),
            format!("status: spec,metadata in {with_metadata}"),
            "status: spec,metadata.deletionTimestamp,metadata.ownerReferences in pods".to_owned(),
            "status: spec,metadata.labels in deployments".to_owned(),
            "status: spec,status.conditions in certificatesigningrequests".to_owned(),
        ];
        assert_eq!(found, expected);
    }
}
