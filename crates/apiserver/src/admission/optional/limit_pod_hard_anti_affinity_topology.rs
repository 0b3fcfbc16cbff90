//! LimitPodHardAntiAffinityTopology: a Pod may keep others away from its node, and not from a whole zone.

use api::status::StatusError;

use crate::admission::{
    attributes::Attributes,
    plugin::{Plugin, done, forbid, is_written_pod, items, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "LimitPodHardAntiAffinityTopology",
    concerns: is_written_pod,
    admit: None,
    validate: Some(|_, attributes| done(validate(attributes))),
};

const HOSTNAME: &str = "kubernetes.io/hostname";
const TERMS: &str = "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";

fn validate(attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(pod) = &attributes.object else { return Ok(()) };
    let mut keys = items(pod, TERMS).map(|term| text(term, "/topologyKey"));
    let Some(key) = keys.find(|key| *key != HOSTNAME) else { return Ok(()) };
    let why = format!(
        "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
    );
    Err(forbid(attributes, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::attributes::Operation;
    use crate::tests::admission::{Write, context};
    use api::Value;
    use json::json;

    #[tokio::test]
    async fn only_nodes_can_be_kept_free_of_others() {
        let context = context(Vec::new()).await;
        let pod = |keys: &[&str]| {
            let terms: Vec<_> = keys.iter().map(|key| json!({"topologyKey": key})).collect();
            let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
            Write::create("pods", json!({"metadata": {"name": "p"}, "spec": {"affinity": affinity}}))
        };
        assert!(pod(&[]).through(&context, &PLUGIN).await.is_ok());
        assert!(pod(&[HOSTNAME]).through(&context, &PLUGIN).await.is_ok());
        let expected = "pods \"p\" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but \
                        only key kubernetes.io/hostname is allowed";
        assert_eq!(pod(&[HOSTNAME, "zone"]).through(&context, &PLUGIN).await.unwrap_err(), expected);
    }

    /// Upstream: TestInterPodAffinityAdmission, TestHandles, TestOtherResources.
    #[tokio::test]
    async fn what_is_preferred_and_other_writes_are_left_alone() {
        let context = context(Vec::new()).await;
        let required = |keys: &[&str]| keys.iter().map(|key| json!({"topologyKey": key})).collect::<Vec<_>>();
        let preferred = json!([{"weight": 5, "podAffinityTerm": {"topologyKey": "az"}}]);
        let both = |keys: &[&str]| {
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required(keys),
                "preferredDuringSchedulingIgnoredDuringExecution": preferred}})
        };
        let of = |affinity: Value| json!({"metadata": {"name": "p"}, "spec": {"affinity": affinity}});
        for (affinity, allowed) in [
            (json!({}), true),
            (json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}), true),
            (json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required(&["zone"])}}), true),
            (both(&[HOSTNAME]), true),
            (both(&[" zone "]), false),
            (both(&[HOSTNAME, " zone ", HOSTNAME]), false),
        ] {
            let outcome = Write::create("pods", of(affinity.clone())).through(&context, &PLUGIN).await;
            assert_eq!(outcome.is_ok(), allowed, "{affinity}");
        }
        let pod = of(both(&["zone"]));
        for (operation, (plural, subresource), looked_at) in [
            (Operation::Update, ("pods", ""), true),
            (Operation::Delete, ("pods", ""), false),
            (Operation::Connect, ("pods", ""), false),
            (Operation::Create, ("pods", "eviction"), false),
            (Operation::Create, ("foos", ""), false),
        ] {
            let write = Write { operation, kind: ("", plural, subresource), ..Write::create("", pod.clone()) };
            assert_eq!(
                write.through(&context, &PLUGIN).await.is_err(),
                looked_at,
                "{operation:?} {plural} {subresource}"
            );
        }
    }
}
