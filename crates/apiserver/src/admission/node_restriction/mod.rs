//! NodeRestriction: a kubelet writes its own Node, its own Pods and what belongs to them, and can't change what decides
//! which Pods come to it.

mod token_audience;

use api::{
    Value, features::Feature, k8s_openapi::api::core::v1::Pod, meta, object::Object, rules::pod_references,
    status::StatusError,
};
use json::Key;

use super::{
    attributes::{Attributes, Operation},
    certificates::{pod_request, request},
    plugin::{Context, Plugin, Verdict, forbid, items, require, text},
};

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
        ("", "pods", "status") => only(Operation::Update, attributes).and_then(|()| pod_status(node, attributes)),
        ("", "pods", "eviction") => eviction(context, node, attributes).await?,
        ("", "pods", other) => {
            Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => own_node(node, attributes),
        ("", "persistentvolumeclaims", "status") => {
            only(Operation::Update, attributes).and_then(|()| claim_status(node, attributes))
        }
        ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") => token(context, node, attributes).await?,
        ("certificates.k8s.io", "certificatesigningrequests", "") => certificate(context, attributes),
        ("certificates.k8s.io", "podcertificaterequests", _) => pod_request::by_node(context, node, attributes).await?,
        ("coordination.k8s.io", "leases", _) => own_lease(node, attributes),
        ("storage.k8s.io", "csinodes", _) => own(node, attributes, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => resource_slice(node, attributes),
        _ => Ok(()),
    };
    verdict.map_err(|why| forbid(attributes, why))
}

fn only(operation: Operation, attributes: &Attributes<'_>) -> Verdict {
    require(attributes.operation == operation, || format!("unexpected operation {:?}", attributes.operation.name()))
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
    let pod = Pod::from_value(pod).map_err(|why| format!("the pod cannot be read: {why}"))?;
    match pod.spec.as_ref().and_then(pod_references::first) {
        Some(what) => Err(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
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
fn certificate(context: &Context, attributes: &Attributes<'_>) -> Verdict {
    const NODE_SIGNERS: &[&str] = &["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
    let Some(csr) = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    let lax = context.features.enabled(Feature::AllowInsecureKubeletCertificateSigningRequests);
    if lax || !NODE_SIGNERS.contains(&text(csr, "/spec/signerName")) {
        return Ok(());
    }
    let wish = request::wish(csr).map_err(|why| format!("unable to parse csr: {why}"))?;
    let user = &attributes.user.name;
    require(wish.common_name() == user, || format!("can only create a node CSR with CN={user}"))
}

async fn eviction(context: &Context, node: &str, attributes: &Attributes<'_>) -> Result<Verdict, StatusError> {
    if attributes.operation != Operation::Create {
        return Ok(Err(format!("unexpected operation {}", attributes.operation.name())));
    }
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
    let named = match token_audience::names(context, &pod, audience).await? {
        Ok(named) => named,
        Err(why) => return Ok(Err(format!("error validating audience {audience:?}: {why}"))),
    };
    if named || token_audience::granted(context, attributes, audience).await {
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
mod tests;
