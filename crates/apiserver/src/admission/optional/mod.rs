//! The plugins that are off unless `--enable-admission-plugins` names them.

pub mod always;
pub mod always_pull_images;
pub mod deny_service_external_ips;
pub mod event_rate_limit;
pub mod extended_resource_toleration;
pub mod image_policy_webhook;
pub mod limit_pod_hard_anti_affinity_topology;
pub mod namespace_auto_provision;
pub mod namespace_exists;
pub mod owner_references_permission_enforcement;
pub mod pod_node_selector;
pub mod pod_toleration_restriction;
pub mod settings;
