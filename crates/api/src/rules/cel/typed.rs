//! Checks a policy's expressions against the schemas of the kinds that it names. A warning is advice and changes nothing:
//! the policy is evaluated on untyped objects all the same.
//! Upstream counterpart: typechecking.go of the apiserver's policy/validating.

use std::collections::{BTreeMap, BTreeSet};

use cel::{Environment, Type, escaped};
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec,
};

use super::admission::{self, OptionalVariables, VARIABLES};
use crate::kind::{Definition, KindTable};
use crate::meta::group_and_version;
use crate::schema;

/// Kinds beyond these are not checked.
const MOST_KINDS: usize = 10;

/// A kind that is not built in.
#[derive(Debug, Clone)]
pub struct Custom {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub ty: schema::Type,
}

/// All kinds that a policy can name.
#[derive(Clone, Copy)]
pub struct Kinds<'k> {
    pub built_in: &'k KindTable,
    pub custom: &'k [Custom],
}

/// A kind that expressions are about.
struct Subject<'k> {
    group: &'k str,
    version: &'k str,
    kind: &'k str,
    ty: &'k schema::Type,
}

impl<'k> Subject<'k> {
    fn built_in(found: &'k Definition) -> Self {
        Subject { group: &found.group, version: &found.version, kind: &found.kind, ty: &found.ty }
    }

    fn custom(found: &'k Custom) -> Self {
        Subject { group: &found.group, version: &found.version, kind: &found.kind, ty: &found.ty }
    }

    /// `apps/v1, Kind=Deployment`
    fn shown(&self) -> String {
        format!("{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl<'k> Kinds<'k> {
    fn find(&self, group: &str, version: &str, plural: &str) -> Option<Subject<'k>> {
        let custom = |c: &&Custom| c.group == group && c.version == version && c.plural == plural;
        let built_in = self.built_in.find(group, version, plural).map(|found| Subject::built_in(found));
        built_in.or_else(|| self.custom.iter().find(custom).map(Subject::custom))
    }

    fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<Subject<'k>> {
        let custom = |c: &&Custom| c.group == group && c.version == version && c.kind == kind;
        let built_in = self.built_in.by_kind(group, version, kind).map(|found| Subject::built_in(found));
        built_in.or_else(|| self.custom.iter().find(custom).map(Subject::custom))
    }
}

/// The groups and versions that a policy names, for its objects or its params, and that have no built-in kinds.
pub fn unknown_versions(policy: &ValidatingAdmissionPolicy, built_in: &KindTable) -> BTreeSet<(String, String)> {
    let Some(spec) = &policy.spec else { return BTreeSet::new() };
    let mut named = BTreeSet::new();
    for rule in spec.match_constraints.iter().flat_map(|c| c.resource_rules.iter().flatten()) {
        let (groups, versions) = versions_of(rule);
        named.extend(groups.iter().flat_map(|group| versions.iter().map(|version| (group.clone(), version.clone()))));
    }
    if let Some(params) = spec.param_kind.as_ref().and_then(|kind| kind.api_version.as_deref()) {
        let (group, version) = group_and_version(params);
        named.insert((group.to_owned(), version.to_owned()));
    }
    named.retain(|(group, version)| !built_in.serves(group, version));
    named.into_iter().take(MOST_KINDS).collect()
}

/// The warnings about a policy's validations and their messages.
pub fn check(policy: &ValidatingAdmissionPolicy, kinds: Kinds<'_>) -> Vec<ExpressionWarning> {
    let Some(spec) = &policy.spec else { return Vec::new() };
    let environments: Vec<(String, Environment)> =
        kinds_of(spec, kinds).into_iter().map(|kind| (kind.shown(), environment(spec, &kind, kinds))).collect();
    let mut warnings = Vec::new();
    let mut warn = |expression: &str, field: String| {
        let wrong = |(kind, environment): &(String, Environment)| {
            let error = environment.compile_any(expression).err()?;
            Some(format!("{kind}: {error}\n"))
        };
        let found: Vec<String> = environments.iter().filter_map(wrong).collect();
        if !found.is_empty() {
            warnings.push(ExpressionWarning { field_ref: field, warning: found.join("\n") });
        }
    };
    for (i, validation) in spec.validations.iter().flatten().enumerate() {
        warn(&validation.expression, format!("spec.validations[{i}].expression"));
        if let Some(message) = validation.message_expression.as_deref().filter(|m| !m.is_empty()) {
            warn(message, format!("spec.validations[{i}].messageExpression"));
        }
    }
    warnings
}

/// The kinds that the rules name without wildcards, sorted.
fn kinds_of<'k>(spec: &ValidatingAdmissionPolicySpec, kinds: Kinds<'k>) -> Vec<Subject<'k>> {
    let rules = spec.match_constraints.iter().flat_map(|c| c.resource_rules.iter().flatten());
    let mut found: BTreeMap<(&str, &str, &str), Subject<'_>> = BTreeMap::new();
    for subject in rules.flat_map(|rule| kinds_of_rule(rule, kinds)) {
        if found.len() < MOST_KINDS {
            found.insert((subject.group, subject.version, subject.kind), subject);
        }
    }
    found.into_values().collect()
}

/// The sorted words of a list.
fn words(list: &Option<Vec<String>>) -> Vec<String> {
    let sorted: BTreeSet<String> = list.iter().flatten().cloned().collect();
    sorted.into_iter().collect()
}

/// The groups and the versions of a rule that names them without wildcards; otherwise none.
fn versions_of(rule: &NamedRuleWithOperations) -> (Vec<String>, Vec<String>) {
    let (groups, versions) = (words(&rule.api_groups), words(&rule.api_versions));
    let wild = |list: &[String]| list.iter().any(|word| word.contains('*'));
    if wild(&groups) || wild(&versions) { (Vec::new(), Vec::new()) } else { (groups, versions) }
}

fn kinds_of_rule<'k>(rule: &NamedRuleWithOperations, kinds: Kinds<'k>) -> Vec<Subject<'k>> {
    let (groups, versions) = versions_of(rule);
    let resources: Vec<String> = words(&rule.resources).into_iter().filter(|r| !r.contains(['*', '/'])).collect();
    let mut found = Vec::new();
    for group in &groups {
        for version in &versions {
            found.extend(resources.iter().filter_map(|resource| kinds.find(group, version, resource)));
            if found.len() >= MOST_KINDS {
                break;
            }
        }
    }
    found
}

/// The environment of a policy about objects of one kind.
fn environment(spec: &ValidatingAdmissionPolicySpec, kind: &Subject<'_>, kinds: Kinds<'_>) -> Environment {
    let mut types = Types::default();
    let object = types.of(kind.ty);
    let params = spec.param_kind.as_ref().map(|wanted| {
        let (version, name) = (wanted.api_version.as_deref().unwrap_or_default(), wanted.kind.as_deref());
        let (group, version) = group_and_version(version);
        let found = kinds.by_kind(group, version, name.unwrap_or_default());
        found.map_or(Type::Dyn, |found| types.of(found.ty))
    });
    // The variables of the untyped environment come first, so those of these names are replaced.
    let mut builder = admission::environment(OptionalVariables { params: params.is_some(), authorizer: true }).extend();
    for (name, fields) in types.found {
        builder = builder.object(&name, fields);
    }
    builder = builder.retype("object", object.clone()).retype("oldObject", object);
    if let Some(params) = params {
        builder = builder.retype("params", params);
    }
    let mut environment = builder.build();
    for variable in spec.variables.iter().flatten() {
        let kind = environment.compile_any(&variable.expression).map_or(Type::Dyn, |p| p.result_type().clone());
        environment.compose(VARIABLES, &variable.name, kind);
    }
    environment
}

/// The object types that a schema reaches.
#[derive(Default)]
struct Types {
    found: BTreeMap<String, Vec<(String, Type)>>,
}

impl Types {
    fn of(&mut self, ty: &schema::Type) -> Type {
        match ty.resolve() {
            schema::Type::String | schema::Type::Quantity | schema::Type::Scalar => Type::String,
            schema::Type::Int32 | schema::Type::Int64 => Type::Int,
            schema::Type::Number => Type::Double,
            schema::Type::Bool => Type::Bool,
            schema::Type::Bytes => Type::Bytes,
            schema::Type::Time | schema::Type::MicroTime => Type::Timestamp,
            schema::Type::IntOrString
            | schema::Type::Any
            | schema::Type::Raw
            | schema::Type::Ref(_)
            | schema::Type::Later(_) => Type::Dyn,
            schema::Type::Map(map) => Type::map(Type::String, self.of(&map.values)),
            schema::Type::List(list) => Type::list(self.of(&list.items)),
            schema::Type::Object(object) => self.object(object),
        }
    }

    /// Types may refer to themselves, so a type is known before its fields are.
    fn object(&mut self, object: &schema::Object) -> Type {
        let name = format!("object.{}", object.name);
        if !self.found.contains_key(&name) {
            self.found.insert(name.clone(), Vec::new());
            let fields = object.fields.iter().filter_map(|field| Some((escaped(&field.name)?, self.of(&field.ty))));
            let fields = fields.collect();
            self.found.insert(name.clone(), fields);
        }
        Type::object(&name)
    }
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;
    use crate::kinds::built_in;

    fn warnings(spec: Value) -> Vec<(String, String)> {
        let policy = json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a policy");
        check(&policy, Kinds { built_in: built_in(), custom: &[] })
            .into_iter()
            .map(|w| (w.field_ref, w.warning))
            .collect()
    }

    fn about(resources: &[&str], fields: Value) -> Vec<(String, String)> {
        let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": resources});
        let mut spec = json!({"matchConstraints": {"resourceRules": [rule]}});
        for (name, value) in fields.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        warnings(spec)
    }

    #[test]
    fn expressions_are_checked_against_schemas() {
        let check = |resources: &[&str], expression: &str, expected: &[&str]| {
            let found = about(resources, json!({"validations": [{"expression": expression}]}));
            let joined = expected.join("\n");
            let wanted: Vec<_> = (!expected.is_empty())
                .then(|| ("spec.validations[0].expression".to_owned(), joined))
                .into_iter()
                .collect();
            assert_eq!(found, wanted, "{expression}");
        };
        check(&["deployments"], "object.spec.replicas < 5 && oldObject.metadata.labels['a'] == 'b'", &[]);
        check(&["deployments"], "object.spec.template.spec.containers.all(c, c.image.startsWith('a'))", &[]);
        check(&["deployments"], "object.metadata.creationTimestamp < timestamp('2030-01-01T00:00:00Z')", &[]);
        check(&["deployments"], "object.metadata.__namespace__ == request.namespace", &[]);
        check(&["deployments"], "object.spec.strategy.rollingUpdate.maxSurge == 1", &[]);
        let wrong = "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'size'\n | object.spec.size == 1\n | \
                     ...........^\n";
        check(&["deployments"], "object.spec.size == 1", &[wrong]);
        check(
            &["statefulsets", "deployments"],
            "object.spec.serviceName == ''",
            &[
                "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'serviceName'\n | object.spec.serviceName == \
             ''\n | ...........^\n",
            ],
        );
        check(&["*"], "object.spec.size == 1", &[]);
        check(&["deployments/scale"], "object.spec.size == 1", &[]);
        check(&["nothings"], "object.spec.size == 1", &[]);
        let mismatch = about(
            &["deployments"],
            json!({"validations": [{"expression": "true",
            "messageExpression": "object.spec.replicas + 'a'"}]}),
        );
        assert_eq!(mismatch[0].0, "spec.validations[0].messageExpression");
        assert!(
            mismatch[0].1.contains("found no matching overload for '_+_' applied to '(int, string)'"),
            "{mismatch:?}"
        );
    }

    #[test]
    fn params_and_variables_have_types() {
        let with = |expression: &str| {
            about(
                &["deployments"],
                json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                "variables": [{"name": "wanted", "expression": "object.spec.replicas"}],
                "validations": [{"expression": expression}]}),
            )
        };
        assert_eq!(with("variables.wanted < int(params.data['most'])"), []);
        assert!(with("variables.wanted == 'a'")[0].1.contains("found no matching overload"));
        assert!(with("params.spec == 1")[0].1.contains("undefined field 'spec'"));
    }

    /// Upstream's TestExtractTypeNames.
    #[test]
    fn kinds_are_those_that_are_named_without_wildcards() {
        let check = |rules: &[(&str, &str, &str)], expected: &[&str]| {
            let rules: Vec<Value> = rules
                .iter()
                .map(|(group, version, resource)| {
                    json!({"apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": ["*"]})
                })
                .collect();
            let spec = json!({"matchConstraints": {"resourceRules": rules}});
            let spec = json::from_value(spec).expect("a spec");
            let found = kinds_of(&spec, Kinds { built_in: built_in(), custom: &[] });
            assert_eq!(found.iter().map(Subject::shown).collect::<Vec<_>>(), expected);
        };
        check(&[], &[]);
        let deployment = "apps/v1, Kind=Deployment";
        check(&[("apps", "v1", "deployments")], &[deployment]);
        check(&[("apps", "v1", "deployments"), ("", "v1", "pods")], &["/v1, Kind=Pod", deployment]);
        check(&[("apps", "v1", "*")], &[]);
        check(&[("apps", "v1", "pods/*")], &[]);
        check(&[("apps", "v1", "deployments"), ("apps", "*", "deployments")], &[deployment]);
    }

    /// Upstream's TestTypeCheck.
    #[test]
    fn warnings_are_about_the_expression_that_is_wrong() {
        let check = |fields: Value, expected: &[(&str, &str)]| {
            let found = about(&["deployments"], fields.clone());
            assert_eq!(found.len(), expected.len(), "{fields} {found:?}");
            for ((field, warning), (wanted, contained)) in found.iter().zip(expected) {
                assert!(field == wanted && warning.contains(contained), "{fields} {found:?}");
            }
        };
        let first = "spec.validations[0].expression";
        let says = |texts: &[&str]| {
            let all: Vec<Value> = texts.iter().map(|text| json!({ "expression": text })).collect();
            json!({ "validations": all })
        };
        assert_eq!(warnings(json!({})), []);
        let (right, wrong) = ("object.metadata.name == 'bar'", "object.foo == 'bar'");
        check(says(&[right]), &[]);
        check(says(&[wrong]), &[(first, "undefined field 'foo'")]);
        check(says(&["object.spec.replicas == 'bar'"]), &[(first, "found no matching overload")]);
        let mut params = says(&["object.metadata.name == params.bar"]);
        params["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        check(params.clone(), &[(first, "undefined field 'bar'")]);
        params["paramKind"]["kind"] = json!("DoesNotMatter");
        check(params, &[]);
        check(says(&[right, wrong]), &[("spec.validations[1].expression", "undefined field 'foo'")]);
        let message =
            json!({"validations": [{"expression": right, "messageExpression": "object.metadata.name + 114514"}]});
        check(message, &[("spec.validations[0].messageExpression", "found no matching overload")]);
        check(says(&["authorizer.group('').resource('endpoints').check('create').allowed()"]), &[]);
        let nobody = "found no matching overload for 'allowed' applied to 'kubernetes.authorization.Authorizer";
        check(says(&["authorizer.allowed()"]), &[(first, nobody)]);
        let with = |variable: &str, text: &str| {
            let mut fields = says(&[text]);
            fields["variables"] = json!([{"name": "name", "expression": variable}]);
            fields
        };
        check(with("object.spec.replicas", "variables.name == object.spec.replicas"), &[]);
        check(with("true", "variables.nonExisting"), &[(first, "undefined field 'nonExisting'")]);
        let mismatch = "found no matching overload for '_==_' applied to '(string, int)";
        check(with("'something'", "variables.name == object.spec.replicas"), &[(first, mismatch)]);
        // The fault of a variable is said where it is written.
        check(with("object.spec.replicas == 'str'", "variables.name == object.spec.replicas"), &[]);
    }
}
