//! Expressions about a request that writes: what they may name, and how they are compiled. Policies are checked with
//! this when they are written and evaluated with the same when requests come, so the two cannot disagree.

use std::sync::LazyLock;

use cel::{Environment, Program, Type};

use super::authorizer::{self, AUTHORIZER_TYPE, RESOURCE_CHECK_TYPE};

/// The variables that not all expressions of a policy have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalVariables {
    pub params: bool,
    pub authorizer: bool,
}

/// The name in front of a policy's own variables.
pub const VARIABLES: &str = "variables";
/// The name of the variable with the question about the request's own resource.
pub const REQUEST_RESOURCE: &str = "authorizer.requestResource";

static BASE: LazyLock<Environment> = LazyLock::new(base);

fn fields(fields: &[(&str, Type)]) -> Vec<(String, Type)> {
    fields.iter().map(|(name, kind)| ((*name).to_owned(), kind.clone())).collect()
}

fn base() -> Environment {
    let text = || Type::String;
    let texts = || Type::list(Type::String);
    let labels = || Type::map(Type::String, Type::String);
    let kind = fields(&[("group", text()), ("version", text()), ("kind", text())]);
    let resource = fields(&[("group", text()), ("version", text()), ("resource", text())]);
    let extra = Type::map(Type::String, texts());
    let user = fields(&[("username", text()), ("uid", text()), ("groups", texts()), ("extra", extra)]);
    let gvk = || Type::object("kubernetes.GroupVersionKind");
    let gvr = || Type::object("kubernetes.GroupVersionResource");
    let request = fields(&[
        ("kind", gvk()),
        ("resource", gvr()),
        ("subResource", text()),
        ("requestKind", gvk()),
        ("requestResource", gvr()),
        ("requestSubResource", text()),
        ("name", text()),
        ("namespace", text()),
        ("operation", text()),
        ("userInfo", Type::object("kubernetes.UserInfo")),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ]);
    let metadata = fields(&[
        ("name", text()),
        ("generateName", text()),
        ("namespace", text()),
        ("labels", labels()),
        ("annotations", labels()),
        ("UID", text()),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("resourceVersion", text()),
        ("finalizers", texts()),
    ]);
    let condition = fields(&[
        ("status", text()),
        ("type", text()),
        ("lastTransitionTime", Type::Timestamp),
        ("message", text()),
        ("reason", text()),
    ]);
    let conditions = Type::list(Type::object("kubernetes.NamespaceCondition"));
    let namespace = fields(&[
        ("metadata", Type::object("kubernetes.NamespaceMetadata")),
        ("spec", Type::object("kubernetes.NamespaceSpec")),
        ("status", Type::object("kubernetes.NamespaceStatus")),
    ]);
    super::environment()
        .library(&authorizer::LIBRARY)
        .object("kubernetes.GroupVersionKind", kind)
        .object("kubernetes.GroupVersionResource", resource)
        .object("kubernetes.UserInfo", user)
        .object("kubernetes.AdmissionRequest", request)
        .object("kubernetes.NamespaceMetadata", metadata)
        .object("kubernetes.NamespaceCondition", condition)
        .object("kubernetes.NamespaceSpec", fields(&[("finalizers", texts())]))
        .object("kubernetes.NamespaceStatus", fields(&[("conditions", conditions), ("phase", text())]))
        .object("kubernetes.Namespace", namespace)
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .variable("namespaceObject", Type::object("kubernetes.Namespace"))
        .variable("request", Type::object("kubernetes.AdmissionRequest"))
        .build()
}

/// The environment of a policy's expressions.
pub fn environment(optional: OptionalVariables) -> Environment {
    let mut builder = BASE.extend();
    if optional.params {
        builder = builder.variable("params", Type::Dyn);
    }
    if optional.authorizer {
        builder = builder
            .variable("authorizer", Type::Opaque(AUTHORIZER_TYPE))
            .variable(REQUEST_RESOURCE, Type::Opaque(RESOURCE_CHECK_TYPE));
    }
    builder.build()
}

/// Compiles an expression whose result is exactly of one of these types; any, if none is given. The error is what
/// upstream says behind the value of the field.
pub fn compile(environment: &Environment, expression: &str, results: &[Type]) -> Result<Program, String> {
    let program = environment.compile_any(expression).map_err(|error| super::why(&error))?;
    let found = program.result_type();
    if results.is_empty() || results.contains(found) {
        return Ok(program);
    }
    let found = type_name(found);
    Err(match results {
        [one] => format!("must evaluate to {} but got {found}", type_name(one)),
        many => {
            let names: Vec<String> = many.iter().map(type_name).collect();
            format!("must evaluate to one of [{}] but got {found}", names.join(" "))
        }
    })
}

/// The name of a type itself; in the errors of an expression `null` has another.
fn type_name(of: &Type) -> String {
    if *of == Type::Null { "null_type".to_owned() } else { of.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_name_what_they_are_offered() {
        let check = |optional: (bool, bool), text: &str, expected: &str| {
            let environment = environment(OptionalVariables { params: optional.0, authorizer: optional.1 });
            let found = compile(&environment, text, &[Type::Bool]).err().unwrap_or_default();
            assert!(if expected.is_empty() { found.is_empty() } else { found.contains(expected) }, "{text}: {found}");
        };
        let everything = (true, true);
        check(everything, "object.spec.replicas <= 5 && request.operation == 'CREATE'", "");
        check(everything, "has(request.userInfo.extra) && 'a' in namespaceObject.metadata.labels", "");
        check(everything, "params.max > 3 && authorizer.requestResource.check('approve').allowed()", "");
        check(everything, "authorizer.serviceAccount('a', 'b').path('/x').check('get').errored()", "");
        check(everything, "object.spec.paused", "must evaluate to bool but got dyn");
        check(everything, "'a'", "must evaluate to bool but got string");
        check(everything, "request.object == null", "undefined field 'object'");
        check(everything, "namespaceObject.spec.other == 1", "undefined field 'other'");
        check((false, true), "params.max > 3", "undeclared reference to 'params' (in container '')");
        check((true, false), "authorizer.group('')", "undeclared reference to 'authorizer' (in container '')");
    }
}
