//! Approves kubelets' client certificates for users whom the authorizer lets have them: new nodes (`nodeclient`) and nodes
//! that renew their own (`selfnodeclient`). And those with which the parts of a node speak that serve its Pods, for the node itself
//! (`selfnodeservices`); upstream's are Pods with service accounts.
//! Reads: CertificateSigningRequest. Writes: SubjectAccessReview (create), CertificateSigningRequest/approval.
//! Upstream counterpart: pkg/controller/certificates/approver.

use api::rules::certificate_request::{CertificateRequest, NODE_SERVICES, node_services};
use client::{Api, Client};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    certificates::v1::CertificateSigningRequest,
};

use super::{CLIENT, KUBELET_CLIENT, NODE_USER, check, is_undecided, wish, with_condition};

pub struct Approver;

/// The authorizer's answer about a request.
pub enum Verdict {
    NothingToAsk,
    /// The user may not have the certificate. The request waits for somebody to grant it.
    Refused,
    /// The user may have it; the approval says why.
    Allowed(&'static str),
}

impl Controller for Approver {
    const NAME: &'static str = "certificatesigningrequest-approving-controller";
    const CONCURRENCY: usize = 2;
    type Object = CertificateSigningRequest;
    type Observed = Verdict;

    fn watches(&self, _: &mut Watches<CertificateSigningRequest>) {}

    fn observe(&self, _: &CertificateSigningRequest, _: &Listers) -> Verdict {
        Verdict::NothingToAsk
    }

    async fn ask(
        &self,
        csr: &CertificateSigningRequest,
        verdict: &mut Verdict,
        client: &Client,
    ) -> Result<(), client::Error> {
        let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
        for (subresource, message) in questions(csr) {
            let answer = reviews.create(&review(csr, subresource)).await?;
            if answer.status.is_some_and(|s| s.allowed) {
                *verdict = Verdict::Allowed(message);
                return Ok(());
            }
            *verdict = Verdict::Refused;
        }
        Ok(())
    }

    fn plan(&self, csr: &CertificateSigningRequest, verdict: &Verdict, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match verdict {
            Verdict::NothingToAsk => &mut plan,
            Verdict::Refused => plan.retry(),
            Verdict::Allowed(message) => {
                let approved = with_condition(csr, "Approved", "AutoApproved", message, now);
                plan.step(Write::update_part(&approved, "approval"))
            }
        };
        plan
    }
}

/// The questions to the authorizer, each as the subresource whose creation is reviewed and the message of the approval that
/// a yes leads to.
fn questions(csr: &CertificateSigningRequest) -> Vec<(&'static str, &'static str)> {
    let signer = csr.spec.signer_name.as_str();
    if !matches!(signer, KUBELET_CLIENT | CLIENT) || !is_undecided(csr) {
        return Vec::new();
    }
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let Some(wish) = wish(csr).ok().filter(|wish| check(signer, wish, usages).is_ok()) else {
        return Vec::new();
    };
    if signer == CLIENT {
        let message = "Auto approving self node services client certificate after SubjectAccessReview.";
        return if is_own_services(csr, &wish) { vec![("selfnodeservices", message)] } else { Vec::new() };
    }
    let mut questions = Vec::new();
    if csr.spec.username.as_deref() == Some(wish.common_name()) {
        let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        questions.push(("selfnodeclient", message));
    }
    questions.push(("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."));
    questions
}

/// A node asks for the parts that serve its own Pods, and for nothing besides.
fn is_own_services(csr: &CertificateSigningRequest, wish: &CertificateRequest) -> bool {
    let node =
        csr.spec.username.as_deref().and_then(|user| user.strip_prefix(NODE_USER)).filter(|node| !node.is_empty());
    let has_names = [&wish.dns_names, &wish.emails, &wish.uris].into_iter().any(|names| !names.is_empty());
    node.is_some_and(|node| wish.common_name() == node_services(node))
        && wish.organizations().eq([NODE_SERVICES])
        && wish.is_plain_subject()
        && !has_names
        && wish.addresses.is_empty()
}

fn review(csr: &CertificateSigningRequest, subresource: &str) -> SubjectAccessReview {
    let text = |t: &str| Some(t.to_owned());
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: text("certificates.k8s.io"),
                resource: text("certificatesigningrequests"),
                verb: text("create"),
                subresource: text(subresource),
                version: text("*"),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{KUBELET_SERVING, tests::csr};

    #[test]
    fn what_the_authorizer_is_asked() {
        let asked = |csr: &CertificateSigningRequest| questions(csr).into_iter().map(|q| q.0).collect::<Vec<_>>();
        assert_eq!(asked(&csr(KUBELET_CLIENT, "system:bootstrap:abcdef", "system:node:a", &[])), ["nodeclient"]);
        let own = csr(KUBELET_CLIENT, "system:node:a", "system:node:a", &[]);
        assert_eq!(asked(&own), ["selfnodeclient", "nodeclient"]);
        let review = review(&own, "selfnodeclient");
        let attributes = review.spec.resource_attributes.unwrap();
        assert_eq!(
            (attributes.verb.as_deref(), attributes.subresource.as_deref()),
            (Some("create"), Some("selfnodeclient"))
        );
        assert!(asked(&csr(KUBELET_CLIENT, "u", "somebody", &[])).is_empty());
        assert!(asked(&csr(KUBELET_SERVING, "system:node:a", "system:node:a", &["a"])).is_empty());
        let denied = with_condition(&own, "Denied", "No", "", Default::default());
        assert!(asked(&denied).is_empty());
    }

    #[test]
    fn a_node_has_a_certificate_for_what_serves_its_own_pods() {
        let asked = |user: &str, name: &str, group: &str, hosts: &[&str]| {
            let mut csr = csr(CLIENT, user, name, &[]);
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            let subject = pki::Subject { hosts, ..pki::Subject::client(name, Some(group)) };
            csr.spec.request.0 = pki::Wish::new(&subject).unwrap().request.into_bytes();
            questions(&csr).into_iter().map(|question| question.0).collect::<Vec<_>>()
        };
        let own = "skiff:node-services:a";
        assert_eq!(asked("system:node:a", own, NODE_SERVICES, &[]), ["selfnodeservices"]);
        assert!(asked("system:node:b", own, NODE_SERVICES, &[]).is_empty(), "another node's");
        assert!(asked("system:node:", "skiff:node-services:", NODE_SERVICES, &[]).is_empty());
        assert!(asked("a", own, NODE_SERVICES, &[]).is_empty(), "nobody's but a node's");
        assert!(asked("system:node:a", own, "system:nodes", &[]).is_empty(), "another group");
        assert!(asked("system:node:a", "system:node:a", NODE_SERVICES, &[]).is_empty());
        assert!(asked("system:node:a", own, NODE_SERVICES, &["a"]).is_empty(), "a client has no names");
        assert!(asked("system:node:a", own, NODE_SERVICES, &["10.0.0.1"]).is_empty());
    }

    #[test]
    fn the_answer_decides() {
        let plan = |verdict| {
            let csr = csr(KUBELET_CLIENT, "system:node:a", "system:node:a", &[]);
            let plan = Approver.plan(&csr, &verdict, Timestamp::UNIX_EPOCH);
            (plan.to_string(), plan.retry)
        };
        let approved = "update certificatesigningrequests/approval csr-1".to_owned();
        assert_eq!(plan(Verdict::Allowed("yes")), (approved, false));
        assert_eq!(plan(Verdict::Refused), (String::new(), true));
        assert_eq!(plan(Verdict::NothingToAsk), (String::new(), false));
    }
}
