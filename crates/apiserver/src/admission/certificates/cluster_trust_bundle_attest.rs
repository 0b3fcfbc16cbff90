//! ClusterTrustBundleAttest: who says by which authorities a signer's certificates are believed, has the right to speak for
//! that signer.
//! Upstream counterpart: plugin/pkg/admission/certificates/ctbattest.

use api::status::StatusError;

use super::{request::GROUP, signer::may_for_signer};
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, forbid, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "ClusterTrustBundleAttest",
    concerns: |attributes| {
        attributes.definition.plural == "clustertrustbundles"
            && attributes.definition.group == GROUP
            && attributes.subresource.is_empty()
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(object) = &attributes.object else { return Ok(()) };
    let signer = text(object, "/spec/signerName");
    let same = attributes.old.is_some_and(|old| old.get("spec") == object.get("spec"));
    if same || signer.is_empty() || may_for_signer(context, attributes, "attest", signer).await {
        return Ok(());
    }
    let signer = api::validation::field::show(signer);
    Err(forbid(attributes, format!("user not permitted to attest for signerName {signer}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use json::{Value, json};

    use super::*;
    use crate::{
        auth::{User, rbac::Rbac},
        tests::admission::{Write, context_of},
    };

    #[tokio::test]
    async fn only_who_speaks_for_a_signer_says_whom_to_believe() {
        let rbac = Arc::new(Rbac::default());
        let rule = |names: &[&str]| json!({"verbs": ["attest"], "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": names});
        for (user, names) in [("one", ["example.com/a"]), ("all", ["example.com/*"])] {
            let role =
                json!({"roleRef": {"kind": "ClusterRole", "name": user}, "subjects": [{"kind": "User", "name": user}]});
            rbac.changed("clusterroles", "", user, Some(&json!({"rules": [rule(&names)]})));
            rbac.changed("clusterrolebindings", "", user, Some(&role));
        }
        let context = context_of(rbac).await;
        let bundle = |signer: &str, text: &str| json!({"metadata": {"name": "b"}, "spec": {"signerName": signer, "trustBundle": text}});
        let check = async |user: &str, old: Option<Value>, new: Value, allowed: bool| {
            let write = Write {
                operation: if old.is_some() { Operation::Update } else { Operation::Create },
                kind: ("certificates.k8s.io", "clustertrustbundles", ""),
                user: User::new(user, ["dev"]),
                old,
                object: Some(new.clone()),
            };
            let said = write.through(&context, &PLUGIN).await;
            assert_eq!(said.is_ok(), allowed, "{user} {new}");
        };
        check("jane", None, bundle("", "x"), true).await;
        check("jane", None, bundle("example.com/a", "x"), false).await;
        check("one", None, bundle("example.com/a", "x"), true).await;
        check("one", None, bundle("example.com/b", "x"), false).await;
        check("all", None, bundle("example.com/b", "x"), true).await;
        check("all", None, bundle("example.org/b", "x"), false).await;
        check("jane", Some(bundle("example.com/a", "x")), bundle("example.com/a", "y"), false).await;
        check("jane", Some(bundle("example.com/a", "x")), bundle("example.com/a", "x"), true).await;
        let mut refused = Write::create("clustertrustbundles", bundle("example.com/a", "x"));
        refused.kind.0 = "certificates.k8s.io";
        let said = refused.through(&context, &PLUGIN).await.unwrap_err();
        assert_eq!(
            said,
            "clustertrustbundles.certificates.k8s.io \"b\" is forbidden: user not permitted to attest for signerName \
             \"example.com/a\""
        );
    }
}
