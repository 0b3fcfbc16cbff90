//! Rules of the API that more than one component applies: what a selector matches, a taint means, a quantity amounts to.
//! A rule that only one component needs stands in that component.

pub mod app_armor;
pub mod bootstrap_token;
pub mod cel;
pub mod certificate_request;
pub mod cron;
pub mod declared_feature;
pub mod device_selector;
pub mod device_taint;
pub mod hash;
pub mod host_port;
pub mod image;
pub mod indexes;
pub mod ip;
pub mod local_volume;
pub mod metrics_text;
pub mod node_affinity;
pub(crate) mod node_label;
pub mod platform;
pub mod pod;
pub mod pod_log;
pub mod pod_references;
pub mod quantity;
pub mod quota;
pub mod resource_name;
pub mod selector;
pub mod semantic_version;
pub mod service_range;
pub mod sysctl;
pub mod taint;
pub mod url;
pub mod version;
pub mod volume;
