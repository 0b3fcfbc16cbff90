//! Params of admission policies show up in what the policies say. Whoever names the kind of a policy's params, or gives a
//! policy its params with a binding, must be able to read them. (Upstream does this in the storage of these kinds.)
//! Upstream counterpart: pkg/registry/admissionregistration, the `authz.go` of each kind.

use api::validation::field::{FieldError, Path};
use api::{Value, meta, status::StatusError};

use super::{
    attributes::{Attributes, Operation},
    plugin::{Context, Outcome, Plugin, done, text},
    policy::source::{self, GROUP},
};
use crate::auth::{self, User};

pub const PLUGIN: Plugin = Plugin { name: "PolicyParamsAccess", concerns, admit: None, validate: Some(validate) };

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.definition.group == GROUP
        && attributes.subresource.is_empty()
        && matches!(attributes.operation, Operation::Create | Operation::Update)
        && source::FOLLOWED.contains(&attributes.definition.plural.as_str())
        && !attributes.user.is_master()
}

fn validate<'a>(context: &'a Context, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
    let Some(object) = &attributes.object else { return done(Ok(())) };
    match source::policies_of(&attributes.definition.plural) {
        None => Box::pin(policy(context, attributes, object)),
        Some(policies) => Box::pin(binding(context, attributes, object, policies)),
    }
}

/// Whether the write leaves these parts of the spec as they are.
fn unchanged(attributes: &Attributes<'_>, object: &Value, fields: &[&str]) -> bool {
    attributes.old.is_some_and(|old| fields.iter().all(|field| old["spec"].get(*field) == object["spec"].get(*field)))
}

fn refused(attributes: &Attributes<'_>, field: &str, why: &str) -> StatusError {
    let error = FieldError::forbidden(&Path::new("spec").child(field), why);
    let definition = attributes.definition;
    StatusError::invalid(&definition.group, &definition.kind, attributes.name, &[error])
}

/// The group, version and resource of a policy's params; everything, as far as they are not known.
fn params_of(context: &Context, policy: Option<&Value>) -> (String, String, String) {
    let everything = || "*".to_owned();
    let kind = policy.filter(|policy| policy["spec"]["paramKind"].is_object());
    let Some(kind) = kind else { return (everything(), everything(), everything()) };
    let (group, version) = meta::group_and_version(text(kind, "/spec/paramKind/apiVersion"));
    let found = context.objects.by_kind(group, version, text(kind, "/spec/paramKind/kind"));
    (group.to_owned(), version.to_owned(), found.map_or_else(everything, |found| found.plural.clone()))
}

async fn policy(context: &Context, attributes: &Attributes<'_>, object: &Value) -> Result<(), StatusError> {
    if !object["spec"]["paramKind"].is_object() || unchanged(attributes, object, &["paramKind"]) {
        return Ok(());
    }
    let (group, version, resource) = params_of(context, Some(object));
    let asked = auth::Attributes {
        namespace: "*",
        name: "*",
        version: &version,
        ..auth::Attributes::resource(attributes.user, "get", &group, &resource)
    };
    if context.authorizer.authorize(&asked).await.allowed() {
        return Ok(());
    }
    let (user, kind) = (shown(attributes.user), text(object, "/spec/paramKind/kind"));
    let version = text(object, "/spec/paramKind/apiVersion");
    let why = format!(
        "user {user} must have \"get\" permission on all objects of the referenced paramKind (kind={kind}, \
         apiVersion={version})"
    );
    Err(refused(attributes, "paramKind", &why))
}

async fn binding(
    context: &Context,
    attributes: &Attributes<'_>,
    object: &Value,
    policies: &str,
) -> Result<(), StatusError> {
    let reference = &object["spec"]["paramRef"];
    if !reference.is_object() || unchanged(attributes, object, &["paramRef", "policyName"]) {
        return Ok(());
    }
    let policy = context.objects.get(GROUP, policies, "", text(object, "/spec/policyName")).await?;
    let (group, version, resource) = params_of(context, policy.as_deref());
    let name = text(reference, "/name");
    let verb = if name.is_empty() { "list" } else { "get" };
    let asked = auth::Attributes {
        namespace: text(reference, "/namespace"),
        name,
        version: &version,
        ..auth::Attributes::resource(attributes.user, verb, &group, &resource)
    };
    if context.authorizer.authorize(&asked).await.allowed() {
        return Ok(());
    }
    let user = shown(attributes.user);
    let why = match unknown(policy.as_deref(), text(object, "/spec/policyName"), &resource) {
        None => format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef"),
        Some(what) => format!(
            "unable to {what} to determine minimum required permissions and user {user} does not have \"{verb}\" permission for \
             all groups, versions and resources"
        ),
    };
    Err(refused(attributes, "paramRef", &why))
}

/// The reason why more had to be asked for than the params themselves: what is not known of them, as a part of a sentence.
fn unknown(policy: Option<&Value>, name: &str, resource: &str) -> Option<String> {
    let Some(policy) = policy else { return Some(format!("get policy {name}")) };
    let of = |field: &str| text(policy, &format!("/spec/paramKind/{field}"));
    let named = policy["spec"]["paramKind"].is_object() && resource == "*";
    let what = if of("apiVersion").matches('/').count() > 1 { "parse" } else { "resolve" };
    named.then(|| format!("{what} paramKind &{{{} {}}}", of("apiVersion"), of("kind")))
}

/// The user as Go shows the structure.
fn shown(user: &User) -> String {
    let list = |words: &[String]| format!("[{}]", words.join(" "));
    let extra: Vec<String> = user.extra.iter().map(|(key, words)| format!("{key}:{}", list(words))).collect();
    format!("&{{{} {} {} map[{}]}}", user.name, user.uid, list(&user.groups), extra.join(" "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use json::json;

    use super::*;
    use crate::auth::rbac::Rbac;
    use crate::tests::admission::{self, Write};

    const POLICIES: &str = "validatingadmissionpolicies";
    const BINDINGS: &str = "validatingadmissionpolicybindings";

    fn policy(kind: &str) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"paramKind": {"apiVersion": "v1", "kind": kind}}})
    }

    fn binding(reference: Value) -> Value {
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": reference}})
    }

    /// Jane may do this with all ConfigMaps, or with those in one namespace.
    async fn context(verb: &str, namespace: &str) -> Context {
        let rbac = Arc::new(Rbac::default());
        let role = json!({"rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]});
        let bound = json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "jane"}]});
        rbac.changed("clusterroles", "", "r", Some(&role));
        let kind = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
        rbac.changed(kind, namespace, "b", Some(&bound));
        let objects = vec![(POLICIES, policy("ConfigMap"))];
        Context { authorizer: rbac.clone(), rbac, ..admission::context(objects).await }
    }

    async fn check(may: (&str, &str), plural: &'static str, old: Option<Value>, object: Value, expected: &str) {
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let write = Write { kind: (GROUP, plural, ""), operation, old, ..Write::create("", object.clone()) };
        let said = write.through(&context(may.0, may.1).await, &PLUGIN).await.err().unwrap_or_default();
        assert!(if expected.is_empty() { said.is_empty() } else { said.contains(expected) }, "{object}: {said}");
    }

    #[tokio::test]
    async fn the_kind_of_params_is_named_by_those_who_can_read_all_of_them() {
        let refusal = "spec.paramKind: Forbidden: user &{jane  [system:authenticated] map[]} must have \"get\" permission on all \
                       objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
        check(("get", ""), POLICIES, None, policy("ConfigMap"), "").await;
        check(("get", ""), POLICIES, None, policy("Secret"), refusal).await;
        check(("get", "ns"), POLICIES, None, policy("ConfigMap"), "must have \"get\" permission").await;
        check(("list", ""), POLICIES, None, policy("ConfigMap"), "must have \"get\" permission").await;
        check(("list", ""), POLICIES, None, json!({"metadata": {"name": "p"}, "spec": {}}), "").await;
        check(("list", ""), POLICIES, Some(policy("Secret")), policy("Secret"), "").await;
        check(("list", ""), POLICIES, Some(policy("Other")), policy("Secret"), refusal).await;
        check(("get", ""), "mutatingadmissionpolicies", None, policy("Secret"), refusal).await;
    }

    #[test]
    fn a_refusal_says_what_is_not_known_of_the_params() {
        let check = |policy: Option<Value>, resource: &str, expected: Option<&str>| {
            assert_eq!(unknown(policy.as_ref(), "p", resource).as_deref(), expected);
        };
        let of = |version: &str| Some(json!({"spec": {"paramKind": {"apiVersion": version, "kind": "Params"}}}));
        check(of("v1"), "params", None);
        check(None, "*", Some("get policy p"));
        check(Some(json!({"spec": {}})), "*", None);
        check(of("foo.example.com/v1"), "*", Some("resolve paramKind &{foo.example.com/v1 Params}"));
        check(of("a/b/c"), "*", Some("parse paramKind &{a/b/c Params}"));
    }

    #[tokio::test]
    async fn params_are_given_by_those_who_can_read_them() {
        let named = || binding(json!({"name": "a", "namespace": "ns"}));
        let selected = || binding(json!({"selector": {}}));
        let refusal = "spec.paramRef: Forbidden: user &{jane  [system:authenticated] map[]} does not have \"get\" permission on \
                       the object referenced by paramRef";
        check(("get", "ns"), BINDINGS, None, named(), "").await;
        check(("get", "other"), BINDINGS, None, named(), refusal).await;
        check(("get", ""), BINDINGS, None, selected(), "does not have \"list\" permission on").await;
        check(("list", ""), BINDINGS, None, selected(), "").await;
        check(("list", "ns"), BINDINGS, None, selected(), "does not have \"list\" permission on").await;
        check(("list", ""), BINDINGS, Some(named()), named(), "").await;
        // Of a policy that is not there nobody knows what its params are.
        let mut other = named();
        other["spec"]["policyName"] = json!("q");
        let absent = "unable to get policy q to determine minimum required permissions and user &{jane  [system:authenticated] \
                      map[]} does not have \"get\" permission for all groups, versions and resources";
        check(("get", ""), BINDINGS, Some(named()), other, absent).await;
        let mut moved = named();
        moved["spec"]["paramRef"]["parameterNotFoundAction"] = json!("Allow");
        check(("get", "other"), BINDINGS, Some(moved), named(), refusal).await;
        let absent = "unable to get policy p to determine minimum required permissions";
        check(("get", ""), "mutatingadmissionpolicybindings", None, named(), absent).await;
    }
}
