//! Where webhooks are, and which forms of questions they know: as every kind says it that names some.
//! Upstream counterpart: apiserver/pkg/util/webhook/validation.go.

use super::field::{Errors, FieldError, Path};
use super::names::{dns1035_label, dns1123_subdomain, port_number};
use super::url::Url;

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
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    if service.namespace.is_empty() {
        errors.push(FieldError::required(&path.child("namespace"), ""));
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
    let url = match Url::parse(given) {
        Ok(url) => url,
        Err(why) => {
            let detail = format!("url must be a valid URL: {why}{FORM}");
            return vec![FieldError::required(path, &detail)];
        }
    };
    let mut errors = Errors::new();
    let mut wrong = |value: &str, detail: &str| errors.push(FieldError::invalid(path, value, detail));
    if url.scheme != "https" {
        wrong(&url.scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        wrong(url.host, &format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        wrong(user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        wrong(url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        wrong(url.query, "query parameters are not permitted in the URL");
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
    let (mut errors, mut letters) = (Errors::new(), given.chars());
    if letters.next() != Some('/') {
        errors.push(wrong("must start with a '/'"));
    }
    // The first letter is taken for the slash in any case.
    let segments = letters.as_str();
    for (i, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        match segment {
            "" => errors.push(wrong(&format!("segment[{i}] may not be empty"))),
            name => errors.extend(dns1123_subdomain(name).iter().map(|why| wrong(&format!("segment[{i}]: {why}")))),
        }
    }
    errors
}

/// The versions of questions that a webhook knows, best first: at least one of them is `known` here, unless none has to be.
/// `missing` is what is said when there is none at all.
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
    if !known.is_empty() && !versions.iter().any(|version| known.contains(&&**version)) {
        let detail = format!("must include at least one of {}", known.join(", "));
        errors.push(FieldError::invalid(path, versions, &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::field::quote;

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
        check("ab/c", &["must start with a '/'"]);
        check("a/b", &["must start with a '/'", "segment[0] may not be empty"]);
        check("é", &["must start with a '/'", "segment[0] may not be empty"]);
        check("/a//b", &["segment[1] may not be empty"]);
        assert_eq!(url_path("/A", &Path::new("p")).len(), 1);
    }

    #[test]
    fn urls_are_told_apart_as_go_does() {
        let check = |given: &str, expected: &[&str]| {
            let found = client(Some(given), None, &Path::new("c"));
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            let expected: Vec<String> = expected.iter().map(|why| format!("c.url: {why}")).collect();
            assert_eq!(found, expected, "{given}");
        };
        const FORM: &str = "; desired format: https://host[/path]";
        let scheme =
            |given: &str| format!("Invalid value: {}: 'https' is the only allowed URL scheme{FORM}", quote(given));
        let host = format!("Invalid value: \"\": host must be specified{FORM}");
        for right in ["https://a", "HTTPS://a/b", "https://a:8443/b", "https://[::1]:443/", "https://a?", "https://a:"]
        {
            check(right, &[]);
        }
        check("http://a", &[&scheme("http")]);
        check("a", &[&scheme(""), &host]);
        check("//a/b", &[&scheme("")]);
        check("///a", &[&scheme(""), &host]);
        check("https:a", &[&host]);
        check("https:/a", &[&host]);
        check("https://@a", &["Invalid value: \"\": user information is not permitted in the URL"]);
        for (given, why) in [
            ("https://a:b", "invalid port \":b\" after host"),
            ("https://a b", "invalid character \" \" in host name"),
            ("a:b:c/d", ""),
            (":a", "missing protocol scheme"),
            ("1:2", "first path segment in URL cannot contain colon"),
            ("https://a\u{7f}", "net/url: invalid control character in URL"),
        ] {
            let found = client(Some(given), None, &Path::new("c"));
            let said = format!("c.url: Required value: url must be a valid URL: parse {}: {why}{FORM}", quote(given));
            assert_eq!(found.iter().any(|error| error.to_string() == said), !why.is_empty(), "{given} {found:?}");
        }
    }
}
