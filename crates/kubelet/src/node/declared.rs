//! The features that this node declares, and Pods that need others. Pure. Only where the feature NodeDeclaredFeatures is on.
//! Upstream counterpart: pkg/kubelet/kubelet_node_declared_features.go, and the handler for it in pkg/kubelet/lifecycle.

use api::{
    features::{Feature, Features},
    rules::declared_feature,
};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::{configuration::affinity::Policy, pod::admit::Refusal};

/// The features that the Node object declares, in order. Processors of its own bind a Pod to their number, unless it may be resized
/// beside them. The other features that upstream knows stand for work that is not done here, whatever their gates say.
pub fn declared(features: &Features, cpus: Policy) -> Option<Vec<String>> {
    let is_free = cpus == Policy::None || features.enabled(Feature::InPlacePodVerticalScalingExclusiveCPUs);
    let restarts_all = features.enabled(Feature::RestartAllContainersOnContainerExits);
    let resizes_whole = features.enabled(Feature::InPlacePodLevelResourcesVerticalScaling);
    let all = [
        (declared_feature::GUARANTEED_CPU_RESIZE, is_free),
        (declared_feature::POD_RESOURCES_RESIZE, resizes_whole),
        (declared_feature::RESTART_ALL, restarts_all),
    ];
    let names = || all.iter().filter(|(_, is_so)| *is_so).map(|(name, _)| (*name).to_owned()).collect();
    features.enabled(Feature::NodeDeclaredFeatures).then(names)
}

/// The message about features that are needed and that this node does not declare, if there are any.
fn lacking(declared: &[String], needed: &[&str]) -> Option<String> {
    let missing = declared_feature::missing(needed, declared).join(", ");
    (!missing.is_empty()).then(|| format!("Pod requires node features that are not available: {missing}"))
}

/// Refuses a new Pod that needs a feature that this node does not declare.
pub fn admit(features: &Features, cpus: Policy, spec: &PodSpec) -> Result<(), Refusal> {
    let lacking = declared(features, cpus).and_then(|declared| lacking(&declared, &declared_feature::to_start(spec)));
    lacking.map_or(Ok(()), |message| Err(Refusal::new("PodFeatureUnsupported", message)))
}

/// The reason of the event about [`lacks`].
pub const FAILED: &str = "FailedNodeDeclaredFeaturesCheck";

/// Whether a change of a Pod needs a feature that this node does not declare. The API server refuses those that it knows of.
pub fn lacks(features: &Features, cpus: Policy, old: &Pod, new: &Pod) -> Option<String> {
    lacking(&declared(features, cpus)?, &declared_feature::to_change(old, new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::json;

    #[test]
    fn a_node_takes_what_it_declares_where_the_feature_is_on() {
        let (off, on) = (Features::default(), Features::default().with(Feature::NodeDeclaredFeatures, true));
        let (declared, admit) =
            (|f: &Features| declared(f, Policy::None), |f: &Features, s: &PodSpec| admit(f, Policy::None, s));
        assert_eq!(declared(&off), None);
        let names = declared(&on).unwrap();
        assert_eq!(names, ["GuaranteedQoSPodCPUResize"]);
        let more = on
            .with(Feature::InPlacePodLevelResourcesVerticalScaling, true)
            .with(Feature::RestartAllContainersOnContainerExits, true);
        assert!(declared(&more).unwrap().is_sorted() && declared(&more).unwrap().len() == 3);
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
    fn a_node_that_gives_processors_away_resizes_their_owners_only_behind_a_gate() {
        let on = Features::default().with(Feature::NodeDeclaredFeatures, true);
        assert_eq!(declared(&on, Policy::Static), Some(Vec::new()));
        let resizes = on.with(Feature::InPlacePodVerticalScalingExclusiveCPUs, true);
        assert_eq!(declared(&resizes, Policy::Static), declared(&on, Policy::None));
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
        assert_eq!(lacks(&on, Policy::None, &pod("2", "1"), &pod("3", "1")).as_deref(), Some(message));
        assert_eq!(lacks(&on, Policy::None, &pod("2", "1"), &pod("2", "2")), None, "what it declares");
        assert_eq!(lacks(&on, Policy::None, &pod("2", "1"), &pod("2", "1")), None);
        assert_eq!(lacks(&off, Policy::None, &pod("2", "1"), &pod("3", "1")), None);
    }
}
