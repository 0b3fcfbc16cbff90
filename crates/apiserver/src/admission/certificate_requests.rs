//! Certificate signing requests: the user in them is the one who asked, and approving or signing takes the right to do so for
//! the signer.
//! Upstream: the strategy of the kind, CertificateApproval, CertificateSigning and CertificateSubjectRestriction.

use api::Value;
use api::rules::certificate_request::{CertificateRequest, RequestError};
use api::status::StatusError;
use json::json;

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, done, forbid, is, text},
};
use crate::auth;
use crate::auth::user::GROUP_MASTERS;

/// The part that upstream does in the storage of the kind.
pub const PLUGIN: Plugin = Plugin {
    name: "CertificateRequests",
    concerns: |attributes| concerns(attributes, Operation::Create, ""),
    admit: Some(|_, attributes| {
        name_requestor(attributes);
        done(Ok(()))
    }),
    validate: Some(|_, attributes| {
        // A webhook may have seen it in between.
        name_requestor(attributes);
        done(Ok(()))
    }),
};

pub const APPROVAL: Plugin = Plugin {
    name: "CertificateApproval",
    concerns: |attributes| concerns(attributes, Operation::Update, "approval"),
    admit: None,
    validate: Some(|context, attributes| Box::pin(require(context, attributes, "approve"))),
};

pub const SIGNING: Plugin = Plugin {
    name: "CertificateSigning",
    concerns: |attributes| concerns(attributes, Operation::Update, "status"),
    admit: None,
    validate: Some(|context, attributes| Box::pin(signing(context, attributes))),
};

pub const SUBJECT_RESTRICTION: Plugin = Plugin {
    name: "CertificateSubjectRestriction",
    concerns: |attributes| concerns(attributes, Operation::Create, ""),
    admit: None,
    validate: Some(|_, attributes| done(restrict_subject(attributes))),
};

fn concerns(attributes: &Attributes<'_>, operation: Operation, subresource: &str) -> bool {
    attributes.operation == operation && is(attributes, GROUP, "certificatesigningrequests", subresource)
}

const GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The server writes who asks, whatever the client wrote.
fn name_requestor(attributes: &mut Attributes<'_>) {
    let user = attributes.user;
    let spec = attributes.object.as_mut().and_then(|o| o.get_mut("spec")).and_then(|s| s.as_object_mut());
    let Some(spec) = spec else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username", json!(user.name));
    if !user.uid.is_empty() {
        spec.insert("uid", json!(user.uid));
    }
    if !user.groups.is_empty() {
        spec.insert("groups", json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra", json!(user.extra));
    }
}

/// No client gets a certificate that makes it a master.
fn restrict_subject(attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    if text(object, "/spec/signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let wish = wish(object).map_err(|why| forbid(attributes, format!("unable to parse csr: {why}")))?;
    if !wish.organizations().any(|o| o == GROUP_MASTERS) {
        return Ok(());
    }
    Err(forbid(attributes, format!("use of {CLIENT_SIGNER} signer with {GROUP_MASTERS} group is not allowed")))
}

/// Certificates and conditions are the signer's.
async fn signing(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    let part = |o: &Value, path: &str| api::meta::at(o, path).cloned().unwrap_or_default();
    let same = |path: &str| attributes.old.is_some_and(|old| part(old, path) == part(object, path));
    let unchanged = same("/status/certificate") && same("/status/conditions");
    if unchanged { Ok(()) } else { require(context, attributes, "sign").await }
}

/// The subject that a request (base64 of PEM in `spec.request`) asks for.
pub fn wish(object: &Value) -> Result<CertificateRequest, RequestError> {
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text(object, "/spec/request"));
    CertificateRequest::parse(&pem.map_err(|_| RequestError::Pem)?)
}

/// The user may do it for the signer that the stored request names, or for all signers of its domain.
async fn require(context: &Context, attributes: &Attributes<'_>, verb: &str) -> Result<(), StatusError> {
    let signer = attributes.old.map(|old| text(old, "/spec/signerName")).unwrap_or_default();
    if may_for_signer(context, attributes, verb, signer).await {
        return Ok(());
    }
    Err(forbid(
        attributes,
        format!("user not permitted to {verb} requests with signerName {}", api::validation::field::show(signer)),
    ))
}

/// Whether the user may do something in the name of a signer.
pub(super) async fn may_for_signer(context: &Context, attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or_else(String::new, |(domain, _)| format!("{domain}/*"));
    let may = async |name: &str| {
        let a = auth::Attributes {
            version: "*",
            name,
            ..auth::Attributes::resource(attributes.user, verb, GROUP, "signers")
        };
        context.authorizer.authorize(&a).await.allowed()
    };
    may(signer).await || (!domain.is_empty() && may(&domain).await)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::User;
    use crate::auth::rbac::Rbac;
    use crate::tests::admission::{Write, context_of};

    #[tokio::test]
    async fn a_request_says_who_asked_and_only_approvers_approve() {
        let rbac = Arc::new(Rbac::default());
        let rules = json!([{"verbs": ["approve"], "apiGroups": [GROUP], "resources": ["signers"], "resourceNames": ["example.com/*"]}]);
        rbac.changed("clusterroles", "", "a", Some(&json!({"rules": rules})));
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "a"}, "subjects": [{"kind": "User", "name": "boss"}]});
        rbac.changed("clusterrolebindings", "", "a", Some(&binding));
        let context = context_of(rbac).await;
        let csr = || json!({"metadata": {"name": "c"}, "spec": {"signerName": "example.com/x", "username": "root", "groups": ["system:masters"]}});
        let write = |user: &str, operation, sub: &'static str| Write {
            operation,
            kind: (GROUP, "certificatesigningrequests", sub),
            user: User::new(user, ["dev"]),
            old: (operation == Operation::Update).then(csr),
            object: Some(csr()),
        };
        let made = write("jane", Operation::Create, "").through(&context, &PLUGIN).await.unwrap();
        assert_eq!(made["spec"], json!({"signerName": "example.com/x", "username": "jane", "groups": ["dev"]}));
        assert!(write("boss", Operation::Update, "approval").through(&context, &APPROVAL).await.is_ok());
        let refused = write("jane", Operation::Update, "approval").through(&context, &APPROVAL).await.unwrap_err();
        let expected = "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve \
                        requests with signerName \"example.com/x\"";
        assert_eq!(refused, expected);

        let key = pki::Wish::new(&pki::Subject::client("eve", Some(GROUP_MASTERS))).unwrap().request;
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key);
        let mut masters = write("jane", Operation::Create, "");
        masters.object =
            Some(json!({"metadata": {"name": "c"}, "spec": {"signerName": CLIENT_SIGNER, "request": encoded}}));
        assert!(
            masters
                .through(&context, &SUBJECT_RESTRICTION)
                .await
                .unwrap_err()
                .contains("system:masters group is not allowed")
        );
        let mut broken = write("jane", Operation::Create, "");
        broken.object =
            Some(json!({"metadata": {"name": "c"}, "spec": {"signerName": CLIENT_SIGNER, "request": "YQ=="}}));
        assert!(broken.through(&context, &SUBJECT_RESTRICTION).await.unwrap_err().contains("unable to parse csr"));

        // The signer is the stored one, and conditions are a signer's as certificates are.
        let mut renamed = write("boss", Operation::Update, "approval");
        renamed.old.as_mut().unwrap()["spec"]["signerName"] = json!("kubernetes.io/kubelet-serving");
        assert!(renamed.through(&context, &APPROVAL).await.is_err());
        assert!(write("jane", Operation::Update, "status").through(&context, &SIGNING).await.is_ok());
        for status in [json!({"conditions": [{"type": "Approved"}]}), json!({"certificate": "YQ=="})] {
            let mut changed = write("jane", Operation::Update, "status");
            changed.object.as_mut().unwrap()["status"] = status;
            assert!(changed.through(&context, &SIGNING).await.unwrap_err().contains("not permitted to sign"));
        }
    }
}
