//! NetworkPolicy: which traffic Pods take and send.

use json::Value;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use crate::kind::{Generation, Kind, age, col, name};
use crate::rules::selector;

pub const NETWORK_POLICY: Kind<NetworkPolicy> = Kind {
    without_effect: Some("the network lets all Pods talk to each other"),
    short: &["netpol"],
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default),
    columns: &[
        name(),
        col("Pod-Selector", "The labels of the Pods that it is about.", |p, _| {
            Value::from(selector::describe(p.spec.as_ref().and_then(|s| s.pod_selector.as_ref())))
        }),
        age(),
    ],
    ..Kind::BASE
};

fn default(policy: &mut NetworkPolicy) {
    let spec = policy.spec.get_or_insert_default();
    let ingress = spec.ingress.iter_mut().flatten().flat_map(|r| r.ports.iter_mut().flatten());
    let egress = spec.egress.iter_mut().flatten().flat_map(|r| r.ports.iter_mut().flatten());
    for port in ingress.chain(egress) {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
        let mut types = vec!["Ingress".to_owned()];
        if spec.egress.as_ref().is_some_and(|e| !e.is_empty()) {
            types.push("Egress".to_owned());
        }
        spec.policy_types = Some(types);
    }
}
