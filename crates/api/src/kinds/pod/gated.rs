//! The fields of a Pod that belong to features which a cluster may have off, wherever a Pod or a template of one stands.

use crate::features::Feature;
use crate::kind::Gated;

const fn workload_ref(fields: &'static [&'static str]) -> [Gated; 1] {
    [Gated { feature: Feature::GenericWorkload, fields }]
}

const EXTENDED_RESOURCES: Gated =
    Gated { feature: Feature::DRAExtendedResource, fields: &["status.extendedResourceClaimStatus"] };

/// The fields of features in a Pod, and in the templates of those who make Pods.
pub(crate) const OF_POD: &[Gated] = &[workload_ref(&["spec.workloadRef"])[0], EXTENDED_RESOURCES];
pub(crate) const OF_TEMPLATE: &[Gated] = &workload_ref(&["spec.template.spec.workloadRef"]);
pub(crate) const OF_POD_TEMPLATE: &[Gated] = &workload_ref(&["template.spec.workloadRef"]);
pub(crate) const OF_CRON_JOB: &[Gated] = &workload_ref(&["spec.jobTemplate.spec.template.spec.workloadRef"]);
