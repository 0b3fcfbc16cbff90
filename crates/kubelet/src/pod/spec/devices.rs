//! Devices: what drivers would have to prepare on the node before a Pod starts. No driver is called here, so a Pod with claims
//! on devices waits: it must not run without what it was promised.
//! Upstream counterpart: pkg/kubelet/cm/dra.

use api::rules::pod;
use k8s_openapi::api::core::v1::Pod;

/// Why the devices of a Pod are not ready for it; `None` when it has no claims.
pub fn unprepared(pod: &Pod) -> Option<String> {
    let named = pod::device_claims(pod).filter_map(|claim| claim.name);
    let claims: Vec<String> = named.chain(pod::extended_claim(pod).map(str::to_owned)).collect();
    let claims = (!claims.is_empty()).then(|| claims.join(", "))?;
    Some(format!("this node cannot call drivers of devices, which it had to for the resource claims {claims}"))
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_waits_for_each_claim_that_it_has() {
        let check = |claims: Value, status: Value, expected: Option<&str>| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "resourceClaims": claims},
                "status": {"resourceClaimStatuses": status}});
            let why = unprepared(&json::from_value(pod).unwrap());
            assert_eq!(why.as_deref().map(|why| why.rsplit("claims ").next().unwrap()), expected);
        };
        check(json!([]), json!([]), None);
        let both = json!([{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "t"}]);
        check(both.clone(), json!([{"name": "b", "resourceClaimName": "made"}]), Some("x, made"));
        // Without a name in the status, no claim was necessary.
        check(both, json!([{"name": "b"}]), Some("x"));
        let one = json!([{"name": "b", "resourceClaimTemplateName": "t"}]);
        check(one, json!([{"name": "b"}]), None);
        let made = json!({"resourceClaimName": "p-extended-resources-x", "requestMappings": []});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []},
            "status": {"extendedResourceClaimStatus": made}});
        assert!(unprepared(&json::from_value(pod).unwrap()).unwrap().ends_with("p-extended-resources-x"));
    }
}
