//! Approves the serving certificates of nodes that skiff has set up, when a node asks for its own name and its own addresses.
//! Upstream leaves that to a person or to an add-on, and so does skiff with other kubelets; without it the API server could
//! not trust a kubelet that joined by itself.
//! A request that it does not approve waits for a person, as all do upstream; an event says why it waits, since the reason may be a
//! Node of the past, and is gone with that one.
//! Reads: CertificateSigningRequest, Node. Writes: CertificateSigningRequest/approval, Event.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use api::rules::certificate_request::BY_SKIFF;
use client::{Change, Key};
use clock::Timestamp;
use controller::{Controller, Listers, Note, Plan, Watches, Write};
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

/// How long a new node has to tell its addresses before a request for them is remarked on.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request is not approved.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wait {
    /// No Node has the address, which a node tells a little later than it asks.
    Unclaimed(IpAddr),
    For(String),
}

impl Wait {
    fn message(&self) -> String {
        let why = match self {
            Wait::Unclaimed(address) => format!("no Node has the address {address}"),
            Wait::For(why) => why.clone(),
        };
        format!("Not approved by itself: {why}. Somebody who knows the node may approve the request.")
    }
}

/// A node may be called by its own name and reached at addresses that it has and no other node claims.
fn is_own(csr: &CertificateSigningRequest, claims: &Claims) -> Result<(), Wait> {
    let wait = |why: String| Err(Wait::For(why));
    let wish = wish(csr).map_err(|error| Wait::For(error.to_string()))?;
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    check(KUBELET_SERVING, &wish, usages).map_err(Wait::For)?;
    let user = wish.common_name();
    let node = user.strip_prefix(NODE_USER).unwrap_or_default();
    if csr.spec.username.as_deref() != Some(user) {
        return wait("it is not the node itself that asks".to_owned());
    }
    if let Some(name) = wish.dns_names.iter().find(|name| *name != node) {
        return wait(format!("the name {name} is not the node's own"));
    }
    for address in &wish.addresses {
        if api::rules::ip::special(*address).is_some() {
            return wait(format!("the address {address} cannot be a node's"));
        }
        match claims.get(address).map(Vec::as_slice) {
            None => return Err(Wait::Unclaimed(*address)),
            Some(nodes) => {
                let Some(other) = nodes.iter().find(|name| *name != node) else { continue };
                return wait(format!(
                    "the address {address} is that of Node {other} as well; if that is this machine under its former name, or gone, \
                     `kubectl delete node {other}` lets the request through"
                ));
            }
        }
    }
    Ok(())
}

/// The time that a node has left to tell its addresses.
fn left(csr: &CertificateSigningRequest, now: Timestamp) -> Option<Duration> {
    let made = csr.metadata.creation_timestamp.as_ref()?.0;
    let passed = Duration::try_from(now.duration_since(made)).unwrap_or_default();
    PATIENCE.checked_sub(passed).filter(|left| !left.is_zero())
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
        if !is_pending(csr) {
            return plan;
        }
        match is_own(csr, claims) {
            Ok(()) => {
                let message = "The node asks for its own name and addresses.";
                let approved = with_condition(csr, "Approved", "AutoApproved", message, now);
                plan.step(Write::update_part(&approved, "approval"));
            }
            Err(wait) => {
                let left = match wait {
                    Wait::Unclaimed(_) => left(csr, now),
                    Wait::For(_) => None,
                };
                match left {
                    Some(left) => plan.again_after(left),
                    None => plan.tell(Note::warning("WaitsForApproval", wait.message())),
                };
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{KUBELET_CLIENT, tests::csr};
    use controller::Step;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn told(plan: &Plan) -> Vec<String> {
        let notes = plan.steps.iter().filter_map(|step| if let Step::Tell(note) = step { Some(note) } else { None });
        notes.map(|note| note.message.clone()).collect()
    }

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
            let yes = "update certificatesigningrequests/approval csr-1";
            assert_eq!(
                plan.to_string(),
                if expected.is_empty() { yes } else { "" },
                "{user} asks for {name} {hosts:?}"
            );
            let told = told(&plan);
            match told.as_slice() {
                [] => assert!(expected.is_empty(), "{hosts:?} waits in silence"),
                [message] => assert!(!expected.is_empty() && message.contains(expected), "{message}"),
                _ => panic!("{told:?}"),
            }
        };
        check("system:node:a", "system:node:a", &["a", "10.0.0.1"], "");
        check("system:node:a", "system:node:a", &["a", "10.0.0.2"], "10.0.0.2 is that of Node b as well");
        check("system:node:a", "system:node:a", &["a", "10.0.0.3"], "`kubectl delete node b` lets the request through");
        check("system:node:a", "system:node:a", &["a", "10.0.0.9"], "no Node has the address 10.0.0.9");
        check("system:node:a", "system:node:a", &["a", "127.0.0.1"], "127.0.0.1 cannot be a node's");
        check(
            "system:node:a",
            "system:node:a",
            &["kubernetes.default.svc"],
            "kubernetes.default.svc is not the node's own",
        );
        check("system:node:b", "system:node:a", &["a", "10.0.0.1"], "not the node itself that asks");
        let client = csr(KUBELET_CLIENT, "system:node:a", "system:node:a", &[]);
        assert!(ServingApprover.plan(&client, &claims, Timestamp::UNIX_EPOCH).is_empty());
    }

    /// A node asks for its certificate while it makes its Node: the addresses come a moment later.
    #[test]
    fn a_new_node_has_time_to_tell_its_addresses() {
        let mut csr = csr(KUBELET_SERVING, "system:node:a", "system:node:a", &["a", "10.0.0.1"]);
        csr.metadata.annotations = Some([(BY_SKIFF.to_owned(), String::new())].into());
        csr.metadata.creation_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let plan = |claims: &Claims, seconds: i64| {
            let plan = ServingApprover.plan(&csr, claims, Timestamp::from_second(seconds).unwrap());
            (plan.to_string(), told(&plan).len(), plan.requeue_after)
        };
        let none = Claims::new();
        assert_eq!(plan(&none, 1), (String::new(), 0, Some(Duration::from_secs(59))));
        assert_eq!(plan(&none, 60), (String::new(), 1, None));
        let its = |nodes: &[&str]| -> Claims {
            [("10.0.0.1".parse().unwrap(), nodes.iter().map(|n| (*n).to_owned()).collect())].into()
        };
        assert!(plan(&its(&["a"]), 1).0.starts_with("update certificatesigningrequests/approval"));
        // The machine had another name before.
        assert_eq!(plan(&its(&["old", "a"]), 1), (String::new(), 1, None));
    }
}
