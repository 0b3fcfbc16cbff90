//! Approves kubelets' client certificates for users whom the authorizer lets have them: new nodes (`nodeclient`) and nodes
//! that renew their own (`selfnodeclient`).
//! Reads: CertificateSigningRequest. Writes: SubjectAccessReview (create), CertificateSigningRequest/approval.
//! Upstream counterpart: pkg/controller/certificates/approver.

use client::{Api, Client};
use clock::Timestamp;
use controller::{Controller, Listers, Plan, Watches, Write};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    certificates::v1::CertificateSigningRequest,
};

use super::{KUBELET_CLIENT, check, is_undecided, wish, with_condition};

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
    if csr.spec.signer_name != KUBELET_CLIENT || !is_undecided(csr) {
        return Vec::new();
    }
    let usages = csr.spec.usages.as_deref().unwrap_or_default();
    let Some(wish) = wish(csr).ok().filter(|wish| check(KUBELET_CLIENT, wish, usages).is_ok()) else {
        return Vec::new();
    };
    let mut questions = Vec::new();
    if csr.spec.username.as_deref() == Some(wish.common_name()) {
        let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        questions.push(("selfnodeclient", message));
    }
    questions.push(("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."));
    questions
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
