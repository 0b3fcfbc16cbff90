//! The features that this node declares, and Pods that need others. Pure. Only where the feature NodeDeclaredFeatures is on.
//! Upstream counterpart: pkg/kubelet/kubelet_node_declared_features.go, and the handler for it in pkg/kubelet/lifecycle.

use api::{
    features::{Feature, Features},
    rules::declared_feature,
};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::pod::admit::Refusal;

/// As with upstream's CPU manager policy `none`, no container has processors of its own that would bind its Pod to an
/// amount. The other features that upstream knows stand for work that is not done here, whatever their gates say.
const DECLARED: &[&str] = &[declared_feature::GUARANTEED_CPU_RESIZE];

/// Those that a feature of the node's own must be on for, besides.
const BEHIND: &[(&str, Feature)] = &[(declared_feature::RESTART_ALL, Feature::RestartAllContainersOnContainerExits)];

/// The features that the Node object declares, in order.
pub fn declared(features: &Features) -> Option<Vec<String>> {
    let behind = BEHIND.iter().filter(|(_, feature)| features.enabled(*feature)).map(|(name, _)| name);
    let names = || DECLARED.iter().chain(behind).map(|name| (*name).to_owned()).collect();
    features.enabled(Feature::NodeDeclaredFeatures).then(names)
}

/// The message about features that are needed and that this node does not declare, if there are any.
fn lacking(declared: &[String], needed: &[&str]) -> Option<String> {
    let missing = declared_feature::missing(needed, declared).join(", ");
    (!missing.is_empty()).then(|| format!("Pod requires node features that are not available: {missing}"))
}

/// Refuses a new Pod that needs a feature that this node does not declare.
pub fn admit(features: &Features, spec: &PodSpec) -> Result<(), Refusal> {
    let lacking = declared(features).and_then(|declared| lacking(&declared, &declared_feature::to_start(spec)));
    lacking.map_or(Ok(()), |message| Err(Refusal::new("PodFeatureUnsupported", message)))
}

/// The reason of the event about [`lacks`].
pub const FAILED: &str = "FailedNodeDeclaredFeaturesCheck";

/// Whether a change of a Pod needs a feature that this node does not declare. The API server refuses those that it knows of.
pub fn lacks(features: &Features, old: &Pod, new: &Pod) -> Option<String> {
    lacking(&declared(features)?, &declared_feature::to_change(old, new))
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
        let restarts_all = on.with(Feature::RestartAllContainersOnContainerExits, true);
        let names = declared(&restarts_all).unwrap();
        assert!(names.is_sorted() && names.len() == 2, "{names:?}");
        assert_eq!(admit(&restarts_all, &spec("RestartAllContainers")), Ok(()));
    }

    #[test]
    fn a_change_that_needs_more_than_the_node_declares_is_told_of() {
        let (off, on) = (Features::default(), Features::default().with(Feature::NodeDeclaredFeatures, true));
        let pod = |of_pod: &str, of_container: &str| -> Pod {
            let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "1Gi"});
            let resources = json!({"requests": amounts(of_container), "limits": amounts(of_container)});
            let container = json!({"name": "c", "resources": resources});
            let spec = json!({"containers": [container], "resources": {"requests": amounts(of_pod)}});
            json::from_value(json!({"spec": spec, "status": {"qosClass": "Guaranteed"}})).unwrap()
        };
        let message = "Pod requires node features that are not available: InPlacePodLevelResourcesVerticalScaling";
        assert_eq!(lacks(&on, &pod("2", "1"), &pod("3", "1")).as_deref(), Some(message));
        assert_eq!(lacks(&on, &pod("2", "1"), &pod("2", "2")), None, "what it declares");
        assert_eq!(lacks(&on, &pod("2", "1"), &pod("2", "1")), None);
        assert_eq!(lacks(&off, &pod("2", "1"), &pod("3", "1")), None);
    }
}
