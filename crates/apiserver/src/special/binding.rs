//! Binding: the scheduler gives a Pod its node. The Pod's spec is otherwise fixed, so this goes beside the update.

use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use api::{Value, meta};
use json::json;

use super::object::{admitted, body, same_name, set_condition, success, text};
use crate::{call::Call, http::body::Response};

/// `pods/NAME/binding`
pub async fn pod(mut call: Call) -> Result<Response, StatusError> {
    let (binding, options) = body(&mut call, "", "v1", "Binding").await?;
    same_name(&call, &binding, "Binding")?;
    let name = call.info.name.clone();
    bind(&call, &name, binding, &options).await
}

/// `bindings`: the Pod is named in the body.
pub async fn collection(mut call: Call) -> Result<Response, StatusError> {
    let (binding, options) = body(&mut call, "", "v1", "Binding").await?;
    let name = meta::name(&binding).to_owned();
    if name.is_empty() {
        return Err(StatusError::bad_request("name is required"));
    }
    bind(&call, &name, binding, &options).await
}

async fn bind(
    call: &Call,
    name: &str,
    binding: Value,
    options: &crate::http::options::WriteOptions,
) -> Result<Response, StatusError> {
    let objects = &call.state.objects;
    let definition = objects.definition("", "pods")?;
    // The resource of the request: `bindings`, or `pods` with the subresource.
    let asked = call.info.definition.as_ref().unwrap_or(&definition);
    let binding = admitted(call, (asked, name), binding, options, |binding| {
        let errors = validate(binding);
        if errors.is_empty() { Ok(()) } else { Err(StatusError::invalid("", "Binding", name, &errors)) }
    })
    .await?;
    let now = clock::now_seconds().to_string();
    let mut swap = objects.swap_at_hand(&definition, (&call.info.namespace, name), options.dry_run).await?;
    loop {
        let mut pod = swap.object();
        match assign(&mut pod, &binding, &now) {
            Err(_) if swap.look_again().await? => continue,
            assigned => assigned?,
        }
        if options.dry_run || swap.replace(pod).await?.is_some() {
            return Ok(success());
        }
    }
}

fn validate(binding: &Value) -> Vec<FieldError> {
    let target = Path::new("target");
    let mut errors = Vec::new();
    let kind = text(binding, "/target/kind");
    if !kind.is_empty() && kind != "Node" {
        errors.push(FieldError::not_supported(&target.child("kind"), kind, &["Node", "<empty>"]));
    }
    if text(binding, "/target/name").is_empty() {
        errors.push(FieldError::required(&target.child("name"), ""));
    }
    errors
}

/// Writes the node into the Pod, with the binding's labels and annotations.
fn assign(pod: &mut Value, binding: &Value, now: &str) -> Result<(), StatusError> {
    let name = meta::name(pod).to_owned();
    let refuse = |why: String| Err(StatusError::conflict("", "pods/binding", &name, &why));
    let (uid, version) = (meta::uid(binding), meta::resource_version(binding));
    if !uid.is_empty() && uid != meta::uid(pod) {
        let have = meta::uid(pod);
        return refuse(format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {have}"));
    }
    if !version.is_empty() && version != meta::resource_version(pod) {
        let have = meta::resource_version(pod);
        return refuse(format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {have}"
        ));
    }
    if meta::deletion_timestamp(pod).is_some() {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let node = text(pod, "/spec/nodeName");
    if !node.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {node:?}"));
    }
    if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = json!(text(binding, "/target/name"));
    // A node was nominated for the time of waiting, which is over.
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    for field in ["annotations", "labels"] {
        let added = binding.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
        for (key, value) in added.into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    scheduled(pod, now);
    Ok(())
}

/// Sets the condition `PodScheduled`.
fn scheduled(pod: &mut Value, now: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
        "observedGeneration": meta::generation(pod).max(1),
    });
    set_condition(pod, condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pod: Value, binding: Value, expected: Result<&str, &str>) {
        let mut pod = pod;
        let result = assign(&mut pod, &binding, "now").map(|()| text(&pod, "/spec/nodeName").to_owned());
        match (result, expected) {
            (Ok(node), Ok(wanted)) => assert_eq!(node, wanted),
            (Err(error), Err(wanted)) => {
                assert_eq!(
                    (error.code, error.message),
                    (409, format!("Operation cannot be fulfilled on pods/binding \"p\": {wanted}"))
                );
            }
            (got, wanted) => panic!("{got:?} instead of {wanted:?}"),
        }
    }

    #[test]
    fn a_pod_is_bound_once() {
        let pod = |spec: Value| json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec});
        let to = |metadata: Value| json!({"metadata": metadata, "target": {"kind": "Node", "name": "n"}});
        check(pod(json!({})), to(json!({})), Ok("n"));
        check(pod(json!({})), to(json!({"uid": "u"})), Ok("n"));
        check(
            pod(json!({})),
            to(json!({"uid": "v"})),
            Err("Precondition failed: UID in precondition: v, UID in object meta: u"),
        );
        check(pod(json!({"nodeName": "m"})), to(json!({})), Err("pod p is already assigned to node \"m\""));
        check(
            pod(json!({"schedulingGates": [{"name": "g"}]})),
            to(json!({})),
            Err("pod p has non-empty .spec.schedulingGates"),
        );
        let gone = json!({"metadata": {"name": "p", "deletionTimestamp": "t"}, "spec": {}});
        check(gone, to(json!({})), Err("pod p is being deleted, cannot be assigned to a host"));
    }

    #[test]
    fn the_binding_leaves_its_marks() {
        let mut pod = json!({"metadata": {"name": "p", "annotations": {"a": "1"}}, "spec": {},
            "status": {"phase": "Pending", "nominatedNodeName": "m",
                "conditions": [{"type": "PodScheduled", "status": "False"}]}});
        let binding =
            json!({"metadata": {"annotations": {"b": "2"}, "labels": {"zone": "z"}}, "target": {"name": "n"}});
        assign(&mut pod, &binding, "now").unwrap();
        assert_eq!(pod["metadata"]["annotations"], json!({"a": "1", "b": "2"}));
        assert_eq!(pod["metadata"]["labels"], json!({"zone": "z"}));
        assert_eq!(
            (pod["status"]["conditions"][0]["status"].as_str(), pod["status"]["phase"].as_str()),
            (Some("True"), Some("Pending"))
        );
        assert_eq!(pod["status"].get("nominatedNodeName"), None);
        assert_eq!(validate(&json!({"target": {"kind": "Pod"}})).len(), 2);
    }
}
