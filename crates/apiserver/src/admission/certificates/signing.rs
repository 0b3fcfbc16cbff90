//! CertificateSigning: whoever writes the certificate or the conditions of a request has the right to sign for its signer.
//! Upstream counterpart: plugin/pkg/admission/certificates/signing.

use api::Value;
use api::status::StatusError;

use super::{request::concerns, signer};
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "CertificateSigning",
    concerns: |attributes| concerns(attributes, Operation::Update, "status"),
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    let part = |o: &Value, path: &str| api::meta::at(o, path).cloned().unwrap_or_default();
    let same = |path: &str| attributes.old.is_some_and(|old| part(old, path) == part(object, path));
    let unchanged = same("/status/certificate") && same("/status/conditions");
    if unchanged { Ok(()) } else { signer::require(context, attributes, "sign").await }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::certificates::scene::{csr, granting, update};
    use json::json;

    /// Upstream: TestPlugin_Validate.
    #[tokio::test]
    async fn certificate_and_conditions_are_the_signers() {
        let check = async |granted: &str, old: Value, new: Value, allowed: bool| {
            let context = granting("sign", granted).await;
            let outcome = update("status", old.clone(), new.clone()).through(&context, &PLUGIN).await;
            let expected = format!(
                "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to sign requests \
                 with signerName {:?}",
                old["spec"]["signerName"].as_str().unwrap()
            );
            assert_eq!(outcome.err(), (!allowed).then_some(expected), "{granted} {old} {new}");
        };
        let of = |signer: &str| csr(signer, json!({}));
        let signed = |signer: &str| csr(signer, json!({"certificate": "ZGF0YQ=="}));
        let failed = |signer: &str| csr(signer, json!({"conditions": [{"type": "Failed"}]}));
        check("", signed("abc.com/xyz"), signed("abc.com/xyz"), true).await;
        for new in [signed, failed] {
            check("", of("abc.com/xyz"), new("abc.com/xyz"), false).await;
            check("abc.com/xyz", of("abc.com/xyz"), new("abc.com/xyz"), true).await;
            check("abc.com/*", of("abc.com/xyz"), new("abc.com/xyz"), true).await;
            check("notabc.com/xyz", of("abc.com/xyz"), new("abc.com/xyz"), false).await;
            check("allowed.com/xyz", of("notallowed.com/xyz"), new("allowed.com/xyz"), false).await;
        }
    }
}
