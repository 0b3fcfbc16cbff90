//! CertificateSubjectRestriction: no client gets a certificate that makes it a master.
//! Upstream counterpart: plugin/pkg/admission/certificates/subjectrestriction.

use api::status::StatusError;

use super::request::{concerns, wish};
use crate::{
    admission::{
        attributes::{Attributes, Operation},
        plugin::{Plugin, done, forbid, text},
    },
    auth::user::GROUP_MASTERS,
};

pub const PLUGIN: Plugin = Plugin {
    name: "CertificateSubjectRestriction",
    concerns: |attributes| concerns(attributes, Operation::Create, ""),
    admit: None,
    validate: Some(|_, attributes| done(validate(attributes))),
};

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

fn validate(attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    if text(object, "/spec/signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let wish = wish(object).map_err(|why| forbid(attributes, format!("failed to parse CSR: {why}")))?;
    if !wish.organizations().any(|o| o == GROUP_MASTERS) {
        return Ok(());
    }
    Err(forbid(attributes, format!("use of {CLIENT_SIGNER} signer with {GROUP_MASTERS} group is not allowed")))
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use json::json;

    use super::*;
    use crate::tests::admission::{Write, context};

    /// Upstream: TestPlugin_Validate.
    #[tokio::test]
    async fn no_client_becomes_a_master() {
        let context = context(Vec::new()).await;
        let asking = |group: &str| pki::Wish::new(&pki::Subject::client("eve", Some(group))).unwrap().request;
        let check = async |kind: (&'static str, &'static str, &'static str),
                           signer: &str,
                           pem: &str,
                           expected: &str| {
            let spec = json!({"signerName": signer, "request": STANDARD.encode(pem)});
            let write = Write { kind, ..Write::create("", json!({"metadata": {"name": "bear"}, "spec": spec})) };
            let told = write.through(&context, &PLUGIN).await.err().unwrap_or_default();
            let told = told
                .strip_prefix("certificatesigningrequests.certificates.k8s.io \"bear\" is forbidden: ")
                .unwrap_or(&told);
            assert!(told.starts_with(expected) && told.is_empty() == expected.is_empty(), "{kind:?} {signer}: {told}");
        };
        let requests = ("certificates.k8s.io", "certificatesigningrequests", "");
        let masters = asking(GROUP_MASTERS);
        check(("foo", "bar", ""), CLIENT_SIGNER, &masters, "").await;
        check(("certificates.k8s.io", "certificatesigningrequests", "approve"), CLIENT_SIGNER, &masters, "").await;
        check(requests, "kubernetes.io/kube-apiserver-client-kubelet", &masters, "").await;
        let broken = "failed to parse CSR: PEM block type must be CERTIFICATE REQUEST";
        check(requests, CLIENT_SIGNER, "this is not a CSR", broken).await;
        check(requests, CLIENT_SIGNER, &asking("system:admin"), "").await;
        let refused = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
        check(requests, CLIENT_SIGNER, &masters, refused).await;
    }
}
