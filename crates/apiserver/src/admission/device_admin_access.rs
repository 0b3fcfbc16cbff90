//! Access to devices as an administrator, which shares what others have: only namespaces with the label for it get it. A user
//! of any other namespace cannot ask for it, whoever may write claims there. (Upstream does this in the storage of claims.)

use api::status::StatusError;
use api::validation::field::{FieldError, Path};
use api::{Value, meta};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Plugin},
};

pub const PLUGIN: Plugin = Plugin {
    name: "DeviceAdminAccess",
    concerns: |attributes| asked(attributes).is_some(),
    admit: None,
    validate: Some(|context, attributes| Box::pin(validate(context, attributes))),
};

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// The place of the first access that is asked for and was not there before.
fn asked(attributes: &Attributes<'_>) -> Option<Path> {
    let definition = attributes.definition;
    let object = attributes.object.as_ref().filter(|_| definition.group == "resource.k8s.io")?;
    let object = &*definition.as_stored(object);
    match (definition.plural.as_str(), attributes.subresource, attributes.operation) {
        ("resourceclaims", "", Operation::Create) => in_requests(object, "/spec/devices/requests"),
        ("resourceclaimtemplates", "", Operation::Create) => in_requests(object, "/spec/spec/devices/requests"),
        ("resourceclaims", "status", Operation::Update) => {
            let path = Path::new("status").child("allocation").child("devices").child("results");
            // A claim keeps its devices as they are while it has some.
            let first = |object: &Value| first(object, "/status/allocation/devices/results", "/adminAccess");
            let had = attributes.old.is_some_and(|old| first(old).is_some());
            let at = first(object).filter(|_| !had)?;
            Some(path.index(at).child("adminAccess"))
        }
        _ => None,
    }
}

fn in_requests(object: &Value, list: &str) -> Option<Path> {
    let at = first(object, list, "/exactly/adminAccess")?;
    Some(Path::new("spec").child("devices").child("requests").index(at).child("adminAccess"))
}

/// The first item of a list that asks for it.
fn first(object: &Value, list: &str, field: &str) -> Option<usize> {
    let items = meta::at(object, list).and_then(Value::as_array)?;
    items.iter().position(|item| meta::at(item, field).and_then(Value::as_bool) == Some(true))
}

async fn validate(context: &Context, attributes: &Attributes<'_>) -> Result<(), StatusError> {
    let Some(path) = asked(attributes) else { return Ok(()) };
    let namespace = context.objects.get("", "namespaces", "", attributes.namespace).await?;
    let namespace = namespace.ok_or_else(|| StatusError::not_found("", "namespaces", attributes.namespace))?;
    let label = namespace.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL)).and_then(Value::as_str);
    if label == Some("true") {
        return Ok(());
    }
    let detail = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    let definition = attributes.definition;
    let errors = [FieldError::forbidden(&path, &detail)];
    Err(StatusError::invalid(&definition.group, &definition.kind, attributes.name, &errors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn only_labelled_namespaces_get_it() {
        let namespace = |label: Value| json!({"metadata": {"name": "default", "labels": {LABEL: label}}});
        let requests = |admin: Value| {
            json!({"devices": {"requests": [{"name": "a", "exactly": {}},
            {"name": "b", "exactly": {"adminAccess": admin}}]}})
        };
        let allocation = |admin: Value| {
            json!({"metadata": {"name": "x", "namespace": "default"},
                "status": {"allocation": {"devices": {"results": [{"adminAccess": admin}]}}}})
        };
        let check = async |label: Value, write: Write, expected: Option<&str>| {
            let context = context(vec![("namespaces", namespace(label))]).await;
            let out = write.through(&context, &PLUGIN).await;
            match expected {
                None => assert!(out.is_ok(), "{out:?}"),
                Some(place) => {
                    let why = format!(
                        "{place}: Forbidden: admin access to devices requires the `{LABEL}: true` label on the containing \
                         namespace"
                    );
                    assert!(out.as_ref().is_err_and(|said| said.ends_with(&why)), "{out:?}");
                }
            }
        };
        let create = |plural: &'static str, spec: Value| {
            let object = json!({"metadata": {"name": "x", "namespace": "default"}, "spec": spec});
            Write { kind: ("resource.k8s.io", plural, ""), ..Write::create(plural, object) }
        };
        let claim = |admin: bool| create("resourceclaims", requests(json!(admin)));
        let template = create("resourceclaimtemplates", json!({"spec": requests(json!(true))}));
        let status = |before: Value, after: Value| Write {
            operation: Operation::Update,
            kind: ("resource.k8s.io", "resourceclaims", "status"),
            old: Some(before),
            ..Write::create("resourceclaims", after)
        };
        let place = Some("spec.devices.requests[1].adminAccess");
        check(json!("true"), claim(true), None).await;
        check(json!("false"), claim(true), place).await;
        check(json!("false"), claim(false), None).await;
        check(json!("false"), template, place).await;
        let none = || json!({"metadata": {"name": "x", "namespace": "default"}});
        let result = Some("status.allocation.devices.results[0].adminAccess");
        check(json!("false"), status(none(), allocation(json!(true))), result).await;
        check(json!("false"), status(allocation(json!(true)), allocation(json!(true))), None).await;
        check(json!("true"), status(none(), allocation(json!(true))), None).await;
    }
}
