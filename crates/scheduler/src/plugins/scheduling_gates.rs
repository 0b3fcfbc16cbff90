//! SchedulingGates: a Pod with gates is not tried until they are gone.

use k8s_openapi::api::core::v1::Pod;

use crate::plugin::Plugin;

pub const PLUGIN: Plugin = Plugin { name: "SchedulingGates", concerns: |_| false, gate: Some(is_open), ..Plugin::NONE };

fn is_open(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_none_or(Vec::is_empty)
}
