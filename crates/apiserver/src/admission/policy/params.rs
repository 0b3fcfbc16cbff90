//! The objects that a binding gives a policy for its params.

use std::sync::Arc;

use api::k8s_openapi::api::admissionregistration::v1::{ParamKind, ParamRef};
use api::kind::Definition;
use api::rules::selector::Selector;
use api::{Value, meta};

use super::super::plugin::Context;

/// The kind of a policy's params, if it has any.
pub(super) fn definition(context: &Context, kind: Option<&ParamKind>) -> Result<Option<Arc<Definition>>, String> {
    let Some(kind) = kind else { return Ok(None) };
    let (version, name) = (kind.api_version.as_deref().unwrap_or_default(), kind.kind.as_deref().unwrap_or_default());
    let (group, version) = meta::group_and_version(version);
    let unknown = || format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={name}'");
    context.objects.by_kind(group, version, name).map(Some).ok_or_else(unknown)
}

/// The params to evaluate with, in the version that the policy names: one run for each. `None` is a run without params.
pub(super) async fn collect(
    context: &Context,
    definition: Option<&Definition>,
    reference: Option<&ParamRef>,
    request_namespace: &str,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    let (Some(definition), Some(reference)) = (definition, reference) else { return Ok(vec![None]) };
    let namespace = namespace(definition, reference, request_namespace)?;
    let name = reference.name.as_deref().unwrap_or_default();
    let found = match &reference.selector {
        Some(_) if !name.is_empty() => {
            return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned());
        }
        None if name.is_empty() => return Err("one of name or selector must be provided".to_owned()),
        None => {
            let one = context.objects.get_in(definition, namespace, name).await.map_err(|e| e.message)?;
            one.into_iter().map(Some).collect()
        }
        Some(selector) => {
            let selector = Selector::of_object(Some(selector)).map_err(|e| e.to_string())?;
            let all = context.objects.list_in(definition, namespace).await.map_err(|e| e.message)?;
            let selected = all.into_iter().filter(|object| selector.matches(&meta::labels(object)));
            selected.map(Some).collect::<Vec<_>>()
        }
    };
    if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found)
}

fn namespace<'n>(definition: &Definition, reference: &'n ParamRef, request: &'n str) -> Result<&'n str, String> {
    let wanted = reference.namespace.as_deref().unwrap_or_default();
    match (definition.namespaced(), wanted, request) {
        (false, "", _) => Ok(""),
        (false, ..) => Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "", "") => {
            Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned())
        }
        (true, "", request) => Ok(request),
        (true, wanted, _) => Ok(wanted),
    }
}
