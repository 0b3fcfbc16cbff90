//! Validation of Ingresses. A value that older servers let pass stays valid in objects that have it already.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, Ingress, IngressBackend, IngressRule, IngressServiceBackend, IngressSpec, IngressTLS,
};

use super::CLASS_ANNOTATION;
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::names;
use crate::validation::object_meta::{invalid, invalid_at};

/// The parts that a path may not contain, and not end with: its meaning would depend on who reads it.
const AMBIGUOUS: &[&str] = &["//", "/./", "/../", "%2f", "%2F"];
const AMBIGUOUS_ENDS: &[&str] = &["/..", "/."];

/// The mistakes that an object that is there already may keep.
#[derive(Debug, Default)]
struct Leniency {
    /// Names of secrets that no secret can have.
    secret_names: bool,
    /// Wrong paths below hosts that begin with `*`.
    wildcard_rules: bool,
    /// Names of Services that begin with a digit.
    service_names: bool,
}

impl Leniency {
    fn towards(old: &Ingress) -> Self {
        let Some(spec) = &old.spec else { return Leniency::default() };
        let strict = Leniency::default();
        let here = Path::default();
        let secrets = spec.tls.iter().flatten().filter_map(|tls| tls.secret_name.as_deref());
        let wildcards = rules(spec).iter().filter(|rule| host(rule).contains('*'));
        let services = backends(spec).filter_map(|backend| backend.service.as_ref());
        Leniency {
            secret_names: secrets
                .filter(|name| !name.is_empty())
                .any(|name| !names::dns1123_subdomain(name).is_empty()),
            wildcard_rules: wildcards.flat_map(|rule| paths(rule, &here, &strict)).next().is_some(),
            service_names: services
                .map(|service| service.name.as_str())
                .any(|name| names::dns1123_label(name).is_empty() && !names::dns1035_label(name).is_empty()),
        }
    }
}

fn rules(spec: &IngressSpec) -> &[IngressRule] {
    spec.rules.as_deref().unwrap_or_default()
}

fn host(rule: &IngressRule) -> &str {
    rule.host.as_deref().unwrap_or_default()
}

fn backends(spec: &IngressSpec) -> impl Iterator<Item = &IngressBackend> {
    let paths = rules(spec).iter().filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths);
    spec.default_backend.iter().chain(paths.map(|path| &path.backend))
}

pub(super) fn create(ingress: &Ingress) -> Errors {
    let mut errors = whole(ingress, &Leniency::default());
    let annotation = ingress.metadata.annotations.as_ref().and_then(|a| a.get(CLASS_ANNOTATION));
    let class = ingress.spec.as_ref().and_then(|s| s.ingress_class_name.as_ref());
    if let (Some(annotation), Some(class)) = (annotation, class)
        && annotation != class
    {
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(FieldError::invalid(&Path::new("annotations").child(CLASS_ANNOTATION), annotation, detail));
    }
    errors
}

pub(super) fn update(new: &Ingress, old: &Ingress) -> Errors {
    whole(new, &Leniency::towards(old))
}

fn whole(ingress: &Ingress, lenient: &Leniency) -> Errors {
    let path = Path::new("spec");
    let none = IngressSpec::default();
    let spec = ingress.spec.as_ref().unwrap_or(&none);
    let mut errors = Errors::new();
    if rules(spec).is_empty() && spec.default_backend.is_none() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, rules(spec), detail));
    }
    if let Some(given) = &spec.default_backend {
        errors.extend(backend(given, &path.child("defaultBackend"), lenient));
    }
    for (i, rule) in rules(spec).iter().enumerate() {
        let path = path.child("rules").index(i);
        errors.extend(rule_host(host(rule), &path));
        if !(host(rule).contains('*') && lenient.wildcard_rules) {
            errors.extend(paths(rule, &path, lenient));
        }
    }
    for (i, given) in spec.tls.iter().flatten().enumerate() {
        errors.extend(tls(given, &path.child("tls").index(i), lenient));
    }
    if let Some(class) = &spec.ingress_class_name {
        errors.extend(invalid_at(&path, "ingressClassName", class, names::dns1123_subdomain(class)));
    }
    errors
}

fn name_of_host(host: &str) -> Vec<String> {
    if host.contains('*') { names::wildcard_subdomain(host) } else { names::dns1123_subdomain(host) }
}

fn rule_host(host: &str, path: &Path) -> Errors {
    if host.is_empty() {
        return Errors::new();
    }
    let mut errors = Errors::new();
    if ip::parse(host).is_some() {
        errors.push(FieldError::invalid(&path.child("host"), host, "must be a DNS name, not an IP address"));
    }
    errors.extend(invalid_at(path, "host", host, name_of_host(host)));
    errors
}

fn tls(tls: &IngressTLS, path: &Path, lenient: &Leniency) -> Errors {
    let mut errors = Errors::new();
    for (i, host) in tls.hosts.iter().flatten().enumerate() {
        errors.extend(invalid(&path.child("hosts").index(i), host, name_of_host(host)));
    }
    let secret = tls.secret_name.as_deref().unwrap_or_default();
    if !secret.is_empty() && !lenient.secret_names {
        errors.extend(invalid_at(path, "secretName", secret, names::dns1123_subdomain(secret)));
    }
    errors
}

fn paths(rule: &IngressRule, path: &Path, lenient: &Leniency) -> Errors {
    let Some(http) = &rule.http else { return Errors::new() };
    let path = path.child("http").child("paths");
    if http.paths.is_empty() {
        return vec![FieldError::required(&path, "")];
    }
    http.paths.iter().enumerate().flat_map(|(i, given)| http_path(given, &path.index(i), lenient)).collect()
}

fn http_path(given: &HTTPIngressPath, path: &Path, lenient: &Leniency) -> Errors {
    let (place, text) = (path.child("path"), given.path.as_deref().unwrap_or_default());
    let wrong = |detail: &str| FieldError::invalid(&place, text, detail);
    let mut errors = Errors::new();
    let literal = match given.path_type.as_str() {
        "" => return vec![FieldError::required(&path.child("pathType"), "pathType must be specified")],
        "Exact" | "Prefix" => true,
        "ImplementationSpecific" => false,
        other => {
            let known = &["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(FieldError::not_supported(&path.child("pathType"), other, known));
            errors.extend(backend(&given.backend, &path.child("backend"), lenient));
            return errors;
        }
    };
    if !text.starts_with('/') && (literal || !text.is_empty()) {
        errors.push(wrong("must be an absolute path"));
    }
    if literal {
        let inside = AMBIGUOUS.iter().filter(|part| text.contains(**part));
        errors.extend(inside.map(|part| wrong(&format!("must not contain '{part}'"))));
        let ends = AMBIGUOUS_ENDS.iter().filter(|end| text.ends_with(**end));
        errors.extend(ends.map(|end| wrong(&format!("cannot end with '{end}'"))));
    }
    errors.extend(backend(&given.backend, &path.child("backend"), lenient));
    errors
}

fn backend(backend: &IngressBackend, path: &Path, lenient: &Leniency) -> Errors {
    let wrong = |detail: &str| vec![FieldError::invalid(path, "", detail)];
    match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => wrong("cannot set both resource and service backends"),
        (None, None) => wrong("resource or service backend is required"),
        (Some(resource), None) => {
            reference(resource.api_group.as_deref(), &resource.kind, &resource.name, &path.child("resource"))
        }
        (None, Some(given)) => service(given, path, lenient),
    }
}

fn service(service: &IngressServiceBackend, path: &Path, lenient: &Leniency) -> Errors {
    let place = path.child("service");
    let mut errors = match service.name.as_str() {
        "" => vec![FieldError::required(&place.child("name"), "")],
        name if lenient.service_names => invalid_at(&place, "name", name, names::dns1123_label(name)),
        name => invalid_at(&place, "name", name, names::dns1035_label(name)),
    };
    let port = service.port.as_ref();
    let name = port.and_then(|p| p.name.as_deref()).unwrap_or_default();
    let number = port.and_then(|p| p.number).unwrap_or_default();
    let place = place.child("port");
    match (name, number) {
        ("", 0) => errors.push(FieldError::required(path, "port name or number is required")),
        ("", number) => {
            let wrong = names::port_number(number);
            errors.extend(wrong.iter().map(|wrong| FieldError::invalid(&place.child("number"), number, wrong)));
        }
        (name, 0) => errors.extend(invalid_at(&place, "name", name, names::port_name(name))),
        _ => errors.push(FieldError::invalid(path, "", "cannot set both port name & port number")),
    }
    errors
}

/// A reference to an object of any kind.
pub(super) fn reference(api_group: Option<&str>, kind: &str, name: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(group) = api_group {
        errors.extend(invalid_at(path, "apiGroup", group, names::dns1123_subdomain(group)));
    }
    for (field, text) in [("kind", kind), ("name", name)] {
        match text {
            "" => errors.push(FieldError::required(&path.child(field), "")),
            text => errors.extend(invalid_at(path, field, text, names::path_segment(text, false))),
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn ingress(spec: Value) -> Ingress {
        json::from_value(json!({"metadata": {"name": "i", "annotations": {CLASS_ANNOTATION: "c"}}, "spec": spec}))
            .unwrap()
    }

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let found: Vec<String> = create(&ingress(spec)).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    fn on(path_type: &str, path: &str, backend: Value) -> Value {
        json!({"rules": [{"http": {"paths": [{"pathType": path_type, "path": path, "backend": backend}]}}]})
    }

    #[test]
    fn backends_are_a_service_or_a_resource() {
        let ok = json!({"service": {"name": "s", "port": {"number": 80}}});
        check(json!({"defaultBackend": ok}), &[]);
        check(json!({"defaultBackend": {"service": {"name": "s", "port": {"name": "web"}}}}), &[]);
        check(json!({"defaultBackend": {"resource": {"apiGroup": "a.b", "kind": "K", "name": "n"}}}), &[]);
        check(json!({}), &["spec: Invalid value: []: either `defaultBackend` or `rules` must be specified"]);
        let place = "spec.defaultBackend";
        for (backend, expected) in [
            (json!({}), format!("{place}: Invalid value: \"\": resource or service backend is required")),
            (json!({"service": {"name": "s"}}), format!("{place}: Required value: port name or number is required")),
            (
                json!({"service": {"name": "s", "port": {"name": "a", "number": 1}}}),
                format!("{place}: Invalid value: \"\": cannot set both port name & port number"),
            ),
            (
                json!({"service": {"name": "1s", "port": {"number": 1}}}),
                format!("{place}.service.name: Invalid value: \"1s\": a DNS-1035 label"),
            ),
            (
                json!({"service": {"name": "s", "port": {"number": -1}}}),
                format!("{place}.service.port.number: Invalid value: -1: must be between 1 and 65535, inclusive"),
            ),
            (
                json!({"resource": {"kind": "a/b", "name": "n"}}),
                format!("{place}.resource.kind: Invalid value: \"a/b\": may not contain '/'"),
            ),
        ] {
            check(json!({"defaultBackend": backend}), &[&expected]);
        }
    }

    #[test]
    fn rules_have_hosts_and_paths_that_mean_one_thing() {
        let ok = json!({"service": {"name": "s", "port": {"number": 80}}});
        check(on("Prefix", "/a", ok.clone()), &[]);
        check(on("ImplementationSpecific", "", ok.clone()), &[]);
        let place = "spec.rules[0].http.paths[0]";
        for (path_type, path, expected) in [
            ("", "/", format!("{place}.pathType: Required value: pathType must be specified")),
            ("Regex", "/", format!("{place}.pathType: Unsupported value: \"Regex\"")),
            ("Exact", "", format!("{place}.path: Invalid value: \"\": must be an absolute path")),
            ("Prefix", "/a//b", format!("{place}.path: Invalid value: \"/a//b\": must not contain '//'")),
            ("Prefix", "/a/..", format!("{place}.path: Invalid value: \"/a/..\": cannot end with '/..'")),
            ("ImplementationSpecific", "a", format!("{place}.path: Invalid value: \"a\": must be an absolute path")),
        ] {
            check(on(path_type, path, ok.clone()), &[&expected]);
        }
        check(json!({"rules": [{"http": {"paths": []}}]}), &["spec.rules[0].http.paths: Required value"]);
        for (host, expected) in [
            ("a.b", &[][..]),
            ("*.a.b", &[]),
            ("10.0.0.1", &["spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address"]),
            (
                "a.*.b",
                &["spec.rules[0].host: Invalid value: \"a.*.b\": a wildcard DNS-1123 subdomain must start with '*.'"],
            ),
            ("A", &["spec.rules[0].host: Invalid value: \"A\": a lowercase RFC 1123 subdomain"]),
        ] {
            check(json!({"rules": [{"host": host}]}), expected);
        }
    }

    #[test]
    fn tls_and_class_are_names() {
        let of = |more: Value| {
            let mut spec = json!({"rules": [{}]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        check(of(json!({"tls": [{"hosts": ["*.a"], "secretName": "s"}], "ingressClassName": "c"})), &[]);
        check(
            of(json!({"tls": [{"hosts": ["*"], "secretName": "S"}]})),
            &["spec.tls[0].hosts[0]: Invalid value: \"*\"", "spec.tls[0].secretName: Invalid value: \"S\""],
        );
        check(
            of(json!({"ingressClassName": "d"})),
            &["annotations.kubernetes.io/ingress.class: Invalid value: \"c\": must match `ingressClassName`"],
        );
    }

    #[test]
    fn what_is_there_already_may_stay() {
        let wrong = json!({"service": {"name": "1s", "port": {"number": 80}}});
        let old = ingress(json!({"defaultBackend": wrong, "tls": [{"secretName": "S"}],
            "rules": [{"host": "*.a", "http": {"paths": [{"pathType": "Exact", "path": "a", "backend": wrong}]}}]}));
        assert_eq!(update(&old, &old), Errors::new());
        let fine = ingress(json!({"rules": [{"host": "a"}]}));
        assert_eq!(update(&old, &fine).len(), 4, "{:?}", update(&old, &fine));
    }
}
