//! Where webhooks are, and which forms of questions they know: as every kind says it that names some.
//! Upstream counterpart: apiserver/pkg/util/webhook/validation.go.

use super::field::{Errors, FieldError, Path};
use super::names::{dns1035_label, dns1123_subdomain, port_number};

/// A reference to a Service.
pub(crate) struct Service<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: Option<&'a str>,
    pub port: Option<i32>,
}

/// Where a webhook is: at a URL, or behind a Service.
pub(crate) fn client(given: Option<&str>, service: Option<Service<'_>>, path: &Path) -> Errors {
    let service = match (given, service) {
        (Some(given), None) => return url(given, &path.child("url")),
        (None, Some(service)) => service,
        _ => return vec![FieldError::required(path, "exactly one of url or service is required")],
    };
    let (mut errors, path) = (Errors::new(), path.child("service"));
    if service.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "service name is required"));
    }
    if service.namespace.is_empty() {
        errors.push(FieldError::required(&path.child("namespace"), "service namespace is required"));
    }
    let port = service.port.unwrap_or(443);
    for why in port_number(port) {
        errors.push(FieldError::invalid(&path.child("port"), port, &format!("port is not valid: {why}")));
    }
    errors.extend(service.path.into_iter().flat_map(|given| url_path(given, &path.child("path"))));
    errors
}

fn url(given: &str, path: &Path) -> Errors {
    const FORM: &str = "; desired format: https://host[/path]";
    let mut errors = Errors::new();
    let mut wrong = |value: &str, detail: &str| errors.push(FieldError::invalid(path, value, detail));
    let (scheme, rest) = given.split_once("://").unwrap_or(("", given));
    if scheme != "https" {
        wrong(scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        wrong(host, &format!("host must be specified{FORM}"));
    }
    for (part, detail) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            wrong(part, detail);
        }
    }
    errors
}

/// The path of a Service: segments that could be names of machines, as upstream has it.
fn url_path(given: &str, path: &Path) -> Errors {
    let wrong = |detail: &str| FieldError::invalid(path, given, detail);
    if matches!(given, "" | "/") {
        return Errors::new();
    }
    if given == "//" {
        return vec![wrong("segment[0] may not be empty")];
    }
    let Some(segments) = given.strip_prefix('/') else { return vec![wrong("must start with a '/'")] };
    let mut errors = Errors::new();
    for (i, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        match segment {
            "" => errors.push(wrong(&format!("segment[{i}] may not be empty"))),
            name => errors.extend(dns1123_subdomain(name).iter().map(|why| wrong(&format!("segment[{i}]: {why}")))),
        }
    }
    errors
}

/// The versions of questions that a webhook knows, best first: at least one of them is `known` here. `missing` is what is said
/// when there is none at all.
pub(crate) fn review_versions(versions: &[String], known: &[&str], missing: &str, path: &Path) -> Errors {
    if versions.is_empty() {
        return vec![FieldError::required(path, missing)];
    }
    let mut errors = Errors::new();
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(&path.index(i), version, "duplicate version"));
            continue;
        }
        errors.extend(dns1035_label(version).iter().map(|why| FieldError::invalid(&path.index(i), version, why)));
    }
    if !versions.iter().any(|version| known.contains(&&**version)) {
        let detail = format!("must include at least one of {}", known.join(", "));
        errors.push(FieldError::invalid(path, versions, &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_services_are_checked() {
        let check = |path: &str, expected: &[&str]| {
            let service = Service { namespace: "n", name: "s", path: Some(path), port: None };
            let found = client(None, Some(service), &Path::new("c"));
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            let expected: Vec<String> =
                expected.iter().map(|why| format!("c.service.path: Invalid value: {path:?}: {why}")).collect();
            assert_eq!(found, expected);
        };
        for right in ["", "/", "/a", "/a/b.c/", "/a-b"] {
            check(right, &[]);
        }
        check("//", &["segment[0] may not be empty"]);
        check("a", &["must start with a '/'"]);
        check("/a//b", &["segment[1] may not be empty"]);
        assert_eq!(url_path("/A", &Path::new("p")).len(), 1);
    }
}
