//! CertificateApproval: whoever approves or denies a request has the right to do so for its signer.
//! Upstream counterpart: plugin/pkg/admission/certificates/approval.

use super::{request::concerns, signer};
use crate::admission::{attributes::Operation, plugin::Plugin};

pub const PLUGIN: Plugin = Plugin {
    name: "CertificateApproval",
    concerns: |attributes| concerns(attributes, Operation::Update, "approval"),
    admit: None,
    validate: Some(|context, attributes| Box::pin(signer::require(context, attributes, "approve"))),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::certificates::scene::{csr, granting, update};
    use crate::tests::admission::Write;
    use json::json;

    /// Upstream: TestPlugin_Validate.
    #[tokio::test]
    async fn only_approvers_of_its_signer_approve_a_request() {
        let check = async |granted: &str, old: &str, new: &str, allowed: bool| {
            let context = granting("approve", granted).await;
            let outcome = update("approval", csr(old, json!({})), csr(new, json!({}))).through(&context, &PLUGIN).await;
            let expected = format!(
                "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve requests \
                 with signerName {old:?}"
            );
            assert_eq!(outcome.err(), (!allowed).then_some(expected), "{granted} {old} {new}");
        };
        check("", "abc.com/xyz", "abc.com/xyz", false).await;
        check("abc.com/xyz", "abc.com/xyz", "abc.com/xyz", true).await;
        check("abc.com/*", "abc.com/xyz", "abc.com/xyz", true).await;
        check("notabc.com/xyz", "abc.com/xyz", "abc.com/xyz", false).await;
        // A signer that the user may approve for does not help when the stored request names another.
        check("allowed.com/xyz", "notallowed.com/xyz", "allowed.com/xyz", false).await;
        // The right to do something else is not enough, and other writes are not asked about.
        let context = granting("sign", "abc.com/xyz").await;
        let write = |subresource| update(subresource, csr("abc.com/xyz", json!({})), csr("abc.com/xyz", json!({})));
        assert!(write("approval").through(&context, &PLUGIN).await.is_err());
        for subresource in ["", "status"] {
            assert!(write(subresource).through(&context, &PLUGIN).await.is_ok(), "{subresource}");
        }
        let other = Write { kind: ("foo", "certificatesigningrequests", "approval"), ..write("approval") };
        assert!(other.through(&context, &PLUGIN).await.is_ok());
    }
}
