//! The list of built-in kinds: one line for each, in the order of discovery. What a kind is stands in its file.

use crate::kind::Definition;

pub mod admission_policy;
pub mod api_service;
pub mod certificate_signing_request;
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
pub mod namespace;
pub mod network_policy;
pub mod node;
pub mod persistent_volume;
pub mod pod;
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
pub mod secret;
pub mod service;
pub mod service_account;
pub mod stateful_set;
pub mod storage;
pub mod webhook_configuration;
mod workload;

/// What the server serves under a path.
pub(crate) fn resources() -> Vec<Definition> {
    vec![
        component_status::BINDING.define(),
        component_status::COMPONENT_STATUS.define(),
        config_map::CONFIG_MAP.define(),
        endpoints::ENDPOINTS.define(),
        event::EVENT.define(),
        resource_quota::LIMIT_RANGE.define(),
        namespace::NAMESPACE.define(),
        node::NODE.define(),
        persistent_volume::PERSISTENT_VOLUME_CLAIM.define(),
        persistent_volume::PERSISTENT_VOLUME.define(),
        pod::POD.define(),
        pod_template::POD_TEMPLATE.define(),
        replication_controller::REPLICATION_CONTROLLER.define(),
        resource_quota::RESOURCE_QUOTA.define(),
        secret::SECRET.define(),
        service_account::SERVICE_ACCOUNT.define(),
        service::SERVICE.define(),
        api_service::API_SERVICE.define(),
        controller_revision::CONTROLLER_REVISION.define(),
        daemon_set::DAEMON_SET.define(),
        deployment::DEPLOYMENT.define(),
        replica_set::REPLICA_SET.define(),
        stateful_set::STATEFUL_SET.define(),
        event::NEW_EVENT.define(),
        review::SELF_SUBJECT_REVIEW.define(),
        review::TOKEN_REVIEW.define(),
        review::LOCAL_SUBJECT_ACCESS_REVIEW.define(),
        review::SELF_SUBJECT_ACCESS_REVIEW.define(),
        review::SELF_SUBJECT_RULES_REVIEW.define(),
        review::SUBJECT_ACCESS_REVIEW.define(),
        horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER.define(),
        horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER_V1.define(),
        cron_job::CRON_JOB.define(),
        job::JOB.define(),
        certificate_signing_request::CERTIFICATE_SIGNING_REQUEST.define(),
        ingress::INGRESS_CLASS.define(),
        ingress::INGRESS.define(),
        ip_address::IP_ADDRESS.define(),
        network_policy::NETWORK_POLICY.define(),
        ip_address::SERVICE_CIDR.define(),
        pod_disruption_budget::POD_DISRUPTION_BUDGET.define(),
        rbac::CLUSTER_ROLE_BINDING.define(),
        rbac::CLUSTER_ROLE.define(),
        rbac::ROLE_BINDING.define(),
        rbac::ROLE.define(),
        storage::CSI_DRIVER.define(),
        storage::CSI_NODE.define(),
        storage::CSI_STORAGE_CAPACITY.define(),
        storage::STORAGE_CLASS.define(),
        storage::VOLUME_ATTACHMENT.define(),
        storage::VOLUME_ATTRIBUTES_CLASS.define(),
        webhook_configuration::MUTATING.define(),
        admission_policy::POLICY.define(),
        admission_policy::BINDING.define(),
        webhook_configuration::VALIDATING.define(),
        custom_resource_definition::CUSTOM_RESOURCE_DEFINITION.define(),
        priority_class::PRIORITY_CLASS.define(),
        lease::LEASE.define(),
        runtime_class::RUNTIME_CLASS.define(),
        endpoint_slice::ENDPOINT_SLICE.define(),
        resource_claim::DEVICE_CLASS.define(),
        resource_claim::RESOURCE_CLAIM.define(),
        resource_claim::RESOURCE_CLAIM_TEMPLATE.define(),
        resource_claim::RESOURCE_SLICE.define(),
        flow_control::FLOW_SCHEMA.define(),
        flow_control::PRIORITY_LEVEL_CONFIGURATION.define(),
    ]
}

/// What only travels in bodies of subresources.
pub(crate) fn bodies() -> Vec<Definition> {
    vec![
        horizontal_pod_autoscaler::SCALE.define(),
        pod_disruption_budget::EVICTION.define(),
        review::TOKEN_REQUEST.define(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// What users read about these kinds before they meet the warning.
    #[test]
    fn the_readme_names_what_has_no_effect() {
        let readme = include_str!("../../../../README.md");
        let section =
            readme.split("\n## ").find(|part| part.starts_with("What does not work yet\n")).expect("a section");
        let entry = section.split("\n- ").find(|entry| entry.starts_with("Stored without effect")).expect("an entry");
        let list = entry.split_once(':').expect("a list behind a colon").1;
        let named: BTreeSet<String> =
            list.split([',', ' ', '\n', '.']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let declared: BTreeSet<String> =
            super::resources().into_iter().filter(|d| d.without_effect.is_some()).map(|d| d.kind).collect();
        assert_eq!(named, declared);
    }
}
