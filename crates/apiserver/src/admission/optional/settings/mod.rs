//! The settings in `--admission-control-config-file` of the plugins that are off by default.

pub mod event_limits;
pub mod image_policy;
pub mod node_selectors;
pub mod tolerations;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    pub event_limits: event_limits::Limits,
    pub image_policy: image_policy::ImagePolicy,
    pub node_selectors: node_selectors::Selectors,
    pub tolerations: tolerations::Restriction,
}
