//! CertificateRequests: a certificate signing request says who asked for it, whatever the client wrote.
//! Upstream counterpart: the strategy of the kind.

use api::Value;
use api::rules::certificate_request::{CertificateRequest, RequestError};
use json::json;

use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Plugin, done, is, text},
};

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

pub(super) const GROUP: &str = "certificates.k8s.io";

pub(super) fn concerns(attributes: &Attributes<'_>, operation: Operation, subresource: &str) -> bool {
    attributes.operation == operation && is(attributes, GROUP, "certificatesigningrequests", subresource)
}

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

/// The subject that a request (base64 of PEM in `spec.request`) asks for.
pub fn wish(object: &Value) -> Result<CertificateRequest, RequestError> {
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text(object, "/spec/request"));
    CertificateRequest::parse(&pem.map_err(|_| RequestError::Pem)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::User;
    use crate::tests::admission::{Write, context};

    #[tokio::test]
    async fn a_request_says_who_asked() {
        let spec = json!({"signerName": "example.com/x", "username": "root", "uid": "0", "groups": ["system:masters"],
            "extra": {"a": ["b"]}});
        let write = Write {
            kind: (GROUP, "certificatesigningrequests", ""),
            user: User::new("jane", ["dev"]),
            ..Write::create("", json!({"metadata": {"name": "c"}, "spec": spec}))
        };
        let made = write.through(&context(Vec::new()).await, &PLUGIN).await.unwrap();
        assert_eq!(made["spec"], json!({"signerName": "example.com/x", "username": "jane", "groups": ["dev"]}));
    }
}
