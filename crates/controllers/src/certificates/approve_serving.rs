//! Approves the serving certificates of nodes that skiff has set up, when a node asks for its own name and its own addresses.
//! Upstream leaves that to a person or to an add-on, and so does skiff with other kubelets; without it the API server could
//! not trust a kubelet that joined by itself.
//! Reads: CertificateSigningRequest, Node. Writes: CertificateSigningRequest/approval.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use api::rules::certificate_request::BY_SKIFF;
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Node};

use super::{KUBELET_SERVING, NODE_USER, check, is_undecided, wish, with_condition};

pub struct ServingApprover;

/// Which nodes claim an address.
pub type Claims = BTreeMap<IpAddr, Vec<String>>;

fn addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    node.status.iter().flat_map(|s| s.addresses.iter().flatten()).filter_map(|a| api::rules::ip::parse(&a.address))
}

fn is_pending(csr: &CertificateSigningRequest) -> bool {
    let by_skiff = csr.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(BY_SKIFF));
    csr.spec.signer_name == KUBELET_SERVING && by_skiff && is_undecided(csr)
}

/// A node may be called by its own name and reached at addresses that it has and no other node claims.
fn is_own(csr: &CertificateSigningRequest, claims: &Claims) -> bool {
    let Ok(wish) = wish(csr) else { return false };
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let Some(node) = wish.common_name().strip_prefix(NODE_USER) else { return false };
    csr.spec.username.as_deref() == Some(wish.common_name())
        && check(KUBELET_SERVING, &wish, usages).is_ok()
        && wish.dns_names.iter().all(|name| name == node)
        && wish
            .addresses
            .iter()
            .all(|ip| api::rules::ip::special(*ip).is_none() && claims.get(ip).is_some_and(|who| who == &[node]))
}

impl Controller for ServingApprover {
    const NAME: &'static str = "kubelet-serving-approving-controller";
    type Object = CertificateSigningRequest;
    type Observed = Claims;

    fn concerns(change: &Change<CertificateSigningRequest>) -> bool {
        change.new.as_ref().is_some_and(|csr| is_pending(csr))
    }

    fn watches(&self, watches: &mut Watches<CertificateSigningRequest>) {
        watches.changed::<Node>(|change, caches| {
            let of = |node: &Option<Arc<Node>>| node.iter().flat_map(|n| addresses(n)).collect::<Vec<_>>();
            let moved = of(&change.old) != of(&change.new);
            let all = if moved { caches.of::<CertificateSigningRequest>().list() } else { Vec::new() };
            all.iter().filter(|csr| is_pending(csr)).map(|csr| Key::of(&**csr)).collect()
        });
    }

    fn observe(&self, csr: &CertificateSigningRequest, listers: &Listers) -> Claims {
        let mut claims = Claims::new();
        if is_pending(csr) {
            for node in listers.caches.of::<Node>().list() {
                for address in addresses(&node) {
                    claims.entry(address).or_default().push(node.metadata.name.clone().unwrap_or_default());
                }
            }
        }
        claims
    }

    fn plan(&self, csr: &CertificateSigningRequest, claims: &Claims, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        if is_pending(csr) && is_own(csr, claims) {
            let message = "The node asks for its own name and addresses.";
            let approved = with_condition(csr, "Approved", "AutoApproved", message, now);
            plan.step(Write::update_part(&approved, "approval"));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{KUBELET_CLIENT, tests::csr};

    #[test]
    fn a_node_gets_its_own_names_and_no_others() {
        let claims = Claims::from([
            ("10.0.0.1".parse().unwrap(), vec!["a".to_owned()]),
            ("10.0.0.2".parse().unwrap(), vec!["b".to_owned()]),
            ("10.0.0.3".parse().unwrap(), vec!["a".to_owned(), "b".to_owned()]),
            ("127.0.0.1".parse().unwrap(), vec!["a".to_owned()]),
        ]);
        let check = |user: &str, name: &str, hosts: &[&str], expected: &str| {
            let mut csr = csr(KUBELET_SERVING, user, name, hosts);
            let foreign = ServingApprover.plan(&csr, &claims, Timestamp::UNIX_EPOCH);
            assert!(foreign.is_empty(), "another kubelet's request waits for a person");
            csr.metadata.annotations = Some([(BY_SKIFF.to_owned(), String::new())].into());
            let plan = ServingApprover.plan(&csr, &claims, Timestamp::UNIX_EPOCH);
            assert_eq!(plan.to_string(), expected, "{user} asks for {name} {hosts:?}");
        };
        let yes = "update certificatesigningrequests/approval csr-1";
        check("system:node:a", "system:node:a", &["a", "10.0.0.1"], yes);
        check("system:node:a", "system:node:a", &["a", "10.0.0.2"], "");
        check("system:node:a", "system:node:a", &["a", "10.0.0.3"], "");
        check("system:node:a", "system:node:a", &["a", "10.0.0.9"], "");
        check("system:node:a", "system:node:a", &["a", "127.0.0.1"], "");
        check("system:node:a", "system:node:a", &["kubernetes.default.svc"], "");
        check("system:node:b", "system:node:a", &["a", "10.0.0.1"], "");
        let client = csr(KUBELET_CLIENT, "system:node:a", "system:node:a", &[]);
        assert!(ServingApprover.plan(&client, &claims, Timestamp::UNIX_EPOCH).is_empty());
    }
}
