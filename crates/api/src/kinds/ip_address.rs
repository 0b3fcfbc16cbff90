//! IPAddress: an address that is taken, and by which object.
//! Upstream counterpart: pkg/registry/networking/ipaddress.

use std::net::IpAddr;

use json::Value;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec};

use crate::kind::{Kind, Target, col, name};
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};
use crate::validation::internal_form;
use crate::validation::names::{self, NameRule};
use crate::validation::object_meta::invalid_at;

pub const IP_ADDRESS: Kind<IPAddress> = Kind {
    short: &["ip"],
    name: NameRule::Own,
    // The type has a reference in each spec, so one without is no spec.
    fit: Some(|address| {
        if address.pointer("/spec/parentRef").is_none_or(Value::is_null)
            && let Some(map) = address.as_object_mut()
        {
            map.remove("spec");
        }
    }),
    validate: Some(validate),
    validate_update: Some(validate_update),
    columns: &[name(), col("ParentRef", "The object that has the address.", |a, _| Value::from(parent(a)))],
    ..Kind::BASE
};

/// The name is the address, in its canonical form.
fn validate(address: &IPAddress) -> Errors {
    let text = address.metadata.name.as_deref().unwrap_or_default();
    let path = Path::new("metadata").child("name");
    let detail = match (text.parse::<IpAddr>(), ip::parse(text)) {
        (_, None) => Some(ip::BAD_IP.to_owned()),
        (Err(_), _) => Some("must not have leading 0s".to_owned()),
        (Ok(IpAddr::V6(v6)), _) if v6.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address".to_owned())
        }
        (Ok(ip), _) if ip.to_string() != text => Some(format!("must be in canonical form (\"{ip}\")")),
        _ => None,
    };
    let mut errors: Errors = detail.iter().map(|detail| FieldError::invalid(&path, text, detail)).collect();
    errors.extend(validate_parent(address.spec.as_ref()));
    errors
}

fn validate_parent(spec: Option<&IPAddressSpec>) -> Errors {
    let path = Path::new("spec").child("parentRef");
    let Some(parent) = spec.map(|s| &s.parent_ref) else {
        return vec![FieldError::required(&path, "")];
    };
    let mut errors = Errors::new();
    // The core group, that of Services, is the empty text.
    if let Some(group) = parent.group.as_deref().filter(|g| !g.is_empty()) {
        errors.extend(invalid_at(&path, "group", group, names::dns1123_subdomain(group)));
    }
    for (field, text) in [("resource", &parent.resource), ("name", &parent.name)] {
        if text.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        } else {
            errors.extend(invalid_at(&path, field, text, names::path_segment(text, false)));
        }
    }
    if let Some(namespace) = parent.namespace.as_deref().filter(|n| !n.is_empty()) {
        errors.extend(invalid_at(&path, "namespace", namespace, names::path_segment(namespace, false)));
    }
    errors
}

fn validate_update(new: &IPAddress, old: &IPAddress, _: Target) -> Errors {
    let reference = |address: &IPAddress| address.spec.as_ref().map(|s| s.parent_ref.clone()).unwrap_or_default();
    if reference(new) == reference(old) {
        return Errors::new();
    }
    let shown = internal_form::compact("ParentReference", reference(new));
    vec![FieldError::invalid_shown(&Path::new("spec").child("parentRef"), &shown, "field is immutable")]
}

fn parent(address: &IPAddress) -> String {
    let Some(parent) = address.spec.as_ref().map(|s| &s.parent_ref) else { return "<none>".to_owned() };
    let mut text = parent.resource.clone();
    if let Some(group) = parent.group.as_deref().filter(|g| !g.is_empty()) {
        text.push_str(&format!(".{group}"));
    }
    match parent.namespace.as_deref().filter(|n| !n.is_empty()) {
        Some(namespace) => format!("{text}/{namespace}/{}", parent.name),
        None => format!("{text}/{}", parent.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::built_in;
    use json::json;

    fn address(name: &str, parent: Value) -> IPAddress {
        json::from_value(json!({"metadata": {"name": name}, "spec": {"parentRef": parent}})).unwrap()
    }

    fn service() -> Value {
        json!({"resource": "services", "namespace": "d", "name": "s"})
    }

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_name_is_an_address_and_the_parent_an_object() {
        let check = |name: &str, parent: Value, expected: &[&str]| {
            assert_eq!(texts(validate(&address(name, parent.clone()))), expected, "{name} {parent}");
        };
        check("10.0.0.1", service(), &[]);
        check("fd00::1", json!({"group": "x.io", "resource": "gateways", "name": "g"}), &[]);
        let bad = |name: &str, why: &str| format!("metadata.name: Invalid value: \"{name}\": {why}");
        check("", service(), &[&bad("", ip::BAD_IP)]);
        check("nonsense", service(), &[&bad("nonsense", ip::BAD_IP)]);
        check("010.0.0.1", service(), &[&bad("010.0.0.1", "must not have leading 0s")]);
        let mapped = "must not be an IPv4-mapped IPv6 address";
        check("::ffff:10.0.0.1", service(), &[&bad("::ffff:10.0.0.1", mapped)]);
        check("FD00::1", service(), &[&bad("FD00::1", "must be in canonical form (\"fd00::1\")")]);
        let neither = ["spec.parentRef.resource: Required value", "spec.parentRef.name: Required value"];
        check("10.0.0.1", json!({}), &neither);
        check("10.0.0.1", json!({"resource": "", "name": ""}), &neither);
        check("10.0.0.1", json!({"resource": "services", "name": ""}), &["spec.parentRef.name: Required value"]);
        check("10.0.0.1", json!({"resource": "", "name": "s"}), &["spec.parentRef.resource: Required value"]);
        let slash = "may not contain '/'";
        check(
            "10.0.0.1",
            json!({"resource": "a/b", "namespace": "c/d", "name": "e/f"}),
            &[
                &format!("spec.parentRef.resource: Invalid value: \"a/b\": {slash}"),
                &format!("spec.parentRef.name: Invalid value: \"e/f\": {slash}"),
                &format!("spec.parentRef.namespace: Invalid value: \"c/d\": {slash}"),
            ],
        );
    }

    #[test]
    fn a_reference_that_is_missing_is_told_from_an_empty_one() {
        let strategy = &built_in().find("networking.k8s.io", "v1", "ipaddresses").expect("served").strategy;
        let check = |spec: Value, expected: &[&str]| {
            let mut address = json!({"metadata": {"name": "10.0.0.1"}, "spec": spec});
            strategy.default(&mut address);
            assert_eq!(texts(strategy.validate(&address)), expected, "{spec}");
        };
        check(Value::Null, &["spec.parentRef: Required value"]);
        check(json!({}), &["spec.parentRef: Required value"]);
        check(json!({"parentRef": null}), &["spec.parentRef: Required value"]);
        let neither = ["spec.parentRef.resource: Required value", "spec.parentRef.name: Required value"];
        check(json!({"parentRef": {}}), &neither);
        check(json!({"parentRef": service()}), &[]);
    }

    #[test]
    fn the_parent_stays() {
        let check = |new: Value, expected: &[&str]| {
            let (old, new) = (address("10.0.0.1", service()), address("10.0.0.1", new));
            assert_eq!(texts(validate_update(&new, &old, Target::Object)), expected);
        };
        check(service(), &[]);
        let shown = r#"{"Group":"","Resource":"services","Namespace":"d","Name":"t"}"#;
        check(
            json!({"resource": "services", "namespace": "d", "name": "t"}),
            &[&format!("spec.parentRef: Invalid value: {shown}: field is immutable")],
        );
    }
}
