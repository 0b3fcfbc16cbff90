//! Certificate signing requests: what the signers of `kubernetes.io` accept, and the conditions of a request.
//!
//! [`approve`] and [`approve_serving`] say yes, [`sign`] issues, [`clean`] forgets. Upstream: pkg/controller/certificates,
//! with the rules of pkg/apis/certificates/helpers.go.

pub mod approve;
pub mod approve_serving;
pub mod clean;
pub mod sign;

use std::sync::Arc;

use client::{Cache, Key};
use clock::Timestamp;
use controller::Queue;
use k8s_openapi::{
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use pki::inspect::{self, Request};
use tokio::sync::broadcast::error::RecvError;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// The service account that all of them are.
pub const ACCOUNT: &str = "certificate-controller";

const NODES_GROUP: &str = "system:nodes";
const NODE_USER: &str = "system:node:";

/// Puts every request into the queue, and again whenever it changes.
async fn feed(cache: Arc<Cache<CertificateSigningRequest>>, queue: Arc<Queue>) {
    let mut changes = cache.subscribe();
    let add_all = || cache.list().iter().for_each(|csr| queue.add(Key::of(&**csr)));
    cache.synced().await;
    add_all();
    loop {
        match changes.recv().await {
            Ok(change) => queue.add(change.key),
            Err(RecvError::Lagged(_)) => add_all(),
            Err(RecvError::Closed) => return,
        }
    }
}

/// What was asked for; `None` when it is no readable request.
pub fn wish(csr: &CertificateSigningRequest) -> Option<Request> {
    inspect::request(&csr.spec.request.0).ok()
}

/// Why a kubelet's client certificate is refused, in upstream's words.
pub fn check_kubelet_client(wish: &Request, usages: &[String]) -> Result<(), &'static str> {
    check_node(wish)?;
    if !wish.dns_names.is_empty() {
        return Err("DNS subjectAltNames are not allowed");
    }
    if !wish.addresses.is_empty() {
        return Err("IP subjectAltNames are not allowed");
    }
    if wish.other_names {
        return Err("email subjectAltNames are not allowed");
    }
    check_usages(usages, "client auth")
}

/// The same for a kubelet's serving certificate.
pub fn check_kubelet_serving(wish: &Request, usages: &[String]) -> Result<(), &'static str> {
    check_node(wish)?;
    if wish.dns_names.is_empty() && wish.addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required");
    }
    if wish.other_names {
        return Err("email subjectAltNames are not allowed");
    }
    check_usages(usages, "server auth")
}

fn check_node(wish: &Request) -> Result<(), &'static str> {
    if wish.organizations != [NODES_GROUP] {
        return Err("subject organization is not system:nodes");
    }
    if !wish.common_name.starts_with(NODE_USER) {
        return Err("subject common name does not begin with system:node:");
    }
    Ok(())
}

/// Key encipherment is for RSA keys and so may be left out.
fn check_usages(usages: &[String], purpose: &str) -> Result<(), &'static str> {
    let all = |allowed: &[&str]| usages.len() == allowed.len() && allowed.iter().all(|a| usages.iter().any(|u| u == a));
    if all(&["key encipherment", "digital signature", purpose]) || all(&["digital signature", purpose]) {
        return Ok(());
    }
    Err("usages did not match")
}

fn conditions(csr: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    csr.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

fn condition<'a>(csr: &'a CertificateSigningRequest, kind: &str) -> Option<&'a CertificateSigningRequestCondition> {
    conditions(csr).iter().find(|c| c.type_ == kind)
}

fn certificate(csr: &CertificateSigningRequest) -> Option<&[u8]> {
    csr.status.as_ref()?.certificate.as_ref().map(|c| c.0.as_slice()).filter(|c| !c.is_empty())
}

/// Nobody has said yes or no yet.
fn is_undecided(csr: &CertificateSigningRequest) -> bool {
    condition(csr, "Approved").is_none() && condition(csr, "Denied").is_none() && certificate(csr).is_none()
}

/// The request with one more condition.
fn with_condition(
    csr: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> CertificateSigningRequest {
    let mut csr = csr.clone();
    let status = csr.status.get_or_insert_with(CertificateSigningRequestStatus::default);
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
    csr
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::ByteString;
    use pki::{Subject, Wish};

    use super::*;

    /// A request by `user` for the common name `name` with these further names, and the usages of `signer`.
    pub fn csr(signer: &str, user: &str, name: &str, hosts: &[&str]) -> CertificateSigningRequest {
        let subject = Subject {
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            ..Subject::client(name, Some(NODES_GROUP))
        };
        let purpose = if signer == KUBELET_SERVING { "server auth" } else { "client auth" };
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.name = Some("csr-1".to_owned());
        csr.spec.signer_name = signer.to_owned();
        csr.spec.username = Some(user.to_owned());
        csr.spec.groups = Some(vec![NODES_GROUP.to_owned(), "system:authenticated".to_owned()]);
        csr.spec.usages = Some(vec!["digital signature".to_owned(), purpose.to_owned()]);
        csr.spec.request = ByteString(Wish::new(&subject).unwrap().request.into_bytes());
        csr
    }

    #[test]
    fn kubelets_get_what_is_theirs_alone() {
        let client = |name: &str, hosts: &[&str]| wish(&csr(KUBELET_CLIENT, "u", name, hosts)).unwrap();
        let usages = |list: &[&str]| list.iter().map(|u| (*u).to_owned()).collect::<Vec<_>>();
        let (sign, encipher) = ("digital signature", "key encipherment");
        let good = usages(&[sign, "client auth"]);
        assert_eq!(check_kubelet_client(&client("system:node:a", &[]), &good), Ok(()));
        assert_eq!(
            check_kubelet_client(&client("system:node:a", &[]), &usages(&[encipher, sign, "client auth"])),
            Ok(())
        );
        for (name, hosts, usages) in [
            ("admin", vec![], good.clone()),
            ("system:node:a", vec!["a"], good.clone()),
            ("system:node:a", vec!["10.0.0.1"], good.clone()),
            ("system:node:a", vec![], usages(&[sign, "client auth", "server auth"])),
            ("system:node:a", vec![], usages(&[sign])),
        ] {
            assert!(check_kubelet_client(&client(name, &hosts), &usages).is_err(), "{name} {hosts:?} {usages:?}");
        }
        let serving = usages(&[sign, "server auth"]);
        assert_eq!(check_kubelet_serving(&client("system:node:a", &["a", "10.0.0.1"]), &serving), Ok(()));
        assert!(check_kubelet_serving(&client("system:node:a", &[]), &serving).is_err());
        assert!(check_kubelet_serving(&client("system:node:a", &["a"]), &good).is_err());
        let other = Request { organizations: vec!["system:masters".into()], ..client("system:node:a", &[]) };
        assert!(check_kubelet_client(&other, &good).is_err());
    }
}
