//! Approves kubelets' client certificates for those whom the authorizer lets have them: new nodes (`nodeclient`) and nodes
//! that renew their own (`selfnodeclient`).
//! Reads: CertificateSigningRequest. Writes: SubjectAccessReview (create), CertificateSigningRequest/approval.
//! Upstream counterpart: pkg/controller/certificates/approver.

use std::sync::Arc;

use client::{Api, Key, rest};
use controller::{Done, Queue, Reconcile, Setup, drive};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    certificates::v1::CertificateSigningRequest,
};

use super::{KUBELET_CLIENT, check, is_undecided, wish, with_condition};

pub const NAME: &str = "certificatesigningrequest-approving-controller";

struct Approver(Setup);

pub async fn run(setup: Setup) {
    let queue = Arc::new(Queue::default());
    let feed = super::feed(setup.caches.of::<CertificateSigningRequest>(), queue.clone());
    tokio::join!(feed, drive(NAME, queue, Arc::new(Approver(setup)), 2));
}

/// Who may have what is asked for, as the subresource whose creation is reviewed, and what the approval then says.
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

impl Approver {
    /// Whether nothing is left to be done: a request that nobody may have waits for its user to be granted it.
    async fn decide(&self, csr: &CertificateSigningRequest) -> Result<bool, kube::Error> {
        let client = &self.0.client;
        let questions = questions(csr);
        let nothing_to_ask = questions.is_empty();
        for (subresource, message) in questions {
            let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
            let answer = reviews.create(&review(csr, subresource)).await?;
            if answer.status.is_some_and(|s| s.allowed) {
                let approved = with_condition(csr, "Approved", "AutoApproved", message, clock::now_seconds());
                let api: Api<CertificateSigningRequest> = Api::all(client.clone());
                let name = csr.metadata.name.as_deref().unwrap_or("");
                api.replace(name, "approval", &approved).await?;
                return Ok(true);
            }
        }
        Ok(nothing_to_ask)
    }
}

impl Reconcile for Approver {
    async fn reconcile(&self, key: &Key) -> Done {
        waypoint::controller::reconcile(&key.name);
        let Some(csr) = self.0.caches.of::<CertificateSigningRequest>().get(key) else { return Done::default() };
        match self.decide(&csr).await {
            Ok(done) => Done { failed: !done, ..Done::default() },
            Err(error) => {
                tracing::info!(controller = NAME, %key, message = rest::message(&error), "trying again later");
                Done { failed: true, ..Done::default() }
            }
        }
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
}
