//! Whether a policy, a binding or a webhook is about a write: resource rules, and the labels of the object and of its namespace.

use std::sync::Arc;

use api::k8s_openapi::api::admissionregistration::v1::{MatchResources, NamedRuleWithOperations};
use api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use api::kind::Definition;
use api::rules::selector::Selector;
use api::{Value, meta};

use super::super::attributes::{Attributes, Operation};

/// A write, and what decides whether rules are about it.
pub(crate) struct Facts<'f> {
    pub attributes: &'f Attributes<'f>,
    /// The namespace of the object.
    pub namespace: Option<&'f Value>,
    /// The same objects in other versions and groups.
    pub equivalents: &'f [Arc<Definition>],
}

/// Why it cannot be said whether the rules are about a write.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclear {
    #[error("namespaces \"{0}\" not found")]
    NoNamespace(String),
    #[error("{0}")]
    Selector(String),
}

pub(crate) fn is_namespace(attributes: &Attributes<'_>) -> bool {
    attributes.definition.group.is_empty() && attributes.definition.plural == "namespaces"
}

/// The kind in which the rules want to see the object, if they are about the write.
pub(crate) fn matches(resources: Option<&MatchResources>, facts: &Facts<'_>) -> Result<Option<Definition>, Unclear> {
    let Some(resources) = resources else { return Ok(None) };
    // A selector that cannot be read matters only when everything else matches.
    let namespace = in_namespace(resources.namespace_selector.as_ref(), facts);
    let object = has_labels(resources.object_selector.as_ref(), facts);
    if namespace == Ok(false) || object == Ok(false) {
        return Ok(None);
    }
    let exact = resources.match_policy.as_deref() == Some("Exact");
    let excluded = resources.exclude_resource_rules.as_deref().unwrap_or_default();
    if by_rules(excluded, exact, facts).is_some() {
        return Ok(None);
    }
    let rules = resources.resource_rules.as_deref().unwrap_or_default();
    let found = if rules.is_empty() { Some(facts.attributes.definition) } else { by_rules(rules, exact, facts) };
    let Some(found) = found else { return Ok(None) };
    namespace?;
    object?;
    Ok(Some(found.clone()))
}

fn in_namespace(selector: Option<&LabelSelector>, facts: &Facts<'_>) -> Result<bool, Unclear> {
    if facts.attributes.namespace.is_empty() && !is_namespace(facts.attributes) {
        return Ok(true);
    }
    let selector = read(selector)?;
    if selector.is_everything() {
        return Ok(true);
    }
    match namespace_labels(facts) {
        Some(namespace) => Ok(selector.matches(&meta::labels(namespace))),
        None => Err(Unclear::NoNamespace(facts.attributes.namespace.to_owned())),
    }
}

/// The namespace that a write is in, or the Namespace that is written.
fn namespace_labels<'f>(facts: &Facts<'f>) -> Option<&'f Value> {
    let attributes = facts.attributes;
    if !is_namespace(attributes) {
        return facts.namespace;
    }
    match attributes.operation {
        Operation::Create | Operation::Update if attributes.subresource.is_empty() => attributes.object.as_ref(),
        _ => attributes.old,
    }
}

/// The options of a connection have no labels: no selector but an empty one takes them.
fn has_labels(selector: Option<&LabelSelector>, facts: &Facts<'_>) -> Result<bool, Unclear> {
    let selector = read(selector)?;
    if selector.is_everything() || facts.attributes.operation == Operation::Connect {
        return Ok(selector.is_everything());
    }
    let objects = [facts.attributes.object.as_ref(), facts.attributes.old];
    Ok(objects.into_iter().flatten().any(|object| selector.matches(&meta::labels(object))))
}

/// An absent selector takes everything here.
fn read(selector: Option<&LabelSelector>) -> Result<Selector, Unclear> {
    let everything = LabelSelector::default();
    Selector::of_object(Some(selector.unwrap_or(&everything))).map_err(|e| Unclear::Selector(e.to_string()))
}

fn by_rules<'f>(rules: &[NamedRuleWithOperations], exact: bool, facts: &Facts<'f>) -> Option<&'f Definition> {
    let name = facts.attributes.name;
    let named = |rule: &NamedRuleWithOperations| {
        let names = rule.resource_names.as_deref().unwrap_or_default();
        names.is_empty() || names.iter().any(|n| n == name)
    };
    let own = facts.attributes.definition;
    if rules.iter().any(|rule| applies(rule, own, facts.attributes) && named(rule)) {
        return Some(own);
    }
    if exact {
        return None;
    }
    let others = || facts.equivalents.iter().map(|e| &**e);
    rules.iter().find_map(|rule| others().find(|other| applies(rule, other, facts.attributes) && named(rule)))
}

fn applies(rule: &NamedRuleWithOperations, definition: &Definition, attributes: &Attributes<'_>) -> bool {
    let cluster = is_namespace(attributes) || attributes.namespace.is_empty();
    let scope = match rule.scope.as_deref() {
        None | Some("*") => true,
        Some("Cluster") => cluster,
        Some("Namespaced") => !cluster,
        Some(_) => false,
    };
    let has = |words: Option<&[String]>, wanted: &str| {
        words.unwrap_or_default().iter().any(|word| word == "*" || word == wanted)
    };
    scope
        && has(rule.operations.as_deref(), attributes.operation.name())
        && has(rule.api_groups.as_deref(), &definition.group)
        && has(rule.api_versions.as_deref(), &definition.version)
        && rule.resources.iter().flatten().any(|text| {
            let (resource, subresource) = text.split_once('/').unwrap_or((text, ""));
            let fits = |pattern: &str, wanted: &str| pattern == "*" || pattern == wanted;
            fits(resource, &definition.plural) && fits(subresource, attributes.subresource)
        })
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;
    use crate::{
        audit::{Trail, policy::Level},
        auth::User,
        tests::admission,
    };

    fn definition(group: &str, version: &str) -> Definition {
        Definition { version: version.into(), ..admission::definition(group, "deployments") }
    }

    /// The group and version in which a create of `apps/v1` Deployments is seen, which are those of three other versions, too.
    fn seen(resources: Value, subresource: &str) -> Result<String, String> {
        let resources: MatchResources = json::from_value(resources).expect("resources");
        let (own, trail, user) = (definition("apps", "v1"), Trail::for_tests(Level::Metadata), User::new("u", ["g"]));
        let others = [("extensions", "v1beta1"), ("apps", "v1beta1"), ("apps", "v1alpha1")];
        let equivalents = others.map(|(group, version)| Arc::new(definition(group, version)));
        let attributes = Attributes {
            definition: &own,
            operation: Operation::Create,
            subresource,
            namespace: "ns",
            name: "name",
            user: &user,
            dry_run: false,
            object: Some(json!({"metadata": {"name": "name", "labels": {"a": "b"}}})),
            old: None,
            options: Value::Null,
            warnings: Vec::new(),
            trail: &trail,
            charged: false,
            reinvocation: Default::default(),
            collection: false,
        };
        let namespace = json!({"metadata": {"name": "ns"}});
        let facts = Facts { attributes: &attributes, namespace: Some(&namespace), equivalents: &equivalents };
        let found = matches(Some(&resources), &facts).map_err(|why| why.to_string())?;
        Ok(found.map(|found| format!("{}/{}", found.group, found.version)).unwrap_or_default())
    }

    fn rules(rules: &[(&str, &str)], names: &[&str]) -> Value {
        let rule = |(group, version): &(&str, &str)| {
            json!({"operations": ["*"], "apiGroups": [group], "apiVersions": [version], "scope": "*",
                "resources": ["deployments", "deployments/scale"], "resourceNames": names})
        };
        rules.iter().map(rule).collect()
    }

    /// Upstream counterpart: the tests of policy/matching and of webhook/generic.
    #[test]
    fn the_first_rule_of_the_own_version_counts_and_then_the_first_of_another() {
        let check = |policy: &str, given: Value, expected: &str| {
            for subresource in ["", "scale"] {
                let resources = json!({"matchPolicy": policy, "resourceRules": given.clone()});
                assert_eq!(seen(resources, subresource), Ok(expected.to_owned()), "{policy} {given} {subresource}");
            }
        };
        let (extensions, apps, own) = (("extensions", "v1beta1"), ("apps", "v1beta1"), ("apps", "v1"));
        let all = &["name"][..];
        check("Exact", rules(&[("*", "*")], &[]), "apps/v1");
        for policy in ["Exact", "Equivalent"] {
            check(policy, rules(&[extensions, apps, own], &[]), "apps/v1");
            check(policy, rules(&[extensions, apps, own], all), "apps/v1");
            check(policy, json!([]), "apps/v1");
            check(policy, rules(&[("other", "v1")], &[]), "");
        }
        check("Exact", rules(&[extensions, apps], &[]), "");
        check("Equivalent", rules(&[extensions, apps], &[]), "extensions/v1beta1");
        check("Equivalent", rules(&[apps, extensions], &[]), "apps/v1beta1");
        check("Equivalent", rules(&[extensions, apps], all), "extensions/v1beta1");
        check("Equivalent", rules(&[extensions, apps], &["wrong-name"]), "");
        check("Equivalent", rules(&[own], &["wrong-name"]), "");
    }

    #[test]
    fn what_is_excluded_is_so_in_all_versions() {
        let excluding = |policy: &str, excluded: (&str, &str)| {
            let resources = json!({"matchPolicy": policy, "resourceRules": rules(&[("*", "*")], &[]),
                "excludeResourceRules": rules(&[excluded], &[])});
            seen(resources, "")
        };
        assert_eq!(excluding("Equivalent", ("extensions", "v1beta1")), Ok(String::new()));
        assert_eq!(excluding("Exact", ("extensions", "v1beta1")), Ok("apps/v1".to_owned()));
        assert_eq!(excluding("Exact", ("apps", "v1")), Ok(String::new()));
    }

    #[test]
    fn selectors_that_cannot_be_read_matter_where_everything_else_matches() {
        let bad = json!({"matchExpressions": [{"key": "key", "operator": "Near", "values": ["a"]}]});
        for field in ["namespaceSelector", "objectSelector"] {
            let with = |group: &str| {
                let mut resources = json!({"resourceRules": rules(&[(group, "*")], &[])});
                resources[field] = bad.clone();
                seen(resources, "")
            };
            assert_eq!(with("other"), Ok(String::new()), "{field}");
            assert!(
                with("apps").is_err_and(|why| why.contains("\"Near\" is not a valid label selector operator")),
                "{field}"
            );
        }
    }
}
