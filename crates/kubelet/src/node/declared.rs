//! The features that this node declares, and Pods that need others. Pure. Only where the feature NodeDeclaredFeatures is on.
//! Upstream counterpart: pkg/kubelet/kubelet_node_declared_features.go, and the handler for it in pkg/kubelet/lifecycle.

use api::{
    features::{Feature, Features},
    rules::declared_feature,
};
use k8s_openapi::api::core::v1::PodSpec;

use crate::pod::admit::Refusal;

/// As with upstream's CPU manager policy `none`, no container has processors of its own that would bind its Pod to an
/// amount. What the other features that upstream knows stand for is not done here, whatever their gates say.
const DECLARED: &[&str] = &[declared_feature::GUARANTEED_CPU_RESIZE];

/// What the Node object says, in order.
pub fn declared(features: &Features) -> Option<Vec<String>> {
    let names = || DECLARED.iter().map(|name| (*name).to_owned()).collect();
    features.enabled(Feature::NodeDeclaredFeatures).then(names)
}

/// Refuses a new Pod that needs a feature that this node does not declare.
pub fn admit(features: &Features, spec: &PodSpec) -> Result<(), Refusal> {
    let Some(declared) = declared(features) else { return Ok(()) };
    let missing = declared_feature::missing(&declared_feature::to_start(spec), &declared);
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("Pod requires node features that are not available: {}", missing.join(", "));
    Err(Refusal::new("PodFeatureUnsupported", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_node_takes_what_it_declares_where_the_feature_is_on() {
        let (off, on) = (Features::default(), Features::default().with(Feature::NodeDeclaredFeatures, true));
        assert_eq!(declared(&off), None);
        let names = declared(&on).unwrap();
        assert_eq!(names, ["GuaranteedQoSPodCPUResize"]);
        assert!(names.is_sorted(), "the API server takes them in order alone");
        let spec = |action: &str| -> PodSpec {
            let container = json!({"name": "c", "restartPolicyRules": [{"action": action}]});
            json::from_value(json!({"containers": [container]})).unwrap()
        };
        assert_eq!(admit(&on, &spec("Restart")), Ok(()));
        assert_eq!(admit(&off, &spec("RestartAllContainers")), Ok(()));
        let refusal = admit(&on, &spec("RestartAllContainers")).unwrap_err();
        let message = "Pod requires node features that are not available: RestartAllContainersOnContainerExits";
        assert_eq!(refusal, Refusal::new("PodFeatureUnsupported", message));
    }
}
