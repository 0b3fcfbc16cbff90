//! The kind and version that a body says it is of, and what they have to do with those of the path.

use json::Value;

use super::{Gvk, unreadable};
use crate::{
    codec::{bounds, problem::Problem},
    meta,
    schema::{self, Type},
    status::StatusError,
    validation::field::{FieldError, Path},
};

/// The name of the scheme that has upstream's built-in kinds: the line that makes it.
pub const LEGACY_SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// The names of the schemes of groups that upstream serves from servers of their own, which know these groups alone.
const OWN_SCHEMES: [(&str, &str); 2] = [
    ("apiextensions.k8s.io", "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55"),
    ("apiregistration.k8s.io", "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28"),
];

/// The name of the scheme that a group is served from, if it is not the one of all others.
fn own_scheme(group: &str) -> Option<&'static str> {
    OWN_SCHEMES.iter().find(|(own, _)| *own == group).map(|(_, scheme)| *scheme)
}

/// A scheme's words for a kind that it does not know.
pub fn not_registered(kind: &str, version: &str, scheme: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}")
}

/// Whether a text cannot be a group and a version.
pub(super) fn is_no_version(text: &str) -> bool {
    text.matches('/').count() > 1
}

pub(super) fn no_version(text: &str) -> String {
    format!("unexpected GroupVersion string: {text}")
}

/// A custom resource says itself of which version and kind it is.
pub(super) fn custom(value: Value, gvk: Gvk<'_>, bytes: &[u8]) -> Result<Value, StatusError> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind").is_empty() {
        let text = String::from_utf8_lossy(bytes);
        let why = format!("Object 'Kind' is missing in '{}'", bounds::cut(&text, bounds::SHOWN_MAX));
        return Err(unreadable(Problem::Syntax(why), gvk, bytes));
    }
    let (found, wanted) = (text("apiVersion"), gvk.api_version());
    if found != wanted {
        return Err(other_version(found, &wanted));
    }
    custom_kind(&value, gvk)?;
    Ok(value)
}

/// That a custom resource is still of its version and kind, as a patch leaves it.
pub fn custom_kind(value: &Value, gvk: Gvk<'_>) -> Result<(), StatusError> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let version = gvk.api_version();
    let wrong =
        [("kind", gvk.kind), ("apiVersion", &version)].into_iter().filter(|(field, wanted)| text(field) != *wanted);
    let errors: Vec<FieldError> = wrong
        .map(|(field, wanted)| FieldError::invalid(&Path::new(field), text(field), &format!("must be {wanted}")))
        .collect();
    match errors.as_slice() {
        [] => Ok(()),
        errors => Err(StatusError::invalid(gvk.group, text("kind"), meta::name(value), errors)),
    }
}

fn other_version(found: &str, wanted: &str) -> StatusError {
    StatusError::bad_request(format!(
        "the API version in the data ({found}) does not match the expected API version ({wanted})"
    ))
}

/// Fills in `apiVersion` and `kind`, or refuses what the path does not stand for.
pub(super) fn built_in(mut value: Value, gvk: Gvk<'_>, bytes: &[u8]) -> Result<Value, StatusError> {
    let Value::Object(map) = &mut value else { return Ok(value) };
    let wanted = gvk.api_version();
    for (field, wanted) in [("apiVersion", &*wanted), ("kind", gvk.kind)] {
        match map.get(field).and_then(Value::as_str).unwrap_or_default() {
            "" => drop(map.insert(field, wanted.into())),
            said if said == wanted => {}
            _ => return Err(other(&value, gvk, bytes)),
        }
    }
    Ok(value)
}

/// The error about a body that is of something else. Upstream reads it as what it says it is, converts it to what is wanted, and
/// compares the versions when both went well.
fn other(value: &Value, gvk: Gvk<'_>, bytes: &[u8]) -> StatusError {
    let wanted = gvk.api_version();
    let text = |field: &str| value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (found, kind) = (text("apiVersion").unwrap_or(&wanted), text("kind").unwrap_or(gvk.kind));
    if is_no_version(found) {
        return unreadable(Problem::Syntax(no_version(found)), gvk, bytes);
    }
    let (group, version) = found.split_once('/').unwrap_or(("", found));
    let said = Gvk { group, version, kind };
    let package = gvk.internal_package();
    let own = own_scheme(gvk.group);
    let known = is_registered(said) && (own.is_none() || group == gvk.group || is_of_all_schemes(said));
    // Upstream goes on reading versions that it serves no more.
    let gone = if own.is_some() { version == "v1beta1" } else { version.contains("alpha") || version.contains("beta") };
    let is_version_of_it = kind == gvk.kind && said.internal_package() == package;
    if is_version_of_it && (known || gone) {
        return other_version(found, &wanted);
    }
    let why = if known {
        format!("converting ({version}.{kind}) to ({package}.{}): unknown conversion", gvk.kind)
    } else {
        not_registered(kind, found, own.unwrap_or(LEGACY_SCHEME))
    };
    StatusError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {why}", gvk.kind))
}

/// Whether upstream's scheme has the kind.
fn is_registered(Gvk { group, version, kind }: Gvk<'_>) -> bool {
    if (group, version, kind) == ("", "v1", "List") {
        return true;
    }
    let built_in = !group.contains('.') || group.ends_with(".k8s.io");
    let says_what_it_is = |ty: &Type| ty.field("kind").is_some() && ty.field("apiVersion").is_some();
    built_in && says_what_it_is(&schema::of_kind(group, version, kind))
}

/// Whether a kind is one of those about the API itself, such as `Status` and `DeleteOptions`, which each scheme has.
fn is_of_all_schemes(Gvk { group, version, kind }: Gvk<'_>) -> bool {
    let ty = schema::of_kind(group, version, kind);
    group.is_empty()
        && ty.object().is_some_and(|object| object.name.starts_with("io.k8s.apimachinery.pkg.apis.meta.v1."))
}

#[cfg(test)]
mod tests {
    use json::json;

    use super::*;

    #[test]
    fn a_body_of_another_kind_is_refused_as_upstreams_scheme_refuses_it() {
        const MAP: Gvk<'_> = Gvk { group: "", version: "v1", kind: "ConfigMap" };
        const BUDGET: Gvk<'_> = Gvk { group: "policy", version: "v1", kind: "PodDisruptionBudget" };
        let check = |gvk: Gvk<'_>, version: &str, kind: &str, expected: &str| {
            let value = json!({"apiVersion": version, "kind": kind});
            let refused = built_in(value, gvk, b"{}").expect_err("it is something else");
            assert_eq!((refused.code, &*refused.message), (400, expected), "{version} {kind}");
        };
        let none = |kind: &str, short: &str, version: &str| {
            format!(
                "{kind} in version {short:?} cannot be handled as a ConfigMap: no kind {kind:?} is registered for version \
                 {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
            )
        };
        let unknown = |kind: &str| {
            format!(
                "{kind} in version \"v1\" cannot be handled as a ConfigMap: converting (v1.{kind}) to (core.ConfigMap): unknown \
                 conversion"
            )
        };
        for (version, kind, expected) in [
            ("v1", "Foo", none("Foo", "v1", "v1")),
            ("foo/v1", "ConfigMap", none("ConfigMap", "v1", "foo/v1")),
            ("foo/v1", "", none("ConfigMap", "v1", "foo/v1")),
            ("v1", "PodSpec", none("PodSpec", "v1", "v1")),
            ("v2", "ConfigMap", none("ConfigMap", "v2", "v2")),
            ("apps.example.com/v1", "Deployment", none("Deployment", "v1", "apps.example.com/v1")),
            ("apps/v1", "Deployment", unknown("Deployment")),
            ("v1", "Pod", unknown("Pod")),
            ("", "Pod", unknown("Pod")),
            ("v1", "ConfigMapList", unknown("ConfigMapList")),
            ("v1", "List", unknown("List")),
            (
                "a/b/c",
                "ConfigMap",
                "the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a/b/c ({})"
                    .to_owned(),
            ),
        ] {
            check(MAP, version, kind, &expected);
        }
        let mismatch =
            "the API version in the data (policy/v1beta1) does not match the expected API version (policy/v1)";
        check(BUDGET, "policy/v1beta1", "PodDisruptionBudget", mismatch);
        let event = Gvk { group: "events.k8s.io", version: "v1", kind: "Event" };
        let mismatch = "the API version in the data (v1) does not match the expected API version (events.k8s.io/v1)";
        check(event, "v1", "Event", mismatch);
    }

    #[test]
    fn groups_with_servers_of_their_own_are_read_by_schemes_of_their_own() {
        let check = |gvk: Gvk<'_>, version: &str, kind: &str, expected: &str| {
            let refused =
                built_in(json!({"apiVersion": version, "kind": kind}), gvk, b"{}").expect_err("it is another");
            assert_eq!((refused.code, &*refused.message), (400, expected), "{version} {kind}");
        };
        let service = Gvk { group: "apiregistration.k8s.io", version: "v1", kind: "APIService" };
        let definition = Gvk { group: "apiextensions.k8s.io", version: "v1", kind: "CustomResourceDefinition" };
        for (gvk, scheme) in [
            (service, "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28"),
            (definition, "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55"),
        ] {
            let Gvk { group, kind: own, .. } = gvk;
            let none = |kind: &str, version: &str| {
                let short = version.split('/').next_back().unwrap();
                let why = not_registered(kind, version, scheme);
                format!("{kind} in version {short:?} cannot be handled as a {own}: {why}")
            };
            // The scheme of all others knows them.
            for (version, kind) in [("v1", "ConfigMap"), ("apps/v1", "Deployment"), ("v1", "List"), ("v1", "Foo")] {
                check(gvk, version, kind, &none(kind, version));
            }
            let alpha = format!("{group}/v1alpha1");
            check(gvk, &alpha, own, &none(own, &alpha));
            let old = format!(
                "the API version in the data ({group}/v1beta1) does not match the expected API version ({group}/v1)"
            );
            check(gvk, &format!("{group}/v1beta1"), own, &old);
            let package = group.split('.').next().unwrap();
            let unknown = format!(
                "Status in version \"v1\" cannot be handled as a {own}: converting (v1.Status) to ({package}.{own}): unknown conversion"
            );
            check(gvk, "v1", "Status", &unknown);
        }
    }

    #[test]
    fn what_a_body_leaves_out_is_filled_in() {
        let gvk = Gvk { group: "apps", version: "v1", kind: "Deployment" };
        for value in [json!({}), json!({"kind": "Deployment"}), json!({"apiVersion": "apps/v1", "kind": ""})] {
            let filled = built_in(value, gvk, b"").expect("it says nothing else");
            assert_eq!(filled, json!({"apiVersion": "apps/v1", "kind": "Deployment"}));
        }
    }
}
