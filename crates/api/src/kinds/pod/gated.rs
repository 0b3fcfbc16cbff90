//! The fields of a Pod that belong to features which a cluster may have off, wherever a Pod or a template of one stands.

use crate::features::Feature;
use crate::kind::{Gated, GatedText};
use crate::rules::declared_feature::RESTART_ALL_ACTION;

/// The fields of features in a Pod whose spec is at that path, and these others.
macro_rules! fields {
    ($spec:literal $(, $more:expr)*) => {
        &[
            Gated { feature: Feature::GenericWorkload, fields: &[concat!($spec, ".workloadRef")] },
            Gated {
                feature: Feature::ClusterTrustBundleProjection,
                fields: &[concat!($spec, ".volumes[].projected.sources[].clusterTrustBundle")],
            },
            Gated {
                feature: Feature::PodCertificateRequest,
                fields: &[concat!($spec, ".volumes[].projected.sources[].podCertificate")],
            },
            Gated {
                feature: Feature::ContainerRestartRules,
                fields: &[
                    concat!($spec, ".containers[].restartPolicy"),
                    concat!($spec, ".containers[].restartPolicyRules"),
                    concat!($spec, ".initContainers[].restartPolicyRules"),
                ],
            },
            Gated { feature: Feature::ImageVolume, fields: &[concat!($spec, ".volumes[].image")] },
            Gated {
                feature: Feature::ContainerStopSignals,
                fields: &[
                    concat!($spec, ".containers[].lifecycle.stopSignal"),
                    concat!($spec, ".initContainers[].lifecycle.stopSignal"),
                    concat!($spec, ".ephemeralContainers[].lifecycle.stopSignal"),
                ],
            },
            $($more,)*
        ]
    };
}

const EXTENDED_RESOURCES: Gated =
    Gated { feature: Feature::DRAExtendedResource, fields: &["status.extendedResourceClaimStatus"] };

const POD_RESOURCES: Gated = Gated {
    feature: Feature::InPlacePodLevelResourcesVerticalScaling,
    fields: &["status.allocatedResources", "status.resources"],
};

/// The fields of features in a Pod, and in the templates of those who make Pods.
pub(crate) const OF_POD: &[Gated] = fields!("spec", EXTENDED_RESOURCES, POD_RESOURCES);
pub(crate) const OF_TEMPLATE: &[Gated] = fields!("spec.template.spec");
pub(crate) const OF_POD_TEMPLATE: &[Gated] = fields!("template.spec");
pub(crate) const OF_CRON_JOB: &[Gated] = fields!("spec.jobTemplate.spec.template.spec");

/// The texts of features in a Pod whose spec is at that path. A sidecar runs again anyway: rules of its own make sense only with the
/// action for all containers.
macro_rules! texts {
    ($spec:literal) => {
        &[GatedText {
            feature: Feature::RestartAllContainersOnContainerExits,
            text: RESTART_ALL_ACTION,
            others: &["Restart"],
            fields: &[
                concat!($spec, ".containers[].restartPolicyRules[].action"),
                concat!($spec, ".initContainers[].restartPolicyRules[].action"),
            ],
            lists: &[concat!($spec, ".initContainers[restartPolicy=Always].restartPolicyRules")],
            forbidden: "restartPolicyRules are not allowed for init containers with restart policy Always",
        }]
    };
}

/// The texts that features add to a Pod, and to the templates of those who make Pods.
pub(crate) const TEXTS_OF_POD: &[GatedText] = texts!("spec");
pub(crate) const TEXTS_OF_TEMPLATE: &[GatedText] = texts!("spec.template.spec");
pub(crate) const TEXTS_OF_POD_TEMPLATE: &[GatedText] = texts!("template.spec");
pub(crate) const TEXTS_OF_CRON_JOB: &[GatedText] = texts!("spec.jobTemplate.spec.template.spec");

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use crate::features::{Feature, Features};
    use crate::kind::{Definition, Target};
    use crate::kinds::{cron_job::CRON_JOB, deployment::DEPLOYMENT, pod::POD};

    #[test]
    fn sources_of_features_that_are_off_are_not_taken() {
        let pod = |source: &Value| json!({"metadata": {"name": "p"}, "spec": {"volumes": [{"name": "v", "projected": {"sources": [source]}}]}});
        let bundle = json!({"clusterTrustBundle": {"name": "n", "path": "p"}});
        let certificate = json!({"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "keyPath": "k"}});
        for (source, feature) in
            [(bundle, Feature::ClusterTrustBundleProjection), (certificate, Feature::PodCertificateRequest)]
        {
            let kept = |features: Features, old: Option<&Value>| {
                let mut new = pod(&source);
                match old {
                    None => drop(POD.define(features).strategy.prepare_create(&mut new)),
                    Some(old) => POD.define(features).strategy.prepare_update(&mut new, old, Target::Object),
                }
                new.pointer("/spec/volumes/0/projected/sources/0").unwrap() == &source
            };
            let off = Features::default();
            assert!(!kept(off, None), "{source}");
            assert!(!kept(off, Some(&pod(&json!({})))), "{source}");
            assert!(kept(off, Some(&pod(&source))), "it had it before");
            assert!(kept(off.with(feature, true), None), "{source}");
        }
    }

    #[test]
    fn images_and_signals_of_features_that_are_off_are_not_taken() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "volumes": [{"name": "v", "image": {"reference": "r"}}],
            "containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGUSR1"}}]}});
        let kept = |features: Features, old: Option<&Value>| {
            let mut new = pod.clone();
            match old {
                None => drop(POD.define(features).strategy.prepare_create(&mut new)),
                Some(old) => POD.define(features).strategy.prepare_update(&mut new, old, Target::Object),
            }
            ["/spec/volumes/0/image", "/spec/containers/0/lifecycle/stopSignal"].map(|path| new.pointer(path).is_some())
        };
        let usual = Features::default();
        assert_eq!(kept(usual, None), [true, false]);
        assert_eq!(kept(usual, Some(&pod)), [true, true], "it had it before");
        let other = usual.with(Feature::ContainerStopSignals, true).with(Feature::ImageVolume, false);
        assert_eq!(kept(other, None), [false, true]);
    }

    #[test]
    fn the_action_of_a_feature_is_taken_where_it_is_on() {
        let spec = |action: &str| {
            let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [1]}});
            json!({"containers": [{"name": "c", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [rule]}],
                "restartPolicy": "Never"})
        };
        let wrong = |definition: &Definition, new: &Value, old: Option<&Value>| -> Vec<String> {
            let whole = |object: &Value| {
                let mut object = object.clone();
                definition.strategy.default(&mut object);
                object
            };
            let (new, old) = (whole(new), old.map(whole));
            let found = match &old {
                None => definition.strategy.check(&new).map(|checked| checked.warnings),
                Some(old) => definition.strategy.check_update(&new, old, Target::Object),
            };
            let errors = found.err().unwrap_or_default();
            errors.iter().map(ToString::to_string).filter(|e| e.contains("restartPolicyRules")).collect()
        };
        let pod = |action: &str| json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "spec": spec(action)});
        let (new, plain) = (pod("RestartAllContainers"), pod("Restart"));
        let off = Features::default();
        let on = off.with(Feature::RestartAllContainersOnContainerExits, true);
        let why = "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"RestartAllContainers\": supported \
                   values: \"Restart\"";
        assert_eq!(wrong(&POD.define(off), &new, None), [why]);
        assert_eq!(wrong(&POD.define(off), &new, Some(&plain)), [why]);
        assert!(wrong(&POD.define(off), &new, Some(&new)).is_empty(), "it had it before");
        assert!(wrong(&POD.define(on), &new, None).is_empty());
        assert_eq!(wrong(&POD.define(on), &pod("Reboot"), None).len(), 1);
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec("RestartAllContainers")});
        let deployment = json!({"metadata": {"name": "d", "namespace": "ns"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
        let told = wrong(&DEPLOYMENT.define(off), &deployment, None);
        assert!(told[0].starts_with("spec.template.spec.containers[0].restartPolicyRules[0].action"), "{told:?}");
        let job = json!({"metadata": {"name": "j", "namespace": "ns"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}});
        assert_eq!(wrong(&CRON_JOB.define(off), &job, None).len(), 1);
        // The rules of a sidecar are checked as others are.
        let sidecar = |action: &str| {
            let mut pod = pod("Restart");
            let rule = json!({"action": action, "exitCodes": {"operator": "In", "values": [1]}});
            pod["spec"]["initContainers"] =
                json!([{"name": "s", "image": "i", "restartPolicy": "Always", "restartPolicyRules": [rule]}]);
            pod
        };
        let place = "spec.initContainers[0].restartPolicyRules";
        let forbidden = format!(
            "{place}: Forbidden: restartPolicyRules are not allowed for init containers with restart policy Always"
        );
        assert_eq!(wrong(&POD.define(off), &sidecar("Restart"), None), [forbidden]);
        for action in ["Restart", "RestartAllContainers"] {
            assert!(wrong(&POD.define(on), &sidecar(action), None).is_empty(), "{action}");
        }
        let told = wrong(&POD.define(on), &sidecar("Reboot"), None);
        assert!(told.len() == 1 && told[0].starts_with(&format!("{place}[0].action: Unsupported value")), "{told:?}");
    }
}
