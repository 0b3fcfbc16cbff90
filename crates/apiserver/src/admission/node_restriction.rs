//! NodeRestriction: a kubelet writes its own Node, its own Pods and what belongs to them, and can't change what decides
//! which Pods come to it.

use api::status::StatusError;
use api::{Value, meta};

use super::{Operation, Plugin, Review, World, forbid, items, text};

pub const PLUGIN: Plugin = Plugin {
    name: "NodeRestriction",
    concerns: |review| review.user.in_group("system:nodes") && review.operation != Operation::Connect,
    admit: Some(|world, review| Box::pin(admit(world, review))),
    validate: None,
};

type Verdict = Result<(), String>;

fn require(condition: bool, why: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(why()) }
}

async fn admit(world: &World, review: &mut Review<'_>) -> Result<(), StatusError> {
    let Some(node) = review.user.node_name() else {
        let why = format!("could not determine node from user {:?}", review.user.name);
        return Err(forbid(review, why));
    };
    let (group, plural) = (review.definition.group.as_str(), review.definition.plural.as_str());
    let verdict = match (group, plural, review.subresource) {
        ("", "pods", "") => pod(node, review),
        ("", "pods", "status") => pod_status(node, review),
        ("", "pods", "eviction") => eviction(world, node, review).await?,
        ("", "nodes", _) => own_node(node, review),
        ("", "serviceaccounts", "token") => token(world, node, review).await?,
        ("coordination.k8s.io", "leases", _) => own(node, review, "lease"),
        ("storage.k8s.io", "csinodes", _) => own(node, review, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => resource_slice(node, review),
        _ => Ok(()),
    };
    verdict.map_err(|why| forbid(review, why))
}

fn on(node: &str, pod: Option<&Value>) -> bool {
    pod.is_some_and(|pod| text(pod, "/spec/nodeName") == node)
}

fn pod(node: &str, review: &Review<'_>) -> Verdict {
    match (review.operation, &review.object) {
        (Operation::Create, Some(pod)) => mirror_pod(node, pod),
        (Operation::Delete, _) => require(on(node, review.old), || {
            format!("node {node:?} can only delete pods with spec.nodeName set to itself")
        }),
        _ => Err(format!("unexpected operation {:?}", review.operation.name())),
    }
}

/// Only mirror Pods, and these can't open anything to the node.
fn mirror_pod(node: &str, pod: &Value) -> Verdict {
    require(api::meta::annotation(pod, api::pod::MIRROR_ANNOTATION).is_some(), || {
        format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        )
    })?;
    require(on(node, Some(pod)), || format!("node {node:?} can only create pods with spec.nodeName set to itself"))?;
    let owners: Vec<&Value> = items(pod, "/metadata/ownerReferences").collect();
    if let [owner, rest @ ..] = owners.as_slice() {
        let own = text(owner, "/kind") == "Node" && text(owner, "/name") == node && rest.is_empty();
        require(own, || format!("node {node:?} can only create pods with an owner reference set to itself"))?;
    }
    require(text(pod, "/spec/serviceAccountName").is_empty(), || {
        format!("node {node:?} can not create pods that reference a service account")
    })?;
    let refers = |field: &str| items(pod, "/spec/volumes").any(|v| v.get(field).is_some_and(|v| !v.is_null()));
    for (field, what) in
        [("secret", "secrets"), ("configMap", "configmaps"), ("persistentVolumeClaim", "persistentvolumeclaims")]
    {
        require(!refers(field), || format!("node {node:?} can not create pods that reference {what}"))?;
    }
    Ok(())
}

fn pod_status(node: &str, review: &Review<'_>) -> Verdict {
    require(on(node, review.old), || {
        format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
    })?;
    let labels = |o: Option<&Value>| o.and_then(meta::labels).cloned().unwrap_or_default();
    require(labels(review.old) == labels(review.object.as_ref()), || {
        format!("node {node:?} cannot update labels through pod status")
    })
}

async fn eviction(world: &World, node: &str, review: &Review<'_>) -> Result<Verdict, StatusError> {
    let pod = world.objects.get("", "pods", review.namespace, review.name).await?;
    Ok(require(on(node, pod.as_deref()), || {
        format!("node {node:?} can only evict pods with spec.nodeName set to itself")
    }))
}

/// The token of an account is for a Pod of this node that runs as the account.
async fn token(world: &World, node: &str, review: &Review<'_>) -> Result<Verdict, StatusError> {
    let request = review.object.as_ref();
    let reference = request.and_then(|r| api::meta::at(r, "/spec/boundObjectRef"));
    let Some(reference) = reference.filter(|r| text(r, "/kind") == "Pod" && text(r, "/apiVersion") == "v1") else {
        return Ok(Err("node requested token not bound to a pod".to_owned()));
    };
    let pod = world.objects.get("", "pods", review.namespace, text(reference, "/name")).await?;
    let Some(pod) = pod else { return Ok(Err(format!("pod {:?} not found", text(reference, "/name")))) };
    let uid = text(reference, "/uid");
    Ok(if uid.is_empty() {
        Err("node requested token with a pod binding without a uid".to_owned())
    } else if meta::uid(&pod) != uid {
        Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might \
                     have been deleted and then recreated"
        ))
    } else if !on(node, Some(&pod)) {
        Err("node requested token bound to a pod scheduled on a different node".to_owned())
    } else {
        Ok(())
    })
}

fn own(node: &str, review: &Review<'_>, what: &str) -> Verdict {
    let name = review.object.as_ref().map_or(review.name, meta::name);
    require(name == node, || format!("can only access node {what} with the same name as the requesting node"))
}

fn resource_slice(node: &str, review: &Review<'_>) -> Verdict {
    let slice = review.object.as_ref().or(review.old);
    require(slice.is_some_and(|s| text(s, "/spec/nodeName") == node), || {
        "can only create or delete ResourceSlice for the requesting node".to_owned()
    })
}

fn own_node(node: &str, review: &Review<'_>) -> Verdict {
    let name = review.object.as_ref().map(meta::name).filter(|n| !n.is_empty()).unwrap_or(review.name);
    require(name == node, || format!("node {node:?} is not allowed to modify node {name:?}"))?;
    let Some(object) = &review.object else {
        return Err(format!("node {node:?} cannot delete node {name:?}"));
    };
    let old = review.old;
    let part = |o: Option<&Value>, path: &str| {
        o.and_then(|o| api::meta::at(o, path)).filter(|v| !v.is_null()).cloned().unwrap_or_default()
    };
    require(part(Some(object), "/spec/configSource") == part(old, "/spec/configSource"), || {
        format!("node {node:?} is not allowed to update configSource to a new non-nil configSource")
    })?;
    if review.operation == Operation::Update {
        require(part(Some(object), "/spec/taints") == part(old, "/spec/taints"), || {
            format!("node {node:?} is not allowed to modify taints")
        })?;
        let owners = "/metadata/ownerReferences";
        require(part(Some(object), owners) == part(old, owners), || {
            format!("node {node:?} is not allowed to modify ownerReferences")
        })?;
    }
    let refused = refused_labels(object, old);
    require(refused.is_empty(), || {
        let verb = if review.operation == Operation::Create { "set" } else { "modify" };
        format!("is not allowed to {verb} the following labels: {}", refused.join(", "))
    })
}

/// Labels of the `kubernetes.io` and `k8s.io` domains that were changed and that a kubelet may not choose.
fn refused_labels(object: &Value, old: Option<&Value>) -> Vec<String> {
    let labels = |o: &Value| meta::labels(o).cloned().unwrap_or_default();
    let (new, old) = (labels(object), old.map(labels).unwrap_or_default());
    let mut changed: Vec<&String> = new.keys().chain(old.keys()).filter(|k| new.get(*k) != old.get(*k)).collect();
    changed.sort();
    changed.dedup();
    changed.into_iter().filter(|key| !kubelet_may_set(key)).cloned().collect()
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
    use serde_json::json;

    use super::super::fake::{Write, world};
    use super::*;
    use crate::auth::User;

    fn by_node(write: Write) -> Write {
        Write { user: User::new("system:node:n1", ["system:nodes"]), ..write }
    }

    fn update(plural: &'static str, sub: &'static str, old: Value, new: Value) -> Write {
        let write = Write::create(plural, new);
        by_node(Write { operation: Operation::Update, kind: ("", plural, sub), old: Some(old), ..write })
    }

    #[tokio::test]
    async fn a_kubelet_keeps_to_its_own() {
        let world = world(vec![(
            "pods",
            json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "spec": {"nodeName": "n1"}}),
        )]);
        let node = |name: &str, more: Value| json!({"metadata": {"name": name, "labels": more}});
        let create = |object: Value| by_node(Write::create("nodes", object)).through(&world, &PLUGIN);
        assert!(create(node("n1", json!({"kubernetes.io/hostname": "n1", "team": "a"}))).await.is_ok());
        let other = create(node("n2", json!({}))).await.unwrap_err();
        assert!(other.contains(r#"node "n1" is not allowed to modify node "n2""#), "{other}");
        for label in ["node-restriction.kubernetes.io/x", "node-role.kubernetes.io/control-plane"] {
            let error = create(node("n1", json!({label: ""}))).await.unwrap_err();
            assert!(error.contains(&format!("is not allowed to set the following labels: {label}")), "{error}");
        }
        let tainted = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "a"}]}});
        let clean = json!({"metadata": {"name": "n1"}, "spec": {}});
        let error = update("nodes", "", tainted, clean).through(&world, &PLUGIN).await.unwrap_err();
        assert!(error.contains("is not allowed to modify taints"), "{error}");

        let pod = |node: &str| json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": node}});
        assert!(update("pods", "status", pod("n1"), pod("n1")).through(&world, &PLUGIN).await.is_ok());
        assert!(update("pods", "status", pod("n2"), pod("n2")).through(&world, &PLUGIN).await.is_err());
        let mut mirror = pod("n1");
        assert!(by_node(Write::create("pods", mirror.clone())).through(&world, &PLUGIN).await.is_err());
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "h"});
        assert!(by_node(Write::create("pods", mirror.clone())).through(&world, &PLUGIN).await.is_ok());
        mirror["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "x"}}]);
        assert!(by_node(Write::create("pods", mirror)).through(&world, &PLUGIN).await.is_err());

        let token = |reference: Value| {
            let object = json!({"metadata": {"name": "bot", "namespace": "ns"}, "spec": {"boundObjectRef": reference}});
            let write = Write { kind: ("", "serviceaccounts", "token"), ..Write::create("", object) };
            by_node(write).through(&world, &PLUGIN)
        };
        assert!(token(json!({"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "u"})).await.is_ok());
        assert!(token(json!({"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": "v"})).await.is_err());
        assert!(token(json!(null)).await.unwrap_err().contains("node requested token not bound to a pod"));
    }
}
