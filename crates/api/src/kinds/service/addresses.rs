//! The addresses of a Service and the families that they are of: fields that have to agree with one another.
//! Upstream counterpart: ValidateServiceClusterIPsRelatedFields in pkg/apis/core/validation.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ServiceSpec;

use super::is_headless;
use crate::rules::ip;
use crate::validation::field::{Errors, FieldError, Path};

/// The fields that say which addresses a service has.
pub(super) fn validate(spec: &ServiceSpec, kind: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if kind == "ExternalName" {
        return errors;
    }
    let place = path.child("clusterIPs");
    let all = spec.cluster_ips.as_deref().unwrap_or_default();
    match (spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty()), all.first()) {
        (Some(_), None) => errors.push(FieldError::required(&place, "")),
        (Some(ip), Some(first)) if ip != first => {
            errors.push(FieldError::invalid(&place, all, "first value must match `clusterIP`"));
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(&place, all, "must be empty when `clusterIP` is not specified"));
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, family) in spec.ip_families.iter().flatten().enumerate() {
        let path = path.child("ipFamilies").index(i);
        if !matches!(family.as_str(), "IPv4" | "IPv6") {
            errors.push(FieldError::not_supported(&path, family, &["IPv4", "IPv6"]));
        }
        if !seen.insert(family) {
            errors.push(FieldError::duplicate(&path, family));
        }
    }
    let policies = &["PreferDualStack", "RequireDualStack", "SingleStack"];
    if let Some(policy) = spec.ip_family_policy.as_deref().filter(|p| !policies.contains(p)) {
        errors.push(FieldError::not_supported(&path.child("ipFamilyPolicy"), policy, policies));
    }
    let valid = errors.len();
    for (i, ip) in all.iter().enumerate() {
        if i == 0 && ip == "None" {
            if all.len() > 1 {
                errors.push(FieldError::invalid(&place, all, "'None' must be the first and only value"));
            }
        } else {
            errors.extend(ip::errors(ip, &place.index(i)));
        }
    }
    let readable = errors.len() == valid;
    if all.len() > 2 {
        errors.push(FieldError::invalid(&place, all, "may only hold up to 2 values"));
    }
    if !readable {
        return errors;
    }
    let parsed: Vec<IpAddr> = all.iter().filter_map(|ip| ip::parse(ip)).collect();
    if parsed.len() > 1 && parsed.iter().all(|ip| ip.is_ipv4() == parsed[0].is_ipv4()) {
        errors.push(FieldError::invalid(&place, all, "may specify no more than one IP for each IP family"));
    }
    for (i, (ip, family)) in parsed.iter().zip(spec.ip_families.iter().flatten()).enumerate() {
        if (family == "IPv4" && ip.is_ipv6()) || (family == "IPv6" && ip.is_ipv4()) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.push(FieldError::invalid(&place.index(i), &all[i], &detail));
        }
    }
    errors
}

/// Cluster IPs are for life; a second one may come and go.
pub(super) fn validate_update(after: &ServiceSpec, before: &ServiceSpec, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if !(is_headless(after) && is_headless(before)) {
        errors.extend(kept(&after.cluster_ips, &before.cluster_ips, after, "clusterIP", path));
    }
    if !is_headless(after) && !is_headless(before) {
        errors.extend(kept(&after.ip_families, &before.ip_families, after, "ipFamily", path));
    }
    errors
}

type List = Option<Vec<String>>;

/// The first of two values stays; the second may be given up by a service that says so.
fn kept(new: &List, old: &List, spec: &ServiceSpec, what: &str, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (now, before) = (new.as_deref().unwrap_or_default(), old.as_deref().unwrap_or_default());
    let field = if what == "clusterIP" { "clusterIPs" } else { "ipFamilies" };
    let mut wrong = |i: usize, shown: &[String], detail: &str| {
        errors.push(FieldError::invalid(&path.child(field).index(i), shown, detail));
    };
    let changed = "may not change once set";
    if now.len() == before.len() {
        let different = now.iter().zip(before).enumerate().filter(|(_, (a, b))| a != b);
        different.for_each(|(i, _)| wrong(if what == "clusterIP" { i } else { 0 }, now, changed));
        return errors;
    }
    // Upstream shows the addresses, also where the families are wrong.
    let shown = spec.cluster_ips.as_deref().unwrap_or_default();
    match (now.first(), before.first()) {
        (None, Some(_)) => wrong(0, now, &format!("primary {what} can not be unset")),
        (Some(a), Some(b)) if a != b => wrong(0, shown, changed),
        _ => {}
    }
    if now.len() == 1 && before.len() > 1 && spec.ip_family_policy.as_deref() != Some("SingleStack") {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.push(FieldError::invalid(&path.child("ipFamilyPolicy"), &spec.ip_family_policy, &detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use json::{Value, json};

    use super::*;

    fn texts(errors: Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_addresses_of_a_service_agree_with_one_another() {
        let check = |spec: Value, expected: &[&str]| {
            let spec: ServiceSpec = json::from_value(spec).unwrap();
            assert_eq!(texts(validate(&spec, "ClusterIP", &Path::new("spec"))), expected);
        };
        let both = |ips: &[&str]| json!({"clusterIP": ips[0], "clusterIPs": ips});
        let (two, each) = ("may only hold up to 2 values", "may specify no more than one IP for each IP family");
        let shown = r#"spec.clusterIPs: Invalid value: ["1.1.1.1","1.1.1.2","1.1.1.3"]"#;
        check(both(&["1.1.1.1", "1.1.1.2", "1.1.1.3"]), &[&format!("{shown}: {two}"), &format!("{shown}: {each}")]);
        let shown = r#"spec.clusterIPs: Invalid value: ["1.1.1.1","fd00::1","1.1.1.3"]"#;
        check(both(&["1.1.1.1", "fd00::1", "1.1.1.3"]), &[&format!("{shown}: {two}")]);
        check(both(&["1.1.1.1", "fd00::1"]), &[]);
    }

    #[test]
    fn addresses_are_for_life() {
        let with = |ips: &[&str]| -> ServiceSpec {
            json::from_value(json!({"type": "ClusterIP", "clusterIP": ips.first(), "clusterIPs": ips})).unwrap()
        };
        let check = |new: &ServiceSpec, old: &ServiceSpec, expected: &str| {
            assert_eq!(texts(validate_update(new, old, &Path::new("spec"))).join("; "), expected);
        };
        check(&with(&["1.1.1.1"]), &with(&["1.1.1.1"]), "");
        check(
            &with(&["1.1.1.2"]),
            &with(&["1.1.1.1"]),
            "spec.clusterIPs[0]: Invalid value: [\"1.1.1.2\"]: may not change once set",
        );
        check(
            &with(&[]),
            &with(&["1.1.1.1"]),
            "spec.clusterIPs[0]: Invalid value: []: primary clusterIP can not be unset",
        );
        check(
            &with(&["1.1.1.1"]),
            &with(&["1.1.1.1", "fd00::1"]),
            "spec.ipFamilyPolicy: Invalid value: null: must be set to 'SingleStack' when releasing the secondary clusterIP",
        );
    }
}
