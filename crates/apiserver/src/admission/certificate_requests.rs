//! Certificate signing requests: they say truly who asked, and who approves or signs may do so for the signer.
//! Upstream: the strategy of the kind, CertificateApproval, CertificateSigning and CertificateSubjectRestriction.

use api::status::StatusError;
use serde_json::json;

use super::{Operation, Plugin, Review, World, done, forbid, text};
use crate::auth::Attributes;
use crate::auth::user::GROUP_MASTERS;

pub const PLUGIN: Plugin = Plugin {
    name: "CertificateRequests",
    concerns: |review| {
        review.definition.plural == "certificatesigningrequests"
            && review.definition.group == GROUP
            && matches!(review.operation, Operation::Create | Operation::Update)
    },
    admit: Some(|_, review| {
        name_requestor(review);
        done(Ok(()))
    }),
    validate: Some(|world, review| done(validate(world, review))),
};

const GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Who asks is what the server knows, whatever the client wrote.
fn name_requestor(review: &mut Review<'_>) {
    if review.operation != Operation::Create {
        return;
    }
    let user = review.user;
    let spec = review.object.as_mut().and_then(|o| o.get_mut("spec")).and_then(|s| s.as_object_mut());
    let Some(spec) = spec else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".to_owned(), json!(user.name));
    if !user.uid.is_empty() {
        spec.insert("uid".to_owned(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
}

fn validate(world: &World, review: &Review<'_>) -> Result<(), StatusError> {
    let Some(object) = &review.object else { return Ok(()) };
    let signer = text(object, "/spec/signerName");
    match (review.operation, review.subresource) {
        (Operation::Create, _) if signer == CLIENT_SIGNER && asks_for_masters(text(object, "/spec/request")) => {
            let why = format!("use of {CLIENT_SIGNER} signer with {GROUP_MASTERS} group is not allowed");
            Err(forbid(review, why))
        }
        (Operation::Update, "approval") => require(world, review, "approve", signer),
        (Operation::Update, "status") => {
            let certificate = |o: &api::Value| api::meta::at(o, "/status/certificate").cloned().unwrap_or_default();
            let changed = review.old.is_none_or(|old| certificate(old) != certificate(object));
            if changed { require(world, review, "sign", signer) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// The user may do it for this signer, or for all signers of its domain.
fn require(world: &World, review: &Review<'_>, verb: &str, signer: &str) -> Result<(), StatusError> {
    let domain = signer.split_once('/').map_or_else(String::new, |(domain, _)| format!("{domain}/*"));
    let may = |name: &str| {
        let a = Attributes { version: "*", name, ..Attributes::resource(review.user, verb, GROUP, "signers") };
        world.authorizer.authorize(&a).allowed()
    };
    if may(signer) || (!domain.is_empty() && may(&domain)) {
        return Ok(());
    }
    Err(forbid(review, format!("user not permitted to {verb} requests with signerName {}", api::field::show(signer))))
}

/// Whether the request (base64 of PEM) names the group that may do everything. One that can't be read names nobody: the
/// signer refuses it.
fn asks_for_masters(request: &str) -> bool {
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, request).unwrap_or_default();
    pki::inspect::request(&pem).is_ok_and(|r| r.organizations.iter().any(|o| o == GROUP_MASTERS))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fake::Write;
    use super::*;
    use crate::auth::User;
    use crate::auth::rbac::Rbac;
    use crate::fake::Objects;

    #[tokio::test]
    async fn a_request_says_who_asked_and_only_approvers_approve() {
        let rbac = Arc::new(Rbac::default());
        let rules = json!([{"verbs": ["approve"], "apiGroups": [GROUP], "resources": ["signers"], "resourceNames": ["example.com/*"]}]);
        rbac.changed("clusterroles", "", "a", Some(&json!({"rules": rules})));
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "a"}, "subjects": [{"kind": "User", "name": "boss"}]});
        rbac.changed("clusterrolebindings", "", "a", Some(&binding));
        let world = World {
            objects: Arc::new(Objects::default()),
            authorizer: rbac.clone(),
            rbac,
            configuration: Default::default(),
        };
        let csr = || json!({"metadata": {"name": "c"}, "spec": {"signerName": "example.com/x", "username": "root", "groups": ["system:masters"]}});
        let write = |user: &str, operation, sub: &'static str| Write {
            operation,
            kind: (GROUP, "certificatesigningrequests", sub),
            user: User::new(user, ["dev"]),
            old: (operation == Operation::Update).then(csr),
            object: Some(csr()),
        };
        let made = write("jane", Operation::Create, "").through(&world, &PLUGIN).await.unwrap();
        assert_eq!(made["spec"], json!({"signerName": "example.com/x", "username": "jane", "groups": ["dev"]}));
        assert!(write("boss", Operation::Update, "approval").through(&world, &PLUGIN).await.is_ok());
        let refused = write("jane", Operation::Update, "approval").through(&world, &PLUGIN).await.unwrap_err();
        let expected = "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve \
                        requests with signerName \"example.com/x\"";
        assert_eq!(refused, expected);

        let key = pki::Wish::new(&pki::Subject::client("eve", Some(GROUP_MASTERS))).unwrap().request;
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key);
        let mut masters = write("jane", Operation::Create, "");
        masters.object =
            Some(json!({"metadata": {"name": "c"}, "spec": {"signerName": CLIENT_SIGNER, "request": encoded}}));
        assert!(masters.through(&world, &PLUGIN).await.unwrap_err().contains("system:masters group is not allowed"));
    }
}
