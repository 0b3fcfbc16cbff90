//! NodeRestriction: a kubelet writes its own Node, its own Pods and what belongs to them, and can't change what decides
//! which Pods come to it.

use api::status::StatusError;
use api::{Value, meta};
use json::Key;

use super::{
    attributes::{Attributes, Operation},
    certificate_requests,
    plugin::{Context, Plugin, Verdict, forbid, items, require, text},
    pod_certificate_requests, token_audience,
};
use crate::auth::node::graph::{self, Target};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeRestriction",
    concerns: |attributes| attributes.user.is_node() && attributes.operation != Operation::Connect,
    admit: Some(|context, attributes| Box::pin(admit(context, attributes))),
    validate: None,
};

/// The namespace of the nodes' leases.
const LEASES: &str = "kube-node-lease";

async fn admit(context: &Context, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
    let Some(node) = attributes.user.node_name() else {
        let why = format!("could not determine node from user {:?}", attributes.user.name);
        return Err(forbid(attributes, why));
    };
    let (group, plural) = (attributes.definition.group.as_str(), attributes.definition.plural.as_str());
    let verdict = match (group, plural, attributes.subresource) {
        ("", "pods", "") => pod(context, node, attributes).await?,
        ("", "pods", "status") => pod_status(node, attributes),
        ("", "pods", "eviction") => eviction(context, node, attributes).await?,
        ("", "pods", other) => {
            Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => own_node(node, attributes),
        ("", "persistentvolumeclaims", "status") => claim_status(node, attributes),
        ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") => token(context, node, attributes).await?,
        ("certificates.k8s.io", "certificatesigningrequests", "") => certificate(attributes),
        ("certificates.k8s.io", "podcertificaterequests", _) => {
            pod_certificate_requests::by_node(context, node, attributes).await?
        }
        ("coordination.k8s.io", "leases", _) => own_lease(node, attributes),
        ("storage.k8s.io", "csinodes", _) => own(node, attributes, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => resource_slice(node, attributes),
        _ => Ok(()),
    };
    verdict.map_err(|why| forbid(attributes, why))
}

fn on(node: &str, pod: Option<&Value>) -> bool {
    pod.is_some_and(|pod| text(pod, "/spec/nodeName") == node)
}

async fn pod(context: &Context, node: &str, attributes: &Attributes<'_>) -> Result<Verdict, StatusError> {
    Ok(match (attributes.operation, &attributes.object) {
        (Operation::Create, Some(pod)) => {
            if let Err(why) = mirror_pod(node, pod) {
                return Ok(Err(why));
            }
            let itself = context.objects.get("", "nodes", "", node).await?;
            let itself = itself.ok_or_else(|| StatusError::not_found("", "nodes", node))?;
            let owner = items(pod, "/metadata/ownerReferences").next();
            let (said, uid) = (owner.map_or("", |owner| text(owner, "/uid")), meta::uid(&itself));
            require(!uid.is_empty() && said == uid, || format!("node {node} UID mismatch: expected {said} got {uid}"))
        }
        (Operation::Delete, _) => require(on(node, attributes.old), || {
            format!("node {node:?} can only delete pods with spec.nodeName set to itself")
        }),
        _ => Err(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            attributes.operation.name()
        )),
    })
}

/// Only mirror Pods that the node owns, and these can't open anything to it.
fn mirror_pod(node: &str, pod: &Value) -> Verdict {
    require(api::meta::annotation(pod, api::rules::pod::MIRROR_ANNOTATION).is_some(), || {
        format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        )
    })?;
    require(on(node, Some(pod)), || format!("node {node:?} can only create pods with spec.nodeName set to itself"))?;
    let owners: Vec<&Value> = items(pod, "/metadata/ownerReferences").collect();
    require(owners.len() < 2, || {
        format!("node {node:?} can only create pods with a single owner reference set to itself")
    })?;
    let [owner] = owners.as_slice() else {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    };
    let own = ("v1", "Node", node) == (text(owner, "/apiVersion"), text(owner, "/kind"), text(owner, "/name"));
    require(own, || format!("node {node:?} can only create pods with an owner reference set to itself"))?;
    require(owner.get("controller") == Some(&Value::Bool(true)), || {
        format!("node {node:?} can only create pods with a controller owner reference set to itself")
    })?;
    require(owner.get("blockOwnerDeletion") != Some(&Value::Bool(true)), || {
        format!("node {node:?} must not set blockOwnerDeletion on an owner reference")
    })?;
    let named = graph::named_by(pod);
    for (target, what) in [
        (Target::ServiceAccount, "a service account"),
        (Target::Secret, "secrets"),
        (Target::ConfigMap, "configmaps"),
        (Target::Claim, "persistentvolumeclaims"),
    ] {
        require(!named.contains(&target), || format!("node {node:?} can not create pods that reference {what}"))?;
    }
    // A claim that is made of a template would be the node's, too.
    require(items(pod, "/spec/resourceClaims").next().is_none(), || {
        format!("node {node:?} can not create pods that reference resourceclaims")
    })?;
    let sources = || items(pod, "/spec/volumes").flat_map(|v| items(v, "/projected/sources"));
    let refers = |field: &str| sources().any(|s| s.get(field).is_some_and(|v| !v.is_null()));
    require(!refers("clusterTrustBundle"), || {
        format!("node {node:?} can not create pods that reference clustertrustbundles")
    })?;
    require(!refers("podCertificate"), || format!("node {node:?} can not create pods that reference podcertificates"))
}

fn pod_status(node: &str, attributes: &Attributes<'_>) -> Verdict {
    require(on(node, attributes.old), || {
        format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
    })?;
    let labels = |o: Option<&Value>| o.and_then(meta::labels).cloned().unwrap_or_default();
    require(labels(attributes.old) == labels(attributes.object.as_ref()), || {
        format!("node {node:?} cannot update labels through pod status")
    })?;
    // A name in one of these fields opens a claim to the node.
    for (field, what) in [
        ("/status/resourceClaimStatuses", "resource claim statues"),
        ("/status/extendedResourceClaimStatus", "extended resource claim status"),
    ] {
        let status = |o: Option<&Value>| o.and_then(|o| meta::at(o, field)).filter(|v| !v.is_null()).cloned();
        require(status(attributes.old) == status(attributes.object.as_ref()), || {
            format!("node {node:?} cannot update {what}")
        })?;
    }
    Ok(())
}

/// Of a claim's status a node writes what its volume became, and nothing of its metadata.
fn claim_status(node: &str, attributes: &Attributes<'_>) -> Verdict {
    const WRITTEN: &[&str] = &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"];
    let rest = |object: Option<&Value>| {
        let mut object = object.cloned().unwrap_or_default();
        if let Some(metadata) = meta::metadata_mut(&mut object) {
            metadata.retain(|field, _| field != "resourceVersion" && field != "managedFields");
        }
        if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
            status.retain(|field, _| !WRITTEN.contains(&field.as_str()));
        }
        object
    };
    require(rest(attributes.old) == rest(attributes.object.as_ref()), || {
        format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions")
    })
}

/// A node asks for certificates of its own name.
fn certificate(attributes: &Attributes<'_>) -> Verdict {
    const NODE_SIGNERS: &[&str] = &["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    let Some(csr) = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    if !NODE_SIGNERS.contains(&text(csr, "/spec/signerName")) {
        return Ok(());
    }
    let wish = certificate_requests::wish(csr).map_err(|why| format!("unable to parse csr: {why}"))?;
    let user = &attributes.user.name;
    require(wish.common_name() == user, || format!("can only create a node CSR with CN={user}"))
}

async fn eviction(context: &Context, node: &str, attributes: &Attributes<'_>) -> Result<Verdict, StatusError> {
    let pod = context.objects.get("", "pods", attributes.namespace, attributes.name).await?;
    let pod = pod.ok_or_else(|| StatusError::not_found("", "pods", attributes.name))?;
    Ok(require(on(node, Some(&pod)), || format!("node {node} can only evict pods with spec.nodeName set to itself")))
}

/// The token of an account is for a Pod of this node that runs as the account, and for an audience that the Pod names.
async fn token(context: &Context, node: &str, attributes: &Attributes<'_>) -> Result<Verdict, StatusError> {
    let request = attributes.object.as_ref();
    let reference = request.and_then(|r| api::meta::at(r, "/spec/boundObjectRef"));
    let of_pod =
        |r: &&Value| (text(r, "/kind"), text(r, "/apiVersion")) == ("Pod", "v1") && !text(r, "/name").is_empty();
    let Some(reference) = reference.filter(of_pod) else {
        return Ok(Err("node requested token not bound to a pod".to_owned()));
    };
    let (name, uid) = (text(reference, "/name"), text(reference, "/uid"));
    if uid.is_empty() {
        return Ok(Err("node requested token with a pod binding without a uid".to_owned()));
    }
    let pod = context.objects.get("", "pods", attributes.namespace, name).await?;
    let pod = pod.ok_or_else(|| StatusError::not_found("", "pods", name))?;
    if meta::uid(&pod) != uid {
        return Ok(Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        )));
    }
    if !on(node, Some(&pod)) {
        return Ok(Err("node requested token bound to a pod scheduled on a different node".to_owned()));
    }
    let audiences: Vec<&Value> = request.into_iter().flat_map(|r| items(r, "/spec/audiences")).collect();
    let audience = match audiences.as_slice() {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Ok(Err("node may only request 0 or 1 audiences".to_owned())),
    };
    if token_audience::names(context, &pod, audience).await?
        || token_audience::granted(context, attributes, audience).await
    {
        return Ok(Ok(()));
    }
    Ok(Err(format!(
        "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        attributes.user.name
    )))
}

fn own(node: &str, attributes: &Attributes<'_>, what: &str) -> Verdict {
    let name = attributes.object.as_ref().map_or(attributes.name, meta::name);
    require(name == node, || format!("can only access {what} with the same name as the requesting node"))
}

fn own_lease(node: &str, attributes: &Attributes<'_>) -> Verdict {
    require(attributes.namespace == LEASES, || format!("can only access leases in the {LEASES:?} system namespace"))?;
    own(node, attributes, "node lease")
}

/// The slices of a node stay its own, whatever is done with them.
fn resource_slice(node: &str, attributes: &Attributes<'_>) -> Verdict {
    let its_own = |slice: &Value| text(slice, "/spec/nodeName") == node;
    let seen = [attributes.object.as_ref(), attributes.old];
    require(seen.into_iter().flatten().all(its_own), || {
        let verb = attributes.operation.name().to_lowercase();
        format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")
    })
}

fn own_node(node: &str, attributes: &Attributes<'_>) -> Verdict {
    let name = attributes.object.as_ref().map(meta::name).filter(|n| !n.is_empty()).unwrap_or(attributes.name);
    require(name == node, || format!("node {node:?} is not allowed to modify node {name:?}"))?;
    // A deletion is the authorizers' matter.
    let Some(object) = &attributes.object else { return Ok(()) };
    let old = attributes.old;
    let part = |o: Option<&Value>, path: &str| {
        o.and_then(|o| api::meta::at(o, path)).filter(|v| !v.is_null()).cloned().unwrap_or_default()
    };
    let source = part(Some(object), "/spec/configSource");
    require(source.is_null() || source == part(old, "/spec/configSource"), || match attributes.operation {
        Operation::Create => format!("node {node:?} is not allowed to create pods with a non-nil configSource"),
        _ => format!("node {node:?} is not allowed to update configSource to a new non-nil configSource"),
    })?;
    if attributes.operation == Operation::Update {
        require(part(Some(object), "/spec/taints") == part(old, "/spec/taints"), || {
            format!("node {node:?} is not allowed to modify taints")
        })?;
        let owners = "/metadata/ownerReferences";
        require(part(Some(object), owners) == part(old, owners), || {
            format!("node {node:?} is not allowed to modify ownerReferences")
        })?;
    }
    let refused = refused_labels(object, old);
    let labels = refused.join(", ");
    require(refused.is_empty(), || match attributes.operation {
        Operation::Create => format!("node {node:?} is not allowed to set the following labels: {labels}"),
        _ => format!("is not allowed to modify labels: {labels}"),
    })
}

/// Labels of the `kubernetes.io` and `k8s.io` domains that were changed and that a kubelet may not choose.
fn refused_labels(object: &Value, old: Option<&Value>) -> Vec<String> {
    let labels = |o: &Value| meta::labels(o).cloned().unwrap_or_default();
    let (new, old) = (labels(object), old.map(labels).unwrap_or_default());
    let mut changed: Vec<&Key> = new.keys().chain(old.keys()).filter(|k| new.get(k) != old.get(k)).collect();
    changed.sort();
    changed.dedup();
    changed.into_iter().filter(|key| !kubelet_may_set(key)).map(ToString::to_string).collect()
}

const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const KUBELET_DOMAINS: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

fn kubelet_may_set(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return true };
    let within = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    if within("node-restriction.kubernetes.io") {
        return false;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || KUBELET_LABELS.contains(&key) || KUBELET_DOMAINS.iter().any(|d| within(d))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::auth::User;
    use crate::tests::admission::{Write, context};

    fn by_node(write: Write) -> Write {
        Write { user: User::new("system:node:n1", ["system:nodes"]), ..write }
    }

    fn update(plural: &'static str, sub: &'static str, old: Value, new: Value) -> Write {
        let write = Write::create(plural, new);
        by_node(Write { operation: Operation::Update, kind: ("", plural, sub), old: Some(old), ..write })
    }

    #[tokio::test]
    async fn a_kubelet_keeps_to_its_own() {
        let context = context(vec![(
            "pods",
            json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "spec": {"nodeName": "n1"}}),
        )])
        .await;
        let node = |name: &str, more: Value| json!({"metadata": {"name": name, "labels": more}});
        let create = |object: Value| by_node(Write::create("nodes", object)).through(&context, &PLUGIN);
        assert!(create(node("n1", json!({"kubernetes.io/hostname": "n1", "team": "a"}))).await.is_ok());
        let other = create(node("n2", json!({}))).await.unwrap_err();
        assert!(other.contains(r#"node "n1" is not allowed to modify node "n2""#), "{other}");
        for label in ["node-restriction.kubernetes.io/x", "node-role.kubernetes.io/control-plane"] {
            let error = create(node("n1", json!({label: ""}))).await.unwrap_err();
            assert!(error.contains(&format!("is not allowed to set the following labels: {label}")), "{error}");
        }
        let tainted = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a"}]}});
        let clean = json!({"metadata": {"name": "n1"}, "spec": {}});
        let error = update("nodes", "", tainted, clean).through(&context, &PLUGIN).await.unwrap_err();
        assert!(error.contains("is not allowed to modify taints"), "{error}");

        // Such as the public key of its encrypted ways.
        let annotated = |name: &str| json!({"metadata": {"name": name, "annotations": {"a": "b"}}});
        let annotate = |name: &'static str| update("nodes", "", node(name, json!({})), annotated(name));
        assert!(annotate("n1").through(&context, &PLUGIN).await.is_ok());
        assert!(annotate("n2").through(&context, &PLUGIN).await.is_err());

        let pod = |node: &str| json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": node}});
        assert!(update("pods", "status", pod("n1"), pod("n1")).through(&context, &PLUGIN).await.is_ok());
        assert!(update("pods", "status", pod("n2"), pod("n2")).through(&context, &PLUGIN).await.is_err());
        let claims = |name: &str| {
            let mut pod = pod("n1");
            pod["status"] = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": name}]});
            pod
        };
        assert!(update("pods", "status", claims("a"), claims("a")).through(&context, &PLUGIN).await.is_ok());
        assert!(update("pods", "status", claims("a"), claims("b")).through(&context, &PLUGIN).await.is_err());
        assert!(update("pods", "resize", pod("n1"), pod("n1")).through(&context, &PLUGIN).await.is_err());

        let claim =
            |more: Value| json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"a": 1}, "status": more});
        let grown = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
        let write =
            |sub, status| update("persistentvolumeclaims", sub, claim(json!({"phase": "Bound"})), claim(status));
        assert!(write("status", grown.clone()).through(&context, &PLUGIN).await.is_ok());
        assert!(write("", grown).through(&context, &PLUGIN).await.is_err());
        assert!(write("status", json!({"phase": "Lost"})).through(&context, &PLUGIN).await.is_err());
    }

    #[tokio::test]
    async fn a_mirror_pod_is_the_nodes_and_opens_nothing() {
        let context = context(vec![("nodes", json!({"metadata": {"name": "n1", "uid": "u1"}}))]).await;
        let create = |change: &[(&str, Value)]| {
            let mut pod = json!({
                "metadata": {"name": "p", "namespace": "ns", "annotations": {"kubernetes.io/config.mirror": "h"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true}]},
                "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]},
            });
            for (place, value) in change {
                *pod.pointer_mut(place).unwrap() = value.clone();
            }
            by_node(Write::create("pods", pod)).through(&context, &PLUGIN)
        };
        create(&[]).await.unwrap();
        for (place, value, why) in [
            ("/metadata/annotations", json!({}), "can only create mirror pods"),
            ("/spec/nodeName", json!("n2"), "spec.nodeName set to itself"),
            ("/metadata/ownerReferences", json!([]), "an owner reference"),
            ("/metadata/ownerReferences", json!([{}, {}]), "a single owner reference"),
            ("/metadata/ownerReferences/0/apiVersion", json!("v2"), "owner reference set to itself"),
            ("/metadata/ownerReferences/0/name", json!("n2"), "owner reference set to itself"),
            ("/metadata/ownerReferences/0/kind", json!("Pod"), "owner reference set to itself"),
            ("/metadata/ownerReferences/0/controller", json!(null), "controller owner reference"),
            ("/metadata/ownerReferences/0/uid", json!("u2"), "UID mismatch"),
            ("/spec/volumes/0", json!({"name": "v", "secret": {"secretName": "x"}}), "reference secrets"),
            (
                "/spec/volumes/0",
                json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "x"}}]}}),
                "configmaps",
            ),
            ("/spec/volumes/0", json!({"name": "v", "ephemeral": {}}), "persistentvolumeclaims"),
            (
                "/spec/volumes/0",
                json!({"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "a/b"}}]}}),
                "podcertificates",
            ),
            (
                "/spec/containers/0",
                json!({"env": [{"valueFrom": {"secretKeyRef": {"name": "x"}}}]}),
                "reference secrets",
            ),
            ("/spec/containers/0", json!({"envFrom": [{"configMapRef": {"name": "x"}}]}), "configmaps"),
            ("/spec", json!({"nodeName": "n1", "serviceAccountName": "bot"}), "a service account"),
            (
                "/spec",
                json!({"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}),
                "resourceclaims",
            ),
            (
                "/spec",
                json!({"nodeName": "n1", "resourceClaims": [{"name": "c", "resourceClaimName": "r"}]}),
                "resourceclaims",
            ),
            ("/spec", json!({"nodeName": "n1", "imagePullSecrets": [{"name": "x"}]}), "reference secrets"),
        ] {
            let said = create(&[(place, value)]).await.unwrap_err();
            assert!(said.contains(why), "{place}: {said}");
        }
    }

    #[tokio::test]
    async fn what_bears_the_nodes_name_is_its_own_and_nothing_else() {
        let pod = |name: &str, node: &str| {
            ("pods", json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"nodeName": node}}))
        };
        let context = context(vec![pod("near", "n1"), pod("far", "n2")]).await;
        let named = |name: &str, namespace: &str| json!({"metadata": {"name": name, "namespace": namespace}});
        let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
        let (lease, csi) = (("coordination.k8s.io", "leases", ""), ("storage.k8s.io", "csinodes", ""));
        let (eviction, slices) = (("", "pods", "eviction"), ("resource.k8s.io", "resourceslices", ""));
        use Operation::{Create, Delete, Update};
        let check = async |kind, operation, object: Value, expected: &str| {
            let kept = (operation != Create).then(|| object.clone());
            let object = (operation != Delete).then_some(object);
            let write = Write { kind, operation, old: kept, object, ..Write::create("", json!({})) };
            let said = by_node(write).through(&context, &PLUGIN).await.err().unwrap_or_default();
            assert!(
                said.ends_with(expected) && said.is_empty() == expected.is_empty(),
                "{kind:?} {operation:?}: {said}"
            );
        };
        let (other_lease, other_csi) = (
            "can only access node lease with the same name as the requesting node",
            "can only access CSINode with the same name as the requesting node",
        );
        for operation in [Create, Update, Delete] {
            check(lease, operation, named("n1", "kube-node-lease"), "").await;
            check(lease, operation, named("n2", "kube-node-lease"), other_lease).await;
            let elsewhere = "can only access leases in the \"kube-node-lease\" system namespace";
            check(lease, operation, named("n1", "kube-system"), elsewhere).await;
            check(csi, operation, named("n1", ""), "").await;
            check(csi, operation, named("n2", ""), other_csi).await;
            check(slices, operation, slice("n1"), "").await;
        }
        for node in ["n2", ""] {
            let why =
                |verb: &str| format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
            check(slices, Create, slice(node), &why("create")).await;
            check(slices, Delete, slice(node), &why("delete")).await;
        }
        check(eviction, Create, named("near", "ns"), "").await;
        check(eviction, Create, named("far", "ns"), "node n1 can only evict pods with spec.nodeName set to itself")
            .await;
        check(eviction, Create, named("gone", "ns"), "pods \"gone\" not found").await;
        let node = |spec: Value, labels: Value| json!({"metadata": {"name": "n1", "labels": labels}, "spec": spec});
        let created = |node: Value| by_node(Write::create("nodes", node)).through(&context, &PLUGIN);
        let source = json!({"configSource": {"configMap": {"name": "x"}}});
        let refused = created(node(source.clone(), json!({}))).await.unwrap_err();
        assert!(
            refused.ends_with("node \"n1\" is not allowed to create pods with a non-nil configSource"),
            "{refused}"
        );
        let changed = |old: Value, new: Value| update("nodes", "", old, new).through(&context, &PLUGIN);
        let plain = || node(json!({}), json!({}));
        assert!(changed(node(source.clone(), json!({})), plain()).await.is_ok(), "old kubelets drop the field");
        let refused = changed(plain(), node(source, json!({}))).await.unwrap_err();
        assert!(refused.ends_with("is not allowed to update configSource to a new non-nil configSource"), "{refused}");
        let refused = changed(plain(), node(json!({}), json!({"x.k8s.io/a": "", "k8s.io/b": ""}))).await.unwrap_err();
        assert!(refused.ends_with("is forbidden: is not allowed to modify labels: k8s.io/b, x.k8s.io/a"), "{refused}");
        let owned = json!({"metadata": {"name": "n1", "ownerReferences": [{"uid": "u"}]}, "spec": {}});
        let refused = changed(plain(), owned).await.unwrap_err();
        assert!(refused.ends_with("is not allowed to modify ownerReferences"), "{refused}");
    }

    #[tokio::test]
    async fn a_token_is_for_a_pod_of_the_node_and_an_audience_it_names() {
        let sources = json!({"sources": [{"serviceAccountToken": {"path": "a"}}, {"serviceAccountToken": {"path": "b", "audience": "vault"}}]});
        let volumes = json!([{"name": "t", "projected": sources}, {"name": "k", "csi": {"driver": "keys"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}]);
        let pod = |name: &str, volumes: Value, node: &str| {
            (
                "pods",
                json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": {"nodeName": node, "volumes": volumes}}),
            )
        };
        let driver = |name: &str, audience: &str| {
            ("csidrivers", json!({"metadata": {"name": name}, "spec": {"tokenRequests": [{"audience": audience}]}}))
        };
        let context = Context {
            authorizer: std::sync::Arc::new(crate::auth::Union(Vec::new())),
            ..context(vec![
                pod("web", volumes, "n1"),
                pod("bare", json!([]), "n1"),
                pod("far", json!([]), "n2"),
                driver("keys", "kms"),
                driver("disks", "cloud"),
                (
                    "persistentvolumeclaims",
                    json!({"metadata": {"name": "claim", "namespace": "ns"}, "spec": {"volumeName": "pv"}}),
                ),
                ("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "disks"}}})),
            ])
            .await
        };
        let ask = |reference: Value, audiences: &[&str]| {
            let spec = json!({"boundObjectRef": reference, "audiences": audiences});
            let object = json!({"metadata": {"name": "bot", "namespace": "ns"}, "spec": spec});
            let write = Write { kind: ("", "serviceaccounts", "token"), ..Write::create("", object) };
            by_node(write).through(&context, &PLUGIN)
        };
        let of = |name: &str, uid: &str| json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
        for audiences in [&[][..], &["vault"], &["kms"], &["cloud"]] {
            ask(of("web", "u"), audiences).await.unwrap();
        }
        for (reference, audiences, why) in [
            (json!(null), &[][..], "not bound to a pod"),
            (of("web", ""), &[], "without a uid"),
            (of("web", "v"), &[], "does not match the UID in record"),
            (of("far", "u"), &[], "scheduled on a different node"),
            (of("gone", "u"), &[], "not found"),
            (of("web", "u"), &["https://kubernetes.default.svc"], "not found in pod spec volume"),
            (of("web", "u"), &["vault", "kms"], "0 or 1 audiences"),
            (of("bare", "u"), &[], "not found in pod spec volume"),
        ] {
            let said = ask(reference, audiences).await.unwrap_err();
            assert!(said.contains(why), "{audiences:?}: {said}");
        }
        // A node that is granted an audience needs no volume.
        let granting = Context { authorizer: std::sync::Arc::new(crate::auth::AlwaysAllow), ..context };
        let object = json!({"metadata": {"name": "bot", "namespace": "ns"},
            "spec": {"boundObjectRef": of("bare", "u"), "audiences": ["registry"]}});
        let write = Write { kind: ("", "serviceaccounts", "token"), ..Write::create("", object) };
        by_node(write).through(&granting, &PLUGIN).await.unwrap();
    }

    #[tokio::test]
    async fn a_node_asks_for_certificates_of_its_own_name() {
        let context = context(Vec::new()).await;
        let ask = |name: &str, signer: &str| {
            let pem = pki::Wish::new(&pki::Subject::client(name, Some("system:nodes"))).unwrap().request;
            let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
            let csr = json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "request": request}});
            let kind = ("certificates.k8s.io", "certificatesigningrequests", "");
            by_node(Write { kind, ..Write::create("", csr) }).through(&context, &PLUGIN)
        };
        for signer in ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"] {
            ask("system:node:n1", signer).await.unwrap();
            assert!(
                ask("system:node:n2", signer)
                    .await
                    .unwrap_err()
                    .contains("can only create a node CSR with CN=system:node:n1")
            );
        }
        ask("somebody", "example.com/signer").await.unwrap();
    }
}
