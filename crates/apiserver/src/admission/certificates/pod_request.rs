//! Requests for certificates of Pods: a node asks for those of its own Pods alone, and to say what became of a request takes
//! the right to sign for its signer.
//! Upstream counterpart: the strategy of the kind, and `admitPodCertificateRequest` of plugin/pkg/admission/noderestriction.

use std::time::Duration;

use api::status::StatusError;
use api::validation::field::{FieldError, Path, show};
use api::{Value, meta};
use clock::Timestamp;

use super::{request::GROUP, signer::may_for_signer};
use crate::admission::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin, Verdict, require, text},
};

pub const PLUGIN: Plugin = Plugin {
    name: "PodCertificateRequests",
    concerns: |attributes| {
        attributes.definition.plural == "podcertificaterequests"
            && attributes.definition.group == GROUP
            && attributes.subresource == "status"
            && attributes.operation == Operation::Update
    },
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes, clock::now()))),
};

/// How far the first moment of a new certificate may be from now.
const NEAR: Duration = Duration::from_secs(300);

async fn validate(context: &Context, attributes: &Attributes<'_>, now: Timestamp) -> Result<(), StatusError> {
    let (Some(object), Some(old)) = (&attributes.object, attributes.old) else { return Ok(()) };
    let status = |object: &Value| object.get("status").cloned().unwrap_or_default();
    if status(object) == status(old) {
        return Ok(());
    }
    let wrong = |error| Err(StatusError::invalid(GROUP, "PodCertificateRequest", attributes.name, &[error]));
    let begin = text(object, "/status/notBefore");
    let at: Option<Timestamp> = begin.parse().ok();
    if text(old, "/status/notBefore").is_empty() && at.is_some_and(|at| now.duration_since(at).unsigned_abs() >= NEAR) {
        let detail = "must be set to within 5 minutes of kube-apiserver's current time";
        return wrong(FieldError::invalid(&Path::new("status").child("notBefore"), begin, detail));
    }
    let signer = text(old, "/spec/signerName");
    if may_for_signer(context, attributes, "sign", signer).await {
        return Ok(());
    }
    let detail =
        format!("User {} is not permitted to \"sign\" for signer {}", show(&attributes.user.name), show(signer));
    wrong(FieldError::forbidden(&Path::new("spec").child("signerName"), &detail))
}

/// Whether a node may make a request: it names the node itself, and a Pod on it with its account, as they are now. A refusal
/// that could come from having seen an older state is an error that may be gone at the next attempt.
pub async fn by_node(context: &Context, node: &str, attributes: &Attributes<'_>) -> Result<Verdict, StatusError> {
    let Some(request) = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create) else {
        return Ok(Err(format!("unexpected operation {}", attributes.operation.name())));
    };
    if !attributes.subresource.is_empty() {
        return Ok(Err(format!("unexpected subresource {}", attributes.subresource)));
    }
    let said = |field: &str| text(request, field);
    let (name, namespace) = (said("/spec/podName"), attributes.namespace);
    let pod_text = show(format!("{namespace}/{name}"));
    if said("/spec/nodeName") != node {
        let named = show(said("/spec/nodeName"));
        return Ok(Err(format!(
            "PodCertificateRequest.Spec.NodeName={named}, which is not the requesting node {node:?}"
        )));
    }
    let find = async |plural: &str, namespace: &str, name: &str, what: &str| {
        let missing = || {
            let place = if namespace.is_empty() { show(name) } else { show(format!("{namespace}/{name}")) };
            let not_found = StatusError::not_found("", plural, name).message;
            StatusError::internal(format!(
                "while retrieving {what} {place} named in the PodCertificateRequest: {not_found}"
            ))
        };
        context.objects.get("", plural, namespace, name).await?.ok_or_else(missing)
    };
    let changed = |why: String| Err(StatusError::internal(why));
    let uid = |field: &str| show(said(field));
    let found = find("nodes", "", node, "node").await?;
    if meta::uid(&found) != said("/spec/nodeUID") {
        return changed(format!(
            "PodCertificateRequest for pod {pod_text} names node UID {}, inconsistent with the running node ({})",
            uid("/spec/nodeUID"),
            show(meta::uid(&found))
        ));
    }
    let pod = find("pods", namespace, name, "pod").await?;
    if meta::uid(&pod) != said("/spec/podUID") {
        return changed(format!(
            "PodCertificateRequest for pod {pod_text} contains pod UID ({}) which differs from running pod {}",
            uid("/spec/podUID"),
            show(meta::uid(&pod))
        ));
    }
    if let Err(why) = of_pod(node, &pod, request, &pod_text) {
        return Ok(Err(why));
    }
    let account = find("serviceaccounts", namespace, said("/spec/serviceAccountName"), "service account").await?;
    if meta::uid(&account) != said("/spec/serviceAccountUID") {
        return changed(format!(
            "PodCertificateRequest for pod {pod_text} names service account UID {}, which differs from the running service \
             account ({})",
            uid("/spec/serviceAccountUID"),
            show(meta::uid(&account))
        ));
    }
    Ok(Ok(()))
}

/// The Pod runs on the node, as the account, and comes from the API server.
fn of_pod(node: &str, pod: &Value, request: &Value, shown: &str) -> Verdict {
    require(text(pod, "/spec/nodeName") == node, || {
        format!("pod {shown} is not running on node {node:?} named in the PodCertificateRequest")
    })?;
    require(meta::annotation(pod, api::rules::pod::MIRROR_ANNOTATION).is_none(), || {
        format!("pod {shown} is a mirror pod")
    })?;
    let (named, account) = (text(request, "/spec/serviceAccountName"), text(pod, "/spec/serviceAccountName"));
    require(named == account, || {
        format!(
            "PodCertificateRequest for pod {shown} contains serviceAccountName ({}) that differs from running pod ({})",
            show(named),
            show(account)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use json::json;

    use super::*;
    use crate::admission::node_restriction;
    use crate::auth::{User, rbac::Rbac};
    use crate::tests::admission::{Write, context, context_of};

    const KIND: (&str, &str) = (GROUP, "podcertificaterequests");

    #[tokio::test]
    async fn a_node_asks_for_its_own_pods() {
        let pod = |name: &str, node: &str, annotations: Value| {
            let metadata = json!({"name": name, "namespace": "ns", "uid": "pod-uid", "annotations": annotations});
            ("pods", json!({"metadata": metadata, "spec": {"nodeName": node, "serviceAccountName": "sa"}}))
        };
        let context = context(vec![
            ("nodes", json!({"metadata": {"name": "n1", "uid": "node-uid"}})),
            ("serviceaccounts", json!({"metadata": {"name": "sa", "namespace": "ns", "uid": "sa-uid"}})),
            pod("p", "n1", json!({})),
            pod("far", "n2", json!({})),
            pod("mirror", "n1", json!({"kubernetes.io/config.mirror": "h"})),
        ])
        .await;
        let check = async |change: Value, expected: &str| {
            let mut spec = json!({"podName": "p", "podUID": "pod-uid", "serviceAccountName": "sa",
                "serviceAccountUID": "sa-uid", "nodeName": "n1", "nodeUID": "node-uid"});
            for (field, value) in change.as_object().unwrap() {
                spec[field] = value.clone();
            }
            let write = Write {
                operation: Operation::Create,
                kind: (KIND.0, KIND.1, ""),
                user: User::new("system:node:n1", ["system:nodes"]),
                old: None,
                object: Some(json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": spec})),
            };
            match write.through(&context, &node_restriction::PLUGIN).await {
                Ok(_) => assert_eq!(expected, "", "{change}"),
                Err(said) => assert!(!expected.is_empty() && said.contains(expected), "{change}: {said}"),
            }
        };
        check(json!({}), "").await;
        check(
            json!({"nodeName": "n2"}),
            r#"PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1""#,
        )
        .await;
        check(json!({"nodeUID": "x"}), r#"names node UID "x", inconsistent with the running node ("node-uid")"#).await;
        check(
            json!({"podName": "nobody"}),
            r#"while retrieving pod "ns/nobody" named in the PodCertificateRequest: pods "nobody" not found"#,
        )
        .await;
        check(
            json!({"podUID": "x"}),
            r#"PodCertificateRequest for pod "ns/p" contains pod UID ("x") which differs from running pod "pod-uid""#,
        )
        .await;
        check(json!({"podName": "far"}), r#"pod "ns/far" is not running on node "n1""#).await;
        check(json!({"podName": "mirror"}), r#"pod "ns/mirror" is a mirror pod"#).await;
        check(
            json!({"serviceAccountName": "other"}),
            r#"contains serviceAccountName ("other") that differs from running pod ("sa")"#,
        )
        .await;
        check(
            json!({"serviceAccountUID": "x"}),
            r#"names service account UID "x", which differs from the running service account ("sa-uid")"#,
        )
        .await;
        let forbidden = |operation, subresource| Write {
            operation,
            kind: (KIND.0, KIND.1, subresource),
            user: User::new("system:node:n1", ["system:nodes"]),
            old: Some(json!({"metadata": {"name": "r", "namespace": "ns"}})),
            object: Some(json!({"metadata": {"name": "r", "namespace": "ns"}})),
        };
        let said = forbidden(Operation::Update, "").through(&context, &node_restriction::PLUGIN).await.unwrap_err();
        assert!(said.contains("unexpected operation UPDATE"), "{said}");
        let said =
            forbidden(Operation::Create, "status").through(&context, &node_restriction::PLUGIN).await.unwrap_err();
        assert!(said.contains("unexpected subresource status"), "{said}");
    }

    #[tokio::test]
    async fn only_signers_say_what_became_of_a_request() {
        let rbac = Arc::new(Rbac::default());
        let rules = json!([{"verbs": ["sign"], "apiGroups": [GROUP], "resources": ["signers"], "resourceNames": ["example.com/*"]}]);
        rbac.changed("clusterroles", "", "s", Some(&json!({"rules": rules})));
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "s"}, "subjects": [{"kind": "User", "name": "signer"}]});
        rbac.changed("clusterrolebindings", "", "s", Some(&binding));
        let context = context_of(rbac).await;
        let object = |signer: &str, status: Value| json!({"metadata": {"name": "r"}, "spec": {"signerName": signer}, "status": status});
        let check = async |user: &str, signer: &str, status: Value, expected: &str| {
            let write = Write {
                operation: Operation::Update,
                kind: (KIND.0, KIND.1, "status"),
                user: User::new(user, ["dev"]),
                old: Some(object(signer, json!({}))),
                object: Some(object(signer, status)),
            };
            match write.through(&context, &PLUGIN).await {
                Ok(_) => assert_eq!(expected, "", "{user}"),
                Err(said) => assert!(!expected.is_empty() && said.contains(expected), "{user}: {said}"),
            }
        };
        let denied = json!({"conditions": [{"type": "Denied"}]});
        let from_now = |seconds: i64| {
            let at = Timestamp::from_second(clock::now().as_second() + seconds).unwrap();
            json!({"notBefore": at.to_string()})
        };
        check("signer", "example.com/a", denied.clone(), "").await;
        check("jane", "example.com/a", json!({}), "").await;
        check("jane", "example.com/a", denied.clone(), r#"PodCertificateRequest.certificates.k8s.io "r" is invalid: spec.signerName: Forbidden: User "jane" is not permitted to "sign" for signer "example.com/a""#).await;
        check("signer", "example.org/a", denied, "is not permitted to \"sign\"").await;
        check("signer", "example.com/a", from_now(-290), "").await;
        check(
            "signer",
            "example.com/a",
            from_now(-310),
            "must be set to within 5 minutes of kube-apiserver's current time",
        )
        .await;
        check("signer", "example.com/a", from_now(310), "must be set to within 5 minutes").await;
    }
}
